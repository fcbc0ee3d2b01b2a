/// @file
/// Powers of two and of e as the GPU's own instruction makes them.
#pragma once

#include <octavo/core/cuda/architecture.cuh>

#include <cuda_runtime.h>

#include <numbers>

namespace octavo OCTAVO_ABI::detail {

/// log2(e): kernels raise two, not e, to a power.
inline constexpr float log2_e = std::numbers::log2e_v<float>;

/// 2^x with a relative error of 2^-22; 0 where FP32 is subnormal.
__device__ inline float fast_exp2(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

}  // namespace octavo::detail
