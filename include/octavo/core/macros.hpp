/// @file
/// Marks for functions that also run on a GPU, and for deprecated names.
#pragma once

#include <octavo/core/version.hpp>

#if __cplusplus < 202002L
#error "Octavo needs C++20: compile with -std=c++20"
#endif

#if defined(__CUDACC__)
/// Callable on the host and inside CUDA kernels.
#define OCTAVO_HOST_DEVICE __host__ __device__
#else
#define OCTAVO_HOST_DEVICE
#endif

/// Marks a name that the next minor version removes. Compilers warn about its use and print
/// `advice`, such as "use FlatParameters". See docs/stability.md.
#if defined(OCTAVO_NO_DEPRECATION_WARNINGS)
#define OCTAVO_DEPRECATED(advice)
#else
#define OCTAVO_DEPRECATED(advice) [[deprecated(advice)]]
#endif
