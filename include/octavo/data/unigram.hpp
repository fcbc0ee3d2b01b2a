/// @file
/// Unigram language models of tokens.
#pragma once

#include <octavo/core/error.hpp>
#include <octavo/core/utf8.hpp>
#include <octavo/data/text_trie.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>
#include <vector>

namespace octavo OCTAVO_ABI::detail {

/// The tokens of a Unigram model, and the logarithms of their probabilities.
struct Unigram {
  TextTrie texts{};
  std::vector<double> scores{};  ///< by token
  double unknown_score = 0;      ///< of a character without a token
  bool is_single = false;        ///< sums of scores are rounded to FP32, as sentencepiece does
};

/// Finds the most probable tokens of words. Of equally probable sequences, the one whose last token
/// begins first is chosen. Source: Kudo 2018, arXiv 1804.10959; equal results for equal scores:
/// EncodeOptimized in unigram_model.cc of sentencepiece 0.2.3, and unigram/model.rs of tokenizers.
class UnigramEncoder {
 public:
  /// Appends the tokens of a word. The tokens of a character without a token are those of its
  /// bytes.
  /// @param word         bytes that are not UTF-8 are characters
  /// @param byte_tokens  the token of each byte, or −1
  /// @throws ConfigError  if a character has no token, and one of its bytes has none
  void encode(const Unigram& model, const std::array<std::int32_t, 256>& byte_tokens,
              std::string_view word, std::vector<std::int32_t>& tokens) {
    ends_.assign(1, End{});
    std::size_t first = 0;  // start of the part of the word that ends_ describes
    for (std::size_t at = 0; at < word.size();) {
      if (at - first >= max_pending && at - first + 1 == ends_.size()) {
        // No token continues here, so the best tokens of the text before are known.
        append(byte_tokens, word.substr(first, at - first), tokens);
        ends_.assign(1, End{.score = ends_.back().score});
        first = at;
      }
      const std::size_t length = std::max<std::size_t>(utf8_length(word.substr(at)), 1);
      const double before = ends_[at - first].score;
      const auto sum = [&](double score) {
        return model.is_single ? static_cast<double>(static_cast<float>(before + score))
                               : before + score;
      };
      bool has_character = false;
      model.texts.each(word.substr(at), [&](std::size_t size, std::int32_t token) {
        improve(at - first, size, token, sum(model.scores[static_cast<std::size_t>(token)]));
        has_character = has_character || size == length;
      });
      if (!has_character) improve(at - first, length, unknown, sum(model.unknown_score));
      at += length;
    }
    append(byte_tokens, word.substr(first), tokens);
  }

 private:
  static constexpr std::int32_t unknown = -1;
  static constexpr std::int32_t nothing = -2;
  /// Bounds the memory for long words.
  static constexpr std::size_t max_pending = std::size_t{1} << 16;

  /// The best tokens that end at a position.
  struct End {
    double score = 0;
    std::size_t length = 0;  ///< of the last token
    std::int32_t token = nothing;
  };

  void improve(std::size_t from, std::size_t length, std::int32_t token, double score) {
    if (from + length >= ends_.size()) ends_.resize(from + length + 1);
    End& end = ends_[from + length];
    if (end.token == nothing || score > end.score) end = {score, length, token};
  }

  void append(const std::array<std::int32_t, 256>& byte_tokens, std::string_view text,
              std::vector<std::int32_t>& tokens) {
    path_.clear();
    for (std::size_t end = text.size(); end > 0; end -= ends_[end].length) path_.push_back(end);
    for (std::size_t i = path_.size(); i-- > 0;) {
      const End& end = ends_[path_[i]];
      if (end.token != unknown) {
        tokens.push_back(end.token);
        continue;
      }
      const std::string_view character = text.substr(path_[i] - end.length, end.length);
      for (const char byte : character) {
        const std::int32_t token = byte_tokens[static_cast<std::uint8_t>(byte)];
        if (token < 0) refuse(character, static_cast<std::uint8_t>(byte));
        tokens.push_back(token);
      }
    }
  }

  [[noreturn]] static void refuse(std::string_view character, std::uint8_t byte) {
    throw ConfigError(message(
        "the tokenizer has no token for ",
        utf8_length(character) > 0 ? message('\'', character, '\'') : message("the byte ", byte),
        "; remove it from the text"));
  }

  std::vector<End> ends_;
  std::vector<std::size_t> path_;  ///< the ends of the best tokens, last first
};

}  // namespace octavo OCTAVO_ABI::detail
