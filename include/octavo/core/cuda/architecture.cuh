/// @file
/// Refuses to compile kernels for a GPU that they are not written for; every header with kernels
/// includes it. They use instructions that only sm_90a has; plain sm_90 and every other GPU lack
/// them.
#pragma once

#include <octavo/core/version.hpp>

// Checked only when device code is compiled: the host pass has no architecture.
#if defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
#error \
    "Octavo's kernels are for sm_90a alone: pass nvcc -gencode=arch=compute_90a,code=sm_90a \
(newer ones add plain sm_90 to -arch=sm_90a), or set CMAKE_CUDA_ARCHITECTURES to 90a"
#endif
