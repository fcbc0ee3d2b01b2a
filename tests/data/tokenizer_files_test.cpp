// Tokenizers from files: tokens against those of the packages tokenizers and tiktoken
// (tests/golden/make_tokenizers.py), merges against a plain search, and files that are refused.
#include <octavo/data/tokenizer_json.hpp>
#if defined(OCTAVO_WITH_UTF8PROC)
#include <octavo/data/utf8proc.hpp>
#endif

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "data/plain_merges.hpp"
#include "support/temporary_folder.hpp"

namespace tokenizer_files_test {

namespace fs = std::filesystem;
using namespace octavo;
using json = nlohmann::ordered_json;
using Tokens = std::vector<std::int32_t>;

#if defined(OCTAVO_WITH_UTF8PROC)
constexpr NormalizeText normalize = normalize_by_utf8proc;
#else
constexpr NormalizeText normalize = nullptr;
#endif

const fs::path golden = "tests/golden/tokenizers";
const std::vector<std::string> both{"<|begin|>", "<|end|>"};

json read_json(const fs::path& path) { return json::parse(std::ifstream(path)); }

BytePairTokenizer load(const std::string& name) {
  if (name != "tiktoken") return load_tokenizer_json(golden / (name + ".json"), normalize);
  return load_tiktoken(golden / "tiny.tiktoken",
                       {read_json(golden / "expected.json")["pattern"], both});
}

/// What an error says, or "".
template <class E>
std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const E& error) {
    return error.what();
  }
  return "";
}

bool has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

class Golden : public testing::TestWithParam<const char*> {};

TEST_P(Golden, TokensMatchReferenceTokenizers) {
  const json expected = read_json(golden / "expected.json");
  const BytePairTokenizer tokenizer = load(GetParam());
  const auto texts = expected["texts"].get<std::vector<std::string>>();
  const std::vector<std::string_view> views(texts.begin(), texts.end());
  const Context<Cpu> context(2);
  const auto as_text = expected["tokens"][GetParam()]["text"].get<std::vector<Tokens>>();
  const auto as_special = expected["tokens"][GetParam()]["special"].get<std::vector<Tokens>>();
  EXPECT_NE(as_text, as_special);
  EXPECT_EQ(tokenizer.encode_all(views, context), as_text);
  EXPECT_EQ(tokenizer.encode_all(views, context, both), as_special);
  for (std::size_t i = 0; i < texts.size(); ++i) {
    EXPECT_EQ(tokenizer.encode(texts[i]), as_text[i]) << texts[i];
    EXPECT_EQ(tokenizer.encode(texts[i], both), as_special[i]) << texts[i];
    EXPECT_EQ(tokenizer.decode(as_text[i]), texts[i]);
    EXPECT_EQ(tokenizer.decode(as_special[i]), texts[i]);
  }
}

TEST_P(Golden, FindsSpecialTokensByName) {
  const BytePairTokenizer tokenizer = load(GetParam());
  ASSERT_EQ(tokenizer.special_tokens().size(), both.size());
  for (const std::string& name : both) {
    const std::int32_t token = tokenizer.special_token(name);
    EXPECT_LT(token, tokenizer.vocabulary_size());
    EXPECT_EQ(tokenizer.decode(Tokens{token}), name);
    EXPECT_EQ(tokenizer.encode(octavo::message(name, "a", name), std::vector{name}),
              (Tokens{token, tokenizer.encode("a")[0], token}));
  }
  const auto only_begin = tokenizer.encode(both[0] + both[1], std::vector{both[0]});
  EXPECT_EQ(only_begin.front(), tokenizer.special_token(both[0]));
  EXPECT_GT(only_begin.size(), both.size());
  EXPECT_TRUE(has(error_of<ConfigError>([&] { (void)tokenizer.special_token("<|no|>"); }),
                  "no special token '<|no|>'; it has <|begin|>, <|end|>"));
  EXPECT_THROW((void)tokenizer.encode("a", std::vector<std::string>{"<|no|>"}), ConfigError);
}

INSTANTIATE_TEST_SUITE_P(Tokenizers, Golden,
                         testing::Values("gpt2", "llama3", "qwen", "smollm2", "tiktoken"),
                         [](const auto& test) { return std::string(test.param); });

std::string random_text(std::size_t bytes, std::string_view letters, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::string text(bytes, '\0');
  for (char& letter : text) letter = letters[random() % letters.size()];
  return text;
}

