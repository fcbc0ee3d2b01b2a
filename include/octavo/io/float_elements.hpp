/// @file
/// Conversion between stored elements and floats.
#pragma once

#include <octavo/core/error.hpp>
#include <octavo/formats/bf16.hpp>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

namespace octavo OCTAVO_ABI {

/// Converts an IEEE 754 half-precision number. Exact; NaNs keep their bits.
[[nodiscard]] constexpr float half_value(std::uint16_t bits) {
  const std::uint32_t sign = std::uint32_t{bits & 0x8000u} << 16;
  const std::uint32_t exponent = bits >> 10 & 0x1fu;
  const std::uint32_t mantissa = bits & 0x3ffu;
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return sign == 0 ? magnitude : -magnitude;
  }
  const std::uint32_t widened = exponent == 31 ? 255 : exponent + 127 - 15;
  return std::bit_cast<float>(sign | widened << 23 | mantissa << 13);
}

/// Whether elements of a safetensors dtype can be read as floats.
[[nodiscard]] inline bool is_float_dtype(std::string_view dtype) {
  return dtype == "F32" || dtype == "BF16" || dtype == "F16";
}

/// Converts little-endian elements to floats.
/// @param dtype   must satisfy `is_float_dtype`
/// @param bytes   of as many elements as there are values
inline void to_floats(std::string_view dtype, std::span<const std::byte> bytes,
                      std::span<float> values) {
  static_assert(std::endian::native == std::endian::little, "files are little-endian");
  if (dtype == "F32") {
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return;
  }
  const auto of_words = [&](const auto& value_of) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      std::uint16_t word = 0;
      std::memcpy(&word, bytes.data() + 2 * i, sizeof word);
      values[i] = value_of(word);
    }
  };
  if (dtype == "F16") return of_words(half_value);
  of_words([](std::uint16_t word) { return static_cast<float>(Bf16::from_bits(word)); });
}

/// Converts floats to little-endian elements.
/// @param dtype   "F32" or "BF16"
/// @param bytes   receives as many elements as there are values
inline void from_floats(std::string_view dtype, std::span<const float> values,
                        std::span<std::byte> bytes) {
  if (dtype == "F32") {
    std::memcpy(bytes.data(), values.data(), bytes.size());
    return;
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::uint16_t word = Bf16(values[i]).bits;
    std::memcpy(bytes.data() + 2 * i, &word, sizeof word);
  }
}

}  // namespace octavo
