/// @file
/// The two 8-bit floating-point formats of FP8 training.
/// Source: Micikevicius et al. 2022, "FP8 formats for deep learning", arXiv 2209.05433.
#pragma once

#include <octavo/formats/small_float.hpp>

namespace octavo OCTAVO_ABI {

struct E4M3;
struct E5M2;

template <>
struct FormatTraits<E4M3> {
  static constexpr const char* name = "E4M3";
  static constexpr int bits = 8;
  static constexpr int exponent_bits = 4;
  static constexpr int mantissa_bits = 3;
  static constexpr int exponent_bias = 7;
  static constexpr float max = 448.0f;
  static constexpr float min_normal = 0x1p-6f;
  static constexpr float smallest_subnormal = 0x1p-9f;
  static constexpr bool has_infinity = false;
  static constexpr bool has_nan = true;
};

template <>
struct FormatTraits<E5M2> {
  static constexpr const char* name = "E5M2";
  static constexpr int bits = 8;
  static constexpr int exponent_bits = 5;
  static constexpr int mantissa_bits = 2;
  static constexpr int exponent_bias = 15;
  static constexpr float max = 57344.0f;
  static constexpr float min_normal = 0x1p-14f;
  static constexpr float smallest_subnormal = 0x1p-16f;
  static constexpr bool has_infinity = true;
  static constexpr bool has_nan = true;
};

namespace detail {

/// Encodes a value with its sign; NaN loses its sign and becomes 0x7f, as on NVIDIA hardware.
template <class Format>
OCTAVO_HOST_DEVICE constexpr std::uint8_t encode_fp8(float value) {
  const std::uint32_t sign = (float_bits(value) >> 24) & 0x80u;
  const bool nan = (float_bits(value) & 0x7fffffffu) > 0x7f800000u;
  return static_cast<std::uint8_t>(nan ? 0x7fu : sign | encode_magnitude<Format>(value));
}

}  // namespace detail

/// 4 bits of exponent, 3 of mantissa, no Inf, NaN at 0x7f and 0xff: activations and weights.
struct E4M3 {
  std::uint8_t bits = 0;

  constexpr E4M3() = default;
  /// Rounds to nearest-even, saturating: Inf becomes ±448; NaN becomes 0x7f.
  OCTAVO_HOST_DEVICE explicit constexpr E4M3(float value) : bits(detail::encode_fp8<E4M3>(value)) {}

  OCTAVO_HOST_DEVICE static constexpr E4M3 from_bits(std::uint8_t bits) {
    E4M3 result;
    result.bits = bits;
    return result;
  }

  OCTAVO_HOST_DEVICE explicit constexpr operator float() const {
    const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x80u) << 24;
    const std::uint32_t magnitude = bits & 0x7fu;
    const float value = detail::decode_magnitude<E4M3>(magnitude);
    return float_from_bits(sign | (magnitude == 0x7fu ? 0x7fc00000u : float_bits(value)));
  }

  friend constexpr bool operator==(E4M3, E4M3) = default;  ///< Compares bits.
};

/// 5 bits of exponent, 2 of mantissa, Inf and NaN as in IEEE 754: gradients.
struct E5M2 {
  std::uint8_t bits = 0;

  constexpr E5M2() = default;
  /// Rounds to nearest-even, saturating: Inf becomes ±57344; NaN becomes 0x7f.
  OCTAVO_HOST_DEVICE explicit constexpr E5M2(float value) : bits(detail::encode_fp8<E5M2>(value)) {}

  OCTAVO_HOST_DEVICE static constexpr E5M2 from_bits(std::uint8_t bits) {
    E5M2 result;
    result.bits = bits;
    return result;
  }

  OCTAVO_HOST_DEVICE explicit constexpr operator float() const {
    const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x80u) << 24;
    const std::uint32_t magnitude = bits & 0x7fu;
    const float value = detail::decode_magnitude<E5M2>(magnitude);
    const std::uint32_t special = magnitude == 0x7cu ? 0x7f800000u : 0x7fc00000u;
    return float_from_bits(sign | (magnitude >= 0x7cu ? special : float_bits(value)));
  }

  friend constexpr bool operator==(E5M2, E5M2) = default;  ///< Compares bits.
};

}  // namespace octavo
