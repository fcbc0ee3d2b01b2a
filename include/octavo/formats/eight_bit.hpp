/// @file
/// 8-bit codes for an optimizer's moments, in groups that share a scale.
#pragma once

#include <octavo/formats/e8m0.hpp>

#include <cmath>

namespace octavo OCTAVO_ABI {

/// An element of a moment in 8 bits. It represents a level times the scale of its group, a power of
/// two. The levels are those of a floating-point format with 4 bits of mantissa, minus an offset
/// that makes them evenly spaced near 0:
///
///     level(k) = (16 + k mod 16) · 2^⌊k / 16⌋ − 16  =  0, 1, 2, …, 16, 18, 20, …, 48, 52, …
///
/// - The first moment has a sign, bit 7, and k from 0 to 127: levels up to 3952.
/// - The second has no sign and k from 0 to 255: levels up to 1015792, because its range is that
///   of the first one's squares.
///
/// From level 16 on, the step to the next level is at most 1/8 of a level, and from 512 on about
/// 1/16. See `FirstMomentCode` and `SecondMomentCode`.
/// Source: ITU-T G.711's mu-law, which has the same segments, except for half a step.
struct EightBit {
  std::uint8_t bits = 0;

  /// Returns the code in the upper 8 bits of a word.
  OCTAVO_HOST_DEVICE static constexpr EightBit upper(std::uint32_t word) {
    return {static_cast<std::uint8_t>(word >> 24)};
  }

  friend constexpr bool operator==(EightBit, EightBit) = default;  ///< Compares bits.
};

/// Contains only the format's name, because the meaning of the bits depends on the moment.
template <>
struct FormatTraits<EightBit> {
  static constexpr const char* name = "8-bit";
};

namespace detail {

/// Returns a · 2^left + c. nvcc would otherwise shift before it masks `a` and add afterwards, which
/// takes one more instruction.
OCTAVO_HOST_DEVICE constexpr std::uint32_t shifted_sum(std::uint32_t a, int left, std::uint32_t c) {
#if defined(__CUDA_ARCH__)
  if (!__builtin_is_constant_evaluated()) {
    std::uint32_t sum = 0;
    asm("mad.lo.u32 %0, %1, %2, %3;" : "=r"(sum) : "r"(a), "r"(1u << left), "r"(c));
    return sum;
  }
#endif
  return (a << left) + c;
}

/// The levels of one moment: see EightBit.
/// @tparam Segments  number of segments, each with sixteen evenly spaced levels
template <int Segments>
struct CompandedLevels {
  static constexpr std::uint32_t largest_code = Segments * 16 - 1;
  static constexpr float largest = 31.0f * static_cast<float>(1 << (Segments - 1)) - 16.0f;
  /// The largest scale is the largest power of two whose product with the largest level is finite:
  /// 2^(this − 127).
  static constexpr int max_scale = 254 - (static_cast<int>(float_bits(largest) >> 23) - 127);
  /// The largest magnitude that a code represents. Larger values saturate.
  static constexpr float largest_magnitude =
      largest * float_from_bits(static_cast<std::uint32_t>(max_scale) << 23);
  /// Number of FP32 mantissa bits after those of a level.
  static constexpr int shift = 19;

  /// Returns the smallest power of two whose product with the largest level is at least `amax`,
  /// clamped between 2^-127 and the largest scale.
  /// @param amax  of the group, non-negative
  OCTAVO_HOST_DEVICE static constexpr E8M0 scale(float amax) {
    constexpr std::uint32_t mantissa = float_bits(largest) & 0x7fffffu;
    constexpr int exponent = static_cast<int>(float_bits(largest) >> 23) - 127;
    const std::uint32_t rounded_up = (float_bits(amax) + (0x7fffffu - mantissa)) >> 23;
    const int wanted = static_cast<int>(rounded_up) - exponent;
    const int bits = wanted < 0 ? 0 : wanted > max_scale ? max_scale : wanted;
    return E8M0::from_bits(static_cast<std::uint8_t>(bits));
  }

  /// Returns the FP32 bits of the offset, 16 · scale: the sum of a level and the offset is a float
  /// with 4 bits of mantissa.
  OCTAVO_HOST_DEVICE static constexpr std::uint32_t offset_bits(E8M0 scale) {
    return (static_cast<std::uint32_t>(scale.bits) + 4u) << 23;
  }

