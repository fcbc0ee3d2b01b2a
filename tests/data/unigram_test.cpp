// Unigram tokenizers: against the packages sentencepiece and tokenizers, and on long texts against
// a plain search over the text.
#include <octavo/core/utf8.hpp>
#include <octavo/data/tokenizer_json.hpp>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <random>
#include <regex>
#include <string>
#include <string_view>
#include <vector>

#include "support/golden.hpp"
#include "support/temporary_folder.hpp"

namespace unigram_test {

using namespace octavo;
using json = nlohmann::ordered_json;
using Tokens = std::vector<std::int32_t>;

const std::filesystem::path golden = reference::golden_path("tokenizers");

std::string content(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<std::string> special_names(const Tokenizer& tokenizer) {
  std::vector<std::string> names;
  for (const auto& [name, token] : tokenizer.special_tokens()) names.push_back(name);
  return names;
}

void expect_package(const char* file, const char* tokens_key, const char* decoded_key,
                    bool allows_special) {
  const json expected = json::parse(content(golden / "unigram_expected.json"));
  const BytePairTokenizer tokenizer = load_tokenizer(golden / file);
  const auto allowed = allows_special ? special_names(tokenizer) : std::vector<std::string>();
  const auto texts = expected["texts"].get<std::vector<std::string>>();
  const auto tokens = expected[tokens_key].get<std::vector<Tokens>>();
  const auto decoded = expected[decoded_key].get<std::vector<std::string>>();
  ASSERT_GT(texts.size(), 40U);
  for (std::size_t i = 0; i < texts.size(); ++i) {
    EXPECT_EQ(tokenizer.encode(texts[i], allowed), tokens[i]) << i << ": " << texts[i];
    EXPECT_EQ(tokenizer.decode(tokens[i]), decoded[i]) << i << ": " << texts[i];
  }
  const std::vector<std::string_view> views(texts.begin(), texts.end());
  EXPECT_EQ(tokenizer.encode_all(views, Context<Cpu>(2), allowed), tokens);
}

TEST(Unigram, TokensMatchSentencePiece) {
  expect_package("unigram.model", "model", "decoded", false);
}

TEST(Unigram, TokensMatchHuggingFaceTokenizers) {
  expect_package("unigram.json", "json", "decoded_json", true);
}

// Names of special and byte tokens in a text are text.
TEST(Unigram, EncodesTokenNamesAsText) {
  for (const char* file : {"unigram.model", "unigram.json"}) {
    const BytePairTokenizer tokenizer = load_tokenizer(golden / file);
    for (const std::string name : {"<s>", "<unk>", "<0x41>"}) {
      const Tokens tokens = tokenizer.encode("a " + name);
      EXPECT_EQ(tokenizer.decode(tokens), "a " + name) << file;
      for (const auto& [special, token] : tokenizer.special_tokens())
        EXPECT_EQ(std::count(tokens.begin(), tokens.end(), token), 0) << file << ' ' << special;
    }
  }
}

class UnigramFiles : public support::TemporaryFolder {
 protected:
  /// The file after a change.
  [[nodiscard]] BytePairTokenizer loaded(const std::function<void(json&)>& change) const {
    json layout = json::parse(content(golden / "unigram.json"));
    change(layout);
    std::ofstream(folder_ / "tokenizer.json", std::ios::binary) << layout.dump();
    return load_tokenizer(folder_ / "tokenizer.json");
  }
  [[nodiscard]] std::string error_of(const std::function<void(json&)>& change) const {
    try {
      (void)loaded(change);
    } catch (const IoError& error) {
      return error.what();
    }
    return "";
  }
};

/// The score of the best tokens of a text, by a search over all of them.
double best_score(const std::map<std::string, double>& scores, double unknown,
                  std::string_view text) {
  std::vector<double> best(text.size() + 1, -std::numeric_limits<double>::infinity());
  best[0] = 0;
  for (std::size_t from = 0; from < text.size(); from += utf8_length(text.substr(from))) {
    const std::size_t character = utf8_length(text.substr(from));
    if (!scores.contains(std::string(text.substr(from, character))))
      best[from + character] = std::max(best[from + character], best[from] + unknown);
    for (std::size_t length = 1; length <= 24 && from + length <= text.size(); ++length) {
      const auto found = scores.find(std::string(text.substr(from, length)));
      if (found != scores.end())
        best[from + length] = std::max(best[from + length], best[from] + found->second);
    }
  }
  return best.back();
}

TEST_F(UnigramFiles, FindsBestTokensOfLongWords) {
  std::map<std::string, double> scores;
  std::vector<std::string> texts;
  double least = 0;
  // One word per text, and no white space to remove.
  const BytePairTokenizer tokenizer = loaded([&](json& layout) {
    layout["normalizer"] = nullptr;
    layout["pre_tokenizer"] = nullptr;
    for (const json& one : layout["model"]["vocab"]) {
      texts.push_back(one[0]);
      least = std::min(least, one[1].get<double>());
      if (!texts.back().starts_with('<') && texts.back() != "[INST]") scores[texts.back()] = one[1];
    }
  });
  ASSERT_GT(scores.size(), 50U);
  std::mt19937 generator(1);
  std::string text;
  std::vector<std::string> pieces{"\u4f60", "\u0449"};
  for (const auto& [piece, score] : scores) pieces.push_back(piece);
  while (text.size() < 300'000) text += pieces[generator() % pieces.size()];
  const Tokens tokens = tokenizer.encode(text);
  EXPECT_EQ(tokenizer.decode(tokens, TextPosition::after_text),
            std::regex_replace(text, std::regex("\u2581"), " "));
  double score = 0;
  std::size_t bytes = 0;
  for (const std::int32_t token : tokens) {
    const std::string& piece = texts[static_cast<std::size_t>(token)];
    const auto found = scores.find(piece);
    if (found != scores.end()) score += found->second;
    bytes += found == scores.end() ? 1 : 0;
  }
  // Characters without a token have 2 or 3 bytes.
  std::size_t characters = 0;
  for (std::size_t at = 0; at < text.size(); at += utf8_length(std::string_view(text).substr(at)))
    characters +=
        !scores.contains(text.substr(at, utf8_length(std::string_view(text).substr(at)))) ? 1 : 0;
  EXPECT_GT(bytes, characters);
  EXPECT_GT(characters, 100U);
  score += static_cast<double>(characters) * (least - 10);
  const double best = best_score(scores, least - 10, text);
  EXPECT_NEAR(score, best, 1e-9 * -best);
  const std::vector<std::string_view> views{text, std::string_view(text).substr(0, 3)};
  EXPECT_EQ(tokenizer.encode_all(views, Context<Cpu>(2)).front(), tokens);
}

/// Returns the bytes of a 32-bit number.
std::string word(std::uint32_t value) {
  std::string bytes;
  for (int shift = 0; shift < 32; shift += 8) bytes += static_cast<char>(value >> shift);
  return bytes;
}
/// Returns a field of a SentencePiece model with a text or a message of less than 2^14 bytes.
std::string field(int number, const std::string& bytes) {
  return std::string{static_cast<char>(number << 3 | 2), static_cast<char>(bytes.size() | 0x80),
                     static_cast<char>(bytes.size() >> 7)} +
         bytes;
}
/// Returns a field with a number of at most 7 bits.
std::string field(int number, int value) {
  return {static_cast<char>(number << 3), static_cast<char>(value)};
}
std::string piece(const std::string& text, float score) {
  const auto bits = std::bit_cast<std::uint32_t>(score);
  return field(1, field(1, text) + static_cast<char>(2 << 3 | 5) + word(bits));
}
/// Returns the settings of a Unigram model that neither adds nor removes spaces.
std::string settings(const std::string& map) {
  return field(2, field(3, 1)) + field(3, field(2, map) + field(3, 0) + field(4, 0));
}

// sentencepiece adds scores in FP32. At a sum of 2^20, they are rounded to multiples of 1 / 8, so
// that "ab" and "a", "b" are equally probable. In a short word, "a", "b" is more probable.
TEST_F(UnigramFiles, RoundsScoreSumsOfLongWords) {
  std::ofstream(folder_ / "tokenizer.model", std::ios::binary)
      << piece("x", -16) << piece("a", -1.51f) << piece("b", -1.51f) << piece("ab", -3.03f)
      << settings("");
  const BytePairTokenizer tokenizer = load_tokenizer(folder_ / "tokenizer.model");
  EXPECT_EQ(tokenizer.encode("xab"), (Tokens{0, 1, 2}));
  const Tokens tokens = tokenizer.encode(std::string(1 << 16, 'x') + "ab");
  EXPECT_EQ(tokens.size(), (1U << 16) + 1);
  EXPECT_EQ(tokens.back(), 3);
}

// A map that replaces "a" with "x" and "ab" with "y", in the format of Darts: the index of a child
// is the parent's index xor the parent's offset xor the byte.
TEST_F(UnigramFiles, TheLongestReplacementIsUsed) {
  constexpr std::uint32_t ends = 0x100;
  constexpr std::uint32_t is_value = 0x80000000;
  std::vector<std::uint32_t> units(256, 0);
  units['a'] = 'a' | ends | 0x80u << 10;
  units['a' ^ 0x80] = is_value | 0;
  units['a' ^ 0x80 ^ 'b'] = 'b' | ends | 4u << 10;
  units['a' ^ 0x80 ^ 'b' ^ 4] = is_value | 2;
  std::string map = word(static_cast<std::uint32_t>(units.size() * 4));
  for (const std::uint32_t unit : units) map += word(unit);
  std::ofstream(folder_ / "tokenizer.model", std::ios::binary)
      << piece("b", -1) << piece("c", -1) << piece("x", -1) << piece("y", -1)
      << settings(map + std::string("x\0y\0", 4));
  const BytePairTokenizer tokenizer = load_tokenizer(folder_ / "tokenizer.model");
  EXPECT_EQ(tokenizer.encode("cab"), (Tokens{1, 3}));
  EXPECT_EQ(tokenizer.encode("bacab"), (Tokens{0, 2, 1, 3}));
  EXPECT_EQ(tokenizer.encode("aab"), (Tokens{2, 3}));
}

TEST_F(UnigramFiles, RejectsUnsupportedParts) {
  EXPECT_EQ(error_of([](json&) {}), "");
  const auto refused = [this](const char* pointer, const json& value, const char* said) {
    const std::string error =
        error_of([&](json& layout) { layout[json::json_pointer(pointer)] = value; });
    EXPECT_NE(error.find(said), std::string::npos) << pointer << ": '" << error << "'";
  };
  refused("/model/type", "WordPiece", "only BPE and Unigram");
  refused("/model/type", "BPE", "needs a vocab with numbers");
  refused("/model/vocab", json::object(), "a vocab with scores");
  refused("/model/merges", json::array({"a b"}), "no merges");
  refused("/model/vocab/3", json::array({"a"}), "needs a text and a score");
  refused("/model/vocab/3", json::array({"a", 1, 2}), "more than a text and a score");
  refused("/normalizer", {{"type", "Precompiled"}, {"precompiled_charsmap", ""}}, "Precompiled");
  const std::string bytes = error_of(
      [](json& layout) { layout["pre_tokenizer"] = layout["decoder"] = {{"type", "ByteLevel"}}; });
  EXPECT_NE(bytes.find("not supported with the pre_tokenizer ByteLevel"), std::string::npos)
      << bytes;
}

TEST_F(UnigramFiles, RejectsTextWithUnencodableCharacter) {
  const BytePairTokenizer tokenizer =
      loaded([](json& layout) { layout["model"]["byte_fallback"] = false; });
  EXPECT_NO_THROW((void)tokenizer.encode("the the"));
  try {
    (void)tokenizer.encode("the \u4f60");
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("no token for '\u4f60'"), std::string::npos);
  }
}

}  // namespace unigram_test
