/// @file
/// Eight bits for an element of an optimizer's moments: codes in groups that share a scale.
#pragma once

#include <octavo/formats/e8m0.hpp>

namespace octavo::inline OCTAVO_ABI {

/// An element of a moment in 8 bits. It stands for a level times the scale of its group, a power of
/// two. Levels grow as those of a floating-point format with 4 bits of mantissa do, but for an
/// offset that makes them evenly spaced near 0:
///
///     level(k) = (16 + k mod 16) · 2^⌊k / 16⌋ − 16  =  0, 1, 2, …, 16, 18, 20, …, 48, 52, …
///
/// - The first moment has a sign, bit 7, and k from 0 to 127: levels up to 3952.
/// - The second has no sign and k from 0 to 255: levels up to 1015792, because its range is that
///   of the first one's squares.
///
/// From level 16 on the step to the next one is 1/8 of a level or less, and 1/16 from 512 on. See
/// `FirstMomentCode` and `SecondMomentCode`.
/// Source: ITU-T G.711's mu-law, whose segments are these, but for half a step.
struct EightBit {
  std::uint8_t bits = 0;

  friend constexpr bool operator==(EightBit, EightBit) = default;  ///< Compares bits.
};

/// Of the format as a whole there is only its name: what bits stand for depends on the moment.
template <>
struct FormatTraits<EightBit> {
  static constexpr const char* name = "8-bit";
};

namespace detail {

/// Levels of one moment: see EightBit.
/// @tparam Segments  in each of which sixteen levels are evenly spaced
template <int Segments>
struct CompandedLevels {
  /// Mantissa bits of FP32 beyond those of the levels.
  static constexpr int shift = 19;
  static constexpr std::uint32_t largest_code = Segments * 16 - 1;
  static constexpr float largest = 31.0f * static_cast<float>(1 << (Segments - 1)) - 16.0f;

  /// The smallest power of two whose product with the largest level is at least `amax`, but at
  /// least 2^-127, and at most one with which that product is finite. So what is greater, Inf and
  /// NaN saturate.
  /// @param amax  of the group, from 0 on
  OCTAVO_HOST_DEVICE static constexpr E8M0 scale(float amax) {
    constexpr std::uint32_t mantissa = float_bits(largest) & 0x7fffffu;
    constexpr int exponent = static_cast<int>(float_bits(largest) >> 23) - 127;
    const std::uint32_t rounded_up = (float_bits(amax) + (0x7fffffu - mantissa)) >> 23;
    const int bits = static_cast<int>(rounded_up) - exponent;
    constexpr int most = 254 - exponent;
    return E8M0::from_bits(static_cast<std::uint8_t>(bits < 0 ? 0 : bits > most ? most : bits));
  }

  /// FP32's bits of 16 · scale: where the levels of the first segment would be without the offset.
  OCTAVO_HOST_DEVICE static constexpr std::uint32_t offset_bits(E8M0 scale) {
    return (static_cast<std::uint32_t>(scale.bits) + 4u) << 23;
  }

  OCTAVO_HOST_DEVICE static constexpr float decode(std::uint32_t code, E8M0 scale) {
    const std::uint32_t offset = offset_bits(scale);
    return float_from_bits((code << shift) + offset) - float_from_bits(offset);
  }

  /// Rounds |value| to one of its two neighbours with the probability that keeps the mean, to 2^-17
  /// of a step.
  /// @param random  the lower 16 bits are used
  OCTAVO_HOST_DEVICE static constexpr std::uint32_t encode(float value, E8M0 scale,
                                                           std::uint32_t random) {
    const std::uint32_t offset = offset_bits(scale);
    const float magnitude = float_from_bits(float_bits(value) & 0x7fffffffu);
    // Random bits in the upper 16 of the 19 that are dropped, in the middle of what the rest spans.
    const std::uint32_t added = ((random << 3) & 0x7fff8u) | 4u;
    const std::uint32_t sum = float_bits(magnitude + float_from_bits(offset)) - offset + added;
    const std::uint32_t code = sum >> shift;
    return code < largest_code ? code : largest_code;
  }
};

}  // namespace detail

/// Codes of the first moment.
struct FirstMomentCode {
  using Levels = detail::CompandedLevels<8>;

  OCTAVO_HOST_DEVICE static constexpr float decode(EightBit code, E8M0 scale) {
    const std::uint32_t sign = static_cast<std::uint32_t>(code.bits & 0x80u) << 24;
    return float_from_bits(sign | float_bits(Levels::decode(code.bits & 0x7fu, scale)));
  }
  /// @param random  the lower 16 bits are used
  OCTAVO_HOST_DEVICE static constexpr EightBit encode(float value, E8M0 scale,
                                                      std::uint32_t random) {
    const std::uint32_t sign = (float_bits(value) >> 24) & 0x80u;
    return {static_cast<std::uint8_t>(sign | Levels::encode(value, scale, random))};
  }
};

/// Codes of the second moment. What is not zero does not become zero: an update divides by its
/// root. Below one scale, 2^-20 of the group's largest, it becomes that, and its weight moves less.
struct SecondMomentCode {
  using Levels = detail::CompandedLevels<16>;

  OCTAVO_HOST_DEVICE static constexpr float decode(EightBit code, E8M0 scale) {
    return Levels::decode(code.bits, scale);
  }
  /// @param value   from 0 on
  /// @param random  the lower 16 bits are used
  OCTAVO_HOST_DEVICE static constexpr EightBit encode(float value, E8M0 scale,
                                                      std::uint32_t random) {
    const std::uint32_t code = Levels::encode(value, scale, random);
    return {static_cast<std::uint8_t>(code == 0 && value > 0.0f ? 1u : code)};
  }
};

}  // namespace octavo
