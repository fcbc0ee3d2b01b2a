/// @file
/// Rounding to and from small floating-point formats, shared by `E4M3`, `E5M2` and `E2M1`.
#pragma once

#include <octavo/formats/format_traits.hpp>

namespace octavo OCTAVO_ABI::detail {

/// Returns the float 2^exponent, for normal exponents.
OCTAVO_HOST_DEVICE constexpr float power_of_two(int exponent) {
  return float_from_bits(static_cast<std::uint32_t>(exponent + 127) << 23);
}

/// Encodes |value| without its sign, rounding to nearest-even and saturating; the caller handles
/// NaN. Branch-free, so that compilers vectorise it.
template <class Format>
OCTAVO_HOST_DEVICE constexpr std::uint32_t encode_magnitude(float value) {
  using Traits = FormatTraits<Format>;
  constexpr int shift = 23 - Traits::mantissa_bits;
  constexpr std::uint32_t rebias = static_cast<std::uint32_t>(127 - Traits::exponent_bias)
                                   << Traits::mantissa_bits;
  const std::uint32_t source = float_bits(value) & 0x7fffffffu;
  const std::uint32_t half = (1u << (shift - 1)) - 1u + ((source >> shift) & 1u);
  const std::uint32_t normal = ((source + half) >> shift) - rebias;
  // Rounds a subnormal in hardware, by adding a number whose last place is the smallest subnormal.
  constexpr float aligner = power_of_two(24 - Traits::exponent_bias - Traits::mantissa_bits);
  const std::uint32_t subnormal =
      float_bits(float_from_bits(source) + aligner) - float_bits(aligner);
  constexpr std::uint32_t largest = ((float_bits(Traits::max) >> shift) - rebias);
  // Compared before rounding: all values at or above the largest saturate.
  const std::uint32_t rounded = source < float_bits(Traits::min_normal) ? subnormal : normal;
  return source >= float_bits(Traits::max) || rounded > largest ? largest : rounded;
}

/// The largest magnitude that a cast does not saturate: if the format continued beyond its largest
/// value with the same spacing, this would still round to the largest value. The product of an amax
/// and its scale may exceed the largest value by a rounding error, but never this bound.
template <class Format>
inline constexpr float largest_unsaturated = [] {
  constexpr int shift = 23 - FormatTraits<Format>::mantissa_bits;
  constexpr std::uint32_t largest = float_bits(FormatTraits<Format>::max);
  constexpr std::uint32_t half_step = 1u << (shift - 1);
  constexpr std::uint32_t is_odd = (largest >> shift) & 1u;  // then ties round up
  return float_from_bits(largest + half_step - is_odd);
}();

/// Decodes a magnitude without its sign; the caller handles NaN and Inf.
template <class Format>
OCTAVO_HOST_DEVICE constexpr float decode_magnitude(std::uint32_t magnitude) {
  using Traits = FormatTraits<Format>;
  constexpr int shift = 23 - Traits::mantissa_bits;
  constexpr std::uint32_t rebias = static_cast<std::uint32_t>(127 - Traits::exponent_bias) << 23;
  const float normal = float_from_bits((magnitude << shift) + rebias);
  const float subnormal =
      static_cast<float>(static_cast<std::int32_t>(magnitude)) * Traits::smallest_subnormal;
  return magnitude >= (1u << Traits::mantissa_bits) ? normal : subnormal;
}

}  // namespace octavo::detail
