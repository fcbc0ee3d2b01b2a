/// @file
/// Code points of UTF-8 text.
#pragma once

#include <octavo/core/utf8.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace octavo OCTAVO_ABI {

namespace detail {

/// Code points from `first` to `last`.
struct CodePoints {
  std::uint32_t first;
  std::uint32_t last;
};

/// A character of a text.
struct Character {
  std::uint32_t code = 0;
  std::size_t length = 0;  ///< in bytes
};

/// Returns the first character of a text.
/// @param text  valid UTF-8, not empty
[[nodiscard]] inline Character first_character(std::string_view text) {
  const auto first = static_cast<std::uint8_t>(text.front());
  const std::size_t length = first < 0x80 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
  std::uint32_t code = length == 1 ? first : first & (0xffu >> (length + 1));
  for (std::size_t i = 1; i < length; ++i)
    code = (code << 6) | (static_cast<std::uint8_t>(text[i]) & 0x3fu);
  return {code, length};
}

/// The code points with the property White_Space. Source: The Unicode Standard, PropList.txt.
inline constexpr std::array white_space{CodePoints{0x09, 0x0d},     CodePoints{0x20, 0x20},
                                        CodePoints{0x85, 0x85},     CodePoints{0xa0, 0xa0},
                                        CodePoints{0x1680, 0x1680}, CodePoints{0x2000, 0x200a},
                                        CodePoints{0x2028, 0x2029}, CodePoints{0x202f, 0x202f},
                                        CodePoints{0x205f, 0x205f}, CodePoints{0x3000, 0x3000}};

/// Returns the number of bytes of the white space at the start of a text.
[[nodiscard]] inline std::size_t white_space_at_start(std::string_view text) {
  std::size_t size = 0;
  while (utf8_length(text.substr(size)) > 0) {
    const Character next = first_character(text.substr(size));
    if (std::none_of(white_space.begin(), white_space.end(), [&](CodePoints points) {
          return points.first <= next.code && next.code <= points.last;
        }))
      break;
    size += next.length;
  }
  return size;
}

/// Returns the number of bytes of a text before the white space at its end.
[[nodiscard]] inline std::size_t size_without_white_space_at_end(std::string_view text) {
  std::size_t size = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t space = white_space_at_start(text.substr(at));
    at += space;
    if (at == text.size()) break;
    at += std::max<std::size_t>(utf8_length(text.substr(at)), 1);
    size = at;
  }
  return size;
}

}  // namespace detail

}  // namespace octavo
