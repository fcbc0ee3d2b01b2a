/// @file
/// The parts of models and their training, for both devices; for files that nvcc compiles.
#pragma once

#if !defined(__CUDACC__)
#error "octavo/cuda.cuh is for files that nvcc compiles: name this one NAME.cu"
#else

#include <octavo/attention/cuda/attention.cuh>
#include <octavo/attention/cuda/cached_attention.cuh>
#include <octavo/attention/cuda/libraries.cuh>
#include <octavo/core/cuda/context.cuh>
#include <octavo/core/cuda/lane.cuh>
#include <octavo/core/cuda/replay.cuh>
#include <octavo/core/cuda/timeline.cuh>
#include <octavo/gemm/cuda/expert_gemms.cuh>
#include <octavo/gemm/cuda/few_rows.cuh>
#include <octavo/gemm/cuda/matmul.cuh>
#include <octavo/gemm/cuda/symmetric_gemms.cuh>
#include <octavo/kernels/cuda/kernels.cuh>
#include <octavo/memory/cuda/buffer.cuh>
#include <octavo/octavo.hpp>

#endif
