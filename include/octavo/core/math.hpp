/// @file
/// Elementary functions that compilers vectorise in plain loops.
#pragma once

#include <octavo/core/version.hpp>

#include <cstdint>

namespace octavo OCTAVO_ABI {

/// Computes e^x with a relative error below 2^-22. Clamped: 0 below −87.3, about 3e38 above 88; NaN
/// stays NaN. Unlike std::exp, it has no branches and no look-up tables. Source: Cody and Waite's
/// range reduction; coefficients as in the Cephes library's expf.
inline float fast_exp(float x) {
  const float clamped = x > 88.0f ? 88.0f : x;
  // Adding 1.5 · 2^23 leaves the nearest integer in the lower mantissa bits.
  const float shifted = clamped * 1.44269504f + 12582912.0f;
  const float n = shifted - 12582912.0f;
  const float r = (clamped - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const std::uint32_t exponent = __builtin_bit_cast(std::uint32_t, shifted) << 23;
  const float power = __builtin_bit_cast(float, exponent + 0x3f800000u);
  const float result = p * power;
  return x < -87.3f ? 0.0f : result;
}

}  // namespace octavo
