/// @file
/// Byte pair encoding of words.
#pragma once

#include <octavo/core/device.hpp>
#include <octavo/core/error.hpp>
#include <octavo/core/utf8.hpp>
#include <octavo/data/code_point.hpp>
#include <octavo/data/pair_merges.hpp>
#include <octavo/data/unigram.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace octavo OCTAVO_ABI {

namespace detail {

/// Allows lookups in a map of strings without constructing a string.
struct TextHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const {
    return std::hash<std::string_view>{}(text);
  }
};
using TokenMap = std::unordered_map<std::string, std::int32_t, TextHash, std::equal_to<>>;

/// The tokens of a vocabulary and their merges. Words consist of bytes, or of characters if
/// `characters` is not empty. A character without a token is encoded as its bytes. The tokens of a
/// Unigram model have no merges.
struct BytePairs {
  std::vector<std::string> bytes;               ///< bytes of each token
  std::array<std::int32_t, 256> byte_tokens{};  ///< the token of each byte, or −1
  std::vector<std::int32_t> characters;         ///< the token of each code point, or −1
  PairMerges merges;
  PairMerges adjacent;  ///< pairs of code points between which some merge joins tokens
  std::optional<Unigram> unigram{};
  TokenMap whole_words;  ///< words that are encoded as a single token regardless of merges

  [[nodiscard]] bool has_characters() const { return !characters.empty(); }
  [[nodiscard]] std::int32_t token_of(std::uint32_t code) const {
    return code < characters.size() ? characters[code] : -1;
  }
};

/// Returns the end of the word that begins at `from`: the first position where no merge can join
/// the characters before and after it. The words of a text can therefore be merged separately. A
/// word of bytes extends to the end of the text.
/// @param text   valid UTF-8
/// @param until  the search stops after this position, even if the word continues
[[nodiscard]] inline std::size_t end_of_word(const BytePairs& pairs, std::string_view text,
                                             std::size_t from, std::size_t until) {
  if (!pairs.has_characters()) return text.size();
  Character last = first_character(text.substr(from));
  std::size_t at = from + last.length;
  while (at < text.size() && at <= until) {
    const Character next = first_character(text.substr(at));
    const auto [left, right] =
        std::pair(static_cast<std::int32_t>(last.code), static_cast<std::int32_t>(next.code));
    if (!pairs.adjacent.find(left, right).exists()) break;
    last = next;
    at += next.length;
  }
  return at;
}

/// Encodes words, except those of Unigram models, by merging adjacent tokens until no pair merges.
/// Each step merges the pair with the lowest rank, and the leftmost of equal pairs. Caches the
/// tokens of short words. Source: Sennrich, Haddow, Birch: Neural Machine Translation of Rare Words
/// with Subword Units.
class WordEncoder {
 public:
  /// @param pairs  outlives the encoder
  /// @param bytes  approximate number of bytes to encode; determines the size of the cache
  WordEncoder(const BytePairs& pairs, std::size_t bytes)
      : pairs_(pairs),
        cache_(std::bit_ceil(std::clamp<std::size_t>(bytes / 16, 1, std::size_t{1} << 15))) {}

  /// Appends the tokens of a word. Every character or byte of the word must have a token.
  /// @throws ConfigError  if it has 2^31 bytes or more
  void encode(std::string_view word, std::vector<std::int32_t>& tokens) {
    if (word.size() > max_cached_length) return encode_uncached(word, tokens);
    CachedWord& seen = cache_[place_of(word)];
    if (seen.count > 0 && word == std::string_view(seen.bytes.data(), seen.length)) {
      tokens.insert(tokens.end(), seen.tokens.begin(), seen.tokens.begin() + seen.count);
      return;
    }
    const std::size_t before = tokens.size();
    encode_uncached(word, tokens);
    const std::size_t count = tokens.size() - before;
    if (count > max_cached_tokens) return;
    seen.length = static_cast<std::uint8_t>(word.size());
    seen.count = static_cast<std::uint8_t>(count);
    std::copy(word.begin(), word.end(), seen.bytes.begin());
    std::copy_n(tokens.begin() + static_cast<std::ptrdiff_t>(before), count, seen.tokens.begin());
  }

 private:
  static constexpr std::size_t max_cached_length = 30;
  static constexpr std::size_t max_cached_tokens = 8;
  static constexpr std::size_t short_word = 64;
  static constexpr std::int32_t none = -1;

  /// A cached word and its tokens, in one cache line of the processor.
  struct alignas(64) CachedWord {
    std::uint8_t length = 0;
    std::uint8_t count = 0;
    std::array<char, max_cached_length> bytes{};
    std::array<std::int32_t, max_cached_tokens> tokens{};
  };

  /// A token of a word during merging.
  struct Part {
    std::int32_t token = 0;
    std::int32_t before = none;  ///< adjacent tokens
    std::int32_t behind = none;
    PairMerge merge{};  ///< with the next token
  };

