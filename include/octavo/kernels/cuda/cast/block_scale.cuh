/// @file
/// The scale of a block or a row of values, from its amax.
#pragma once

#include <octavo/kernels/scale.hpp>

#include <cstdint>

namespace octavo OCTAVO_ABI::detail {

/// Returns the factor that a block is multiplied by before it is rounded, and writes its inverse to
/// `scale_inverse`.
template <class S, class Format, class Scale>
__device__ float find_block_scale(std::uint32_t amax_bits, Scale& scale_inverse) {
  constexpr float largest = FormatTraits<Format>::max;
  const float amax = __uint_as_float(amax_bits);
  if constexpr (std::is_same_v<Scale, E8M0>) {
    scale_inverse = mx_scale_inverse(largest, amax);
    return mx_scale(scale_inverse);
  } else {
    constexpr bool power_of_two = rounding_of<S> == ScaleRounding::power_of_two;
    const float scale = current_scale(largest, amax, power_of_two);
    scale_inverse = power_of_two ? power_of_two_inverse(scale) : __fdiv_rn(1.0f, scale);
    return scale;
  }
}

}  // namespace octavo::detail
