/// @file
/// BPE tokenizers, as of GPT-2, Llama, Mistral, Gemma and Qwen. Needs PCRE2: see split_pattern.hpp.
#pragma once

#include <octavo/core/context.hpp>
#include <octavo/data/added_tokens.hpp>
#include <octavo/data/code_point.hpp>
#include <octavo/data/text_changes.hpp>
#include <octavo/data/text_encoder.hpp>
#include <octavo/data/tokenizer.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace octavo OCTAVO_ABI {

/// A tokenizer that merges pairs of tokens by rank (BPE), beginning with the bytes of a text, or
/// with its characters. It first finds added tokens. It then changes the text between them as the
/// tokenizer requires, such as to a normal form, splits it into words by the tokenizer's regular
/// expressions, if any, and merges tokens within each word. Bytes that are not UTF-8 form separate
/// words. A tokenizer of the type Unigram finds the most probable tokens of each word instead.
/// `load_tokenizer` reads one from a file.
class BytePairTokenizer final : public Tokenizer {
 public:
  explicit BytePairTokenizer(detail::BytePairModel model) : model_(std::move(model)) {
    for (const detail::AddedToken& added : model_.added)
      if (added.is_special) special_.emplace(added.text, added.token);
  }

  /// Makes encoding throw `StoppedError` soon after a function returns true, such as after a
  /// signal.
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
  /// text and was loaded without a normalisation function
  [[nodiscard]] std::vector<std::int32_t> encode(
      std::string_view text, std::span<const std::string> allowed = {},
      TextPosition position = TextPosition::start) const override {
    const Finders finders = finders_of(allowed);
    detail::TextEncoder encoder(model_, text.size());
    std::vector<std::int32_t> tokens;
    detail::ChangedTexts changed;
    for (const Segment& segment : segments_of(text, position, finders, changed)) {
      if (segment.token.has_value()) {
        tokens.push_back(*segment.token);
      } else {
        const std::size_t size = segment.text.size();
        encoder.encode({segment.text, 0, size, size}, tokens);
      }
    }
    return tokens;
  }

  /// Long texts are divided at arbitrary positions. Each part is encoded beyond its end, until a
  /// word begins at the same position as a word of the next part.
  [[nodiscard]] std::vector<std::vector<std::int32_t>> encode_all(
      std::span<const std::string_view> texts, const Context<Cpu>& context,
      std::span<const std::string> allowed = {},
      std::span<const TextPosition> positions = {}) const override {
    detail::require_positions(texts.size(), positions.size());
    const Finders finders = finders_of(allowed);
    std::vector<Part> parts;
    std::vector<std::size_t> first_parts;  // of each text
    detail::ChangedTexts changed;
    for (std::size_t i = 0; i < texts.size(); ++i) {
      first_parts.push_back(parts.size());
      const TextPosition position = positions.empty() ? TextPosition::start : positions[i];
      for (const Segment& segment : segments_of(texts[i], position, finders, changed))
        cut(segment, parts);
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

  [[nodiscard]] std::string decode(std::span<const std::int32_t> tokens,
                                   TextPosition position = TextPosition::start) const override {
    std::string text;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      if (tokens[i] < 0 || tokens[i] >= vocabulary_size())
        detail::refuse_token(tokens[i], i, vocabulary_size());
      text += model_.pairs.bytes[static_cast<std::size_t>(tokens[i])];
    }
    if (position == TextPosition::start) {
      const std::size_t spaces = std::min(text.find_first_not_of(' '), text.size());
      text.erase(0, std::min(spaces, model_.leading_spaces));
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

  [[nodiscard]] std::vector<Segment> segments_of(std::string_view text, TextPosition position,
                                                 const Finders& finders,
                                                 detail::ChangedTexts& changed) const {
    std::vector<Segment> segments;
    find_tokens(
        text, position, finders[0], segments, [&](std::string_view between, TextPosition before) {
          const std::string_view normal =
              detail::changed(between, model_.changes, before, model_.normalize, changed);
          find_tokens(normal, before, finders[1], segments,
                      [&](std::string_view rest, TextPosition before_rest) {
                        segments.push_back({detail::changed(rest, model_.piece_changes, before_rest,
                                                            model_.normalize, changed),
                                            {}});
                      });
        });
    return segments;
  }

  /// Appends a segment for each token found, and calls `body` for the text between them.
  template <class Body>
  static void find_tokens(std::string_view text, TextPosition position,
                          const detail::AddedTokens& finder, std::vector<Segment>& segments,
                          const Body& body) {
    for (std::size_t from = 0; from < text.size();) {
      const detail::AddedTokens::Found found = finder.find(text, from);
      std::string_view between = text.substr(from, found.begin - from);
      const detail::AddedToken* token = found.token;
      if (token != nullptr && token->strips_left)
        between = between.substr(0, detail::size_without_white_space_at_end(between));
      if (!between.empty()) body(between, from == 0 ? position : TextPosition::after_special_token);
      if (token == nullptr) return;
      segments.push_back({{}, token->token});
      from = found.begin + token->searched().size();
      if (token->strips_right) from += detail::white_space_at_start(text.substr(from));
    }
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
    std::size_t end = 0;  // end of the text that `tokens` covers
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
