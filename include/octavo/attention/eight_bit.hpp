/// @file
/// The 8-bit forward of attention: its rotation and its scales, which are the same on all devices.
/// See `EightBitForward`.
#pragma once

#include <octavo/formats/fp8.hpp>
#include <octavo/kernels/scale.hpp>

#include <algorithm>

namespace octavo OCTAVO_ABI {

/// Tokens of a sequence that share a scale for each head of queries, keys or values.
inline constexpr Index eight_bit_attention_rows = 128;

/// Power of two by which probabilities are multiplied before they are rounded to E4M3. They are
/// relative to the power of two at or above the largest one, so they are at most 1.
inline constexpr int fp8_probability_exponent = 8;

/// Largest magnitude of an INT8 code.
inline constexpr float int8_code_max = 127.0f;

/// Returns how many neighbouring channels of a head are rotated by one Hadamard matrix: the largest
/// power of two that divides `head_dim`.
OCTAVO_HOST_DEVICE constexpr int rotation_size(Index head_dim) {
  return static_cast<int>(head_dim & -head_dim);
}

/// The scale of 128 tokens of one head of values or of rotated queries or keys, and its inverse.
/// Its bounds keep products of scales finite in FP32. Finite numbers above `largest` · 2^40
/// saturate: see `EightBitForward`.
struct EightBitScale {
  float scale;    ///< largest / amax rounded down to a power of two, between 2^-40 and 2^40
  float inverse;  ///< NaN if `amax` is Inf or NaN, which codes cannot represent

  /// @param largest  magnitude of a code: 448 for values, `int8_code_max` for queries and keys
  OCTAVO_HOST_DEVICE EightBitScale(float largest, float amax) {
    constexpr float most = 0x1p40f;
    scale = current_scale(largest, amax, true);
    if (scale > most) scale = most;
    if (scale < 1.0f / most) scale = 1.0f / most;
    inverse = is_finite(amax) ? power_of_two_inverse(scale) : amax - amax;
  }
};

}  // namespace octavo
