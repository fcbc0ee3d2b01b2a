/// @file
/// The tokenizer without a vocabulary file: a token is a byte.
#pragma once

#include <octavo/core/device.hpp>
#include <octavo/core/error.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace octavo::inline OCTAVO_ABI {

/// Tokens are the bytes of the text, 0 to 255, so every text can be encoded and none gets shorter.
struct ByteTokenizer {
  static constexpr Index vocabulary = 256;

  [[nodiscard]] static std::vector<std::int32_t> encode(std::string_view text) {
    std::vector<std::int32_t> tokens;
    tokens.reserve(text.size());
    for (const char byte : text) tokens.push_back(static_cast<std::uint8_t>(byte));
    return tokens;
  }

  /// @throws ConfigError  if a token is no byte
  [[nodiscard]] static std::string decode(std::span<const std::int32_t> tokens) {
    std::string text;
    text.reserve(tokens.size());
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      require<ConfigError>(tokens[i] >= 0 && tokens[i] < vocabulary, "token ", tokens[i],
                           " at position ", i,
                           " is no byte; decode only what a model of vocabulary 256 gave");
      text.push_back(static_cast<char>(static_cast<std::uint8_t>(tokens[i])));
    }
    return text;
  }
};

}  // namespace octavo
