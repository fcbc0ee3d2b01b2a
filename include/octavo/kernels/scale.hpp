/// @file
/// Formulas that convert an amax to a scale, shared by all devices.
#pragma once

#include <octavo/precision/scaling.hpp>

namespace octavo OCTAVO_ABI {

namespace detail {

/// Returns target / amax, clamped to the largest float.
OCTAVO_HOST_DEVICE inline float finite_ratio(float target, float amax, bool power_of_two) {
#if defined(__CUDA_ARCH__)
  const float ratio = __fdiv_rn(target, amax);  // exact even under --use_fast_math
#else
  const float ratio = target / amax;
#endif
  const float finite = is_finite(ratio) ? ratio : FormatTraits<Fp32>::max;
  return power_of_two ? power_of_two_floor(finite) : finite;
}

/// Returns largest / amax rounded down to a power of two, at most 2^127, using only exponents:
/// subtracting the bits borrows from the exponent if amax has the larger mantissa.
/// @param largest at least 4, so that every amax below 2^-126 gives 2^127
OCTAVO_HOST_DEVICE inline float power_of_two_ratio(float largest, float amax) {
  constexpr int most = 127;
  const int exponent = static_cast<int>(float_bits(largest) - float_bits(amax)) >> 23;
  return power_of_two(exponent < most ? exponent : most);
}

}  // namespace detail

/// Returns the scale of current scaling: the format's largest value divided by `amax`, or 1 if
/// `amax` is 0, Inf or NaN.
/// @param largest  the largest finite value of the format
OCTAVO_HOST_DEVICE inline float current_scale(float largest, float amax, bool power_of_two) {
  const bool has_ratio = amax > 0 && is_finite(amax);
  if (!has_ratio) return 1.0f;
  return power_of_two ? detail::power_of_two_ratio(largest, amax)
                      : detail::finite_ratio(largest, amax, false);
}

/// Returns 1 / scale, exactly.
/// @param scale  a power of two of at least 2^-126
OCTAVO_HOST_DEVICE inline float power_of_two_inverse(float scale) {
  constexpr std::uint32_t least = 0x00400000u;  // 1 / 2^127 is subnormal
  const std::uint32_t bits = float_bits(detail::power_of_two(127)) - float_bits(scale);
  return float_from_bits(bits < least ? least : bits);
}

/// Returns the scale of delayed scaling, or `old_scale` if `amax` is 0, Inf or NaN.
/// @param target  the largest finite value of the format times 2^-margin
OCTAVO_HOST_DEVICE inline float delayed_scale(float target, float amax, float old_scale,
                                              bool power_of_two) {
  return amax > 0 && is_finite(amax) ? detail::finite_ratio(target, amax, power_of_two) : old_scale;
}

/// Returns an MX block's cast factor: the inverse of its E8M0 scale.
OCTAVO_HOST_DEVICE inline float mx_scale(E8M0 scale_inverse) {
  // 0xff is NaN and remains NaN; every other exponent e becomes −e.
  const int bits = scale_inverse.bits == 0xff ? 0xff : 254 - scale_inverse.bits;
  return static_cast<float>(E8M0::from_bits(static_cast<std::uint8_t>(bits)));
}

/// Returns the E8M0 scale of an MX block: amax / largest, rounded up to a power of two.
/// @param largest  the largest finite value of the element format
OCTAVO_HOST_DEVICE inline E8M0 mx_scale_inverse(float largest, float amax) {
  return E8M0(amax * (1.0f / largest));
}

/// Returns the factor by which the scales of a tensor's blocks are multiplied, if scales have two
/// levels: it makes the largest of them 448. 1 if `amax` is 0, Inf or NaN.
/// @param largest  the largest finite value of the element format
OCTAVO_HOST_DEVICE inline float two_level_scale(float largest, float amax) {
  return current_scale(largest * FormatTraits<E4M3>::max, amax, false);
}

/// Returns the E4M3 scale of a block: amax / largest in units of the tensor's scale.
/// @param tensor_scale  see two_level_scale
OCTAVO_HOST_DEVICE inline E4M3 two_level_scale_inverse(float largest, float amax,
                                                       float tensor_scale) {
  return E4M3(amax * (tensor_scale * (1.0f / largest)));
}

/// Returns a block's cast factor: the inverse of both scales, or 0 if the block's scale is 0, which
/// multiplies its elements by 0.
/// @param block_inverse, tensor_inverse  the factors that GEMMs use
OCTAVO_HOST_DEVICE inline float two_level_factor(E4M3 block_inverse, float tensor_inverse) {
  const float inverse = static_cast<float>(block_inverse) * tensor_inverse;
  if (block_inverse.bits == 0) return 0.0f;
  return inverse == inverse ? detail::finite_ratio(1.0f, inverse, false) : inverse;
}

}  // namespace octavo
