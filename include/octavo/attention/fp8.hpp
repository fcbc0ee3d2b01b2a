/// @file
/// The FP8 forward of attention: its scales, which are the same on all devices.
#pragma once

#include <octavo/formats/fp8.hpp>
#include <octavo/kernels/scale.hpp>

#include <algorithm>

namespace octavo OCTAVO_ABI {

/// Tokens of a sequence that share a scale for each head of queries, keys or values.
inline constexpr Index fp8_attention_rows = 128;

/// Power of two by which probabilities are multiplied before they are rounded to E4M3. They are
/// relative to the power of two at or above the largest one, so they are at most 1.
inline constexpr int fp8_probability_exponent = 8;

/// Returns the scale of 128 tokens of one head: 448 / amax rounded down to a power of two, between
/// 2^-40 and 2^40; 1 if `amax` is 0, Inf or NaN.
OCTAVO_HOST_DEVICE inline float fp8_attention_scale(float amax) {
  constexpr float most = 0x1p40f;
  const float scale = current_scale(FormatTraits<E4M3>::max, amax, true);
  if (scale > most) return most;
  return scale < 1.0f / most ? 1.0f / most : scale;
}

}  // namespace octavo
