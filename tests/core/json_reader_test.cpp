// The reader takes what is JSON and nothing else; nlohmann/json is the oracle.
#include <octavo/core/json_fields.hpp>
#include <octavo/core/json_reader.hpp>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace json_reader_test {

using octavo::IoError;
using octavo::JsonFields;
using octavo::JsonReader;
using Kind = JsonReader::Kind;

/// The value that the reader sees next, in the oracle's terms.
nlohmann::json value(JsonReader& json) {
  switch (json.peek()) {
    case Kind::object: {
      auto result = nlohmann::json::object();
      json.object([&](const std::string& key) { result[key] = value(json); });
      return result;
    }
    case Kind::array: {
      auto result = nlohmann::json::array();
      json.array([&] { result.push_back(value(json)); });
      return result;
    }
    case Kind::string:
      return json.string();
    case Kind::boolean:
      return json.boolean();
    case Kind::null:
      if (!json.null()) json.skip();
      return nullptr;
    case Kind::number:
      return json.number();
  }
  return {};
}

nlohmann::json read(std::string_view text) {
  JsonReader json(text, "here");
  nlohmann::json result = value(json);
  json.end();
  return result;
}

/// Whether both ways through the text, by value and past it, take it.
bool accepts(std::string_view text) {
  const auto passes = [&](auto way) {
    try {
      JsonReader json(text, "here");
      way(json);
      json.end();
      return true;
    } catch (const IoError&) {
      return false;
    }
  };
  const bool reads = passes([](JsonReader& json) { (void)value(json); });
  EXPECT_EQ(passes([](JsonReader& json) { json.skip(); }), reads) << text;
  return reads;
}

std::string error_of(std::string_view text, std::size_t offset = 0) {
  try {
    JsonReader json(text, "here", offset);
    json.skip();
    json.end();
  } catch (const IoError& error) {
    return error.what();
  }
  return "none";
}

TEST(JsonReader, AcceptsWhateverOracleAccepts) {
  for (const std::string_view text :
       {R"({"a":1,"b":[true,false,null],"c":{"d":"e"}})", "[]", "{}", " [ 1 , 2 ] \n", "\"\"",
        R"("\"\\\/\b\f\n\r\t\u0041\u00e9\u20ac\ud83d\ude42")", "\"gr\xc3\xbc\xc3\x9f\"",
        "[0,-0,12,-3.5,1e3,2E-2,6.25e+1,500000.0]"}) {
    EXPECT_EQ(read(text), nlohmann::json::parse(text)) << text;
  }
}

TEST(JsonReader, RejectsWhateverOracleRejects) {
  for (const std::string_view text : {"",
                                      " ",
                                      "{",
                                      "}",
                                      "[",
                                      "[1",
                                      "[1,",
                                      "[1,]",
                                      "[,1]",
                                      "{\"a\"}",
                                      "{\"a\":}",
                                      "{\"a\":1,}",
                                      "{a:1}",
                                      "{\"a\" 1}",
                                      "01",
                                      "-",
                                      "+1",
                                      ".5",
                                      "1.",
                                      "1e",
                                      "0x10",
                                      "NaN",
                                      "Infinity",
                                      "tru",
                                      "nul",
                                      "\"",
                                      "\"\\",
                                      "\"\\x\"",
                                      "\"\\u12\"",
                                      "\"\\u12g4\"",
                                      "\"\\ud800\"",
                                      "\"\\ud800\\u0041\"",
                                      "\"\\udc00\"",
                                      "\"\t\"",
                                      "\"\xff\"",
                                      "\"\xc0\xaf\"",
                                      "\"\xed\xa0\x80\"",
                                      "{} {}",
                                      "1 2",
                                      "'a'",
                                      "[1;2]"}) {
    EXPECT_FALSE(nlohmann::json::accept(text)) << text;
    EXPECT_FALSE(accepts(text)) << text;
  }
}

TEST(JsonReader, AgreesWithOracleOnCorruptedTexts) {
  const std::string whole = R"({"k\u0041":[1,-2.5e3,true,null,"x\"y"],"m":{"n":[[],{}]},"z":"ü"})";
  std::mt19937 random(1);
  int refused = 0;
  for (int i = 0; i < 5000; ++i) {
    std::string text = whole;
    text[random() % text.size()] = "{}[]\",:\\0e.- \x80u"[random() % 15];
    if (i % 3 == 0) text.resize(random() % text.size());
    const bool expected = nlohmann::json::accept(text);
    refused += expected ? 0 : 1;
    ASSERT_EQ(accepts(text), expected) << text;
  }
  EXPECT_GT(refused, 1250);
}

constexpr const char* damaged = "; it is damaged, or not JSON: use another copy";

/// The error of reading a text with `way`.
template <class Way>
std::string refusal(std::string_view text, const Way& way) {
  try {
    JsonReader json(text, "here", 0, "take another");
    way(json);
  } catch (const IoError& error) {
    return error.what();
  }
  return "none";
}

