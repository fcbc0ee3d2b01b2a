/// @file
/// E8M0: a power of two, the scale of a block in the MX formats.
/// Source: OCP Microscaling Formats (MX) 1.0.
#pragma once

#include <octavo/formats/format_traits.hpp>

namespace octavo OCTAVO_ABI {

/// 2^(bits − 127); 0xff is NaN. There is no zero and no sign.
struct E8M0 {
  std::uint8_t bits = 0;

  constexpr E8M0() = default;

  /// Rounds up to the smallest power of two that is at least |value|, so that a block's largest
  /// value does not overflow. NaN becomes 0xff; Inf and overflow become 0xfe; 0 becomes 2^-127.
  OCTAVO_HOST_DEVICE explicit constexpr E8M0(float value) {
    const std::uint32_t source = float_bits(value) & 0x7fffffffu;
    const std::uint32_t exponent = source >> 23;
    const std::uint32_t mantissa = source & 0x7fffffu;
    // Below 2^-126, only values above 2^-127 round up to 2^-126.
    const bool up = exponent == 0 ? mantissa > 0x400000u : mantissa != 0;
    const std::uint32_t rounded = exponent + (up ? 1u : 0u);
    bits = static_cast<std::uint8_t>(source > 0x7f800000u ? 0xffu
                                     : rounded > 0xfeu    ? 0xfeu
                                                          : rounded);
  }

  OCTAVO_HOST_DEVICE static constexpr E8M0 from_bits(std::uint8_t bits) {
    E8M0 result;
    result.bits = bits;
    return result;
  }

  OCTAVO_HOST_DEVICE explicit constexpr operator float() const {
    const std::uint32_t normal = static_cast<std::uint32_t>(bits) << 23;
    return float_from_bits(bits == 0xffu ? 0x7fc00000u : bits == 0 ? 0x00400000u : normal);
  }

  friend constexpr bool operator==(E8M0, E8M0) = default;  ///< Compares bits.
};

template <>
struct FormatTraits<E8M0> {
  static constexpr const char* name = "E8M0";
  static constexpr int bits = 8;
  static constexpr int exponent_bits = 8;
  static constexpr int mantissa_bits = 0;
  static constexpr int exponent_bias = 127;
  static constexpr float max = 0x1p127f;
  static constexpr float min_normal = 0x1p-127f;
  static constexpr float smallest_subnormal = 0x1p-127f;
  static constexpr bool has_infinity = false;
  static constexpr bool has_nan = true;
};

}  // namespace octavo
