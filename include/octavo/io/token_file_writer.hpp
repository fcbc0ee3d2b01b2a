/// @file
/// Writing token files, in layouts that `find_token_layout` recognises.
#pragma once

#include <octavo/core/device.hpp>
#include <octavo/core/error.hpp>
#include <octavo/data/token_layout.hpp>
#include <octavo/io/atomic_file.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace octavo OCTAVO_ABI {

/// llm.c: one file with 16 bits per token (GPT-2's header) or 32 (Llama 3's), depending on the
/// vocabulary. Megatron: NAME.bin, and NAME.idx with the document boundaries; 16 bits per token if
/// the vocabulary is below 65,500, else 32.
enum class TokenFileKind { llm_c, megatron };

/// Writes tokens document by document, atomically: without `commit`, or after an error, no file is
/// created. Existing files are never replaced.
///
/// All members throw an IoError that names the file if it cannot be written.
class TokenFileWriter {
 public:
  /// @param path        for Megatron's files, the name of either, or without an extension
  /// @param vocabulary  upper bound of the tokens
  /// @throws IoError  if a file exists already
  TokenFileWriter(std::filesystem::path path, TokenFileKind kind, Index vocabulary)
      : path_(std::move(path)),
        kind_(kind),
        vocabulary_(vocabulary),
        type_(type_of(kind, vocabulary)) {
    if (kind == TokenFileKind::megatron) {
      const std::filesystem::path ending = path_.extension();
      if (ending == ".bin" || ending == ".idx") path_.replace_extension();
      path_ += ".bin";
    }
    const std::filesystem::path index = index_path();
    // Readers of NAME.bin interpret NAME.idx as its index.
    require_absent(path_);
    require_absent(index);
    tokens_.emplace(path_);
    if (kind == TokenFileKind::megatron) {
      index_.emplace(index);
    } else {
      tokens_->write(std::string(detail::llm_c_header_bytes, '\0'));
    }
  }

  /// Appends a document.
  /// @throws ConfigError  if a token is outside the vocabulary, or the file (of llm.c) or a
  ///                      document (of Megatron) would have 2^31 tokens or more
  void add(std::span<const std::int32_t> document) {
    count_ += static_cast<Index>(document.size());
    const bool is_megatron = kind_ == TokenFileKind::megatron;
    require<ConfigError>(
        (is_megatron ? static_cast<Index>(document.size()) : count_) <=
            std::numeric_limits<std::int32_t>::max(),
        path_.string(), is_megatron ? ": a document" : ": the file of llm.c", " would have ",
        is_megatron ? static_cast<Index>(document.size()) : count_,
        " tokens, but at most 2^31 - 1 are possible; ",
        is_megatron ? "split the document" : "write several files, or use Megatron's format");
    if (is_megatron) lengths_.push_back(static_cast<std::int32_t>(document.size()));
    for (const std::int32_t token : document) {
      require<ConfigError>(token >= 0 && token < vocabulary_, path_.string(), ": the token ", token,
                           " is outside the vocabulary of ", vocabulary_);
      // The first bytes of little-endian numbers are the lowest.
      std::array<char, sizeof token> bytes;
      std::memcpy(bytes.data(), &token, sizeof token);
      buffer_.append(bytes.data(), width_of(type_));
      if (buffer_.size() >= buffer_bytes) flush();
    }
  }

  /// Returns the number of tokens so far.
  [[nodiscard]] Index tokens() const { return count_; }

  /// Renames the files to their paths. Must be the last call.
  void commit() {
    flush();
    if (kind_ == TokenFileKind::llm_c) {
      std::array<std::int32_t, 256> header{};
      const bool is_short = type_ == TokenType::u16;
      header[0] = is_short ? detail::llm_c_gpt2 : detail::llm_c_llama3;
      header[1] = is_short ? 1 : 7;
      header[2] = static_cast<std::int32_t>(count_);
      tokens_->write_at(0, std::as_bytes(std::span(header)));
    } else {
      write_index();
      // The index is renamed first: without it, the tokens would be read as nanoGPT's.
      index_->commit();
    }
    try {
      tokens_->commit();
    } catch (...) {
      std::error_code ignored;
      if (index_.has_value()) std::filesystem::remove(index_path(), ignored);
      throw;
    }
  }

 private:
  static constexpr std::size_t buffer_bytes = std::size_t{1} << 20;

  static TokenType type_of(TokenFileKind kind, Index vocabulary) {
    if (kind == TokenFileKind::llm_c) return vocabulary <= 65'536 ? TokenType::u16 : TokenType::u32;
    return vocabulary < 65'500 ? TokenType::u16 : TokenType::i32;
  }

  [[nodiscard]] std::filesystem::path index_path() const {
    std::filesystem::path index = path_;
    return index.replace_extension(".idx");
  }

  static void require_absent(const std::filesystem::path& path) {
    std::error_code ignored;
    require<IoError>(!std::filesystem::exists(path, ignored), path.string(),
                     ": already exists; remove it, or name another file");
  }

  void flush() {
    tokens_->write(buffer_);
    buffer_.clear();
  }

  template <class T>
  void append(const T& value) {
    std::array<char, sizeof(T)> bytes;
    std::memcpy(bytes.data(), &value, sizeof(T));
    buffer_.append(bytes.data(), bytes.size());
    if (buffer_.size() < buffer_bytes) return;
    index_->write(buffer_);
    buffer_.clear();
  }

  /// Writes the index, with one sequence per document.
  void write_index() {
    buffer_.assign(detail::megatron_magic.begin(), detail::megatron_magic.end());
    append(std::uint64_t{1});
    append(static_cast<std::uint8_t>(type_));
    append(static_cast<std::uint64_t>(lengths_.size()));
    append(static_cast<std::uint64_t>(lengths_.size()) + 1);
    for (const std::int32_t length : lengths_) append(length);
    std::int64_t place = 0;
    for (const std::int32_t length : lengths_) {
      append(place);
      place += static_cast<std::int64_t>(length) * static_cast<std::int64_t>(width_of(type_));
    }
    for (std::size_t i = 0; i <= lengths_.size(); ++i) append(static_cast<std::int64_t>(i));
    index_->write(buffer_);
    buffer_.clear();
  }

  std::filesystem::path path_;
  TokenFileKind kind_;
  Index vocabulary_;
  TokenType type_;
  std::optional<AtomicFile> tokens_;
  std::optional<AtomicFile> index_;
  std::string buffer_;
  Index count_ = 0;
  std::vector<std::int32_t> lengths_;  ///< of documents
};

}  // namespace octavo
