#include <octavo/core/utf8.hpp>

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace utf8_test {

using octavo::utf8_length;

/// The UTF-8 form of a code point, of a given number of bytes, even where that is not allowed.
std::string encode(std::uint32_t code_point, std::size_t length) {
  if (length == 1) return {static_cast<char>(code_point)};
  std::string text(length, '\0');
  for (std::size_t i = length - 1; i > 0; --i) {
    text[i] = static_cast<char>(0x80u | (code_point & 0x3fu));
    code_point >>= 6;
  }
  text[0] = static_cast<char>((0xf00u >> length & 0xffu) | code_point);
  return text;
}

std::size_t shortest(std::uint32_t code_point) {
  return code_point < 0x80 ? 1 : code_point < 0x800 ? 2 : code_point < 0x10000 ? 3 : 4;
}

TEST(Utf8Length, AcceptsCodePointsInShortestFormOnly) {
  for (std::uint32_t code_point = 0; code_point < 0x200000; ++code_point) {
    const bool surrogate = code_point >= 0xd800 && code_point <= 0xdfff;
    const bool exists = code_point <= 0x10ffff && !surrogate;
    for (std::size_t length = shortest(code_point); length <= 4; ++length) {
      const bool valid = exists && length == shortest(code_point);
      ASSERT_EQ(utf8_length(encode(code_point, length) + "x"), valid ? length : 0)
          << code_point << " in " << length << " bytes";
    }
  }
}

TEST(Utf8Length, RejectsTruncatedAndStrayBytes) {
  EXPECT_EQ(utf8_length(""), 0u);
  EXPECT_EQ(utf8_length("\x80"), 0u);
  EXPECT_EQ(utf8_length("\xff"), 0u);
  for (const std::uint32_t code_point : {0xfcu, 0x20acu, 0x1f600u}) {
    const std::string text = encode(code_point, shortest(code_point));
    for (std::size_t length = 1; length < text.size(); ++length) {
      EXPECT_EQ(utf8_length(text.substr(0, length)), 0u);
      EXPECT_EQ(utf8_length(text.substr(0, length) + "abc"), 0u);
    }
  }
}

}  // namespace utf8_test
