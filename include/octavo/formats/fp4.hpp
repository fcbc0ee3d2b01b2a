/// @file
/// E2M1: the 4-bit floating-point format of MXFP4 and NVFP4.
/// Source: OCP Microscaling Formats (MX) 1.0.
#pragma once

#include <octavo/formats/small_float.hpp>

namespace octavo OCTAVO_ABI {

struct E2M1;

template <>
struct FormatTraits<E2M1> {
  static constexpr const char* name = "E2M1";
  static constexpr int bits = 4;
  static constexpr int exponent_bits = 2;
  static constexpr int mantissa_bits = 1;
  static constexpr int exponent_bias = 1;
  static constexpr float max = 6.0f;
  static constexpr float min_normal = 1.0f;
  static constexpr float smallest_subnormal = 0.5f;
  static constexpr bool has_infinity = false;
  static constexpr bool has_nan = false;
};

/// 2 bits of exponent, 1 of mantissa, no Inf and no NaN: 0, 0.5, 1, 1.5, 2, 3, 4, 6.
struct E2M1 {
  std::uint8_t bits = 0;  ///< the lower four bits

  constexpr E2M1() = default;
  /// Rounds to nearest-even, saturating; NaN becomes +6.
  OCTAVO_HOST_DEVICE explicit constexpr E2M1(float value) {
    const std::uint32_t sign = (float_bits(value) >> 28) & 0x8u;
    const bool nan = (float_bits(value) & 0x7fffffffu) > 0x7f800000u;
    bits = static_cast<std::uint8_t>(nan ? 0x7u : sign | detail::encode_magnitude<E2M1>(value));
  }

  /// Rounds to one of the two adjacent numbers at random, so that the mean is preserved to 2^-17 of
  /// their distance; saturates, and NaN becomes +6.
  /// @param random  the lower 16 bits are used
  OCTAVO_HOST_DEVICE static constexpr E2M1 rounded_stochastically(float value,
                                                                  std::uint32_t random) {
    const std::uint32_t magnitude_bits = float_bits(value) & 0x7fffffffu;
    if (magnitude_bits >= float_bits(FormatTraits<E2M1>::max)) return E2M1(value);
    const float magnitude = float_from_bits(magnitude_bits);
    const float distance = magnitude < 2.0f ? 0.5f : magnitude < 4.0f ? 1.0f : 2.0f;
    const float levels = magnitude / distance;  // exact: the distance is a power of two
    const float below = static_cast<float>(static_cast<int>(levels));
    const bool up = (levels - below) * 0x1p16f > static_cast<float>(random & 0xffffu) + 0.5f;
    const std::uint32_t sign = (float_bits(value) >> 28) & 0x8u;
    const float rounded = (up ? below + 1.0f : below) * distance;
    return from_bits(static_cast<std::uint8_t>(sign | detail::encode_magnitude<E2M1>(rounded)));
  }

  OCTAVO_HOST_DEVICE static constexpr E2M1 from_bits(std::uint8_t bits) {
    E2M1 result;
    result.bits = bits & 0xfu;
    return result;
  }

  OCTAVO_HOST_DEVICE explicit constexpr operator float() const {
    const float value = detail::decode_magnitude<E2M1>(bits & 0x7u);
    return float_from_bits((static_cast<std::uint32_t>(bits & 0x8u) << 28) | float_bits(value));
  }

  friend constexpr bool operator==(E2M1, E2M1) = default;  ///< Compares bits.
};

}  // namespace octavo