TEST(BytePairTokenizer, RoundTripsArbitraryBytes) {
  std::string bytes;
  for (int byte = 0; byte < 256; ++byte) bytes += static_cast<char>(byte);
  const std::string text = random_text(20'000, bytes, 1) + std::string(300, '\xff') + "end\xc3";
  // Not of Qwen, whose tokens are those of the text in NFC.
  for (const char* name : {"gpt2", "llama3", "smollm2", "tiktoken"}) {
    const BytePairTokenizer tokenizer = load(name);
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text) << name;
  }
}

TEST(BytePairTokenizer, SplittingLongTextsPreservesTokens) {
  const BytePairTokenizer tokenizer = load("llama3");
  const std::string words = random_text(300'000, "ab  't\n1the", 2);
  const std::vector<std::string> texts{
      words,
      words.substr(0, 60'000) + both[0] + words.substr(0, 90'000) + "\xff\xfe" + words,
      random_text(280'000, "aeh", 3),             // one word
      std::string(300'000, ' ') + "x",            // one word but for its end
      random_text(280'000, "\xe2\x82\xac 1", 4),  // characters and parts of them
      random_text(300'000, "0123456789", 5),      // words of three digits from the text's begin on
      "short",
      ""};
  const std::vector<std::string_view> views(texts.begin(), texts.end());
  std::vector<Tokens> expected;
  expected.reserve(texts.size());
  for (const std::string& text : texts) expected.push_back(tokenizer.encode(text, both));
  EXPECT_EQ(tokenizer.encode_all(views, Context<Cpu>(3), both), expected);
  EXPECT_EQ(tokenizer.encode_all({views.data(), 1}, Context<Cpu>(1), both).at(0), expected[0]);
}

TEST(BytePairTokenizer, MergesMatchPlainSearch) {
  const plain_merges::PlainMerges plain(read_json(golden / "smollm2.json")["model"]);
  const BytePairTokenizer tokenizer = load("smollm2");
  for (std::size_t length = 1; length < 200; length += length < 70 ? 1 : 13) {
    const std::string word = random_text(length, "aeinrst", static_cast<std::uint32_t>(length));
    std::vector<std::string> letters;
    for (const char letter : word) letters.emplace_back(1, letter);
    EXPECT_EQ(tokenizer.encode(word), plain.tokens(letters)) << word;
  }
}

TEST(BytePairTokenizer, RejectsTokensOutsideVocabulary) {
  const BytePairTokenizer tokenizer = load("gpt2");
  const auto end = static_cast<std::int32_t>(tokenizer.vocabulary_size());
  EXPECT_TRUE(
      has(error_of<ConfigError>([&] { (void)tokenizer.decode(Tokens{0, end}); }), "at position 1"));
  EXPECT_THROW((void)tokenizer.decode(Tokens{-1}), ConfigError);
}

TEST(BytePairTokenizer, RejectsTextNeedingNfcWithoutNormalizer) {
  const BytePairTokenizer qwen = load_tokenizer_json(golden / "qwen.json");
  const std::string settled = "gr\u00fcn \u041c\u044b \u4f60\u597d \uc548 \U0001f600";
  EXPECT_EQ(qwen.encode(settled), load("qwen").encode(settled));
  const std::string error = error_of<ConfigError>([&] { (void)qwen.encode("abcu\u0308"); });
  EXPECT_TRUE(has(error, "normalises") && has(error, "at byte 4")) << error;
  EXPECT_THROW((void)qwen.encode("\u2126"), ConfigError);  // Ohm, which NFC writes as Omega
}

std::string matching_error(const std::string& pattern, const std::string& text, double seconds) {
  const detail::SplitPattern split(pattern, "here");
  detail::SplitMatcher matcher(split, seconds);
  return error_of<ConfigError>([&] {
    detail::ByteRange match;
    for (std::size_t from = 0; matcher.find(text, from, match);) from = match.end;
  });
}

// Without limits, the time of the first search doubles with every letter. The second takes few
// steps at each position, but each step reads all letters: a minute for all 4000 positions.
TEST(BytePairTokenizer, ReportsPatternThatBacktracksTooLong) {
  constexpr double seconds = 0.2;
  EXPECT_TRUE(has(matching_error("(\\p{L}+)*\\d", std::string(60, 'a') + '!', seconds),
                  "here: the pattern '(\\p{L}+)*\\d' fails at byte 0 of a text of 61"));
  EXPECT_TRUE(has(matching_error("\\p{L}+\\p{L}+\\d", std::string(4000, 'a'), seconds),
                  "of a text of 4000: it backtracks for too long"));
}

TEST(BytePairTokenizer, LimitsTotalTimeOfSlowMatches) {
  const std::string pattern = "\\p{L}+\\p{L}+\\p{L}+\\d|\\p{L}+";
  std::string text;
  for (int i = 0; i < 200; ++i) text += std::string(80, 'a') + ' ';
  EXPECT_EQ(matching_error(pattern, text, 1000), "");
  EXPECT_TRUE(has(matching_error(pattern, text, 0.001), "here: the pattern"));
}

// Long text is not an error, although it takes more steps than the first attempt allows.
TEST(BytePairTokenizer, FindsLongMatchesAfterLongGaps) {
  const detail::SplitPattern pattern("\\d+(?=!)|\\s+x", "here");
  detail::SplitMatcher matcher(pattern);
  const std::string gap = "\u00e9" + std::string(1000, 'a');
  const std::string digits = std::string(500'000, '7');
  const std::string text = gap + digits + '!' + gap;
  detail::ByteRange match;
  ASSERT_TRUE(matcher.find(text, 0, match));
  EXPECT_EQ(match.begin, gap.size());
  EXPECT_EQ(match.end, gap.size() + digits.size());
  EXPECT_FALSE(matcher.find(text, match.end, match));
}

class Files : public support::TemporaryFolder {
 protected:
  std::string tiktoken_error(const std::string& content) {
    std::ofstream(folder_ / "tiny.tiktoken", std::ios::binary) << content;
    std::string error = error_of<IoError>(
        [&] { (void)load_tiktoken(folder_ / "tiny.tiktoken", {"\\s+|\\S+", both}); });
    EXPECT_TRUE(error.empty() || has(error, "tiny.tiktoken")) << error;
    return error;
  }

  /// What is said of gpt2.json after a change.
  std::string json_error(const std::function<void(json&)>& change) {
    json layout = read_json(golden / "gpt2.json");
    change(layout);
    return text_error(layout.dump());
  }
  std::string text_error(const std::string& content) {
    std::ofstream(folder_ / "tokenizer.json", std::ios::binary) << content;
    std::string error =
        error_of<IoError>([&] { (void)load_tokenizer(folder_ / "tokenizer.json"); });
    EXPECT_TRUE(error.empty() || has(error, "tokenizer.json")) << error;
    return error;
  }
};

TEST_F(Files, ReportsDamagedTiktokenLines) {
  const std::string good = content(golden / "tiny.tiktoken");
  std::vector<std::string> lines;
  for (std::size_t at = 0; at < good.size(); at = good.find('\n', at) + 1)
    lines.push_back(good.substr(at, good.find('\n', at) + 1 - at));
  const auto with = [&](std::size_t line, const std::string& text) {
    std::string all;
    for (std::size_t i = 0; i < lines.size(); ++i) all += i == line ? text : lines[i];
    return all;
  };
  EXPECT_EQ(tiktoken_error(good), "");
  EXPECT_TRUE(has(tiktoken_error(good.substr(0, good.size() - 1)), "ends within the line"));
  EXPECT_TRUE(has(tiktoken_error(with(7, "")), "line 8: the rank must be 7, but is 8"));
  EXPECT_TRUE(
      has(tiktoken_error(with(7, lines[7] + lines[7])), "line 9: the rank must be 8, but is 7"));
  EXPECT_TRUE(has(tiktoken_error(with(7, lines[6].substr(0, 4) + " 7\n")),
                  "line 8: repeats the token of line 7"));
  EXPECT_TRUE(has(tiktoken_error(with(7, "YQ= 7\n")), "line 8"));
  EXPECT_TRUE(has(tiktoken_error(with(7, "Y!== 7\n")), "line 8"));
  EXPECT_TRUE(has(tiktoken_error(with(7, "YR== 7\n")), "not complete base64"));
  EXPECT_TRUE(has(tiktoken_error(with(7, " 7\n")), "line 8"));
  EXPECT_TRUE(has(tiktoken_error(with(7, "YWFhYWE=\n")), "there is no space"));
  for (const char* rank : {"", "-7", "07", "7 ", "0x7", "99999999999999999999"})
    EXPECT_TRUE(has(tiktoken_error(with(7, message("YWFhYWE= ", rank, '\n'))), "line 8")) << rank;
  EXPECT_TRUE(has(tiktoken_error(with(0, "YWFhYWE= 0\n")), "has no token"));
  EXPECT_TRUE(has(tiktoken_error(""), "has no token"));
  EXPECT_TRUE(has(error_of<IoError>([&] { (void)load_tokenizer(golden / "tiny.tiktoken"); }),
                  "must have 128000 lines"));
  EXPECT_THROW((void)load_tokenizer(folder_ / "absent.model"), IoError);
}

TEST_F(Files, RejectsUnsupportedJsonParts) {
  EXPECT_EQ(json_error([](json&) {}), "");
  const auto refused = [this](const char* pointer, const json& value, const char* said) {
    const std::string error =
        json_error([&](json& layout) { layout[json::json_pointer(pointer)] = value; });
    EXPECT_TRUE(has(error, said)) << pointer << ": '" << error << "'";
  };
  refused("/version", "2.0", "version");
  refused("/novelty", 1, "'novelty' is not supported");
  refused("/model/type", "Unigram", "BPE");
  refused("/model/novelty", 1, "'novelty' is not supported");
  refused("/model/dropout", 0.1, "dropout");
  refused("/model/continuing_subword_prefix", "##", "continuing_subword_prefix");
  refused("/model/end_of_word_suffix", "</w>", "end_of_word_suffix");
  refused("/normalizer", {{"type", "Lowercase"}}, "normalizer Lowercase");
  refused("/pre_tokenizer", {{"type", "Metaspace"}}, "Metaspace has no replacement");
  refused("/pre_tokenizer", nullptr, "decoder ByteLevel");
  refused("/pre_tokenizer/novelty", true, "'novelty' is not supported");
  refused("/post_processor", {{"type", "BertProcessing"}}, "post_processor BertProcessing");
  refused("/decoder", {{"type", "WordPiece"}}, "decoder WordPiece");
  refused("/decoder", {{"type", "Replace"}, {"pattern", {{"String", "_"}}}, {"content", " "}},
          "pattern");
  refused("/decoder", {{"type", "Replace"}, {"pattern", {{"Regex", "\u2581"}}}}, "pattern Regex");
  refused("/decoder", {{"type", "Replace"}, {"content", ""}}, "no pattern");
  refused("/added_tokens/0/single_word", true, "single_word");
  refused("/added_tokens/0/content", "", "an id and a content");
}

TEST_F(Files, SentencePiecePartsDoNotAffectByteLevel) {
  const auto like_gguf = [](json& layout) {
    layout["model"]["byte_fallback"] = true;
    const json replace = {
        {"type", "Replace"}, {"pattern", {{"String", "\u2581"}}}, {"content", " "}};
    layout["decoder"] = {
        {"type", "Sequence"},
        {"decoders",
         json::array(
             {{{"type", "ByteFallback"}}, {{"type", "Fuse"}}, replace, layout["decoder"]})}};
  };
  ASSERT_EQ(json_error(like_gguf), "");
  const std::string text = "grün: \u4f60\u597d, a\u2581b <0x41>\n";
  const BytePairTokenizer tokenizer = load_tokenizer(folder_ / "tokenizer.json");
  EXPECT_EQ(tokenizer.encode(text), load("gpt2").encode(text));
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
  const auto with = [](json& layout, const char* token) {
    layout["model"]["vocab"][token] = layout["model"]["vocab"].size();
  };
  const auto error_with = [&](const char* token, const std::function<void(json&)>& change) {
    return json_error([&](json& layout) {
      change(layout);
      with(layout, token);
    });
  };
  for (const char* token : {"<0x41>", "\u2581b", "a\u2581b"}) {
    EXPECT_TRUE(has(error_with(token, like_gguf), token));
    EXPECT_EQ(error_with(token, [](json&) {}), "") << "where nothing makes anything of it";
  }
  const auto fallback = [](json& layout) { layout["model"]["byte_fallback"] = true; };
  EXPECT_TRUE(has(error_with("<0x41>", fallback), "<0x41>"));
  const auto decoders = [](const std::vector<json>& before, bool has_own,
                           const std::vector<json>& behind = {}) {
    return [=](json& layout) {
      std::vector<json> all = before;
      if (has_own) all.push_back(layout["decoder"]);
      all.insert(all.end(), behind.begin(), behind.end());
      layout["decoder"] = {{"type", "Sequence"}, {"decoders", all}};
    };
  };
  const json numbers = {{"type", "ByteFallback"}};
  EXPECT_TRUE(has(error_with("<0x41>", decoders({numbers}, true)), "<0x41>"));
  EXPECT_EQ(json_error(decoders({numbers}, true)), "");
  EXPECT_TRUE(has(json_error(decoders({numbers}, false)), "must end with ByteLevel"));
  EXPECT_TRUE(has(json_error(decoders({}, true, {numbers})), "after ByteLevel"));
  EXPECT_TRUE(has(json_error(decoders({{{"type", "Strip"}}}, true)), "decoder Strip"));
  EXPECT_TRUE(has(json_error(decoders({{{"type", "Replace"}}}, true)), "decoder Replace"));
  EXPECT_TRUE(has(json_error([&](json& layout) {
                    like_gguf(layout);
                    layout["added_tokens"][0]["content"] = "\u2581";
                  }),
                  "contains the mark"));
}

TEST_F(Files, RejectsAmbiguousPatterns) {
  const auto error_of_split = [this](const json& pattern, const char* behavior = "Isolated") {
    return json_error([&](json& all) {
      const json split = {
          {"type", "Split"}, {"pattern", pattern}, {"behavior", behavior}, {"invert", false}};
      const json pieces = json::array({split, {{"type", "ByteLevel"}, {"use_regex", false}}});
      all["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", pieces}};
    });
  };
  const auto error_of_pattern = [&](const char* regex) {
    return error_of_split({{"Regex", regex}});
  };
  EXPECT_TRUE(has(error_of_pattern("\\s+|[^\\s&&a]"), "byte 8 of the pattern"));
  for (const char* bad : {"^a", "a$", "\\w+", "\\b", "[[a]]", "[a", "(?m:a)", "(a", "[]a]", "a\\",
                          "\\p{L", "a[\\P{Nd"})
    EXPECT_NE(error_of_pattern(bad), "") << bad;
  // What PCRE2, Oniguruma and Rust's regular expressions take for different things.
  for (const char* bad : {"\\p{Han}",  "\\P{Greek}+",  "\\p{L&}",
                          "\\p{^L}",   "\\p{}",        "\\p",
                          "\\p{L Lu}", "(?i:\\p{Lu})", "(?i:(a|[\\p{Ll}]))",
                          "a{1,2}+",   "a{2}+",        "a{2}?",
                          "a{,2}",     "a{",           "a{x}",
                          "(?<=a)b",   "(?<!a)b",      "(?<name>a)",
                          "(?i)a",     "(*UTF)a",      "[a--b]",
                          "[a~~b]",    "\\<a"})
    EXPECT_NE(error_of_pattern(bad), "") << bad;
  EXPECT_TRUE(has(error_of_pattern("a|(?<=b)c"), "byte 2 of the pattern"));
  for (const char* good : {"\\p{L}+|[\\S]|\\s", "\\pN|\\P{Lu}", "(?i:'s)\\p{Lu}",
                           "(?i:(a))(?=\\p{Ll})", "a{1,2}?", "a{2,}", "a++(?>b)(?!c)"})
    EXPECT_EQ(error_of_pattern(good), "") << good;
  EXPECT_TRUE(has(error_of_split({{"Regex", "a"}}, "Removed"), "behavior"));
  EXPECT_TRUE(has(error_of_split({{"String", "a"}}), "pattern String"));
}

TEST_F(Files, RejectsInconsistentJson) {
  EXPECT_TRUE(has(json_error([](json& all) { all["model"]["vocab"].erase("A"); }), "no token"));
  EXPECT_TRUE(has(json_error([](json& all) { all["model"]["vocab"]["A"] = 5; }), "twice"));
  EXPECT_TRUE(
      has(json_error([](json& all) { all["model"]["vocab"]["A"] = 100'000; }), "must be below"));
  EXPECT_TRUE(has(json_error([](json& all) { all["model"]["vocab"]["A"] = 1.5; }),
                  "in model.vocab.A: 1.5 is not a whole number from 0 to 1073741823; use another"));
  EXPECT_TRUE(has(json_error([](json& all) { all["added_tokens"][0]["id"] = 7; }), "another text"));
  const auto merges = [this](const json& value) {
    return json_error([&](json& all) { all["model"]["merges"][3] = value; });
  };
  EXPECT_TRUE(has(merges("a b c"), "at byte"));
  EXPECT_TRUE(has(merges("ab"), "at byte"));
  EXPECT_TRUE(has(merges({"a", "b", "c"}), "at byte"));
  EXPECT_TRUE(has(merges(json::array({"a"})), "at byte"));
  EXPECT_TRUE(has(merges("zz qq"), "merge 3"));
  EXPECT_TRUE(
      has(json_error([](json& all) { all["model"]["merges"][3] = all["model"]["merges"][2]; }),
          "merge 3"));
  EXPECT_TRUE(has(json_error([](json& all) { all.erase("model"); }), "no member 'model'"));
}

TEST_F(Files, RejectsTextWithUnencodableBytes) {
  EXPECT_EQ(json_error([](json& all) {
              json anew;  // the letter is the byte 4
              for (const auto& [text, token] : all["model"]["vocab"].items())
                anew[text == "\u0104" ? "zzzz" : text] = token;
              all["model"]["vocab"] = anew;
            }),
            "");
  const BytePairTokenizer tokenizer = load_tokenizer(folder_ / "tokenizer.json");
  EXPECT_EQ(tokenizer.encode("ab\x05"), load("gpt2").encode("ab\x05"));
  const std::string error = error_of<ConfigError>([&] { (void)tokenizer.encode("ab\x04"); });
  EXPECT_TRUE(has(error, "the byte 4, at byte 2")) << error;
}

TEST_F(Files, TheLongestAddedTokenIsFound) {
  const auto end = static_cast<std::int32_t>(load("gpt2").vocabulary_size());
  EXPECT_EQ(json_error([&](json& all) {
              json longer = all["added_tokens"][1];
              longer["id"] = end;
              longer["content"] = both[1] + both[1];
              all["added_tokens"].push_back(longer);
            }),
            "");
  const BytePairTokenizer tokenizer = load_tokenizer(folder_ / "tokenizer.json");
  const std::vector<std::string> allowed{both[1], both[1] + both[1]};
  EXPECT_EQ(tokenizer.encode(both[1] + both[1] + both[1], allowed),
            (Tokens{end, tokenizer.special_token(both[1])}));
}

TEST_F(Files, RejectsInvalidJson) {
  const std::string good = content(golden / "gpt2.json");
  for (std::size_t end = 0; end + 1 < good.size(); end += 97)
    EXPECT_NE(text_error(good.substr(0, end)), "") << end;
  EXPECT_TRUE(has(text_error("{\"model\":{\"unk_token\":" + std::string(100'000, '[')), "nested"));
  EXPECT_TRUE(has(text_error(good + "x"), "at byte"));
}

/// All tokens of one and two bytes, and as many of three as are missing.
TEST_F(Files, AppendsLlama3SpecialTokens) {
  constexpr std::string_view letters =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (std::uint32_t i = 0; i < 128'000; ++i) {
    const std::uint32_t bytes = i < 256 ? i << 16 : i < 65'792 ? (i - 256) << 8 : i;
    std::string token;
    for (const int shift : {18, 12, 6, 0}) token += letters[bytes >> shift & 63];
    if (i < 65'792) token[3] = '=';
    if (i < 256) token[2] = '=';
    text += message(token, ' ', i, '\n');
  }
  std::ofstream(folder_ / "tokenizer.model") << text;
  const BytePairTokenizer tokenizer = load_tokenizer(folder_ / "tokenizer.model");
  EXPECT_EQ(tokenizer.vocabulary_size(), 128'256);
  EXPECT_EQ(tokenizer.special_token("<|begin_of_text|>"), 128'000);
  EXPECT_EQ(tokenizer.special_token("<|end_of_text|>"), 128'001);
  EXPECT_EQ(tokenizer.special_token("<|start_header_id|>"), 128'006);
  EXPECT_EQ(tokenizer.special_token("<|end_header_id|>"), 128'007);
  EXPECT_EQ(tokenizer.special_token("<|eot_id|>"), 128'009);
  EXPECT_EQ(tokenizer.special_token("<|reserved_special_token_245|>"), 128'255);
  EXPECT_EQ(tokenizer.encode("ab"), Tokens{256 + ('a' << 8) + 'b'});
}

}  // namespace tokenizer_files_test
