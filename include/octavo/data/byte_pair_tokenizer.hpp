/// @file
/// Byte-level BPE tokenizers, as of GPT-2, Llama 3 and Qwen. Needs PCRE2: see split_pattern.hpp.
#pragma once

#include <octavo/core/context.hpp>
#include <octavo/core/utf8.hpp>
#include <octavo/data/added_tokens.hpp>
#include <octavo/data/byte_pairs.hpp>
#include <octavo/data/normal_form.hpp>
#include <octavo/data/split_pattern.hpp>
#include <octavo/data/tokenizer.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace octavo OCTAVO_ABI {

namespace detail {

/// The content of a BPE tokenizer's file.
struct BytePairModel {
  BytePairs pairs;
  std::vector<SplitPattern> patterns;  ///< each splits the pieces of the one before
  std::vector<AddedToken> added;
  std::vector<NormalForm> forms;      ///< applied to the text in this order before it is split
  NormalizeText normalize = nullptr;  ///< null: text that `forms` may change is an error
  bool (*is_stopped)() = nullptr;     ///< null: encoding always runs to its end
  std::vector<std::string> ignored;   ///< settings of the file without effect, by name
};

/// The beginning of a word in a text, and the number of tokens before it.
struct WordBegin {
  std::size_t place = 0;
  std::size_t tokens = 0;
};

/// Returns the first byte in [from, until) that begins no UTF-8 character. If none exists, returns
/// the end of the character at or after `until`.
/// @param from  a boundary between characters
[[nodiscard]] inline std::size_t utf8_until(std::string_view text, std::size_t from,
                                            std::size_t until) {
  constexpr std::uint64_t high_bits = 0x8080808080808080u;
  std::uint64_t eight = 0;
  while (from < until) {
    while (from + sizeof eight <= until) {
      std::memcpy(&eight, text.data() + from, sizeof eight);
      if ((eight & high_bits) != 0) break;
      from += sizeof eight;
    }
    if (from >= until) break;
    const std::size_t length = utf8_length(text.substr(from));
    if (length == 0) break;
    from += length;
  }
  return from;
}

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
      : byte_tokens_(model.pairs.byte_tokens),
        is_stopped_(model.is_stopped),
        has_all_bytes_(std::find(byte_tokens_.begin(), byte_tokens_.end(), -1) ==
                       byte_tokens_.end()),
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
    if (!has_all_bytes_) require_tokens(text, from, until);
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
      if (is_left(begins, end, until)) break;
      note(begins, from, tokens);
      words_.encode(text.substr(from, end - from), tokens);
      from = end;
    }
    return from;
  }

 private:
  static constexpr std::size_t most_begins = 256;
  static constexpr std::size_t far_behind = std::size_t{1} << 16;

  static bool is_left(const std::vector<WordBegin>* begins, std::size_t end, std::size_t until) {
    return begins != nullptr && end > until + far_behind;
  }

  static void note(std::vector<WordBegin>* begins, std::size_t place,
                   const std::vector<std::int32_t>& tokens) {
    if (begins != nullptr && begins->size() < most_begins)
      begins->push_back({place, tokens.size()});
  }

  void require_tokens(std::string_view text, std::size_t from, std::size_t until) const {
    for (std::size_t place = from; place < until; ++place) {
      const auto byte = static_cast<std::uint8_t>(text[place]);
      require<ConfigError>(byte_tokens_[byte] >= 0, "the tokenizer has no token for the byte ",
                           byte, ", at byte ", place, " of the text; remove it from the text");
    }
  }

  /// Splits a text by the pattern of a stage, and its pieces by the patterns of later stages.
  std::size_t split(std::size_t stage, std::string_view text, std::size_t from, std::size_t until,
                    std::vector<std::int32_t>& tokens, std::vector<WordBegin>* begins) {
    if (stage == matchers_.size()) {
      if (is_left(begins, text.size(), until)) return from;
      note(begins, from, tokens);
      words_.encode(text.substr(from), tokens);
      return text.size();
    }
    const auto piece = [&](std::size_t begin, std::size_t end) {
      if (begin < end)
        split(stage + 1, text.substr(begin, end - begin), 0, end - begin, tokens, nullptr);
    };
    while (from < until) {
      if (is_stopped_ != nullptr && is_stopped_()) throw StoppedError("encoding was stopped");
      ByteRange match;
      if (!matchers_[stage].find(text, from, match)) match = {text.size(), text.size()};
      if (is_left(begins, match.end, until)) break;
      note(begins, from, tokens);
      piece(from, match.begin);
      piece(match.begin, match.end);
      from = match.end;
    }
    return from;
  }

  const std::array<std::int32_t, 256>& byte_tokens_;
  bool (*is_stopped_)();
  bool has_all_bytes_;
  std::vector<SplitMatcher> matchers_;
  WordEncoder words_;
};

}  // namespace detail

