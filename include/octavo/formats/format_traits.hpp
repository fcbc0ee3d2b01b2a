/// @file
/// Compile-time properties of number formats.
#pragma once

#include <octavo/core/macros.hpp>

#include <cstdint>

namespace octavo OCTAVO_ABI {

/// FP32 storage, accumulation and, as a precision policy, the reference.
using Fp32 = float;

/// Properties of a format. Specialised for `Fp32`, `Bf16`, `E4M3`, `E5M2`, `E8M0` and `E2M1`:
/// `name`, `bits`, `exponent_bits`, `mantissa_bits`, `exponent_bias`, `max` (largest finite value),
/// `min_normal`, `smallest_subnormal`, `has_infinity`, `has_nan`.
template <class Format>
struct FormatTraits;

template <>
struct FormatTraits<Fp32> {
  static constexpr const char* name = "fp32";
  static constexpr int bits = 32;
  static constexpr int exponent_bits = 8;
  static constexpr int mantissa_bits = 23;
  static constexpr int exponent_bias = 127;
  static constexpr float max = 0x1.fffffep127f;
  static constexpr float min_normal = 0x1p-126f;
  static constexpr float smallest_subnormal = 0x1p-149f;
  static constexpr bool has_infinity = true;
  static constexpr bool has_nan = true;
};

/// Returns the bits of an FP32 number.
OCTAVO_HOST_DEVICE constexpr std::uint32_t float_bits(float value) {
  return __builtin_bit_cast(std::uint32_t, value);
}

/// Returns the FP32 number with these bits.
OCTAVO_HOST_DEVICE constexpr float float_from_bits(std::uint32_t bits) {
  return __builtin_bit_cast(float, bits);
}

/// Whether the value is neither Inf nor NaN.
OCTAVO_HOST_DEVICE constexpr bool is_finite(float value) {
  return (float_bits(value) & 0x7fffffffu) < 0x7f800000u;
}

/// Returns the largest power of two that is at most `value`, by clearing the mantissa. `value` must
/// be positive.
OCTAVO_HOST_DEVICE constexpr float power_of_two_floor(float value) {
  return float_from_bits(float_bits(value) & 0x7f800000u);
}

}  // namespace octavo
