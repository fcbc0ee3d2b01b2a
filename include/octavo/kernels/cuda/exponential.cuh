/// @file
/// Powers of two and of e with the GPU's instruction.
#pragma once

#include <octavo/core/cuda/architecture.cuh>

#include <cuda_runtime.h>

#include <numbers>

namespace octavo OCTAVO_ABI::detail {

/// log2(e): kernels compute powers of 2 instead of e.
inline constexpr float log2_e = std::numbers::log2e_v<float>;

/// Returns 2^x with a relative error of 2^-22; 0 if FP32 would be subnormal.
__device__ inline float fast_exp2(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

}  // namespace octavo::detail
