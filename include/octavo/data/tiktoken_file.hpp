/// @file
/// Reading tokenizers from tiktoken files, such as Llama 3's tokenizer.model. Needs PCRE2: see
/// split_pattern.hpp.
#pragma once

#include <octavo/data/byte_pair_tokenizer.hpp>
#include <octavo/data/open_file.hpp>

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace octavo OCTAVO_ABI {

/// The parts of a tokenizer that a tiktoken file does not contain.
struct TiktokenOptions {
  std::string pattern;                      ///< regular expression that splits text into words
  std::vector<std::string> special_tokens;  ///< numbered after the file's tokens, in order
};

/// Returns the options of Llama 3, 3.1, 3.2 and 3.3.
/// Source: models/llama3/tokenizer.py of the package llama-models.
[[nodiscard]] inline TiktokenOptions llama3_tiktoken() {
  TiktokenOptions options{
      .pattern =
          "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|"
          " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
      .special_tokens = {"<|begin_of_text|>", "<|end_of_text|>", "<|reserved_special_token_0|>",
                         "<|reserved_special_token_1|>", "<|finetune_right_pad_id|>", "<|step_id|>",
                         "<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>", "<|eot_id|>",
                         "<|python_tag|>", "<|image|>"}};
  constexpr std::size_t count = 256;
  for (int i = 2; options.special_tokens.size() < count; ++i)
    options.special_tokens.push_back(message("<|reserved_special_token_", i, "|>"));
  return options;
}

namespace detail {

/// The maximum size of a tokenizer's file, in bytes.
inline constexpr std::uint64_t max_tokenizer_bytes = 1 << 28;

/// Reads lines with a token's bytes in base 64, a space and its rank. Ranks ascend from 0.
class TiktokenReader {
 public:
  TiktokenReader(const std::filesystem::path& path, std::string_view text)
      : path_(path), text_(text) {}

  BytePairs read() {
    pairs_.byte_tokens.fill(-1);
    while (!text_.empty()) {
      const std::size_t end = text_.find('\n');
      if (end == std::string_view::npos) fail("the file ends within the line");
      line(text_.substr(0, end));
      text_.remove_prefix(end + 1);
    }
    find_pairs();
    for (std::size_t byte = 0; byte < pairs_.byte_tokens.size(); ++byte)
      require<IoError>(pairs_.byte_tokens[byte] >= 0, path_.string(), ": the byte ", byte,
                       " has no token; download the file again");
    return std::move(pairs_);
  }

 private:
  /// Limits the time for trying all splits of a token, which is quadratic in its length.
  static constexpr std::size_t longest_token = 1024;

  [[noreturn]] void fail(std::string_view what) const {
    throw IoError(
        message(path_.string(), ": line ", pairs_.bytes.size() + 1, ": ", what,
                "; each line must be a token in base64, a space and its rank: download the "
                "file again"));
  }

  void line(std::string_view line) {
    const std::size_t space = line.find(' ');
    if (space == std::string_view::npos) fail("there is no space");
    const std::string_view digits = line.substr(space + 1);
    std::size_t rank = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), rank);
    if (error != std::errc{} || end != digits.data() + digits.size() || digits != message(rank))
      fail(message("the rank '", digits, "' is not an integer"));
    if (rank != pairs_.bytes.size())
      fail(message("the rank must be ", pairs_.bytes.size(), ", but is ", rank));
    pairs_.bytes.push_back(decoded(line.substr(0, space)));
    const std::string& bytes = pairs_.bytes.back();
    if (bytes.size() > longest_token)
      fail(
          message("the token must have at most ", longest_token, " bytes, but has ", bytes.size()));
    if (bytes.size() == 1)
      pairs_.byte_tokens[static_cast<std::uint8_t>(bytes.front())] =
          static_cast<std::int32_t>(rank);
  }

  /// Decodes base 64 according to RFC 4648, with padding; unused bits after the last byte must be
  /// 0.
  [[nodiscard]] std::string decoded(std::string_view text) const {
    constexpr std::string_view letters =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    std::string_view digits = text;
    while (digits.ends_with('=') && text.size() - digits.size() < 2) digits.remove_suffix(1);
    std::string bytes;
    std::uint32_t bits = 0;
    std::size_t count = 0;
    for (const char digit : digits) {
      const std::size_t value = letters.find(digit);
      if (value == std::string_view::npos) fail(message("'", text, "' is not base64"));
      bits = (bits << 6 | static_cast<std::uint32_t>(value)) & 0xffffu;
      count += 6;
      if (count < 8) continue;
      count -= 8;
      bytes += static_cast<char>(static_cast<std::uint8_t>(bits >> count));
    }
    if (text.size() % 4 != 0 || bytes.empty() || (bits & ((1u << count) - 1)) != 0)
      fail(message("'", text, "' is not complete base64"));
    return bytes;
  }

  /// Two tokens merge if their concatenated bytes are a token. Its rank is the rank of the merge.
  void find_pairs() {
    TokenMap& words = pairs_.whole_words;
    words.reserve(pairs_.bytes.size());
    for (std::size_t i = 0; i < pairs_.bytes.size(); ++i) {
      const auto [place, is_new] = words.emplace(pairs_.bytes[i], static_cast<std::int32_t>(i));
      require<IoError>(is_new, path_.string(), ": line ", i + 1, ": repeats the token of line ",
                       place->second + 1, "; download the file again");
    }
    std::vector<std::pair<std::int32_t, std::int32_t>> found;
    std::vector<std::int32_t> results;
    for (std::size_t i = 0; i < pairs_.bytes.size(); ++i) {
      const std::string_view bytes = pairs_.bytes[i];
      for (std::size_t cut = 1; cut < bytes.size(); ++cut) {
        const auto left = words.find(bytes.substr(0, cut));
        if (left == words.end()) continue;
        const auto right = words.find(bytes.substr(cut));
        if (right == words.end()) continue;
        found.emplace_back(left->second, right->second);
        results.push_back(static_cast<std::int32_t>(i));
      }
    }
    pairs_.merges = PairMerges(found.size());
    for (std::size_t i = 0; i < found.size(); ++i)
      pairs_.merges.add(found[i].first, found[i].second, {results[i], results[i]});
  }

  const std::filesystem::path& path_;
  std::string_view text_;
  BytePairs pairs_;
};

}  // namespace detail