/// A byte-level BPE tokenizer. It finds added tokens first, normalises the text between them if the
/// tokenizer has a normal form, splits it into words by regular expressions, and merges the bytes
/// of each word by rank. Bytes that are not UTF-8 form separate words. `load_tokenizer` reads one
/// from a file.
class BytePairTokenizer final : public Tokenizer {
 public:
  explicit BytePairTokenizer(detail::BytePairModel model) : model_(std::move(model)) {
    for (const detail::AddedToken& added : model_.added)
      if (added.is_special) special_.emplace(added.text, added.token);
  }

  /// Encoding throws `StoppedError` soon after a function returns true, such as after a signal.
  /// @param is_stopped  called by several threads, before each word; null: never stops
  void stop_if(bool (*is_stopped)()) { model_.is_stopped = is_stopped; }

  /// Returns the settings of the tokenizer's file that are set, but ignored: "truncation" and
  /// "padding".
  [[nodiscard]] const std::vector<std::string>& ignored() const { return model_.ignored; }

  [[nodiscard]] Index vocabulary_size() const override {
    return static_cast<Index>(model_.pairs.bytes.size());
  }
  [[nodiscard]] const SpecialTokens& special_tokens() const override { return special_; }

  /// @throws ConfigError  also if the tokenizer has no token for a byte of the text, or normalises
  ///                      text and was loaded without a function for that
  [[nodiscard]] std::vector<std::int32_t> encode(
      std::string_view text, std::span<const std::string> allowed = {}) const override {
    const Finders finders = finders_of(allowed);
    detail::TextEncoder encoder(model_, text.size());
    std::vector<std::int32_t> tokens;
    NormalizedTexts normalized;
    for (const Segment& segment : segments_of(text, finders, normalized)) {
      if (segment.token.has_value()) {
        tokens.push_back(*segment.token);
      } else {
        const std::size_t size = segment.text.size();
        encoder.encode({segment.text, 0, size, size}, tokens);
      }
    }
    return tokens;
  }

  /// Long texts are divided at arbitrary places. Each part is encoded beyond its end until a word
  /// begins at the same place as a word of the next part.
  [[nodiscard]] std::vector<std::vector<std::int32_t>> encode_all(
      std::span<const std::string_view> texts, const Context<Cpu>& context,
      std::span<const std::string> allowed = {}) const override {
    const Finders finders = finders_of(allowed);
    std::vector<Part> parts;
    std::vector<std::size_t> first_parts;  // of each text
    NormalizedTexts normalized;
    for (const std::string_view text : texts) {
      first_parts.push_back(parts.size());
      for (const Segment& segment : segments_of(text, finders, normalized)) cut(segment, parts);
    }
    first_parts.push_back(parts.size());
    find_utf8_ends(parts);
    in_parallel(parts.size(), context, [&](std::size_t i, detail::TextEncoder& encoder) {
      Part& part = parts[i];
      if (!part.token.has_value())
        part.end =
            encoder.encode(part.text, part.tokens, part.text.from == 0 ? nullptr : &part.begins);
    });
    std::vector<std::vector<std::int32_t>> tokens(texts.size());
    in_parallel(texts.size(), context, [&](std::size_t i, detail::TextEncoder& encoder) {
      const std::size_t first = first_parts[i];
      tokens[i] = join(std::span(parts).subspan(first, first_parts[i + 1] - first), encoder);
    });
    return tokens;
  }

