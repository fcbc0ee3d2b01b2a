#include <octavo/data/byte_tokenizer.hpp>

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

namespace byte_tokenizer_test {

using octavo::ByteTokenizer;

TEST(ByteTokenizer, TokensAreBytes) {
  EXPECT_EQ(ByteTokenizer::encode("A\xc3\xbf"), (std::vector<std::int32_t>{65, 195, 191}));
  EXPECT_TRUE(ByteTokenizer::encode("").empty());
}

TEST(ByteTokenizer, EveryByteSurvivesTheRoundTrip) {
  std::string text;
  for (int byte = 0; byte < 256; ++byte) text.push_back(static_cast<char>(byte));
  EXPECT_EQ(ByteTokenizer::decode(ByteTokenizer::encode(text)), text);
  EXPECT_EQ(ByteTokenizer::encode(text).back(), ByteTokenizer::vocabulary - 1);
}

TEST(ByteTokenizer, RefusesWhatIsNoByte) {
  EXPECT_THROW(static_cast<void>(ByteTokenizer::decode(std::vector<std::int32_t>{65, 256})),
               octavo::ConfigError);
  EXPECT_THROW(static_cast<void>(ByteTokenizer::decode(std::vector<std::int32_t>{-1})),
               octavo::ConfigError);
}

}  // namespace byte_tokenizer_test