  /// Returns the value of the code in one byte of a word.
  /// @param word  all other bytes are zero
  OCTAVO_HOST_DEVICE static constexpr float decode(std::uint32_t word, int byte, E8M0 scale) {
    const std::uint32_t offset = offset_bits(scale);
    const int left = shift - 8 * byte;
    const std::uint32_t sum = left < 0 ? (word >> -left) + offset : shifted_sum(word, left, offset);
    return float_from_bits(sum) - float_from_bits(offset);
  }

  /// Clamps a magnitude to the largest that codes with this scale represent; NaN becomes that
  /// value.
  OCTAVO_HOST_DEVICE static float saturated(float magnitude, E8M0 scale) {
    const std::uint32_t offset = offset_bits(scale);
    const std::uint32_t most = offset + (largest_code << shift);
    return fminf(magnitude, float_from_bits(most) - float_from_bits(offset));
  }

  /// Rounds a magnitude to one of the two adjacent codes at random, so that the mean is preserved.
  /// @param magnitude  at most the largest that codes with this scale represent: see saturated
  /// @param least      minimum value of the code, as FP32 bits above those of the offset
  /// @param random     the upper 24 bits are used
  /// @return           the code, in the upper 8 bits
  OCTAVO_HOST_DEVICE static constexpr std::uint32_t encode(float magnitude, E8M0 scale,
                                                           std::uint32_t least,
                                                           std::uint32_t random) {
    const std::uint32_t offset = offset_bits(scale);
    const std::uint32_t above = float_bits(magnitude + float_from_bits(offset)) - offset;
    const std::uint32_t raised = above > least ? above : least;
    return (raised << (24 - shift)) + (random >> 8);
  }
};

}  // namespace detail

/// The codes of a first moment.
struct FirstMomentCode {
  using Levels = detail::CompandedLevels<8>;

  OCTAVO_HOST_DEVICE static constexpr float decode(EightBit code, E8M0 scale) {
    return decode(code.bits, 0, scale);
  }
  /// Returns the value of one of the four codes in a word, selected by its byte, 0 to 3.
  OCTAVO_HOST_DEVICE static constexpr float decode(std::uint32_t word, int byte, E8M0 scale) {
    const std::uint32_t sign = word << (24 - 8 * byte) & 0x80000000u;
    return float_from_bits(sign |
                           float_bits(Levels::decode(word & 0x7fu << 8 * byte, byte, scale)));
  }
  /// Converts a value that may be too large, Inf or NaN for `encode`.
  OCTAVO_HOST_DEVICE static float saturated(float value, E8M0 scale) {
    return copysignf(Levels::saturated(fabsf(value), scale), value);
  }
  /// @param value   with a magnitude that the scale allows: see saturated
  /// @param random  the upper 24 bits are used
  /// @return        the code, in the upper 8 bits
  OCTAVO_HOST_DEVICE static std::uint32_t encode(float value, E8M0 scale, std::uint32_t random) {
    return (float_bits(value) & 0x80000000u) | Levels::encode(fabsf(value), scale, 0, random);
  }
};

/// The codes of a second moment. Values of at least 2^-130 do not become zero, because an update
/// divides by the root: values below one scale, 2^-20 of the group's largest, become one scale.
struct SecondMomentCode {
  using Levels = detail::CompandedLevels<16>;

  OCTAVO_HOST_DEVICE static constexpr float decode(EightBit code, E8M0 scale) {
    return decode(code.bits, 0, scale);
  }
  /// Returns the value of one of the four codes in a word, selected by its byte, 0 to 3.
  OCTAVO_HOST_DEVICE static constexpr float decode(std::uint32_t word, int byte, E8M0 scale) {
    return Levels::decode(word & 0xffu << 8 * byte, byte, scale);
  }
  /// Converts a value that may be too large, Inf or NaN for `encode`.
  OCTAVO_HOST_DEVICE static float saturated(float value, E8M0 scale) {
    return Levels::saturated(value, scale);
  }
  /// @param value   from 0 to the largest that the scale allows: see saturated
  /// @param random  the upper 24 bits are used
  /// @return        the code, in the upper 8 bits
  OCTAVO_HOST_DEVICE static constexpr std::uint32_t encode(float value, E8M0 scale,
                                                           std::uint32_t random) {
    constexpr std::uint32_t one = 1u << Levels::shift;  // also the bits of 2^-130
    const std::uint32_t bits = float_bits(value);
    return Levels::encode(value, scale, bits < one ? bits : one, random);
  }
};

}  // namespace octavo
