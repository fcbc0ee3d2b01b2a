#include <octavo/data/byte_tokenizer.hpp>

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace byte_tokenizer_test {

using octavo::ByteTokenizer;

const ByteTokenizer tokenizer;

TEST(ByteTokenizer, TokensAreBytes) {
  EXPECT_EQ(tokenizer.encode("A\xc3\xbf"), (std::vector<std::int32_t>{65, 195, 191}));
  EXPECT_TRUE(tokenizer.encode("").empty());
}

TEST(ByteTokenizer, EveryByteSurvivesTheRoundTrip) {
  std::string text;
  for (int byte = 0; byte < 256; ++byte) text.push_back(static_cast<char>(byte));
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
  EXPECT_EQ(tokenizer.encode(text).back() + 1, tokenizer.vocabulary_size());
}

TEST(ByteTokenizer, EncodesTextsInParallel) {
  const std::vector<std::string_view> texts{"one", "", "three", "four"};
  std::vector<std::vector<std::int32_t>> expected;
  expected.reserve(texts.size());
  for (const std::string_view text : texts) expected.push_back(tokenizer.encode(text));
  EXPECT_EQ(tokenizer.encode_all(texts, octavo::Context<octavo::Cpu>(3)), expected);
}

TEST(ByteTokenizer, RejectsTokensThatAreNotBytes) {
  EXPECT_THROW(static_cast<void>(tokenizer.decode(std::vector<std::int32_t>{65, 256})),
               octavo::ConfigError);
  EXPECT_THROW(static_cast<void>(tokenizer.decode(std::vector<std::int32_t>{-1})),
               octavo::ConfigError);
}

TEST(ByteTokenizer, HasNoSpecialTokens) {
  EXPECT_TRUE(tokenizer.special_tokens().empty());
  EXPECT_THROW(static_cast<void>(tokenizer.special_token("<|end|>")), octavo::ConfigError);
  EXPECT_THROW(static_cast<void>(tokenizer.encode("a", std::vector<std::string>{"<|end|>"})),
               octavo::ConfigError);
}

}  // namespace byte_tokenizer_test
