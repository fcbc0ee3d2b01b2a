/// @file
/// The tokenizer without a vocabulary file: a token is a byte.
#pragma once

#include <octavo/data/tokenizer.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace octavo OCTAVO_ABI {

/// Encodes each byte of a text, 0 to 255, as one token. Every text can be encoded.
class ByteTokenizer final : public Tokenizer {
 public:
  static constexpr Index vocabulary = 256;

  [[nodiscard]] Index vocabulary_size() const override { return vocabulary; }
  [[nodiscard]] const SpecialTokens& special_tokens() const override {
    static const SpecialTokens none;
    return none;
  }

  [[nodiscard]] std::vector<std::int32_t> encode(
      std::string_view text, std::span<const std::string> allowed = {},
      TextPosition /*position*/ = TextPosition::start) const override {
    for (const std::string& name : allowed) (void)special_token(name);
    std::vector<std::int32_t> tokens(text.size());
    std::transform(text.begin(), text.end(), tokens.begin(),
                   [](char byte) { return static_cast<std::uint8_t>(byte); });
    return tokens;
  }

  [[nodiscard]] std::vector<std::vector<std::int32_t>> encode_all(
      std::span<const std::string_view> texts, const Context<Cpu>& context,
      std::span<const std::string> allowed = {},
      std::span<const TextPosition> positions = {}) const override {
    detail::require_positions(texts.size(), positions.size());
    for (const std::string& name : allowed) (void)special_token(name);
    std::vector<std::vector<std::int32_t>> tokens(texts.size());
    parallel_for(static_cast<Index>(texts.size()), many_elements, context, [&](Index i) {
      const auto place = static_cast<std::size_t>(i);
      tokens[place] = encode(texts[place]);
    });
    return tokens;
  }

  [[nodiscard]] std::string decode(std::span<const std::int32_t> tokens,
                                   TextPosition /*position*/ = TextPosition::start) const override {
    std::string text;
    text.reserve(tokens.size());
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      if (tokens[i] < 0 || tokens[i] >= vocabulary) detail::refuse_token(tokens[i], i, vocabulary);
      text.push_back(static_cast<char>(static_cast<std::uint8_t>(tokens[i])));
    }
    return text;
  }
};

}  // namespace octavo
