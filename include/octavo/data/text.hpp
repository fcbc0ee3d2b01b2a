/// @file
/// Reading text files, and folders of them, as bytes.
#pragma once

#include <octavo/core/error.hpp>
#include <octavo/data/utf8.hpp>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <ios>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace octavo {

namespace detail {

/// How much of a file decides whether it is text.
inline constexpr std::size_t text_probe_bytes = 8192;

[[noreturn]] inline void reading_failed(const std::filesystem::path& path,
                                        std::string_view reason) {
  throw IoError(message(path.string(), ": cannot be read: ", reason));
}

inline std::vector<std::uint8_t> read_bytes(const std::filesystem::path& path) {
  std::error_code error;
  const std::uintmax_t size = std::filesystem::file_size(path, error);
  if (error) reading_failed(path, error.message());
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) reading_failed(path, std::strerror(errno));
  std::vector<std::uint8_t> bytes(size);
  file.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(size));
  const auto count = static_cast<std::uintmax_t>(file.gcount());
  if (count != size || file.peek() != std::ifstream::traits_type::eof()) {
    reading_failed(path,
                   message("it should hold ", size, " bytes, but ", count == size ? "more" : "",
                           count == size ? "" : std::to_string(count),
                           " came; try again when nothing else changes it"));
  }
  return bytes;
}

/// True if the first 8 KiB hold no NUL byte and are valid UTF-8, but for a character that their
/// end cuts.
inline bool is_text(const std::vector<std::uint8_t>& bytes) {
  std::string_view probe(reinterpret_cast<const char*>(bytes.data()),
                         std::min(bytes.size(), text_probe_bytes));
  const bool cut = bytes.size() > probe.size();
  while (!probe.empty()) {
    const std::size_t length = utf8_length(probe);
    if (probe.front() == '\0') return false;
    if (length == 0) return cut && probe.size() < 4;
    probe.remove_prefix(length);
  }
  return true;
}

/// True for what a folder holds beside its text: hidden entries, and what programs built there.
inline bool is_skipped(const std::filesystem::directory_entry& entry) {
  const std::string name = entry.path().filename().string();
  const bool built = name == "build" || name == "out" || name == "runs";
  return name.starts_with('.') || (built && entry.is_directory());
}

/// The regular files below `folder` that are not skipped, sorted by path.
inline std::vector<std::filesystem::path> files_below(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  try {
    using Walk = std::filesystem::recursive_directory_iterator;
    for (Walk entry(folder); entry != Walk(); ++entry) {
      if (is_skipped(*entry)) {
        entry.disable_recursion_pending();
      } else if (entry->is_regular_file()) {
        files.push_back(entry->path());
      }
    }
  } catch (const std::filesystem::filesystem_error& error) {
    reading_failed(error.path1().empty() ? folder : error.path1(), error.code().message());
  }
  std::sort(files.begin(), files.end());
  return files;
}

/// Appends a file's bytes, with a newline between them and what is there already.
inline void append_file(const std::vector<std::uint8_t>& bytes, std::vector<std::uint8_t>& text) {
  if (!text.empty()) text.push_back('\n');
  text.insert(text.end(), bytes.begin(), bytes.end());
}

inline void append_folder(const std::filesystem::path& folder, std::vector<std::uint8_t>& text) {
  bool found = false;
  for (const std::filesystem::path& file : files_below(folder)) {
    const std::vector<std::uint8_t> bytes = read_bytes(file);
    if (bytes.empty() || !is_text(bytes)) continue;
    append_file(bytes, text);
    found = true;
  }
  require<IoError>(found, folder.string(),
                   ": this folder holds no text file; name a folder with UTF-8 text, or the files "
                   "themselves (hidden entries and folders called build, out or runs are skipped)");
}

}  // namespace detail

/// The bytes of text files, one after the other, with a newline byte between files.
///
/// A file that is named is read whatever it holds. A folder is read recursively, sorted by path;
/// of its files only those count that are text: not empty, no NUL byte in the first 8 KiB, and
/// these are valid UTF-8. Hidden entries, folders called `build`, `out` or `runs`, and links to
/// folders are skipped there.
/// @throws ConfigError  if `sources` is empty
/// @throws IoError      if a path is missing, neither a file nor a folder, or not readable; if a
///                      named file is empty, or a folder holds no text
inline std::vector<std::uint8_t> read_text(const std::vector<std::filesystem::path>& sources) {
  require<ConfigError>(!sources.empty(), "no text is named; give at least one file or folder");
  std::vector<std::uint8_t> text;
  for (const std::filesystem::path& source : sources) {
    std::error_code error;
    const std::filesystem::file_status status = std::filesystem::status(source, error);
    require<IoError>(status.type() != std::filesystem::file_type::not_found, source.string(),
                     ": there is no such file or folder; check the path");
    if (std::filesystem::is_directory(status)) {
      detail::append_folder(source, text);
      continue;
    }
    if (!std::filesystem::exists(status)) detail::reading_failed(source, error.message());
    require<IoError>(std::filesystem::is_regular_file(status), source.string(),
                     ": neither a file nor a folder; name one of these");
    const std::vector<std::uint8_t> bytes = detail::read_bytes(source);
    require<IoError>(!bytes.empty(), source.string(), ": the file is empty; name one with text");
    detail::append_file(bytes, text);
  }
  return text;
}

}  // namespace octavo
