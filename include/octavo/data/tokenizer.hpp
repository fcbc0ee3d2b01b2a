/// @file
/// The interface of tokenizers: from text to tokens and back.
#pragma once

#include <octavo/core/context.hpp>
#include <octavo/core/device.hpp>
#include <octavo/core/error.hpp>

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace octavo OCTAVO_ABI {

/// Encoding was stopped before its end; see `BytePairTokenizer::stop_if`.
class StoppedError : public Error {
 public:
  using Error::Error;
};

/// The context before a text. Some tokenizers, such as Llama 2's, put a space before a text, which
/// decoding removes.
enum class TextPosition {
  start,                ///< nothing: the text is complete at its start
  after_special_token,  ///< a special token
  after_text,           ///< text whose tokens are encoded or decoded separately
};

/// Encodes bytes, whether valid UTF-8 or not, and decodes tokens to the same bytes. Several threads
/// may call its functions concurrently.
class Tokenizer {
 public:
  using SpecialTokens = std::map<std::string, std::int32_t, std::less<>>;

  virtual ~Tokenizer() = default;

  /// Returns the number of tokens; all token IDs are below it.
  [[nodiscard]] virtual Index vocabulary_size() const = 0;

  /// Returns the tokens that represent no text, such as the end of a document, by name.
  [[nodiscard]] virtual const SpecialTokens& special_tokens() const = 0;

  /// Encodes a text, without tokens before or after it.
  /// @param allowed  names of special tokens that are encoded as these tokens if the text contains
  ///                 them; other names are encoded as text
  /// @param position  what precedes the text
  /// @throws ConfigError  if there is no special token of a name, or the text cannot be encoded
  [[nodiscard]] virtual std::vector<std::int32_t> encode(
      std::string_view text, std::span<const std::string> allowed = {},
      TextPosition position = TextPosition::start) const = 0;

  /// Encodes each text as `encode` does. The result does not depend on the number of threads.
  /// @param positions  what precedes each text; empty: nothing precedes any of them
  /// @throws ShapeError  if `positions` is not empty and its size differs from that of `texts`
  [[nodiscard]] virtual std::vector<std::vector<std::int32_t>> encode_all(
      std::span<const std::string_view> texts, const Context<Cpu>& context,
      std::span<const std::string> allowed = {},
      std::span<const TextPosition> positions = {}) const = 0;

  /// Decodes tokens to bytes; special tokens decode to their names.
  /// @param position  what precedes the tokens: `after_text` for the next tokens of a text that is
  ///               decoded piece by piece
  /// @throws ConfigError  if a token is outside the vocabulary
  [[nodiscard]] virtual std::string decode(std::span<const std::int32_t> tokens,
                                           TextPosition position = TextPosition::start) const = 0;

  /// Returns the special token of a name.
  /// @throws ConfigError  if the tokenizer has none of this name
  [[nodiscard]] std::int32_t special_token(std::string_view name) const {
    const auto found = special_tokens().find(name);
    require<ConfigError>(found != special_tokens().end(), "the tokenizer has no special token '",
                         name, "'; it has ", known_names());
    return found->second;
  }

 private:
  [[nodiscard]] std::string known_names() const {
    constexpr std::size_t most = 8;
    std::string names;
    std::size_t count = 0;
    for (const auto& [name, token] : special_tokens()) {
      if (++count > most) return message(names, " and ", special_tokens().size() - most, " more");
      names += (names.empty() ? "" : ", ") + name;
    }
    return names.empty() ? "no special tokens" : names;
  }
};

namespace detail {

inline void require_positions(std::size_t texts, std::size_t positions) {
  require<ShapeError>(positions == 0 || positions == texts,
                      "there must be a position for each of the ", texts,
                      " texts or none, but there are ", positions);
}

[[noreturn]] inline void refuse_token(std::int32_t token, std::size_t position, Index vocabulary) {
  throw ConfigError(message("token ", token, " at position ", position,
                            " is outside the tokenizer's vocabulary of ", vocabulary,
                            "; decode only tokens of a model with this tokenizer"));
}

}  // namespace detail

}  // namespace octavo
