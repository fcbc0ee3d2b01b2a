/// @file
/// The tokenizers of GPT-2, Llama 3, Qwen and their like. Needs PCRE2: see split_pattern.hpp.
#pragma once

#include <octavo/core/context.hpp>
#include <octavo/core/utf8.hpp>
#include <octavo/data/added_tokens.hpp>
#include <octavo/data/byte_pairs.hpp>
#include <octavo/data/nfc_text.hpp>
#include <octavo/data/split_pattern.hpp>
#include <octavo/data/tokenizer.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace octavo OCTAVO_ABI {

/// Whether text is brought into Unicode's normal form C by whoever has it.
enum class TextForm { any, nfc };

namespace detail {

/// What a byte pair tokenizer's file says.
struct BytePairModel {
  BytePairs pairs;
  std::vector<SplitPattern> patterns;  ///< each cuts what the one before has left
  std::vector<AddedToken> added;
  bool wants_nfc = false;  ///< text is brought into NFC before it is cut
};

/// A word's begin in a text, and the tokens before it.
struct WordBegin {
  std::size_t place = 0;
  std::size_t tokens = 0;
};

/// The first byte from `from` to before `until` that begins no character of UTF-8; there is none:
/// the end of a character at `until` or behind it.
/// @param from  no character begins before it and ends behind it
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

/// Text of which a part is encoded.
struct TextPart {
  std::string_view text{};
  std::size_t from = 0;
  std::size_t until = 0;
  std::size_t utf8_end =
      0;  ///< the first byte from `until` on that begins no character, or the end
};

/// Encodes text of one model in one thread.
class TextEncoder {
 public:
  /// @param model  outlives the encoder
  /// @param bytes  that it will encode, more or less
  TextEncoder(const BytePairModel& model, std::size_t bytes)
      : checks_nfc_(model.wants_nfc),
        byte_tokens_(model.pairs.byte_tokens),
        has_all_bytes_(std::find(byte_tokens_.begin(), byte_tokens_.end(), -1) ==
                       byte_tokens_.end()),
        words_(model.pairs, bytes) {
    matchers_.reserve(model.patterns.size());
    for (const SplitPattern& pattern : model.patterns) matchers_.emplace_back(pattern);
  }

  /// Appends the tokens of words from `part.from` on, until one ends at `part.until` or behind.
  /// What they are depends on the text from there on and on nothing before it.
  /// @param begins  where it is not sure that a word begins at `from`: gets the places at which
  ///                words began, the first few; a word that goes on far behind `until` is left
  /// @returns  where the last ended
  std::size_t encode(const TextPart& part, std::vector<std::int32_t>& tokens,
                     std::vector<WordBegin>* begins = nullptr) {
    const auto [text, start, until, utf8_end] = part;
    std::size_t from = start;
    if (!has_all_bytes_) require_tokens(text, from, until);
    while (from < until) {
      std::size_t end = utf8_until(text, from, until);
      if (end > from) {
        if (end >= until) end = utf8_end;
        if (checks_nfc_) require_nfc(text, from, std::min(end, until));
        const std::size_t begin = std::exchange(
            from, split(0, text.substr(0, end), from, std::min(until, end), tokens, begins));
        if (from == begin) break;
        continue;
      }
      // Bytes that are no UTF-8 are a word.
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
                           byte, ", which stands at byte ", place,
                           " of the text; take it out of the text");
    }
  }

  static void require_nfc(std::string_view text, std::size_t from, std::size_t until) {
    const std::size_t place = from + settled_in_nfc_until(text.substr(from, until - from));
    require<ConfigError>(place >= until, "the tokenizer normalises text to NFC, which may change '",
                         text.substr(place, utf8_length(text.substr(place))), "' at byte ", place,
                         " of the text; bring the text into NFC (uconv -x any-nfc), and say so "
                         "(TextForm::nfc)");
  }

  /// Cuts a text by the pattern of a stage, and its pieces by those behind.
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

