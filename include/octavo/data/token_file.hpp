/// @file
/// Reading token files of other programs.
#pragma once

#include <octavo/data/token_layout.hpp>
#include <octavo/data/tokens.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <memory>
#include <span>
#include <utility>

namespace octavo OCTAVO_ABI {

/// The tokens of a file. Tokens are read, and checked against the vocabulary, only on request.
class TokenFile final : public TokenSource {
 public:
  /// @param layout      result of `find_token_layout`
  /// @param vocabulary  tokens must be below it
  /// @throws IoError  if the file cannot be read, or its number of tokens is wrong
  TokenFile(const TokenLayout& layout, Index vocabulary)
      : file_(layout.path), layout_(layout), vocabulary_(vocabulary) {
    const auto width = static_cast<std::uint64_t>(width_of(layout.type));
    const std::uint64_t expected = layout.begin + static_cast<std::uint64_t>(layout.count) * width;
    require<IoError>(file_.size() == expected, layout.path.string(), ": has ", file_.size(),
                     " bytes, but must have ", expected, " for ", layout.count, " tokens of ",
                     width, " bytes from byte ", layout.begin, ", according to ",
                     layout.declared_in.string(), "; write it again");
    require<IoError>(layout.count > 0, layout.path.string(),
                     ": contains no token; name another file");
    hash_ = sampled_hash();
  }

  [[nodiscard]] Index size() const override { return layout_.count; }
  [[nodiscard]] std::uint64_t bytes() const { return file_.size(); }
  /// Returns the identity of the file, which is equal for all paths to it.
  [[nodiscard]] detail::FileIdentity identity() const { return file_.identity(); }

  void read(Index first, std::span<std::int32_t> tokens) const override {
    switch (layout_.type) {
      case TokenType::u8:
        return read_as<std::uint8_t>(first, tokens);
      case TokenType::i8:
        return read_as<std::int8_t>(first, tokens);
      case TokenType::i16:
        return read_as<std::int16_t>(first, tokens);
      case TokenType::i32:
        return read_as<std::int32_t>(first, tokens);
      case TokenType::i64:
        return read_as<std::int64_t>(first, tokens);
      case TokenType::u16:
        return read_as<std::uint16_t>(first, tokens);
      case TokenType::u32:
        return read_as<std::uint32_t>(first, tokens);
    }
  }

  /// Returns a hash of the number of tokens and of the file's bytes: of all bytes up to 1 MiB, else
  /// of 16 equally spaced pieces of 64 KiB, including the first and the last.
  [[nodiscard]] std::uint64_t hash(Index first, Index count) const override {
    detail::WordHash hash;
    hash.add(hash_);
    hash.add(static_cast<std::uint64_t>(first));
    hash.add(static_cast<std::uint64_t>(count));
    return hash.value();
  }

 private:
  static constexpr std::size_t piece_bytes = std::size_t{1} << 16;
  static constexpr std::uint64_t pieces = 16;

  template <class Token>
  void read_as(Index first, std::span<std::int32_t> tokens) const {
    std::array<std::byte, 16384> raw;
    while (!tokens.empty()) {
      const std::size_t count = std::min(tokens.size(), raw.size() / sizeof(Token));
      const std::uint64_t offset =
          layout_.begin + static_cast<std::uint64_t>(first) * sizeof(Token);
      file_.read_at(offset, std::span(raw).first(count * sizeof(Token)));
      for (std::size_t i = 0; i < count; ++i) {
        Token token{};
        std::memcpy(&token, raw.data() + i * sizeof(Token), sizeof(Token));
        const std::int64_t value{token};
        if (value < 0 || value >= vocabulary_) refuse(value, offset + i * sizeof(Token));
        tokens[i] = static_cast<std::int32_t>(value);
      }
      first += static_cast<Index>(count);
      tokens = tokens.subspan(count);
    }
  }

  [[noreturn]] void refuse(std::int64_t token, std::uint64_t offset) const {
    throw IoError(message(layout_.path.string(), ": the token at byte ", offset, " is ", token,
                          ", outside the vocabulary of ", vocabulary_,
                          "; use files of the model's tokenizer"));
  }

  [[nodiscard]] std::uint64_t sampled_hash() const {
    detail::WordHash hash;
    hash.add(file_.size());
    std::array<std::byte, piece_bytes> piece;
    const std::uint64_t bytes = file_.size();
    const bool is_whole = bytes <= pieces * piece_bytes;
    const std::uint64_t count = is_whole ? (bytes + piece_bytes - 1) / piece_bytes : pieces;
    for (std::uint64_t i = 0; i < count; ++i) {
      const std::uint64_t begin =
          is_whole ? i * piece_bytes : (bytes - piece_bytes) / (pieces - 1) * i;
      const std::uint64_t last = i + 1 == count && !is_whole ? bytes - piece_bytes : begin;
      const auto part = std::span(piece).first(std::min<std::uint64_t>(piece_bytes, bytes - last));
      file_.read_at(last, part);
      for (const std::byte byte : part) hash.add(static_cast<std::uint64_t>(byte));
    }
    return hash.value();
  }

  detail::OpenFile file_;
  TokenLayout layout_;
  Index vocabulary_;
  std::uint64_t hash_ = 0;
};

/// Opens a token file of Megatron, llm.c or nanoGPT (see `find_token_layout`).
/// @throws IoError  if it is not a token file, or contradicts its header
[[nodiscard]] inline Tokens open_token_file(const std::filesystem::path& path, Index vocabulary) {
  const auto layout = find_token_layout(path);
  require<IoError>(layout.has_value(), path.string(),
                   ": is not a token file: it has no known header, and its name does not end in "
                   ".bin or .idx");
  return Tokens(std::make_shared<TokenFile>(*layout, vocabulary));
}

}  // namespace octavo