  [[nodiscard]] std::string decode(std::span<const std::int32_t> tokens) const override {
    std::string text;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      if (tokens[i] < 0 || tokens[i] >= vocabulary_size())
        detail::refuse_token(tokens[i], i, vocabulary_size());
      text += model_.pairs.bytes[static_cast<std::size_t>(tokens[i])];
    }
    return text;
  }

 private:
  static constexpr std::size_t part_bytes = std::size_t{1} << 17;

  /// A piece of text, or an added token.
  struct Segment {
    std::string_view text{};
    std::optional<std::int32_t> token{};
  };

  /// The part of a segment that one thread encodes.
  struct Part {
    detail::TextPart text{};
    std::optional<std::int32_t> token{};
    std::vector<std::int32_t> tokens{};
    std::vector<detail::WordBegin> begins{};
    std::size_t end = 0;
  };

  /// Added tokens to find in the original text, and those to find in the normalised rest.
  using Finders = std::array<detail::AddedTokens, 2>;

  [[nodiscard]] Finders finders_of(std::span<const std::string> allowed) const {
    for (const std::string& name : allowed) (void)special_token(name);
    Finders finders;
    for (const detail::AddedToken& added : model_.added) {
      if (!added.is_special ||
          std::find(allowed.begin(), allowed.end(), added.text) != allowed.end())
        finders[added.is_normalised ? 1 : 0].add(added);
    }
    return finders;
  }

  /// Normalised texts, which outlive the segments that refer to them.
  using NormalizedTexts = std::deque<std::string>;

  [[nodiscard]] std::vector<Segment> segments_of(std::string_view text, const Finders& finders,
                                                 NormalizedTexts& normalized) const {
    std::vector<Segment> segments;
    find_tokens(text, finders[0], segments, [&](std::string_view between) {
      find_tokens(normal_form(between, normalized), finders[1], segments,
                  [&](std::string_view rest) {
                    segments.push_back({rest, {}});
                  });
    });
    return segments;
  }
  /// Appends a segment for each token found, and calls `body` for the text between them.
  template <class Body>
  static void find_tokens(std::string_view text, const detail::AddedTokens& finder,
                          std::vector<Segment>& segments, const Body& body) {
    for (std::size_t from = 0; from < text.size();) {
      const detail::AddedTokens::Found found = finder.find(text, from);
      if (found.begin > from) body(text.substr(from, found.begin - from));
      if (found.token == nullptr) return;
      segments.push_back({{}, found.token->token});
      from = found.begin + found.token->text.size();
    }
  }

  /// Returns the text in the tokenizer's normal form. Bytes that are not UTF-8 do not change.
  [[nodiscard]] std::string_view normal_form(std::string_view text,
                                             NormalizedTexts& normalized) const {
    for (const NormalForm form : model_.forms) {
      std::string changed;
      std::size_t kept = 0;  // of the text, up to here `changed` has all
      for (std::size_t from = 0; from < text.size();) {
        const std::size_t end = detail::utf8_until(text, from, text.size());
        const std::string_view valid = text.substr(from, end - from);
        const std::size_t place = detail::unchanged_until(valid, form);
        if (place < valid.size()) {
          require<ConfigError>(
              model_.normalize != nullptr, "the tokenizer normalises text, which may change '",
              valid.substr(place, utf8_length(valid.substr(place))), "' at byte ", from + place,
              " of the text, but it was loaded without a normalisation function; pass "
              "normalize_by_utf8proc to load_tokenizer, or build the program with utf8proc");
          changed.append(text.substr(kept, from - kept)).append(model_.normalize(valid, form));
          kept = end;
        }
        from = end;
        while (from < text.size() && utf8_length(text.substr(from)) == 0) ++from;
      }
      if (kept == 0) continue;
      changed.append(text.substr(kept));
      text = normalized.emplace_back(std::move(changed));
    }
    return text;
  }

  static void cut(const Segment& segment, std::vector<Part>& parts) {
    const std::string_view text = segment.text;
    if (segment.token.has_value()) return parts.push_back({.token = segment.token});
    for (std::size_t from = 0; from < text.size();) {
      std::size_t until = text.size();
      if (until - from > 2 * part_bytes) {
        // A word probably begins after the end of a line.
        until = from + part_bytes;
        const std::size_t line = text.substr(until, part_bytes / 8).find('\n');
        if (line != std::string_view::npos) until += line + 1;
        while (until < text.size() && (static_cast<std::uint8_t>(text[until]) & 0xc0u) == 0x80u)
          ++until;
      }
      parts.push_back({.text = {text, from, until, text.size()}});
      from = until;
    }
  }

  static void find_utf8_ends(std::span<Part> parts) {
    for (std::size_t i = parts.size(); i-- > 1;) {
      const detail::TextPart& text = parts[i].text;
      if (text.from == 0) continue;
      const std::size_t end = detail::utf8_until(text.text, text.from, text.until);
      parts[i - 1].text.utf8_end = end < text.until ? end : text.utf8_end;
    }
  }

  static std::vector<std::int32_t> join(std::span<Part> parts, detail::TextEncoder& encoder) {
    if (parts.size() == 1 && !parts.front().token.has_value())
      return std::move(parts.front().tokens);
    std::vector<std::int32_t> tokens;
    std::size_t end = 0;  // of what `tokens` has of the segment
    for (const Part& part : parts) {
      if (part.token.has_value()) {
        tokens.push_back(*part.token);
        continue;
      }
      if (part.text.from == 0) {
        tokens.insert(tokens.end(), part.tokens.begin(), part.tokens.end());
        end = part.end;
        continue;
      }
      const auto same = std::find_if(part.begins.begin(), part.begins.end(),
                                     [&](const auto& begin) { return begin.place == end; });
      if (same != part.begins.end()) {
        const auto first = part.tokens.begin() + static_cast<std::ptrdiff_t>(same->tokens);
        tokens.insert(tokens.end(), first, part.tokens.end());
        end = part.end;
      }
      detail::TextPart rest = part.text;
      rest.from = end;
      end = encoder.encode(rest, tokens);
    }
    return tokens;
  }

  /// Calls `body(i, encoder)` for each i below `count`, with one encoder per thread. When all calls
  /// have returned, rethrows the exception of the lowest i, if any.
  template <class Body>
  void in_parallel(std::size_t count, const Context<Cpu>& context, const Body& body) const {
    std::atomic<std::size_t> next{0};
    std::mutex mutex;
    std::exception_ptr error;
    std::size_t error_at = count;
    parallel_for(context.threads(), many_elements, context, [&](Index) {
      std::optional<detail::TextEncoder> encoder;
      for (std::size_t i = next++; i < count; i = next++) {
        try {
          if (!encoder.has_value()) encoder.emplace(model_, part_bytes * 4);
          body(i, *encoder);
        } catch (...) {
          const std::lock_guard lock(mutex);
          if (i < error_at) {
            error_at = i;
            error = std::current_exception();
          }
        }
      }
    });
    if (error) std::rethrow_exception(error);
  }

  detail::BytePairModel model_;
  SpecialTokens special_;
};

}  // namespace octavo