TEST(JsonReader, ErrorsNameKeyPathAndValue) {
  // {"a": [{"b": VALUE}]}, whose value is to be a whole number to 7.
  const auto natural = [](const std::string& value) {
    return refusal("{\"a\": [0, {\"b\": " + value + "}]}", [](JsonReader& json) {
      json.object([&](const std::string&) {
        json.array([&] {
          if (json.peek() != Kind::object) return json.skip();
          json.object([&](const std::string&) { (void)json.natural(7); });
        });
      });
    });
  };
  const std::string place = "here: at byte 16, in a[1].b: ";
  EXPECT_EQ(natural("8"), place + "8 is not a whole number from 0 to 7; take another");
  EXPECT_EQ(natural("[8, \"\"]"),
            place + "expected a whole number from 0 to 7, but found [8, \"\"]; take another");
  EXPECT_EQ(natural("[8, x]"), "here: at byte 20: a value is expected" + std::string(damaged));
  EXPECT_EQ(natural("x"), "here: at byte 16: a value is expected" + std::string(damaged));
}

TEST(JsonReader, ErrorsNameExpectedType) {
  using Way = void (*)(JsonReader&);
  const std::vector<std::pair<Way, std::string>> ways{
      {[](JsonReader& json) { json.object([](const std::string&) {}); }, "an object"},
      {[](JsonReader& json) { json.array([] {}); }, "an array"},
      {[](JsonReader& json) { (void)json.string(); }, "a string"},
      {[](JsonReader& json) { (void)json.number(); }, "a number"},
      {[](JsonReader& json) { (void)json.boolean(); }, "true or false"}};
  for (const auto& [way, what] : ways) {
    EXPECT_EQ(refusal(" null", way),
              "here: at byte 1: expected " + what + ", but found null; take another");
    EXPECT_EQ(refusal(" nul", way), "here: at byte 1: a value is expected" + std::string(damaged));
  }
  EXPECT_EQ(refusal("1e999", [](JsonReader& json) { (void)json.number(); }),
            "here: at byte 0: 1e999 is beyond the range of a double; take another");
}

TEST(JsonReader, FailReportsCallersMessageWithPosition) {
  EXPECT_EQ(refusal("{\"a\": {\"b\": 1}, \"c\": 2}",
                    [](JsonReader& json) {
                      json.object([&](const std::string& key) {
                        json.skip();
                        if (key == "c") json.fail("no c may be there");
                      });
                    }),
            "here: at byte 22, in c: no c may be there; take another");
}

TEST(JsonReader, ErrorsTruncateLongValues) {
  std::string text = "\"";
  for (int i = 0; i < 100; ++i) text += "\xc3\xbc";
  text += '"';
  const std::string shown = refusal(text, [](JsonReader& json) { (void)json.boolean(); });
  EXPECT_NE(shown.find(text.substr(0, 59) + "...; take another"), std::string::npos) << shown;
}

TEST(JsonReader, RejectsDuplicateKeys) {
  EXPECT_NE(error_of(R"({"a":1,"b":2,"\u0061":3})")
                .find("at byte 13: the key a appears twice; correct it, or use another file"),
            std::string::npos);
  EXPECT_TRUE(accepts(R"([{"a":1},{"a":1}])"));
}

TEST(JsonReader, RejectsExcessiveNesting) {
  const auto nested = [](std::size_t depth) {
    return std::string(depth, '[') + std::string(depth, ']');
  };
  EXPECT_TRUE(accepts(nested(JsonReader::deepest)));
  EXPECT_FALSE(accepts(nested(JsonReader::deepest + 1)));
  EXPECT_NE(error_of(std::string(100'000, '[')).find("nested more than"), std::string::npos);
  std::string objects;
  for (int i = 0; i < 100'000; ++i) objects += "{\"a\":";
  EXPECT_NE(error_of(objects).find("nested more than"), std::string::npos);
}

TEST(JsonReader, RejectsByteOrderMark) { EXPECT_FALSE(accepts("\xef\xbb\xbf{}")); }

TEST(JsonReader, ErrorsNameSourceAndByteOffset) {
  EXPECT_NE(error_of("[1, x]").find("here: at byte 4: "), std::string::npos);
  EXPECT_NE(error_of("[1, x]", 8).find("here: at byte 12: "), std::string::npos);
}

TEST(JsonReader, NaturalAcceptsOnlyNonNegativeIntegers) {
  const auto natural = [](std::string_view text) { return JsonReader(text, "here").natural(); };
  EXPECT_EQ(natural("0"), 0);
  EXPECT_EQ(natural("9223372036854775807"), INT64_MAX);
  EXPECT_EQ(JsonReader("7", "here").natural(7), 7);
  EXPECT_THROW((void)JsonReader("8", "here").natural(7), IoError);
  for (const std::string_view text :
       {"-1", "-0", "1.5", "1e3", "9223372036854775808", "\"1\"", ""}) {
    EXPECT_THROW((void)natural(text), IoError) << text;
  }
}

TEST(JsonReader, RejectsNumbersBeyondDoubleRange) {
  EXPECT_THROW((void)read("1e999"), IoError);
  EXPECT_EQ(read("1e308"), 1e308);
}

TEST(JsonFields, NumbersMustFitTheirType) {
  const JsonFields fields(
      R"({"a": 9007199254740991, "b": 9007199254740992, "c": 3.4e38, "d": 3.5e38, "e": 0})",
      "here");
  EXPECT_EQ(fields.natural("a"), (std::int64_t{1} << 53) - 1);
  EXPECT_THROW((void)fields.natural("b"), octavo::ConfigError);
  EXPECT_EQ(fields.positive("c"), 3.4e38f);
  EXPECT_THROW((void)fields.positive("d"), octavo::ConfigError);
  EXPECT_THROW((void)fields.positive("e"), octavo::ConfigError);
  EXPECT_EQ(fields.natural("e"), 0);
}

}  // namespace json_reader_test
