// Documents from text and JSON Lines files.
#pragma once

#include <octavo/core/error.hpp>
#include <octavo/data/json_texts.hpp>
#include <octavo/data/seen_files.hpp>
#include <octavo/data/text.hpp>
#include <octavo/data/text_stream.hpp>

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

/// The kind of the files: `by_name` reads .jsonl, .jsonl.gz, .jsonl.zst and standard input as JSON
/// Lines, and other files as text.
enum class InputFormat { by_name, text, json_lines };

inline bool is_standard_input(const std::filesystem::path& path) { return path == "-"; }

/// Whether a file is read as JSON Lines.
inline bool is_json_lines(const std::filesystem::path& path, InputFormat format) {
  if (format != InputFormat::by_name) return format == InputFormat::json_lines;
  return is_standard_input(path) || octavo::detail::is_json_lines_name(path);
}

/// Reads documents one after another. A text file is one document; each line of a JSON Lines file
/// is an object with the text of a document. The name "-" is standard input.
class Documents {
 public:
  /// @param files  at least one
  /// @param key    member of an object that contains the text of a document
  /// @throws IoError      if a file does not exist or cannot be opened
  /// @throws ConfigError  if two of them are the same file
  Documents(std::vector<std::filesystem::path> files, std::string key, InputFormat format)
      : files_(std::move(files)), key_(std::move(key)), format_(format) {
    octavo::detail::SeenFiles seen;
    for (const std::filesystem::path& path : files_) {
      if (is_standard_input(path)) {
        octavo::require<octavo::ConfigError>(std::count(files_.begin(), files_.end(), path) == 1,
                                             "standard input (-) is named twice; name it once");
        has_standard_input_ = true;
        continue;
      }
      octavo::require<octavo::IoError>(!std::filesystem::is_directory(path), path.string(),
                                       ": is a folder; pass its files");
      octavo::require<octavo::IoError>(std::filesystem::is_regular_file(path), path.string(),
                                       ": does not exist or is not a regular file; pass text or "
                                       "JSON Lines files");
      octavo::detail::TextStream file(path);
      seen.begin_source();
      (void)seen.add(file.file().identity(), path, {});
      total_bytes_ += file.file().size();
      inspect(file, path);
    }
  }

  /// Returns notes about files that are not what they may seem to be.
  [[nodiscard]] const std::vector<std::string>& notes() const { return notes_; }

  /// Returns the size of all files in bytes; none if standard input is one of them.
  [[nodiscard]] std::optional<std::uint64_t> total_bytes() const {
    return has_standard_input_ ? std::nullopt : std::optional(total_bytes_);
  }
  /// Returns the number of bytes of the files read so far.
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
  static constexpr std::size_t probe_bytes = 4096;

  /// Adds a note if the first bytes of a text file are not UTF-8, or are JSON.
  /// @throws ConfigError  if they are not text
  void inspect(octavo::detail::TextStream& file, const std::filesystem::path& path) {
    std::string begin(probe_bytes, '\0');
    begin.resize(file.read(bytes_of(begin)));
    require_text(file, begin);
    if (begin.empty() || is_json_lines(path, format_)) return;
    std::string note =
        octavo::detail::not_text_reason(bytes_of(begin), begin.size() == probe_bytes);
    if (note.empty() && format_ == InputFormat::by_name) {
      note = octavo::detail::json_note(path, begin);
    }
    if (!note.empty()) notes_.push_back(path.string() + ": " + note);
  }
  static void require_text(const octavo::detail::TextStream& file, std::string_view begin) {
    file.require_text<octavo::ConfigError>(begin);
    const std::size_t place = begin.find('\0');
    octavo::require<octavo::ConfigError>(
        place == std::string::npos, file.file().path().string(), ": byte ", place,
        " is 0, so it is not text; pass token files directly to the trainer");
  }

  /// Checks the beginning of a line of standard input, whose name does not tell its format.
  static void require_json(std::string_view line, const std::string& place) {
    const char first = line[line.find_first_not_of(" \t\r")];
    octavo::require<octavo::IoError>(
        first == '{' || first == '[', place,
        ": must be a JSON object with a text; for plain text, pass --input-format text");
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
      const bool is_input = is_standard_input(path);
      if (!is_json_lines(path, format_)) {
        if (!is_input) return whole_file(octavo::detail::TextStream(path), true);
        return whole_file(octavo::detail::TextStream(octavo::detail::StandardInput{}), false);
      }
      const std::size_t longest = octavo::max_document_bytes;
      lines_ = is_input
                   ? std::make_unique<octavo::FileLines>(octavo::detail::StandardInput{}, longest)
                   : std::make_unique<octavo::FileLines>(path, longest);
      is_file_ = !is_input;
    }
  }

  /// @param is_file  its size is known, and it was found to be text
  Document whole_file(octavo::detail::TextStream file, bool is_file) {
    constexpr std::size_t piece_bytes = std::size_t{1} << 20;
    const std::string place = file.file().path().string();
    std::string text;
    for (;;) {
      const std::size_t before = text.size();
      text.resize(before + piece_bytes);
      const std::size_t count = file.read(bytes_of(text).subspan(before));
      text.resize(before + count);
      octavo::require<octavo::IoError>(
          text.size() <= octavo::max_document_bytes, place, ": a document must have at most ",
          octavo::max_document_bytes,
          " bytes; split the text, or write its documents as JSON Lines");
      if (count < piece_bytes) break;
    }
    if (is_file) {
      file.require_size(file.file().size(), true);
    } else {
      require_text(file, std::string_view(text).substr(0, probe_bytes));
    }
    text.erase(0, octavo::detail::byte_order_mark_length(text));
    read_bytes_ += file.file_bytes();
    return {std::move(text), place};
  }

  std::optional<Document> next_line() {
    const std::uint64_t before = lines_->stream().file_bytes();
    while (lines_->next(line_)) {
      if (octavo::detail::is_blank(line_)) continue;
      std::string place = lines_->place();
      if (!is_file_ && format_ == InputFormat::by_name) require_json(line_, place);
      std::string text =
          octavo::detail::json_text(line_, place, key_, "pass the key of the text as --key");
      read_bytes_ += lines_->stream().file_bytes() - before;
      return Document{std::move(text), std::move(place)};
    }
    if (is_file_) lines_->stream().require_size(lines_->stream().file().size(), true);
    read_bytes_ += lines_->stream().file_bytes() - before;
    return std::nullopt;
  }

  std::vector<std::filesystem::path> files_;
  std::string key_;
  InputFormat format_;
  std::vector<std::string> notes_;
  bool has_standard_input_ = false;
  std::uint64_t total_bytes_ = 0;
  std::uint64_t read_bytes_ = 0;
  std::size_t next_file_ = 0;
  std::unique_ptr<octavo::FileLines> lines_;  ///< of the current JSON Lines file
  bool is_file_ = true;                       ///< whether `lines_` reads a file, not standard input
  std::string line_;
};

}  // namespace prepare_data
