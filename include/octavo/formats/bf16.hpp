/// @file
/// BF16: FP32's exponent with a 7-bit mantissa.
#pragma once

#include <octavo/formats/format_traits.hpp>

namespace octavo OCTAVO_ABI {

/// A BF16 number; as a precision policy, BF16 storage and GEMMs.
struct Bf16 {
  std::uint16_t bits = 0;

  constexpr Bf16() = default;
  /// Rounds to nearest-even; overflows to Inf; NaN becomes 0x7fff.
  OCTAVO_HOST_DEVICE explicit constexpr Bf16(float value) : bits(round_nearest(value)) {}

  OCTAVO_HOST_DEVICE static constexpr Bf16 from_bits(std::uint16_t bits) {
    Bf16 result;
    result.bits = bits;
    return result;
  }

  /// Rounds up or down at random so that the mean is preserved, saturating at the largest finite
  /// value; Inf and NaN are unchanged.
  /// @param random  the lower 16 bits are used
  [[nodiscard]] OCTAVO_HOST_DEVICE static constexpr Bf16 stochastic(float value,
                                                                    std::uint32_t random) {
    if (!is_finite(value)) return Bf16(value);
    const std::uint32_t source = float_bits(value);
    const std::uint32_t rounded = source + (random & 0xffffu);
    const bool overflow = (rounded & 0x7f800000u) == 0x7f800000u;
    return from_bits(static_cast<std::uint16_t>(overflow ? ((source >> 16) & 0x8000u) | 0x7f7fu
                                                         : rounded >> 16));
  }

  OCTAVO_HOST_DEVICE explicit constexpr operator float() const {
    return float_from_bits(static_cast<std::uint32_t>(bits) << 16);
  }

  friend constexpr bool operator==(Bf16, Bf16) = default;  ///< Compares bits.

 private:
  OCTAVO_HOST_DEVICE static constexpr std::uint16_t round_nearest(float value) {
    const std::uint32_t source = float_bits(value);
    const std::uint32_t rounded = (source + 0x7fffu + ((source >> 16) & 1u)) >> 16;
    return static_cast<std::uint16_t>((source & 0x7fffffffu) > 0x7f800000u ? 0x7fffu : rounded);
  }
};

template <>
struct FormatTraits<Bf16> {
  static constexpr const char* name = "bf16";
  static constexpr int bits = 16;
  static constexpr int exponent_bits = 8;
  static constexpr int mantissa_bits = 7;
  static constexpr int exponent_bias = 127;
  static constexpr float max = 0x1.fep127f;
  static constexpr float min_normal = 0x1p-126f;
  static constexpr float smallest_subnormal = 0x1p-133f;
  static constexpr bool has_infinity = true;
  static constexpr bool has_nan = true;
};

}  // namespace octavo
