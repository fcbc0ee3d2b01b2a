/// @file
/// The rounding of the FP8 forward of attention on the `Cpu` device.
#pragma once

#include <octavo/attention/attention_shape.hpp>
#include <octavo/attention/fp8.hpp>
#include <octavo/core/math.hpp>
#include <octavo/kernels/cpu/vector.hpp>
#include <octavo/tensor/tensor.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>

namespace octavo OCTAVO_ABI::detail {

/// Whether a pass multiplies in FP8.
constexpr bool runs_in_fp8(AttentionPass pass, const AttentionShape& shape) {
  return pass == AttentionPass::forward && shape.options.forward == AttentionForward::fp8;
}

/// Replaces queries, keys and values by the numbers that their E4M3 codes and scales represent.
/// These numbers are values of `T`, and rounding them again does not change them.
template <class T>
void round_to_fp8(const AttentionShape& shape, TensorView<T, 2, Cpu> qkv,
                  const Context<Cpu>& context) {
  const Index dim = shape.heads.head_dim;
  const Index columns = shape.heads.columns();
  const Index tiles = ceil_divide(shape.tokens, fp8_attention_rows);
  parallel_for(shape.sequences * tiles, fp8_attention_rows * columns, context, [&](Index i) {
    const Index token = i % tiles * fp8_attention_rows;
    const Index first = i / tiles * shape.tokens + token;
    const Index rows = std::min(fp8_attention_rows, shape.tokens - token);
    for (Index head = 0; head < columns / dim; ++head) {
      T* const values = qkv.row(first) + head * dim;
      std::uint32_t amax_bits = 0;
      for (Index r = 0; r < rows; ++r) {
        for (Index c = 0; c < dim; ++c) {
          const auto value = static_cast<float>(values[r * columns + c]);
          amax_bits = std::max(amax_bits, float_bits(value) & 0x7fffffffu);
        }
      }
      const float scale = fp8_attention_scale(float_from_bits(amax_bits));
      const float inverse = power_of_two_inverse(scale);
      for (Index r = 0; r < rows; ++r) {
        for (Index c = 0; c < dim; ++c) {
          const auto value = static_cast<float>(values[r * columns + c]);
          values[r * columns + c] = T(static_cast<float>(E4M3(value * scale)) * inverse);
        }
      }
    }
  });
}

/// Sets scores[r, c] = p / Σ p for the keys that a query attends to, and 0 for the others, where p
/// = exp(score − base) is rounded to E4M3. The base is 2^-8 times the power of two at or above the
/// largest exponential.
/// @param keys    the `BlockKeys` of the queries
/// @param scores  [rows, keys.count]
template <class Keys>
void scores_to_fp8_probabilities(float* scores, const Keys& keys, Index rows) {
  for (Index r = 0; r < rows; ++r) {
    float* row = scores + r * keys.count;
    const Index begin = keys.visible_begin(r);
    const Index end = keys.visible_end(r);
    const float largest = lane_max(end - begin, [&](Index c) { return row[begin + c]; });
    const float exponent = std::ceil(largest * std::numbers::log2e_v<float>);
    const float base =
        (exponent - static_cast<float>(fp8_probability_exponent)) * std::numbers::ln2_v<float>;
    std::fill(row, row + begin, 0.0f);
    float sum = 0.0f;
    for (Index c = begin; c < end; ++c) {
      row[c] = static_cast<float>(E4M3(fast_exp(row[c] - base)));
      sum += row[c];
    }
    for (Index c = begin; c < end; ++c) row[c] /= sum;
    std::fill(row + end, row + keys.count, 0.0f);
  }
}

}  // namespace octavo::detail
