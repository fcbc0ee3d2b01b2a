#include <gtest/gtest.h>
#include <octavo/inference/text_stream.hpp>

#include <string>
#include <string_view>
#include <vector>

namespace text_stream_test {

using octavo::TextStream;
using Pieces = std::vector<std::string>;

constexpr const char* replacement = "\xef\xbf\xbd";

/// What each byte of a text lets be printed, and then its end.
Pieces byte_by_byte(std::string_view text, std::vector<std::string> stops = {}) {
  TextStream stream(std::move(stops));
  Pieces pieces;
  for (const char byte : text) pieces.push_back(stream.add({&byte, 1}));
  pieces.push_back(stream.end());
  return pieces;
}
std::string joined(const Pieces& pieces) {
  std::string text;
  for (const std::string& piece : pieces) text += piece;
  return text;
}

TEST(TextStream, HoldsBackIncompleteCharacters) {
  EXPECT_EQ(byte_by_byte("aé€😀"), (Pieces{"a", "", "é", "", "", "€", "", "", "", "😀", ""}));
  for (const char* text : {"\u0800", "\ud7ff", "\U00010000", "\U0010ffff", "\u0080"}) {
    EXPECT_EQ(joined(byte_by_byte(text)), text);
  }
}

TEST(TextStream, ReplacesInvalidBytesImmediately) {
  EXPECT_EQ(byte_by_byte("\x80z"), (Pieces{replacement, "z", ""}));
  EXPECT_EQ(byte_by_byte("\xc3z"), (Pieces{"", std::string(replacement) + "z", ""}));
  EXPECT_EQ(byte_by_byte("\xff"), (Pieces{replacement, ""}));
  // Overlong forms and surrogates can never become whole.
  EXPECT_EQ(byte_by_byte("\xe0\x80").at(1), std::string(replacement) + replacement);
  EXPECT_EQ(byte_by_byte("\xed\xa0").at(1), std::string(replacement) + replacement);
  EXPECT_EQ(byte_by_byte("\xf4\x90").at(1), std::string(replacement) + replacement);
  EXPECT_EQ(byte_by_byte("\xe2\x82"), (Pieces{"", "", std::string(replacement) + replacement}));
}

TEST(TextStream, HoldsBackPossibleStops) {
  EXPECT_EQ(byte_by_byte("a\n\nb", {"\n\nUser"}), (Pieces{"a", "", "", "\n\nb", ""}));
  EXPECT_EQ(byte_by_byte("ab\n", {"\n\n"}), (Pieces{"a", "b", "", "\n"}));
  EXPECT_EQ(joined(byte_by_byte("aab", {"ab"})), "a");
}

TEST(TextStream, EndsAtFirstStop) {
  TextStream stream({"", "stop", "END"});
  EXPECT_FALSE(stream.is_stopped());
  EXPECT_EQ(stream.add("go ENDED stop"), "go ");
  EXPECT_TRUE(stream.is_stopped());
  EXPECT_EQ(stream.add("more"), "");
  EXPECT_EQ(stream.end(), "");
}

// A character that is not whole before a stop never becomes one.
TEST(TextStream, ReplacesIncompleteCharacterBeforeStop) {
  TextStream stream({"!"});
  EXPECT_EQ(stream.add("\xc3!"), replacement);
  EXPECT_TRUE(stream.is_stopped());
}

}  // namespace text_stream_test
