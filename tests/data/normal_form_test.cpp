// Normal forms against Unicode's own list of tests, and tokenizers that use them.
#include <octavo/data/tokenizer_json.hpp>
#include <octavo/data/utf8proc.hpp>

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace normal_form_test {

using namespace octavo;

/// UTF-8 of code points in hexadecimal, with spaces between.
std::string utf8_of(const std::string& codes) {
  std::istringstream words(codes);
  std::string text;
  for (std::uint32_t code = 0; words >> std::hex >> code;) {
    const auto tail = [&](int shift) {
      text += static_cast<char>(0x80u | ((code >> shift) & 0x3fu));
    };
    if (code < 0x80) {
      text += static_cast<char>(code);
    } else if (code < 0x800) {
      text += static_cast<char>(0xc0u | (code >> 6));
      tail(0);
    } else if (code < 0x10000) {
      text += static_cast<char>(0xe0u | (code >> 12));
      tail(6), tail(0);
    } else {
      text += static_cast<char>(0xf0u | (code >> 18));
      tail(12), tail(6), tail(0);
    }
  }
  return text;
}

/// The columns of a test: a text, and its NFC, NFD, NFKC and NFKD.
using Columns = std::array<std::string, 5>;

/// Unicode's NormalizationTest.txt, where the distribution has it; otherwise empty.
const std::vector<Columns>& unicode_tests() {
  static const std::vector<Columns> tests = [] {
    std::vector<Columns> all;
    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(
        ::popen("f=/usr/share/unicode/NormalizationTest.txt; cat $f 2>/dev/null || bzcat $f.bz2 "
                "2>/dev/null",
                "r"),
        ::pclose);
    std::array<char, 4096> buffer{};
    while (file != nullptr && std::fgets(buffer.data(), buffer.size(), file.get()) != nullptr) {
      if (buffer[0] == '#' || buffer[0] == '@' || buffer[0] == '\n') continue;
      std::istringstream line(buffer.data());
      Columns columns;
      for (std::string& column : columns) {
        std::getline(line, column, ';');
        column = utf8_of(column);
      }
      all.push_back(columns);
    }
    return all;
  }();
  return tests;
}

TEST(NormalForm, PassesUnicodeConformanceTests) {
  if (unicode_tests().empty()) GTEST_SKIP() << "the package unicode-data is not installed";
  ASSERT_GT(unicode_tests().size(), 18'000u);
  for (const auto& [c1, c2, c3, c4, c5] : unicode_tests()) {
    for (const std::string* text : {&c1, &c2, &c3}) {
      ASSERT_EQ(normalize_by_utf8proc(*text, NormalForm::nfc), c2);
      ASSERT_EQ(normalize_by_utf8proc(*text, NormalForm::nfd), c3);
    }
    for (const std::string* text : {&c4, &c5}) {
      ASSERT_EQ(normalize_by_utf8proc(*text, NormalForm::nfc), c4);
      ASSERT_EQ(normalize_by_utf8proc(*text, NormalForm::nfd), c5);
    }
    for (const std::string* text : {&c1, &c2, &c3, &c4, &c5}) {
      ASSERT_EQ(normalize_by_utf8proc(*text, NormalForm::nfkc), c4);
      ASSERT_EQ(normalize_by_utf8proc(*text, NormalForm::nfkd), c5);
    }
  }
}

BytePairTokenizer qwen() {
  return load_tokenizer_json("tests/golden/tokenizers/qwen.json", normalize_by_utf8proc);
}

TEST(NormalForm, TokensMatchNormalisedText) {
  const BytePairTokenizer tokenizer = qwen();
  for (const auto& [c1, c2, c3, c4, c5] : unicode_tests()) {
    ASSERT_EQ(tokenizer.encode(c1), tokenizer.encode(c2)) << c1;
    ASSERT_EQ(tokenizer.decode(tokenizer.encode(c3)), c2) << c3;
    ASSERT_EQ(tokenizer.decode(tokenizer.encode(c5)), c4) << c5;
  }
  // Not only texts of one character: between others, special tokens and bytes that are not UTF-8.
  const std::vector<std::string> allowed{"<|begin|>"};
  const std::string text =
      "A\u030a e\xffu\u0308<|begin|>o\u0308 \u0928\u092e\u0938\u094d\u0924\u0947";
  const std::string composed =
      "\u00c5 e\xff\u00fc<|begin|>\u00f6 \u0928\u092e\u0938\u094d\u0924\u0947";
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(text, allowed)), composed);
  EXPECT_EQ(tokenizer.encode(text, allowed), tokenizer.encode(composed, allowed));
  const std::vector<std::string_view> texts{text, composed, text};
  const auto tokens = tokenizer.encode_all(texts, Context<Cpu>(2), allowed);
  EXPECT_EQ(tokens[0], tokens[1]);
  EXPECT_EQ(tokens[0], tokens[2]);
  EXPECT_EQ(tokens[0], tokenizer.encode(text, allowed));
}

// Texts that are cut into parts, in which a mark stands behind the place of a cut, too.
TEST(NormalForm, NormalisesLongTextsBeforeSplitting) {
  const BytePairTokenizer tokenizer = qwen();
  std::string text;
  std::string composed;
  while (text.size() < 500'000) {
    text += "o\u0308";
    composed += "\u00f6";
  }
  const std::vector<std::string_view> texts{text, composed};
  const auto tokens = tokenizer.encode_all(texts, Context<Cpu>(3));
  EXPECT_EQ(tokens[0], tokens[1]);
}

}  // namespace normal_form_test