/// Reads a tokenizer from a tiktoken file.
/// @throws IoError  naming file and line, if the file cannot be read, contains an invalid line or a
/// duplicate rank or token, or has no token for a byte
[[nodiscard]] inline BytePairTokenizer load_tiktoken(const std::filesystem::path& path,
                                                     const TiktokenOptions& options) {
  const std::string text = read_text_file(path, detail::max_tokenizer_bytes);
  detail::BytePairModel model;
  model.pairs = detail::TiktokenReader(path, text).read();
  model.patterns.emplace_back(options.pattern, "TiktokenOptions");
  for (const std::string& name : options.special_tokens) {
    require<ConfigError>(!name.empty(), "the name of a special token must not be empty");
    model.added.push_back({name, static_cast<std::int32_t>(model.pairs.bytes.size())});
    model.pairs.bytes.push_back(name);
  }
  return BytePairTokenizer(std::move(model));
}

/// Reads Llama 3's tokenizer.model.
/// @throws IoError  as `load_tiktoken` does, and if the number of tokens is not Llama 3's
[[nodiscard]] inline BytePairTokenizer load_llama3_tokenizer(const std::filesystem::path& path) {
  constexpr Index tokens = 128'000;
  const TiktokenOptions options = llama3_tiktoken();
  BytePairTokenizer tokenizer = load_tiktoken(path, options);
  const Index count =
      tokenizer.vocabulary_size() - static_cast<Index>(options.special_tokens.size());
  require<IoError>(count == tokens, path.string(), ": must have ", tokens,
                   " lines like Llama 3's file, but has ", count,
                   "; it is truncated, or belongs to another model: name its tokenizer.json");
  return tokenizer;
}

}  // namespace octavo
