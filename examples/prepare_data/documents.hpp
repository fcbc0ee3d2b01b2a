// Documents from text and JSON Lines files.
#pragma once

#include <octavo/core/error.hpp>
#include <octavo/data/json_texts.hpp>
#include <octavo/data/seen_files.hpp>
#include <octavo/data/text_stream.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace prepare_data {

struct Document {
  std::string text;
  std::string place;  ///< for messages: the file, with the line in JSON Lines
};

/// Reads documents one after another. A text file is one document; each line of a JSON Lines file
/// (.jsonl) is an object with the text of a document.
class Documents {
 public:
  /// @param files  at least one
  /// @param key    member of an object that contains the text
  /// @throws IoError      if a file does not exist or cannot be opened
  /// @throws ConfigError  if two of them are the same file
  Documents(std::vector<std::filesystem::path> files, std::string key)
      : files_(std::move(files)), key_(std::move(key)) {
    octavo::detail::SeenFiles seen;
    for (const std::filesystem::path& path : files_) {
      octavo::require<octavo::IoError>(!std::filesystem::is_directory(path), path.string(),
                                       ": is a folder; pass its files");
      octavo::require<octavo::IoError>(std::filesystem::is_regular_file(path), path.string(),
                                       ": does not exist or is not a regular file; pass text or "
                                       "JSON Lines files");
      octavo::detail::TextStream file(path);
      seen.begin_source();
      (void)seen.add(file.file().identity(), path, {});
      total_bytes_ += file.file().size();
      require_text(file);
    }
  }

  /// Returns the size of all files in bytes.
  [[nodiscard]] std::uint64_t total_bytes() const { return total_bytes_; }
  /// Returns the number of bytes of the documents read so far.
  [[nodiscard]] std::uint64_t read_bytes() const { return read_bytes_; }

  /// Returns the next documents, of about `bytes` in total, or none at the end.
  /// @throws IoError  with the file and the byte that cannot be read
  [[nodiscard]] std::vector<Document> next(std::size_t bytes) {
    std::vector<Document> documents;
    for (std::size_t sum = 0; sum < bytes;) {
      std::optional<Document> document = next();
      if (!document.has_value()) break;
      sum += document->text.size() + 1;
      documents.push_back(std::move(*document));
    }
    return documents;
  }

 private:
  /// @throws ConfigError  if the first bytes of a file are not text
  static void require_text(octavo::detail::TextStream& file) {
    std::string begin(4096, '\0');
    begin.resize(file.read(bytes_of(begin)));
    file.require_text<octavo::ConfigError>(begin);
    const std::size_t place = begin.find('\0');
    octavo::require<octavo::ConfigError>(
        place == std::string::npos, file.file().path().string(), ": byte ", place,
        " is 0, so it is not text; pass token files directly to the trainer");
  }

  static std::span<std::uint8_t> bytes_of(std::string& text) {
    return {reinterpret_cast<std::uint8_t*>(text.data()), text.size()};
  }

  std::optional<Document> next() {
    for (;;) {
      if (lines_ != nullptr) {
        if (auto document = next_line()) return document;
        lines_.reset();
      }
      if (next_file_ == files_.size()) return std::nullopt;
      const std::filesystem::path& path = files_[next_file_++];
      if (!octavo::detail::is_json_lines_name(path)) return whole_file(path);
      lines_ = std::make_unique<octavo::FileLines>(path, octavo::most_document_bytes);
    }
  }

  Document whole_file(const std::filesystem::path& path) {
    constexpr std::size_t piece_bytes = std::size_t{1} << 20;
    octavo::detail::TextStream file(path);
    std::string text;
    for (;;) {
      const std::size_t before = text.size();
      text.resize(before + piece_bytes);
      const std::size_t count = file.read(bytes_of(text).subspan(before));
      text.resize(before + count);
      octavo::require<octavo::IoError>(
          text.size() <= octavo::most_document_bytes, path.string(),
          ": a document must have at most ", octavo::most_document_bytes,
          " bytes; split the text, or write its documents as JSON Lines");
      if (count < piece_bytes) break;
    }
    file.require_size(file.file().size(), true);
    text.erase(0, octavo::detail::byte_order_mark_length(text));
    read_bytes_ += file.file_bytes();
    return {std::move(text), path.string()};
  }

  std::optional<Document> next_line() {
    const std::uint64_t before = lines_->stream().file_bytes();
    while (lines_->next(line_)) {
      if (octavo::detail::is_blank(line_)) continue;
      std::string place = lines_->place();
      std::string text =
          octavo::detail::json_text(line_, place, key_, ", or name another with --key");
      read_bytes_ += lines_->stream().file_bytes() - before;
      return Document{std::move(text), std::move(place)};
    }
    lines_->stream().require_size(lines_->stream().file().size(), true);
    read_bytes_ += lines_->stream().file_bytes() - before;
    return std::nullopt;
  }

  std::vector<std::filesystem::path> files_;
  std::string key_;
  std::uint64_t total_bytes_ = 0;
  std::uint64_t read_bytes_ = 0;
  std::size_t next_file_ = 0;
  std::unique_ptr<octavo::FileLines> lines_;  ///< of the current JSON Lines file
  std::string line_;
};

}  // namespace prepare_data
