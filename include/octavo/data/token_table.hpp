/// @file
/// The vocabulary and the merges of a tokenizer's file.
#pragma once

#include <octavo/core/error.hpp>
#include <octavo/core/utf8.hpp>
#include <octavo/data/added_tokens.hpp>
#include <octavo/data/byte_alphabet.hpp>
#include <octavo/data/byte_pairs.hpp>
#include <octavo/data/code_point.hpp>
#include <octavo/data/token_decoder.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace octavo OCTAVO_ABI {

namespace detail {

/// Collects the tokens and merges of a file, and converts them to byte pairs.
class TokenTable {
 public:
  /// @param place  the file, for messages
  explicit TokenTable(std::string place) : place_(std::move(place)) {}

  /// @param text  valid UTF-8
  void add(std::string text, std::int32_t token) {
    vocabulary_.emplace_back(std::move(text), token);
  }
  /// Adds a merge, whose rank is the number of merges before it.
  void add_merge(std::array<std::string, 2> pair) {
    add_merge(std::move(pair), static_cast<std::int32_t>(merges_.size()));
  }
  /// Adds a merge. Of merges with the same rank, the leftmost in a text comes first.
  void add_merge(std::array<std::string, 2> pair, std::int32_t rank) {
    merges_.push_back({std::move(pair), rank});
  }

  /// Returns the tokens of byte-level BPE.
  /// @param ignores_merges  words that are in the vocabulary are not merged
  /// @throws IoError  if tokens are missing or contradictory, or a decoder would change one
  [[nodiscard]] BytePairs byte_level(const std::vector<AddedToken>& added,
                                     const TokenDecoder& decoder, bool has_byte_fallback,
                                     bool ignores_merges) const {
    const auto require_plain = [&](std::int32_t token, const std::string& text) {
      std::string reason = decoder.reason_against(text);
      if (has_byte_fallback && byte_of_name(text).has_value())
        reason = "represents a byte; only byte-level BPE without such tokens is supported";
      if (!reason.empty()) refuse(message("the token ", token, ", '", text, "', ", reason));
    };
    for (const auto& [text, token] : vocabulary_) require_plain(token, text);
    for (const AddedToken& one : added) require_plain(one.token, one.text);
    TokenMap known;
    BytePairs pairs = with_texts(added, known);
    const ByteAlphabet alphabet;
    for (const auto& [text, token] : vocabulary_) {
      std::string bytes;
      if (!alphabet.decode(text, bytes)) continue;
      if (bytes.size() == 1) pairs.byte_tokens[static_cast<std::uint8_t>(bytes[0])] = token;
      if (ignores_merges) pairs.whole_words.emplace(bytes, token);
      pairs.bytes[static_cast<std::size_t>(token)] = std::move(bytes);
    }
    for (const AddedToken& one : added)
      pairs.bytes[static_cast<std::size_t>(one.token)] = one.searched();
    add_merges(pairs, known);
    return pairs;
  }

  /// Returns the tokens of character-level BPE.
  /// @param has_byte_fallback  characters without a token consist of tokens such as <0x0A>
  /// @throws IoError  if tokens are missing or contradictory
  [[nodiscard]] BytePairs characters(const std::vector<AddedToken>& added,
                                     const TokenDecoder& decoder, bool has_byte_fallback) const {
    TokenMap known;
    BytePairs pairs = with_decoded_texts(added, decoder, has_byte_fallback, known);
    pairs.characters.resize(1);
    pairs.characters[0] = -1;
    for (const auto& [text, token] : vocabulary_) {
      const Character first = first_character(text);
      if (first.length == text.size()) {
        if (first.code >= pairs.characters.size()) pairs.characters.resize(first.code + 1, -1);
        pairs.characters[first.code] = token;
      }
    }
    add_merges(pairs, known);
    add_adjacent(pairs, has_byte_fallback);
    return pairs;
  }

  /// Returns the tokens of a Unigram model: those of texts, without added tokens, `unknown`, and
  /// tokens of bytes.
  /// @param model    contains the score of each token; receives their texts
  /// @param unknown  the unknown token, or −1
  /// @throws IoError  if tokens are missing or contradictory
  [[nodiscard]] BytePairs unigram(const std::vector<AddedToken>& added, const TokenDecoder& decoder,
                                  bool has_byte_fallback, std::int32_t unknown,
                                  Unigram model) const {
    TokenMap known;
    BytePairs pairs = with_decoded_texts(added, decoder, has_byte_fallback, known);
    for (const AddedToken& one : added) known.erase(one.text);
    std::vector<std::pair<std::string_view, std::int32_t>> texts;
    for (const auto& [text, token] : known) {
      if (token != unknown && !(has_byte_fallback && is_byte(text)))
        texts.emplace_back(text, token);
    }
    model.texts = TextTrie(std::move(texts));
    pairs.unigram = std::move(model);
    return pairs;
  }

 private:
  struct Merge {
    std::array<std::string, 2> pair;
    std::int32_t rank;
  };

  [[noreturn]] void refuse(std::string_view what) const {
    throw IoError(message(place_, ": ", what));
  }