  [[nodiscard]] std::size_t place_of(std::string_view word) const {
    std::uint64_t hash = word.size();
    for (std::size_t at = 0; at < word.size(); at += 8) {
      std::uint64_t bytes = 0;
      const std::size_t count = std::min<std::size_t>(8, word.size() - at);
      for (std::size_t i = 0; i < count; ++i)
        bytes = (bytes << 8) | static_cast<std::uint8_t>(word[at + i]);
      hash = (hash ^ bytes) * 0x9e3779b97f4a7c15u;
      hash ^= hash >> 32;
    }
    return static_cast<std::size_t>(hash) & (cache_.size() - 1);
  }

  void encode_uncached(std::string_view word, std::vector<std::int32_t>& tokens) {
    const auto whole = pairs_.whole_words.find(word);
    if (whole != pairs_.whole_words.end()) return tokens.push_back(whole->second);
    require<ConfigError>(word.size() <= std::numeric_limits<std::int32_t>::max(),
                         "a word must have at most "
                         "2^31 - 1 bytes, but has ",
                         word.size(), "; split the text");
    if (pairs_.unigram.has_value())
      return unigram_.encode(*pairs_.unigram, pairs_.byte_tokens, word, tokens);
    divide(word);
    if (parts_.size() <= short_word) {
      merge_short();
    } else {
      merge_long();
    }
    for (const Part& part : parts_) {
      if (part.token != none) tokens.push_back(part.token);
    }
  }

  /// Divides a word into its initial tokens, before any merge.
  void divide(std::string_view word) {
    parts_.clear();
    parts_.reserve(word.size());
    const auto add = [this](std::int32_t token) {
      parts_.emplace_back();
      parts_.back().token = token;
    };
    while (!word.empty()) {
      std::size_t length = 1;
      std::int32_t token = -1;
      if (pairs_.has_characters() && utf8_length(word) > 0) {
        const Character character = first_character(word);
        length = character.length;
        token = pairs_.token_of(character.code);
      }
      if (token >= 0) {
        add(token);
      } else {
        for (const char byte : word.substr(0, length))
          add(pairs_.byte_tokens[static_cast<std::uint8_t>(byte)]);
      }
      word.remove_prefix(length);
    }
  }

  /// Searches all pairs for each merge.
  void merge_short() {
    const auto look_up = [this](std::size_t i) {
      parts_[i].merge = i + 1 < parts_.size()
                            ? pairs_.merges.find(parts_[i].token, parts_[i + 1].token)
                            : PairMerge{};
    };
    for (std::size_t i = 0; i < parts_.size(); ++i) look_up(i);
    for (;;) {
      const auto first = std::min_element(
          parts_.begin(), parts_.end(),
          [](const Part& a, const Part& b) { return a.merge.rank < b.merge.rank; });
      if (first == parts_.end() || !first->merge.exists()) return;
      first->token = first->merge.token;
      const auto place = static_cast<std::size_t>(first - parts_.begin());
      parts_.erase(first + 1);
      look_up(place);
      if (place > 0) look_up(place - 1);
    }
  }

  /// Keeps the pairs in a heap, including pairs that no longer exist.
  void merge_long() {
    heap_.clear();
    const auto count = static_cast<std::int32_t>(parts_.size());
    for (std::int32_t i = 0; i < count; ++i) {
      part(i).before = i - 1;
      part(i).behind = i + 1 < count ? i + 1 : none;
    }
    for (std::int32_t i = 0; i < count; ++i) look_up(i);
    while (!heap_.empty()) {
      std::pop_heap(heap_.begin(), heap_.end(), std::greater<>{});
      const auto [rank, place] = heap_.back();
      heap_.pop_back();
      Part& left = part(place);
      // A pair with another rank has changed since; a token that was merged has no merge.
      if (!left.merge.exists() || left.merge.rank != rank) continue;
      Part& right = part(left.behind);
      left.token = left.merge.token;
      left.behind = right.behind;
      if (left.behind != none) part(left.behind).before = place;
      right.token = none;
      right.merge = {};
      look_up(place);
      if (left.before != none) look_up(left.before);
    }
  }

  [[nodiscard]] Part& part(std::int32_t place) { return parts_[static_cast<std::size_t>(place)]; }

  void look_up(std::int32_t place) {
    Part& left = part(place);
    left.merge =
        left.behind == none ? PairMerge{} : pairs_.merges.find(left.token, part(left.behind).token);
    if (!left.merge.exists()) return;
    heap_.emplace_back(left.merge.rank, place);
    std::push_heap(heap_.begin(), heap_.end(), std::greater<>{});
  }

  const BytePairs& pairs_;
  std::vector<CachedWord> cache_;
  UnigramEncoder unigram_;
  std::vector<Part> parts_;
  std::vector<std::pair<std::int32_t, std::int32_t>> heap_;  ///< rank and position, lowest first
};

}  // namespace detail

}  // namespace octavo
