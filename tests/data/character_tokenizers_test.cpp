// BPE of characters, as of Llama 2, Mistral and Gemma, and white space around added tokens: tokens
// and texts against the package tokenizers (tests/golden/make_tokenizers.py), merges against a
// plain search over whole texts, SentencePiece models against the package sentencepiece, and files
// that are refused.
#include <octavo/data/tokenizer_json.hpp>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/plain_merges.hpp"
#include "support/temporary_folder.hpp"

namespace character_tokenizers_test {

namespace fs = std::filesystem;
using namespace octavo;
using json = nlohmann::ordered_json;
using Tokens = std::vector<std::int32_t>;

const fs::path golden = "tests/golden/tokenizers";
const std::string mark = "\u2581";

json read_json(const fs::path& path) { return json::parse(std::ifstream(path)); }

BytePairTokenizer load(const std::string& name) {
  return load_tokenizer_json(golden / (name + ".json"));
}

std::vector<std::string> special_names(const Tokenizer& tokenizer) {
  std::vector<std::string> names;
  for (const auto& [name, token] : tokenizer.special_tokens()) names.push_back(name);
  return names;
}

class CharacterGolden : public testing::TestWithParam<const char*> {};

TEST_P(CharacterGolden, TokensMatchReferenceTokenizers) {
  const json expected = read_json(golden / "characters.json");
  const BytePairTokenizer tokenizer = load(GetParam());
  const std::vector<std::string> special = special_names(tokenizer);
  const auto texts = expected["texts"].get<std::vector<std::string>>();
  const auto decoded = expected["decoded"][GetParam()].get<std::vector<std::string>>();
  const auto as_text = expected["tokens"][GetParam()]["text"].get<std::vector<Tokens>>();
  const auto as_special = expected["tokens"][GetParam()]["special"].get<std::vector<Tokens>>();
  const std::vector<std::string_view> views(texts.begin(), texts.end());
  EXPECT_NE(as_text, as_special);
  EXPECT_EQ(tokenizer.encode_all(views, Context<Cpu>(2)), as_text);
  EXPECT_EQ(tokenizer.encode_all(views, Context<Cpu>(2), special), as_special);
  for (std::size_t i = 0; i < texts.size(); ++i) {
    EXPECT_EQ(tokenizer.encode(texts[i]), as_text[i]) << i << ": " << texts[i];
    EXPECT_EQ(tokenizer.encode(texts[i], special), as_special[i]) << i << ": " << texts[i];
    EXPECT_EQ(tokenizer.decode(as_special[i]), decoded[i]) << i << ": " << texts[i];
  }
}

TEST_P(CharacterGolden, DecodesTokenByTokenToSameText) {
  const json expected = read_json(golden / "characters.json");
  const BytePairTokenizer tokenizer = load(GetParam());
  for (const auto& tokens : expected["tokens"][GetParam()]["special"].get<std::vector<Tokens>>()) {
    std::string text;
    for (std::size_t i = 0; i < tokens.size(); ++i)
      text += tokenizer.decode(std::span(&tokens[i], 1),
                               i == 0 ? TextPosition::start : TextPosition::after_text);
    EXPECT_EQ(text, tokenizer.decode(tokens));
  }
}

INSTANTIATE_TEST_SUITE_P(Tokenizers, CharacterGolden,
                         testing::Values("llama2", "mistral", "gemma", "words", "prefix"),
                         [](const auto& test) { return std::string(test.param); });

std::string random_text(std::size_t pieces, const std::vector<std::string>& choices,
                        std::uint32_t seed) {
  std::mt19937 random(seed);
  std::string text;
  for (std::size_t i = 0; i < pieces; ++i) text += choices[random() % choices.size()];
  return text;
}

TEST(CharacterTokenizer, RoundTripsArbitraryBytes) {
  std::vector<std::string> bytes;
  for (int byte = 0; byte < 256; ++byte) bytes.emplace_back(1, static_cast<char>(byte));
  const std::string text =
      "a" + random_text(20'000, bytes, 1) + std::string(300, '\xff') + "  end \xe4\xbd";
  for (const char* name : {"llama2", "mistral", "gemma", "words"}) {
    const BytePairTokenizer tokenizer = load(name);
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text) << name;
  }
}

// The tokenizer merges words separately; the tokens of this one reach over spaces.
TEST(CharacterTokenizer, MergesMatchWholeTextSearch) {
  const plain_merges::PlainMerges plain(read_json(golden / "gemma.json")["model"]);
  const BytePairTokenizer tokenizer = load("gemma");
  const std::vector<std::string> letters{mark, "a", "e", "h", "i", "n", "p", "r", "s", "t"};
  for (std::uint32_t seed = 1; seed < 30; ++seed) {
    std::mt19937 random(seed);
    std::vector<std::string> parts;
    std::string text;
    for (int i = 0; i < 250; ++i) {
      parts.push_back(letters[random() % letters.size()]);
      if (parts.back() == mark && i > 0 && parts[parts.size() - 2] == mark) parts.back() = "t";
      text += parts.back() == mark ? " " : parts.back();
    }
    EXPECT_EQ(tokenizer.encode(text), plain.tokens(parts)) << text;
  }
}

TEST(CharacterTokenizer, SplittingLongTextsPreservesTokens) {
  const std::vector<std::string> texts{
      random_text(300'000, {"a", "b", " ", "the", "\n", "\u00e9", "\u4f60", "<s>", "<tag>"}, 2),
      random_text(400'000, {"t", "h", "e"}, 3),                  // one word
      std::string(400'000, ' '),                                 // one word
      random_text(400'000, {"\xe2", "\x82", "\xac", " "}, 4),    // characters and parts of them
      random_text(300'000, {"\u4f60", "\U0001f600", "\x01"}, 5)  // characters without tokens
  };
  const std::vector<std::string_view> views(texts.begin(), texts.end());
  for (const char* name : {"llama2", "mistral", "gemma", "words"}) {
    const BytePairTokenizer tokenizer = load(name);
    const std::vector<std::string> special = special_names(tokenizer);
    std::vector<Tokens> expected;
    for (const std::string& text : texts) expected.push_back(tokenizer.encode(text, special));
    EXPECT_EQ(tokenizer.encode_all(views, Context<Cpu>(3), special), expected) << name;
  }
}

TEST(CharacterTokenizer, AddsPrefixSpaceByTextPosition) {
  const auto text_of = [](const std::string& name, TextPosition place) {
    const BytePairTokenizer tokenizer = load(name);
    const Tokens tokens = tokenizer.encode("the", {}, place);
    EXPECT_EQ(tokenizer.encode_all(std::vector<std::string_view>{"the"}, Context<Cpu>(1), {},
                                   std::vector{place}),
              std::vector<Tokens>{tokens});
    return tokenizer.decode(tokens, TextPosition::after_text);
  };
  using enum TextPosition;
  for (const char* name : {"llama2", "mistral", "words", "prefix"})
    EXPECT_EQ(text_of(name, start), " the") << name;
  for (const char* name : {"llama2", "words", "prefix"})
    EXPECT_EQ(text_of(name, after_special_token), " the") << name;
  for (const char* name : {"llama2", "mistral", "words", "prefix", "gemma"})
    EXPECT_EQ(text_of(name, after_text), "the") << name;
  EXPECT_EQ(text_of("mistral", after_special_token), "the");
  EXPECT_EQ(text_of("gemma", start), "the");
  EXPECT_EQ(load("llama2").decode(load("llama2").encode("  the"), start), "  the");
  const std::vector<std::string_view> two{"a", "b"};
  EXPECT_THROW((void)load("llama2").encode_all(two, Context<Cpu>(1), {}, std::vector{start}),
               ShapeError);
}

class CharacterFiles : public support::TemporaryFolder {
 protected:
  /// What is said of a file after a change.
  std::string error_of(const std::function<void(json&)>& change, const char* name = "llama2") {
    json layout = read_json(golden / message(name, ".json"));
    change(layout);
    std::ofstream(folder_ / "tokenizer.json", std::ios::binary) << layout.dump();
    try {
      (void)load_tokenizer(folder_ / "tokenizer.json");
    } catch (const IoError& error) {
      return error.what();
    }
    return "";
  }
};

TEST_F(CharacterFiles, RejectsUnsupportedParts) {
  EXPECT_EQ(error_of([](json&) {}), "");
  const auto refused = [this](const char* pointer, const json& value, const char* said,
                              const char* name = "llama2") {
    const std::string error =
        error_of([&](json& layout) { layout[json::json_pointer(pointer)] = value; }, name);
    EXPECT_NE(error.find(said), std::string::npos) << pointer << ": '" << error << "'";
  };
  const auto sequence = [](const char* of, const std::vector<json>& all) {
    return json{{"type", "Sequence"}, {of, all}};
  };
  const json replace = {{"type", "Replace"}, {"pattern", {{"String", mark}}}, {"content", " "}};
  const json bytes = {{"type", "ByteFallback"}};
  const json fuse = {{"type", "Fuse"}};
  const auto strip = [](const char* content, int stop) {
    return json{{"type", "Strip"}, {"content", content}, {"start", 1}, {"stop", stop}};
  };
  refused("/model/ignore_merges", true, "ignore_merges is supported only with");
  refused("/normalizer", {{"type", "Lowercase"}}, "normalizer Lowercase");
  refused("/normalizer", {{"type", "Prepend"}}, "Prepend has no text");
  refused("/normalizer", {{"type", "Replace"}, {"pattern", {{"Regex", "a"}}}, {"content", "b"}},
          "pattern Regex");
  refused("/normalizer", {{"type", "Replace"}, {"pattern", {{"String", ""}}}, {"content", "b"}},
          "Replace has no text");
  refused("/normalizer", nullptr, "only if the normalizer replaces the string, ' '", "gemma");
  refused("/normalizer/content", "a b", "only if the normalizer replaces", "gemma");
  refused("/pre_tokenizer/replacement", "_", "replacement", "mistral");
  refused("/pre_tokenizer/prepend_scheme", "last", "prepend_scheme last", "mistral");
  refused("/pre_tokenizer/novelty", true, "'novelty'", "mistral");
  refused("/pre_tokenizer", {{"type", "Whitespace"}}, "pre_tokenizer Whitespace");
  refused("/added_tokens/0/single_word", true, "single_word");
  refused("/decoder", nullptr, "decoder");
  refused("/decoder", replace, "must have Fuse");
  refused("/decoder", {{"type", "ByteLevel"}}, "decoder ByteLevel");
  refused("/decoder", {{"type", "Metaspace"}}, "decoder Metaspace");
  refused("/decoder", sequence("decoders", {bytes, replace, fuse}), "decoder Replace");
  refused("/decoder/decoders/0/content", "long", "longer than its pattern");
  refused("/decoder", sequence("decoders", {fuse, replace}), "decoder Replace");
  refused("/decoder", sequence("decoders", {fuse, bytes}), "decoder ByteFallback");
  refused("/decoder", sequence("decoders", {strip(" ", 0), fuse}), "decoder Strip");
  refused("/decoder", sequence("decoders", {fuse, strip("a", 0)}), "decoder Strip");
  refused("/decoder", sequence("decoders", {fuse, strip(" ", 1)}), "decoder Strip");
  const std::string merge = error_of([](json& all) {
    all["model"]["vocab"]["<0x41>a"] = 420;  // behind the added token
    all["model"]["merges"].push_back({"<0x41>", "a"});
  });
  EXPECT_NE(merge.find("merges of tokens that stand for bytes"), std::string::npos) << merge;
}

TEST_F(CharacterFiles, RejectsTextWithUnencodableCharacter) {
  ASSERT_EQ(error_of([](json& all) { all["model"]["byte_fallback"] = false; }), "");
  const BytePairTokenizer tokenizer = load_tokenizer(folder_ / "tokenizer.json");
  EXPECT_EQ(tokenizer.encode("the the"), load("llama2").encode("the the"));
  try {
    (void)tokenizer.encode("the \u4f60");
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("no token for '\u4f60', at byte "), std::string::npos)
        << error.what();
  }
}

TEST(SentencePiece, TokensMatchSentencePiecePackage) {
  const json expected = read_json(golden / "characters.json");
  const BytePairTokenizer tokenizer = load_tokenizer(golden / "sentencepiece.model");
  const auto texts = expected["texts"].get<std::vector<std::string>>();
  const auto decoded = expected["decoded"]["sentencepiece"].get<std::vector<std::string>>();
  const auto tokens = expected["tokens"]["sentencepiece"]["text"].get<std::vector<Tokens>>();
  for (std::size_t i = 0; i < texts.size(); ++i) {
    EXPECT_EQ(tokenizer.encode(texts[i]), tokens[i]) << i << ": " << texts[i];
    EXPECT_EQ(tokenizer.decode(tokens[i]), decoded[i]) << i << ": " << texts[i];
  }
  const std::vector<std::string> control{"[INST]"};
  const std::int32_t token = tokenizer.special_token("[INST]");
  EXPECT_EQ(tokenizer.encode("[INST]", control), Tokens{token});
  EXPECT_GT(tokenizer.encode("[INST]").size(), 1u);
}

class Models : public support::TemporaryFolder {
 protected:
  struct Piece {
    std::string text;
    float score;
    int kind;
  };

  static std::string bytes_field(int number, const std::string& value) {
    std::string field{static_cast<char>(number << 3 | 2)};
    field += static_cast<char>(value.size());
    return field + value;
  }
  static std::string number_field(std::uint32_t number, int value) {
    const std::uint32_t key = number << 3;  // two bytes from the number 16 on
    std::string field;
    if (key < 128) field = {static_cast<char>(key)};
    if (key >= 128) field = {static_cast<char>((key & 127u) | 128u), static_cast<char>(key >> 7)};
    return field + static_cast<char>(value);
  }
  static std::string field_of(const Piece& piece) {
    std::string score(4, '\0');
    std::memcpy(score.data(), &piece.score, 4);
    return bytes_field(1, bytes_field(1, piece.text) + static_cast<char>(2 << 3 | 5) + score +
                              number_field(3, piece.kind));
  }
  static std::string model(const std::vector<Piece>& pieces, const std::string& trainer,
                           const std::string& normalizer) {
    std::string all;
    for (const Piece& piece : pieces) all += field_of(piece);
    return all + bytes_field(2, trainer) + bytes_field(3, normalizer);
  }

  [[nodiscard]] BytePairTokenizer loaded(const std::string& content) const {
    std::ofstream(folder_ / "tokenizer.model", std::ios::binary) << content;
    return load_tokenizer(folder_ / "tokenizer.model");
  }
  [[nodiscard]] std::string error_of(const std::string& content) const {
    try {
      (void)loaded(content);
    } catch (const IoError& error) {
      return error.what();
    }
    return "";
  }

  const std::vector<Piece> pieces_{{"<unk>", 0, 2}, {mark, -9, 1},  {"a", -9, 1},
                                   {"b", -9, 1},    {"ab", -2, 1},  {"ba", -2, 1},
                                   {"aab", -1, 1},  {"abb", -1, 1}, {"<s>", 0, 3}};
  const std::string bpe_ = number_field(3, 2);
  const std::string plain_ = number_field(4, 0);
};

// Pieces with equal scores merge from left to right, whatever their order in the file.
TEST_F(Models, MergeByScore) {
  const BytePairTokenizer tokenizer = loaded(model(pieces_, bpe_, plain_));
  EXPECT_EQ(tokenizer.encode("aba"), (Tokens{1, 4, 2}));
  EXPECT_EQ(tokenizer.encode("bab"), (Tokens{1, 5, 3}));
  EXPECT_EQ(tokenizer.encode("aabb"), (Tokens{1, 6, 3}));
  const BytePairTokenizer bare =
      loaded(model(pieces_, bpe_, plain_ + number_field(3, 0)));  // no add_dummy_prefix
  EXPECT_EQ(bare.encode("ab a"), (Tokens{4, 1, 2}));
  EXPECT_EQ(bare.decode(bare.encode(" ab")), " ab");
}

TEST_F(Models, RejectsUnsupportedSettings) {
  const auto refused = [this](const std::string& content, const char* said) {
    const std::string error = error_of(content);
    EXPECT_NE(error.find(said), std::string::npos) << said << ": '" << error << "'";
  };
  ASSERT_EQ(error_of(model(pieces_, bpe_, plain_)), "");
  refused(model(pieces_, number_field(3, 4), plain_), "but is CHAR");
  refused(model(pieces_, bpe_, plain_ + number_field(5, 0)), "escape_whitespaces");
  refused(model(pieces_, bpe_, plain_ + bytes_field(2, "x")), "ends before its size");
  refused(model(pieces_, bpe_, plain_ + bytes_field(2, "\x04xxxxxxxx")), "has an array of");
  refused(model(pieces_, bpe_, plain_ + bytes_field(2, std::string("\x04\0\0\0xxxxx", 9))),
          "ends within a replacement");
  refused(model(pieces_, bpe_, plain_) + bytes_field(5, bytes_field(2, "x")), "denormalizer");
  refused(model(pieces_, bpe_ + number_field(24, 1), plain_), "treat_whitespace_as_suffix");
  const auto with = [&](const Piece& piece) {
    std::vector<Piece> all = pieces_;
    all.push_back(piece);
    return model(all, bpe_, plain_);
  };
  refused(with({"c", 0, 5}), "is unused");
  refused(with({"c", 0, 7}), "must be 1 to 6, but is 7");
  refused(with({"", 0, 1}), "must have 1 to 1024 bytes, but has 0");
  refused(with({"\xff", 0, 1}), "not valid UTF-8");
  refused(with({"ac", 0, 1}), "has the character 'c', which is not a piece");
  refused(with({"ab", 0, 1}), "appears twice");
  refused(with({"0x41", 0, 6}), "must represent a byte");
}

TEST_F(Models, RejectsDamagedFiles) {
  const std::string good = content(golden / "sentencepiece.model");
  ASSERT_EQ(error_of(good), "");
  std::size_t refused = 0;
  for (std::size_t end = 1; end < good.size(); end += 53)
    refused += !error_of(good.substr(0, end)).empty();
  EXPECT_EQ(refused, (good.size() + 51) / 53);
  EXPECT_NE(error_of("\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01").find("64 bits"),
            std::string::npos);
  EXPECT_NE(error_of(std::string("\x0a\x00\x00\x01", 4)).find("piece 0 must have"),
            std::string::npos);
  EXPECT_NE(error_of("\x0a\x05\x0a\x01").find("ends within a field"), std::string::npos);
}

}  // namespace character_tokenizers_test
