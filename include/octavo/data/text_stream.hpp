/// @file
/// Reading text files of any size from begin to end, decompressed if they are compressed.
#pragma once

#include <octavo/core/error.hpp>
#include <octavo/data/decompressor.hpp>
#include <octavo/data/file_kind.hpp>
#include <octavo/data/open_file.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace octavo OCTAVO_ABI {

namespace detail {

/// The text of a file. gzip and Zstandard data, which are recognised by their first bytes, are
/// decompressed in pieces if the program has the library for them; otherwise `read` returns the
/// compressed bytes, and `require_text` rejects them.
class TextStream {
 public:
  /// @param source  the path of a regular file, or `StandardInput`
  /// @throws IoError  naming the file, if it cannot be opened or read
  template <class Source>
  explicit TextStream(const Source& source) : file_(source), buffer_(buffer_bytes) {
    refill();
    compression_ = compression_of(
        {reinterpret_cast<const char*>(buffer_.data()), std::min<std::size_t>(unread_.size(), 4)});
    decompressor_ = decompressor_of(compression_);
  }

  [[nodiscard]] const OpenFile& file() const { return file_; }
  /// Returns the number of bytes of the file that were read. If the file is compressed, the text
  /// has a different number of bytes.
  [[nodiscard]] std::uint64_t file_bytes() const { return read_bytes_ - unread_.size(); }
  [[nodiscard]] bool is_compressed() const { return decompressor_ != nullptr; }

  /// Reads the next bytes of the text until `target` is full or the text ends. Returns the number
  /// of bytes.
  /// @throws IoError  naming file and byte, if the file cannot be read, or if compressed data are
  ///                  damaged or end too early
  std::size_t read(std::span<std::uint8_t> target) {
    std::size_t count = 0;
    while (count < target.size()) {
      const std::size_t added = decompressor_ == nullptr ? copy(target.subspan(count))
                                                         : decompress(target.subspan(count));
      if (added == 0) break;
      count += added;
    }
    return count;
  }

  /// Throws if the file has changed since it was opened.
  /// @param expected  size in bytes when it was opened
  /// @param ends      all bytes were read
  void require_size(std::uint64_t expected, bool ends) const {
    const std::uint64_t count = file_bytes();
    if (count == expected || (count < expected && !ends)) return;
    reading_failed(file_.path(), message("it had ", expected, " bytes when it was opened, but ",
                                         count > expected ? "more" : std::to_string(count),
                                         " were read; do not change it while it is read"));
  }

  /// Throws if a text that begins with `bytes` is not text, as `octavo::detail::require_text` does.
  template <class E = IoError>
  void require_text(std::string_view bytes) const {
    detail::require_text<E>(file_.path(), bytes, compression_.missing_package);
  }

 private:
  static constexpr std::size_t buffer_bytes = std::size_t{1} << 17;

  /// Reads the next bytes of the file into the buffer, which must be empty.
  void refill() {
    const std::size_t count = file_.read(buffer_);
    unread_ = std::span<const std::uint8_t>(buffer_).first(count);
    read_bytes_ += count;
  }

  std::size_t copy(std::span<std::uint8_t> target) {
    if (unread_.empty()) refill();
    const std::size_t count = std::min(target.size(), unread_.size());
    if (count > 0) std::memcpy(target.data(), unread_.data(), count);
    unread_ = unread_.subspan(count);
    return count;
  }

  /// Returns the number of bytes written to `target`; 0 if the text ends.
  std::size_t decompress(std::span<std::uint8_t> target) {
    for (;;) {
      const Decompressor::Step step = decompressor_->step(unread_, target);
      unread_ = unread_.subspan(step.consumed);
      if (step.fault != nullptr) {
        fail(message("are damaged near byte ", file_bytes(), " (", step.fault, ")"));
      }
      if (step.written > 0) return step.written;
      if (!unread_.empty()) continue;
      refill();
      if (!unread_.empty()) continue;
      if (!decompressor_->is_complete()) fail(message("are cut off at byte ", file_bytes()));
      return 0;
    }
  }

  [[noreturn]] void fail(const std::string& fault) const {
    reading_failed(file_.path(), message("its ", compression_.name, " data ", fault,
                                         "; download or compress the file again"));
  }

