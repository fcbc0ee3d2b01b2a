// Documents from text and JSON Lines files.
#pragma once

#include <octavo/core/error.hpp>
#include <octavo/data/file_kind.hpp>
#include <octavo/data/json_texts.hpp>
#include <octavo/data/open_file.hpp>
#include <octavo/data/seen_files.hpp>

#include <algorithm>
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
      const octavo::detail::OpenFile file(path);
      seen.begin_source();
      (void)seen.add(file.identity(), path, {});
      total_bytes_ += file.size();
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
  static std::string first_bytes(const octavo::detail::OpenFile& file, std::size_t most) {
    std::string begin(std::min<std::uint64_t>(file.size(), most), '\0');
    file.read_at(0, std::as_writable_bytes(std::span(begin)));
    return begin;
  }

  /// @throws ConfigError  if the first bytes of a file are not text
  static void require_text(const octavo::detail::OpenFile& file) {
    const std::string begin = first_bytes(file, 4096);
    octavo::detail::require_text<octavo::ConfigError>(file.path(), begin);
    const std::size_t place = begin.find('\0');
    octavo::require<octavo::ConfigError>(
        place == std::string::npos, file.path().string(), ": byte ", place,
        " is 0, so it is not text; pass token files directly to the trainer");
  }

  static constexpr std::size_t piece_bytes = std::size_t{1} << 22;

  std::optional<Document> next() {
    for (;;) {
      if (file_ == nullptr) {
        if (next_file_ == files_.size()) return std::nullopt;
        file_ = std::make_unique<octavo::detail::OpenFile>(files_[next_file_++]);
        buffer_.clear();
        buffer_begin_ = octavo::detail::byte_order_mark_length(first_bytes(*file_, 3));
        at_ = 0;
        line_ = 0;
      }
      if (file_->path().extension() != ".jsonl") return whole_file();
      const auto line = next_line();
      if (!line.has_value()) {
        file_.reset();
      } else if (!line->is_blank()) {
        return Document{octavo::detail::json_text(*line, key_, ", or name another with --key"),
                        line->place()};
      }
    }
  }

  Document whole_file() {
    std::string text(file_->size() - buffer_begin_, '\0');
    file_->read_at(buffer_begin_, std::as_writable_bytes(std::span(text)));
    read_bytes_ += text.size();
    std::string place = file_->path().string();
    file_.reset();
    return {std::move(text), std::move(place)};
  }

  std::optional<octavo::detail::FileLine> next_line() {
    std::size_t end = buffer_.find('\n', at_);
    while (end == std::string::npos) {
      buffer_.erase(0, at_);
      buffer_begin_ += at_;
      at_ = 0;
      const std::size_t searched = buffer_.size();
      const std::uint64_t place = buffer_begin_ + searched;
      const std::size_t piece = std::min<std::uint64_t>(piece_bytes, file_->size() - place);
      if (piece == 0) break;
      buffer_.resize(searched + piece);
      file_->read_at(place, std::as_writable_bytes(std::span(buffer_).subspan(searched)));
      end = buffer_.find('\n', searched);
    }
    if (at_ == buffer_.size()) return std::nullopt;
    const std::size_t begin = at_;
    end = std::min(end, buffer_.size());
    at_ = std::min(end + 1, buffer_.size());
    read_bytes_ += at_ - begin;
    return octavo::detail::FileLine{file_->path(), ++line_, buffer_begin_ + begin,
                                    std::string_view(buffer_).substr(begin, end - begin)};
  }

  std::vector<std::filesystem::path> files_;
  std::string key_;
  std::uint64_t total_bytes_ = 0;
  std::uint64_t read_bytes_ = 0;
  std::size_t next_file_ = 0;
  std::unique_ptr<octavo::detail::OpenFile> file_;
  std::string buffer_;              ///< a piece of the file
  std::uint64_t buffer_begin_ = 0;  ///< its offset there; initially after a byte-order mark
  std::size_t at_ = 0;              ///< offset of the next line in the buffer
  std::int64_t line_ = 0;           ///< number of the line read last
};

}  // namespace prepare_data
