/// @file
/// Encoding of text in one thread: its words, and their tokens. Needs PCRE2: see split_pattern.hpp.
#pragma once

#include <octavo/core/utf8.hpp>
#include <octavo/data/added_tokens.hpp>
#include <octavo/data/byte_pairs.hpp>
#include <octavo/data/code_point.hpp>
#include <octavo/data/split_pattern.hpp>
#include <octavo/data/text_changes.hpp>
#include <octavo/data/tokenizer.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace octavo OCTAVO_ABI {

namespace detail {

/// The content of a tokenizer's file.
struct BytePairModel {
  BytePairs pairs;
  std::vector<SplitPattern> patterns;  ///< each pattern splits the pieces of the previous one
  std::vector<AddedToken> added;
  std::vector<TextChange> changes;        ///< before normalised added tokens are searched for
  std::vector<TextChange> piece_changes;  ///< of the text between added tokens
  NormalizeText normalize = nullptr;      ///< null: text that normal forms may change is an error
  std::size_t leading_spaces = 0;         ///< spaces that decoding may remove at the start
  bool (*is_stopped)() = nullptr;         ///< null: encoding always runs to its end
  std::vector<std::string> ignored;       ///< settings of the file without effect, by name
};

/// The beginning of a word in a text, and the number of tokens before it.
struct WordBegin {
  std::size_t place = 0;
  std::size_t tokens = 0;
};

/// A text and the part of it that is encoded.
struct TextPart {
  std::string_view text{};
  std::size_t from = 0;
  std::size_t until = 0;
  std::size_t utf8_end = 0;  ///< first byte from `until` on that begins no character, or the end
};

/// Encodes text with one model in one thread.
class TextEncoder {
 public:
  /// @param model  outlives the encoder
  /// @param bytes  approximate number of bytes to encode
  TextEncoder(const BytePairModel& model, std::size_t bytes)
      : pairs_(model.pairs),
        is_stopped_(model.is_stopped),
        has_all_bytes_(std::find(pairs_.byte_tokens.begin(), pairs_.byte_tokens.end(), -1) ==
                       pairs_.byte_tokens.end()),
        words_(model.pairs, bytes) {
    matchers_.reserve(model.patterns.size());
    for (const SplitPattern& pattern : model.patterns) matchers_.emplace_back(pattern);
  }

  /// Appends the tokens of the words from `part.from` on, until a word ends at or after
  /// `part.until`. The tokens do not depend on the text before `part.from`.
  /// @param begins  if `from` may be within a word: receives the beginnings of the first words; a
  ///                word that continues far beyond `until` is not encoded
  /// @return the end of the last word
  std::size_t encode(const TextPart& part, std::vector<std::int32_t>& tokens,
                     std::vector<WordBegin>* begins = nullptr) {
    const auto [text, start, until, utf8_end] = part;
    std::size_t from = start;
    if (!has_all_bytes_ && !pairs_.unigram.has_value()) require_tokens(text, from, until);
    while (from < until) {
      std::size_t end = utf8_until(text, from, until);
      if (end > from) {
        if (end >= until) end = utf8_end;
        const std::size_t begin = std::exchange(
            from, split(0, text.substr(0, end), from, std::min(until, end), tokens, begins));
        if (from == begin) break;
        continue;
      }
      // Bytes that are not UTF-8 form a word.
      while (end < text.size() && utf8_length(text.substr(end)) == 0) ++end;
      if (is_deferred(begins, end, until)) break;
      note(begins, from, tokens);
      words_.encode(text.substr(from, end - from), tokens);
      from = end;
    }
    return from;
  }

 private:
  static constexpr std::size_t max_begins = 256;
  static constexpr std::size_t max_overrun = std::size_t{1} << 16;

  static bool is_deferred(const std::vector<WordBegin>* begins, std::size_t end,
                          std::size_t until) {
    return begins != nullptr && end > until + max_overrun;
  }

  static void note(std::vector<WordBegin>* begins, std::size_t place,
                   const std::vector<std::int32_t>& tokens) {
    if (begins != nullptr && begins->size() < max_begins) begins->push_back({place, tokens.size()});
  }

  void require_tokens(std::string_view text, std::size_t from, std::size_t until) const {
    for (std::size_t place = from; place < until; ++place) {
      const std::size_t length = utf8_length(text.substr(place));
      if (pairs_.has_characters() && length > 0 &&
          pairs_.token_of(first_character(text.substr(place)).code) >= 0) {
        place += length - 1;
        continue;
      }
      const auto byte = static_cast<std::uint8_t>(text[place]);
      require<ConfigError>(pairs_.byte_tokens[byte] >= 0, "the tokenizer has no token for ",
                           pairs_.has_characters() && length > 0
                               ? message('\'', text.substr(place, length), '\'')
                               : message("the byte ", byte),
                           ", at byte ", place, " of the text; remove it from the text");
    }
  }

  void stop_if_asked() const {
    if (is_stopped_ != nullptr && is_stopped_()) throw StoppedError("encoding was stopped");
  }

  std::size_t encode_words(std::string_view text, std::size_t from, std::size_t until,
                           std::vector<std::int32_t>& tokens, std::vector<WordBegin>* begins) {
    while (from < until) {
      stop_if_asked();
      const std::size_t end =
          end_of_word(pairs_, text, from, begins == nullptr ? text.size() : until + max_overrun);
      if (is_deferred(begins, end, until)) break;
      note(begins, from, tokens);
      words_.encode(text.substr(from, end - from), tokens);
      from = end;
    }
    return from;
  }

  /// Splits a text by the pattern of a stage, and its pieces by the patterns of later stages.
  std::size_t split(std::size_t stage, std::string_view text, std::size_t from, std::size_t until,
                    std::vector<std::int32_t>& tokens, std::vector<WordBegin>* begins) {
    if (stage == matchers_.size()) return encode_words(text, from, until, tokens, begins);
    const auto piece = [&](std::size_t begin, std::size_t end) {
      if (begin < end)
        split(stage + 1, text.substr(begin, end - begin), 0, end - begin, tokens, nullptr);
    };
    while (from < until) {
      stop_if_asked();
      ByteRange match;
      if (!matchers_[stage].find(text, from, match)) match = {text.size(), text.size()};
      if (is_deferred(begins, match.end, until)) break;
      note(begins, from, tokens);
      piece(from, match.begin);
      piece(match.begin, match.end);
      from = match.end;
    }
    return from;
  }

  const BytePairs& pairs_;
  bool (*is_stopped_)();
  bool has_all_bytes_;
  std::vector<SplitMatcher> matchers_;
  WordEncoder words_;
};

}  // namespace detail

}  // namespace octavo