  OpenFile file_;
  std::vector<std::uint8_t> buffer_;
  std::span<const std::uint8_t> unread_;  ///< bytes of the buffer that are not used yet
  std::uint64_t read_bytes_ = 0;          ///< of the file, including `unread_`
  Compression compression_;
  std::unique_ptr<Decompressor> decompressor_;
};

/// Whether a name, without .gz or .zst, is that of a JSON Lines file.
inline bool is_json_lines_name(std::filesystem::path path) {
  if (path.extension() == ".gz" || path.extension() == ".zst") path.replace_extension();
  return path.extension() == ".jsonl";
}

}  // namespace detail

/// The maximum length of a line that `FileLines` reads, in bytes.
inline constexpr std::size_t max_line_bytes = std::size_t{1} << 24;

/// The maximum length of a document, or of its line in a JSON Lines file, in bytes.
inline constexpr std::size_t max_document_bytes = std::size_t{1} << 30;

/// Reads a text file of any size line by line, and skips a byte-order mark. Decompresses gzip and
/// Zstandard data if the program has the library for them.
class FileLines {
 public:
  /// @param longest  maximum length of a line in bytes
  /// @throws IoError  naming the file, if it cannot be opened or is not a regular file
  explicit FileLines(const std::filesystem::path& path, std::size_t longest = max_line_bytes)
      : file_(path), longest_(longest) {}
  /// Reads standard input.
  explicit FileLines(detail::StandardInput input, std::size_t longest = max_line_bytes)
      : file_(input), longest_(longest) {}

  /// Reads the next line.
  /// @param line  receives it, without its line feed
  /// @return false at the end of the file, after the last line
  /// @throws IoError  naming the file and the line, if it cannot be read or the line is longer than
  ///                  allowed; if the file has a known format that is not text
  [[nodiscard]] bool next(std::string& line) {
    ++number_;
    for (std::size_t searched = 0;;) {
      const std::size_t end = buffer_.find('\n', begin_ + searched);
      has_line_feed_ = end != std::string::npos;
      const std::size_t length = (has_line_feed_ ? end : buffer_.size()) - begin_;
      if (length > longest_) {
        detail::reading_failed(path(), message("line ", number_, " is longer than ", longest_,
                                               " bytes; check the file"));
      }
      if (has_line_feed_ || is_at_end_) {
        line.assign(buffer_, begin_, length);
        line_offset_ = buffer_offset_ + begin_;
        begin_ += length + (has_line_feed_ ? 1 : 0);
        return has_line_feed_ || length != 0;
      }
      searched = length;
      read_more();
    }
  }
  /// Whether the last line that was read ends with a line feed. It may not if the file's writer was
  /// killed.
  [[nodiscard]] bool is_whole() const { return has_line_feed_; }
  /// The number of the last line that was read; the first line is 1.
  [[nodiscard]] std::uint64_t number() const { return number_; }
  /// Returns the offset of the last line in the text, which is after a byte-order mark.
  [[nodiscard]] std::size_t begin() const { return line_offset_; }
  [[nodiscard]] const std::filesystem::path& path() const { return file_.file().path(); }
  /// The file and the number of the last line, for messages.
  [[nodiscard]] std::string place() const { return message(path().string(), ": line ", number_); }
  [[nodiscard]] const detail::TextStream& stream() const { return file_; }

 private:
  void read_more() {
    constexpr std::size_t piece = std::size_t{1} << 16;
    buffer_.erase(0, begin_);
    buffer_offset_ += begin_;
    begin_ = 0;
    const std::size_t before = buffer_.size();
    buffer_.resize(before + piece);
    auto* const target = reinterpret_cast<std::uint8_t*>(buffer_.data() + before);
    const std::size_t count = file_.read({target, piece});
    buffer_.resize(before + count);
    is_at_end_ = count < piece;
    if (std::exchange(has_read_, true)) return;
    file_.require_text(buffer_);
    begin_ = detail::byte_order_mark_length(buffer_);
  }

  detail::TextStream file_;
  std::size_t longest_;
  std::string buffer_;     ///< bytes read from the file; those before `begin_` were returned
  std::size_t begin_ = 0;  ///< index of the next line
  std::size_t buffer_offset_ = 0;  ///< bytes of the text before the buffer
  std::size_t line_offset_ = 0;    ///< offset of the last line
  bool has_read_ = false;          ///< some bytes were read
  bool is_at_end_ = false;         ///< the file has no more bytes than the buffer
  bool has_line_feed_ = false;     ///< the last line ends with a line feed
  std::uint64_t number_ = 0;
};

}  // namespace octavo
