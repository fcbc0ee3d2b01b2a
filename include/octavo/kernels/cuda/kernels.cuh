/// @file
/// Every kernel implementation for the `Cuda` device.
#pragma once

#include <octavo/kernels/cuda/adamw.cuh>
#include <octavo/kernels/cuda/adamw_eight_bit.cuh>
#include <octavo/kernels/cuda/adapter.cuh>
#include <octavo/kernels/cuda/bias.cuh>
#include <octavo/kernels/cuda/cross_entropy.cuh>
#include <octavo/kernels/cuda/dequantize.cuh>
#include <octavo/kernels/cuda/embedding.cuh>
#include <octavo/kernels/cuda/fp8_weights.cuh>
#include <octavo/kernels/cuda/gelu.cuh>
#include <octavo/kernels/cuda/hash.cuh>
#include <octavo/kernels/cuda/initialize.cuh>
#include <octavo/kernels/cuda/key_value_cache.cuh>
#include <octavo/kernels/cuda/layer_norm.cuh>
#include <octavo/kernels/cuda/layer_norm_backward.cuh>
#include <octavo/kernels/cuda/muon.cuh>
#include <octavo/kernels/cuda/packed_parts.cuh>
#include <octavo/kernels/cuda/positions.cuh>
#include <octavo/kernels/cuda/quantize.cuh>
#include <octavo/kernels/cuda/rank_sums.cuh>
#include <octavo/kernels/cuda/rms_norm.cuh>
#include <octavo/kernels/cuda/rope.cuh>
#include <octavo/kernels/cuda/step_status.cuh>
#include <octavo/kernels/cuda/swiglu.cuh>
#include <octavo/kernels/cuda/vocabulary_parallel.cuh>