  static bool is_byte(std::string_view text) {
    const auto byte = byte_of_name(text);
    return byte.has_value() && text == name_of_byte(*byte);
  }

  /// Returns pairs without merges whose bytes are the decoded texts of tokens.
  /// @param has_byte_fallback  tokens such as <0x0A> stand for bytes
  /// @param known              receives the token of each text
  [[nodiscard]] BytePairs with_decoded_texts(const std::vector<AddedToken>& added,
                                             const TokenDecoder& decoder, bool has_byte_fallback,
                                             TokenMap& known) const {
    BytePairs pairs = with_texts(added, known);
    for (const AddedToken& one : added)
      pairs.bytes[static_cast<std::size_t>(one.token)] = one.searched();
    for (std::string& text : pairs.bytes) text = decoder.bytes_of(text);
    for (const auto& [text, token] : vocabulary_) {
      if (has_byte_fallback && is_byte(text)) pairs.byte_tokens[*byte_of_name(text)] = token;
    }
    return pairs;
  }

  /// Returns pairs whose bytes are the texts of tokens, without tokens of bytes.
  /// @param known  receives the token of each text
  [[nodiscard]] BytePairs with_texts(const std::vector<AddedToken>& added, TokenMap& known) const {
    const std::size_t most = vocabulary_.size() + added.size();
    BytePairs pairs;
    pairs.byte_tokens.fill(-1);
    pairs.bytes.resize(most);  // empty where there is no token yet
    std::size_t end = 0;
    const auto text_of = [&](std::int32_t token, const std::string& text) -> std::string& {
      const auto place = static_cast<std::size_t>(token);
      if (place >= most)
        refuse(message("the token of '", text, "' must be below ", most,
                       ", the number of tokens, but is ", token));
      end = std::max(end, place + 1);
      return pairs.bytes[place];
    };
    known.reserve(most);
    for (const auto& [text, token] : vocabulary_) {
      std::string& entry = text_of(token, text);
      if (!entry.empty()) refuse(message("the token ", token, " appears twice in the vocabulary"));
      if (text.empty()) refuse(message("the text of token ", token, " is empty"));
      if (!known.emplace(text, token).second)
        refuse(message("the text '", text, "' appears twice in the vocabulary"));
      entry = text;
    }
    for (const AddedToken& one : added) {
      std::string& entry = text_of(one.token, one.text);
      const auto of_vocabulary = known.find(one.text);
      const bool is_new = entry.empty() && of_vocabulary == known.end();
      if (!is_new && (of_vocabulary == known.end() || of_vocabulary->second != one.token))
        refuse(message("the added token ", one.token, ", '", one.text,
                       "', has another text in the vocabulary, or appears twice"));
      known.emplace(one.text, one.token);
      entry = one.text;
    }
    pairs.bytes.resize(end);
    for (std::size_t i = 0; i < end; ++i)
      if (pairs.bytes[i].empty())
        refuse(message("there is no token ", i, "; token IDs must be consecutive"));
    return pairs;
  }

  void add_merges(BytePairs& pairs, const TokenMap& known) const {
    pairs.merges = PairMerges(merges_.size());
    for (std::size_t i = 0; i < merges_.size(); ++i) {
      const auto& [left, right] = merges_[i].pair;
      const auto token_of = [&, &left = left, &right = right](const std::string& text) {
        const auto found = known.find(text);
        if (found == known.end())
          refuse(message("merge ", i, ", of '", left, "' and '", right, "': '", text,
                         "' is not in the vocabulary"));
        return found->second;
      };
      const PairMerge merge{merges_[i].rank, token_of(left + right)};
      if (!pairs.merges.add(token_of(left), token_of(right), merge))
        refuse(message("merge ", i, ", of '", left, "' and '", right, "', appears twice"));
    }
  }

  /// Finds the pairs of characters between which merges join tokens.
  void add_adjacent(BytePairs& pairs, bool has_byte_fallback) const {
    std::vector<std::pair<std::int32_t, std::int32_t>> all;
    all.reserve(merges_.size());
    for (std::size_t i = 0; i < merges_.size(); ++i) {
      const auto& [left, right] = merges_[i].pair;
      if (has_byte_fallback && (byte_of_name(left).has_value() || byte_of_name(right).has_value()))
        refuse(message("merge ", i, ", of '", left, "' and '", right,
                       "': merges of tokens that stand for bytes are not supported"));
      std::size_t last = left.size() - 1;
      while ((static_cast<std::uint8_t>(left[last]) & 0xc0u) == 0x80u) --last;
      all.emplace_back(
          static_cast<std::int32_t>(first_character(std::string_view(left).substr(last)).code),
          static_cast<std::int32_t>(first_character(right).code));
    }
    std::sort(all.begin(), all.end());
    all.erase(std::unique(all.begin(), all.end()), all.end());
    pairs.adjacent = PairMerges(all.size());
    for (const auto& [left, right] : all) pairs.adjacent.add(left, right, {0, 0});
  }

  std::string place_;
  std::vector<std::pair<std::string, std::int32_t>> vocabulary_;
  std::vector<Merge> merges_;
};

}  // namespace detail

}  // namespace octavo
