/// @file
/// Rotation and rounding in the 8-bit forward of attention on the `Cpu` device.
#pragma once

#include <octavo/attention/attention_shape.hpp>
#include <octavo/attention/eight_bit.hpp>
#include <octavo/core/math.hpp>
#include <octavo/kernels/cpu/sums.hpp>
#include <octavo/tensor/tensor.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>

namespace octavo OCTAVO_ABI::detail {

/// Multiplies groups of `size` values by a Hadamard matrix of ±1. Twice, it multiplies them by
/// `size`.
/// @param size  a power of two that divides `count`
inline void rotate(float* values, Index count, Index size) {
  for (Index distance = 1; distance < size; distance *= 2) {
    for (Index begin = 0; begin < count; begin += 2 * distance) {
      for (Index i = begin; i < begin + distance; ++i) {
        const float a = values[i];
        const float b = values[i + distance];
        values[i] = a + b;
        values[i + distance] = a - b;
      }
    }
  }
}

/// The contents of a fused head.
enum class HeadKind { query, key, value };

/// Returns the kind of a head of a fused row.
constexpr HeadKind kind_of_head(const HeadLayout& heads, Index head) {
  if (head < heads.heads) return HeadKind::query;
  return head < heads.heads + heads.kv_heads ? HeadKind::key : HeadKind::value;
}

/// Rounds a tile of one head to 8 bits. Values become the numbers that their E4M3 codes represent.
/// Queries and keys are rotated first, and become those of INT8 codes. Queries are then divided by
/// rotation_size, so that the products with keys are those of unrotated values. All results are
/// values of BF16.
/// @param tile  [rows, dim]
inline void round_to_8_bits(HeadKind kind, Index rows, Index dim, float* tile) {
  const Index size = rotation_size(dim);
  const Index count = rows * dim;
  const bool rotates = kind != HeadKind::value;
  if (rotates) rotate(tile, count, size);
  std::uint32_t amax_bits = 0;
  for (Index i = 0; i < count; ++i) {
    amax_bits = std::max(amax_bits, float_bits(tile[i]) & 0x7fffffffu);
  }
  const float amax = float_from_bits(amax_bits);
  const EightBitScale scale(rotates ? int8_code_max : FormatTraits<E4M3>::max, amax);
  if (rotates) {
    const float divisor = kind == HeadKind::query ? static_cast<float>(size) : 1.0f;
    const float factor = scale.inverse / divisor;
    for (Index i = 0; i < count; ++i) {
      const float code = std::nearbyint(tile[i] * scale.scale);
      tile[i] = std::clamp(code, -int8_code_max, int8_code_max) * factor;
    }
  } else {
    for (Index i = 0; i < count; ++i) {
      tile[i] = static_cast<float>(E4M3(tile[i] * scale.scale)) * scale.inverse;
    }
  }
}

/// Converts gradients of rotated queries or keys to those of queries or keys.
/// @param tile  [rows, dim]
inline void rotate_gradients(HeadKind kind, Index rows, Index dim, float* tile) {
  if (kind == HeadKind::value) return;
  const Index size = rotation_size(dim);
  rotate(tile, rows * dim, size);
  if (kind == HeadKind::key) return;
  for (Index i = 0; i < rows * dim; ++i) tile[i] /= static_cast<float>(size);
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
