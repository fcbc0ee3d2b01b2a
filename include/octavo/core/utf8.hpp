/// @file
/// Recognising valid UTF-8.
#pragma once

#include <octavo/core/version.hpp>

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace octavo OCTAVO_ABI {

/// Returns the number of bytes of the UTF-8 character at the start of `text`; 0 if `text` is empty
/// or does not start with one, because of a stray or missing continuation byte, an overlong form, a
/// surrogate, or a code point above U+10FFFF. Source: The Unicode Standard, table 3-7, "Well-formed
/// UTF-8 byte sequences".
constexpr std::size_t utf8_length(std::string_view text) {
  const auto byte = [text](std::size_t i) {
    return i < text.size() ? static_cast<std::uint8_t>(text[i]) : std::uint8_t{0};
  };
  const auto continues = [byte](std::size_t i) { return (byte(i) & 0xc0u) == 0x80u; };
  const std::uint8_t first = byte(0);
  const std::uint8_t second = byte(1);
  if (text.empty() || (first >= 0x80 && first < 0xc2) || first > 0xf4) return 0;
  if (first < 0x80) return 1;
  if (first < 0xe0) return continues(1) ? 2 : 0;
  if ((first == 0xe0 && second < 0xa0) || (first == 0xed && second > 0x9f)) return 0;
  if (first < 0xf0) return continues(1) && continues(2) ? 3 : 0;
  if ((first == 0xf0 && second < 0x90) || (first == 0xf4 && second > 0x8f)) return 0;
  return continues(1) && continues(2) && continues(3) ? 4 : 0;
}

}  // namespace octavo
