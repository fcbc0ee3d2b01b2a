/// @file
/// Refuses to compile kernels for a GPU that they are not made for; every header with kernels
/// includes it. They use instructions that sm_90a alone has: plain sm_90 lacks them, as every other
/// GPU does.
#pragma once

#include <octavo/core/version.hpp>

// Only where code for a GPU is compiled: the host's pass knows no architecture.
#if defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
#error \
    "Octavo's kernels are for sm_90a alone: pass nvcc -gencode=arch=compute_90a,code=sm_90a \
(newer ones add plain sm_90 to -arch=sm_90a), or set CMAKE_CUDA_ARCHITECTURES to 90a"
#endif
