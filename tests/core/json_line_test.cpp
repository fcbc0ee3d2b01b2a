#include <octavo/core/json_line.hpp>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace json_line_test {

using octavo::JsonLine;

TEST(JsonLine, PreservesKeyOrder) {
  EXPECT_EQ(JsonLine{}.str(), "{}");
  EXPECT_EQ(JsonLine{}.add("event", "step").add("step", 1).add("loss", 1.5).str(),
            R"({"event":"step","step":1,"loss":1.5})");
}

TEST(JsonLine, AcceptsAllStringTypes) {
  const char* pointer = "a";
  const std::string string = "b";
  EXPECT_EQ(JsonLine{}.add("p", pointer).add("s", string).add("v", std::string_view("c")).str(),
            R"({"p":"a","s":"b","v":"c"})");
}

TEST(JsonLine, WritesIntegersAndBooleans) {
  EXPECT_EQ(JsonLine{}
                .add("min", std::numeric_limits<std::int64_t>::min())
                .add("max", std::numeric_limits<std::uint64_t>::max())
                .add("byte", std::uint8_t{65})
                .add("yes", true)
                .add("no", false)
                .str(),
            R"({"min":-9223372036854775808,"max":18446744073709551615,"byte":65,)"
            R"("yes":true,"no":false})");
}

TEST(JsonLine, WritesShortestRoundTripNumbers) {
  EXPECT_EQ(JsonLine{}.add("f", 0.1f).add("d", 0.1).add("r", 6e-4f).add("z", -0.0).str(),
            R"({"f":0.1,"d":0.1,"r":6e-04,"z":-0})");
  EXPECT_EQ(JsonLine{}.add("third", 1.0 / 3.0).str(), R"({"third":0.3333333333333333})");
}

TEST(JsonLine, WritesNullForNonFiniteNumbers) {
  EXPECT_EQ(JsonLine{}
                .add("a", std::numeric_limits<double>::infinity())
                .add("b", -std::numeric_limits<float>::infinity())
                .add("c", std::numeric_limits<double>::quiet_NaN())
                .str(),
            R"({"a":null,"b":null,"c":null})");
}

TEST(JsonLine, NestsArraysOfObjects) {
  const std::vector<JsonLine> operands{JsonLine{}.add("name", "qkv").add("amax", 3.5),
                                       JsonLine{}.add("name", "down")};
  EXPECT_EQ(JsonLine{}.add("operands", operands).add("last", 1).str(),
            R"({"operands":[{"name":"qkv","amax":3.5},{"name":"down"}],"last":1})");
  EXPECT_EQ(JsonLine{}.add("operands", std::vector<JsonLine>{}).str(), R"({"operands":[]})");
}

TEST(JsonLine, HoldsObjects) {
  EXPECT_EQ(JsonLine{}.add("args", JsonLine{}.add("name", "lane")).add("pid", 1).str(),
            R"({"args":{"name":"lane"},"pid":1})");
}

TEST(JsonLine, WritesArraysOfReals) {
  const std::vector<double> losses{1.5, 0.1, std::numeric_limits<double>::quiet_NaN()};
  EXPECT_EQ(JsonLine{}.add("losses", losses).add("last", 1).str(),
            R"({"losses":[1.5,0.1,null],"last":1})");
  EXPECT_EQ(JsonLine{}.add("losses", std::vector<double>{}).str(), R"({"losses":[]})");
}

TEST(JsonLine, WritesArraysOfIntegersAndStrings) {
  const std::vector<std::int64_t> offsets{0, 5'000'000'000, -1};
  const std::vector<std::string> names{"a\"b", ""};
  EXPECT_EQ(JsonLine{}.add("offsets", offsets).add("names", names).str(),
            R"({"offsets":[0,5000000000,-1],"names":["a\"b",""]})");
}

TEST(JsonLine, EscapesSpecialCharacters) {
  EXPECT_EQ(JsonLine{}.add("t", std::string_view("\"\\\n\t\0\x1f\x7f/", 8)).str(),
            "{\"t\":\"\\\"\\\\\\u000a\\u0009\\u0000\\u001f\x7f/\"}");
  EXPECT_EQ(JsonLine{}.add("a\"b", 1).str(), R"({"a\"b":1})");
}

TEST(JsonLine, KeepsUtf8AndReplacesInvalidBytes) {
  EXPECT_EQ(JsonLine{}.add("t", "gr\xc3\xbc\xc3\x9f \xf0\x9f\x99\x82").str(),
            "{\"t\":\"gr\xc3\xbc\xc3\x9f \xf0\x9f\x99\x82\"}");
  EXPECT_EQ(JsonLine{}.add("t", "a\xff\xc3").str(), "{\"t\":\"a\xef\xbf\xbd\xef\xbf\xbd\"}");
}

TEST(JsonLine, DoublesRoundTrip) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 20000; ++i) {
    const std::uint64_t bits = random();
    double value;
    std::memcpy(&value, &bits, sizeof value);
    const auto parsed = nlohmann::json::parse(JsonLine{}.add("x", value).str()).at("x");
    if (value - value == 0.0) {
      ASSERT_EQ(parsed.get<double>(), value);
    } else {
      ASSERT_TRUE(parsed.is_null());
    }
  }
}

TEST(JsonLine, ArbitraryBytesGiveValidLine) {
  std::mt19937_64 random(2);
  for (int i = 0; i < 20000; ++i) {
    std::string bytes(random() % 12, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    const std::string line = JsonLine{}.add("key" + bytes, bytes).str();
    ASSERT_TRUE(nlohmann::json::accept(line)) << line;
    ASSERT_EQ(line.find('\n'), std::string::npos);
  }
}

TEST(JsonLine, AsciiCharactersRoundTrip) {
  std::string text;
  for (int byte = 0; byte < 128; ++byte) text.push_back(static_cast<char>(byte));
  EXPECT_EQ(nlohmann::json::parse(JsonLine{}.add("t", text).str()).at("t"), text);
}

}  // namespace json_line_test
