/// @file
/// From text to tokens and back.
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

/// Encodes bytes, valid UTF-8 or not, and decodes them to what they were. Its functions may be
/// called by several threads at a time.
class Tokenizer {
 public:
  using SpecialTokens = std::map<std::string, std::int32_t, std::less<>>;

  virtual ~Tokenizer() = default;

  /// Tokens are below it.
  [[nodiscard]] virtual Index vocabulary_size() const = 0;

  /// Tokens that stand for no text, such as the end of a document, by name.
  [[nodiscard]] virtual const SpecialTokens& special_tokens() const = 0;

  /// The tokens of a text, without any before or behind it.
  /// @param allowed  names of the special tokens that become these tokens where the text has them;
  ///                 names of others are text like any other
  /// @throws ConfigError  if there is no special token of a name, or the text cannot be encoded
  [[nodiscard]] virtual std::vector<std::int32_t> encode(
      std::string_view text, std::span<const std::string> allowed = {}) const = 0;

  /// The tokens of each text, as `encode` gives them, whatever the number of threads.
  [[nodiscard]] virtual std::vector<std::vector<std::int32_t>> encode_all(
      std::span<const std::string_view> texts, const Context<Cpu>& context,
      std::span<const std::string> allowed = {}) const = 0;

  /// The bytes of all tokens; special ones give their names.
  /// @throws ConfigError  if a token is outside of the vocabulary
  [[nodiscard]] virtual std::string decode(std::span<const std::int32_t> tokens) const = 0;

  /// @throws ConfigError  if there is none of this name
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
    return names.empty() ? "none" : names;
  }
};

namespace detail {

[[noreturn]] inline void refuse_token(std::int32_t token, std::size_t position, Index vocabulary) {
  throw ConfigError(message("token ", token, " at position ", position,
                            " is outside of the tokenizer's vocabulary of ", vocabulary,
                            "; decode only what a model of this tokenizer gave"));
}

}  // namespace detail

}  // namespace octavo
