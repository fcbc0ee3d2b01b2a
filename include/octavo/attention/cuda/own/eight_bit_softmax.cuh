/// @file
/// The softmax of the 8-bit forward of the built-in attention.
#pragma once

#include <octavo/attention/cuda/own/block.cuh>
#include <octavo/attention/cuda/own/eight_bit_tiles.cuh>

#include <cmath>

namespace octavo OCTAVO_ABI::detail {

/// Returns the sum over the four threads that share rows.
__device__ inline float quad_sum(float value) {
  value += __shfl_xor_sync(0xffffffffu, value, 1);
  return value + __shfl_xor_sync(0xffffffffu, value, 2);
}

/// Running state of the thread's two rows. Sums cover the thread's own columns.
struct EightBitSoftmaxRows {
  float base[2] = {-INFINITY, -INFINITY};  ///< binary logarithm that exponentials are relative to
  float sum[2] = {0.0f, 0.0f};             ///< times 2^fp8_probability_exponent
  float rounded_sum[2] = {0.0f, 0.0f};     ///< of the same probabilities, rounded to E4M3
};

/// Rounds the factor of scores to 20 bits, so that its product with integer_bias, which
/// eight_bit_softmax_step subtracts, is exact.
__device__ inline float rounded_score_factor(float factor) {
  return __uint_as_float((__float_as_uint(factor) + 8u) & ~15u);
}

/// Converts scores, which are larger by integer_bias, to 2^(scale · score − base + 8), where base
/// is the integer at or above the largest exponent so far. Because it is an integer, rounding to
/// E4M3 does not depend on when the largest score is seen, except for probabilities that become
/// subnormal.
/// @param scores         see to_biased_floats
/// @tparam may_mask_all  a row may not have seen a key yet; its exponentials are then 0
/// @param factors        written: powers of two, the factors for the sums so far
template <bool may_mask_all, int n>
__device__ void eight_bit_softmax_step(Accumulator<n>& scores, float scale,
                                       EightBitSoftmaxRows& rows, float (&factors)[2]) {
  constexpr int half = n / 2;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float largest = -INFINITY;
#pragma unroll
    for (int i = 0; i < half; ++i) {
      if (i / 2 % 2 == h) largest = fmaxf(largest, scores.values[i]);
    }
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
    const float next = fmaxf(rows.base[h], ceilf((largest - integer_bias) * scale));
    const float base = may_mask_all && next == -INFINITY ? 0.0f : next;
    factors[h] = fast_exp2(rows.base[h] - base);
    rows.base[h] = next;
    const float shift = static_cast<float>(fp8_probability_exponent) - base - integer_bias * scale;
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < half; ++i) {
      if (i / 2 % 2 != h) continue;
      float& value = scores.values[i];
      value = fast_exp2(fmaf(value, scale, shift));
      sum += value;
    }
    rows.sum[h] = rows.sum[h] * factors[h] + sum;
  }
}

}  // namespace octavo::detail
