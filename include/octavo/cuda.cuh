/// @file
/// The `Cuda` device: include it in files that nvcc compiles, before a model names `Cuda`.
#pragma once

#include <octavo/attention/cuda/attention.cuh>
#include <octavo/core/cuda/context.cuh>
#include <octavo/core/cuda/replay.cuh>
#include <octavo/gemm/cuda/matmul.cuh>
#include <octavo/kernels/cuda/kernels.cuh>
#include <octavo/layers/linear.hpp>
#include <octavo/memory/cuda/buffer.cuh>