  bool checks_nfc_;
  const std::array<std::int32_t, 256>& byte_tokens_;
  bool has_all_bytes_;
  std::vector<SplitMatcher> matchers_;
  WordEncoder words_;
};

}  // namespace detail

/// Byte pair encoding of bytes: added tokens are found first, then regular expressions cut the
/// text into words, whose bytes merge in the order of their ranks. Bytes that are no UTF-8 are
/// words of their own. `load_tokenizer` makes one of a file.
class BytePairTokenizer final : public Tokenizer {
 public:
  explicit BytePairTokenizer(detail::BytePairModel model) : model_(std::move(model)) {
    for (const detail::AddedToken& added : model_.added)
      if (added.is_special) special_.emplace(added.text, added.token);
  }

  [[nodiscard]] Index vocabulary_size() const override {
    return static_cast<Index>(model_.pairs.bytes.size());
  }
  [[nodiscard]] const SpecialTokens& special_tokens() const override { return special_; }

  /// @throws ConfigError  too, if the tokenizer normalises text and this text may not be in NFC, or
  ///                      has no token for a byte of it
  [[nodiscard]] std::vector<std::int32_t> encode(
      std::string_view text, std::span<const std::string> allowed = {}) const override {
    const Finders finders = finders_of(allowed);
    detail::TextEncoder encoder(model_, text.size());
    std::vector<std::int32_t> tokens;
    for (const Segment& segment : segments_of(text, finders)) {
      if (segment.token.has_value()) {
        tokens.push_back(*segment.token);
      } else {
        const std::size_t size = segment.text.size();
        encoder.encode({segment.text, 0, size, size}, tokens);
      }
    }
    return tokens;
  }

  /// Long texts are cut anywhere, and each part is encoded beyond its end until a word begins
  /// where one began in the next.
  [[nodiscard]] std::vector<std::vector<std::int32_t>> encode_all(
      std::span<const std::string_view> texts, const Context<Cpu>& context,
      std::span<const std::string> allowed = {}) const override {
    const Finders finders = finders_of(allowed);
    std::vector<Part> parts;
    std::vector<std::size_t> first_parts;  // of each text
    for (const std::string_view text : texts) {
      first_parts.push_back(parts.size());
      for (const Segment& segment : segments_of(text, finders)) cut(segment, parts);
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

  /// Text to be encoded, or an added token.
  struct Segment {
    std::string_view text{};
    std::optional<std::int32_t> token{};
  };

  /// Of a segment what one thread encodes.
  struct Part {
    detail::TextPart text{};
    std::optional<std::int32_t> token{};
    std::vector<std::int32_t> tokens{};
    std::vector<detail::WordBegin> begins{};
    std::size_t end = 0;
  };

  /// Tokens that are looked for in the text as it is, and then those in what is left of it.
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

  [[nodiscard]] static std::vector<Segment> segments_of(std::string_view text,
                                                        const Finders& finders) {
    std::vector<Segment> segments;
    find_tokens(text, finders, segments);
    return segments;
  }
  static void find_tokens(std::string_view text, std::span<const detail::AddedTokens> finders,
                          std::vector<Segment>& segments) {
    if (finders.empty()) {
      if (!text.empty()) segments.push_back({text, {}});
      return;
    }
    for (std::size_t from = 0; from < text.size();) {
      const detail::AddedTokens::Found found = finders.front().find(text, from);
      find_tokens(text.substr(from, found.begin - from), finders.subspan(1), segments);
      if (found.token == nullptr) return;
      segments.push_back({{}, found.token->token});
      from = found.begin + found.token->text.size();
    }
  }

  static void cut(const Segment& segment, std::vector<Part>& parts) {
    const std::string_view text = segment.text;
    if (segment.token.has_value()) return parts.push_back({.token = segment.token});
    for (std::size_t from = 0; from < text.size();) {
      std::size_t until = text.size();
      if (until - from > 2 * part_bytes) {
        // Behind a line's end a word probably begins.
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

  /// Calls `body(i, encoder)` for each i below `count`; each thread has an encoder. Of several
  /// exceptions that of the lowest i is thrown, when all are done.
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
