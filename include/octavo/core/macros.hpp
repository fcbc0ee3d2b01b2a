/// @file
/// Marks for functions that also run on a GPU.
#pragma once

#if defined(__CUDACC__)
/// Callable on the host and inside CUDA kernels.
#define OCTAVO_HOST_DEVICE __host__ __device__
#else
#define OCTAVO_HOST_DEVICE
#endif
