/// @file
/// Reading text files, and folders of them, as bytes.
#pragma once

#include <octavo/core/error.hpp>
#include <octavo/core/utf8.hpp>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace octavo::inline OCTAVO_ABI {

/// A file that was read, or an entry of a folder that was not.
struct TextFile {
  std::filesystem::path path;
  std::uintmax_t bytes = 0;  ///< 0 for what is no file
  /// Why it was skipped; of a file that was read because it is named, why a folder would not have
  /// given it; else empty.
  std::string remark;
};

/// Text, and where it comes from.
struct Text {
  std::vector<std::uint8_t> bytes;
  std::vector<TextFile> read;     ///< in the order of `bytes`
  std::vector<TextFile> skipped;  ///< everything that the folders hold beside; a folder stands once
};

namespace detail {

/// How much of a file decides whether it is text.
inline constexpr std::size_t text_probe_bytes = 8192;

[[noreturn]] inline void reading_failed(const std::filesystem::path& path,
                                        std::string_view reason) {
  throw IoError(message(path.string(), ": cannot be read: ", reason));
}

/// @param error  errno
[[noreturn]] inline void reading_failed(const std::filesystem::path& path, int error) {
  const bool forbidden = error == EACCES || error == EPERM;
  reading_failed(path, message(std::strerror(error),
                               forbidden ? "; give yourself the right to read it (chmod u+r, of a "
                                           "folder u+rx), or name other text"
                                         : ""));
}

/// A file that is open for reading.
class OpenFile {
 public:
  /// @throws IoError  if it cannot be opened
  explicit OpenFile(const std::filesystem::path& path)
      : path_(path), descriptor_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (descriptor_ < 0) reading_failed(path_, errno);
    if (::fstat(descriptor_, &status_) == 0) return;
    const int error = errno;
    ::close(descriptor_);
    reading_failed(path_, error);
  }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  ~OpenFile() { ::close(descriptor_); }

  [[nodiscard]] std::uintmax_t size() const { return static_cast<std::uintmax_t>(status_.st_size); }
  /// The same for every path to one file: links of both kinds among them.
  [[nodiscard]] std::pair<dev_t, ino_t> identity() const {
    return {status_.st_dev, status_.st_ino};
  }

  /// Reads the next bytes until `target` is full or the file ends; returns how many came.
  std::size_t read(std::span<std::uint8_t> target) {
    std::size_t count = 0;
    while (count < target.size()) {
      const ssize_t came = ::read(descriptor_, target.data() + count, target.size() - count);
      if (came < 0 && errno == EINTR) continue;
      if (came < 0) reading_failed(path_, errno);
      if (came == 0) break;
      count += static_cast<std::size_t>(came);
    }
    return count;
  }

 private:
  const std::filesystem::path& path_;
  int descriptor_;
  struct stat status_ {};
};

/// Why these first bytes of a file are no text, or "". A character that the probe's end cuts may
/// stand where the file goes on.
inline std::string why_no_text(std::span<const std::uint8_t> bytes, bool goes_on) {
  std::string_view probe(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (probe.empty()) return "empty";
  if (probe.starts_with("\xff\xfe") || probe.starts_with("\xfe\xff")) return "UTF-16, not UTF-8";
  if (probe.find('\0') != std::string_view::npos) return "binary: it holds NUL bytes";
  while (!probe.empty()) {
    const std::size_t length = utf8_length(probe);
    if (length == 0) {
      if (goes_on && probe.size() < 4) break;
      return message("not UTF-8: see its byte ", bytes.size() - probe.size());
    }
    probe.remove_prefix(length);
  }
  return "";
}

/// Finds the files that sources name, and reads them in one go.
class TextReader {
 public:
  /// A file that is named is read whatever it holds.
  void add_file(const std::filesystem::path& path) {
    ++source_;
    TextFile file = examined(path);
    require<IoError>(file.bytes > 0, path.string(), ": the file is empty; name one with text");
    require_new(path, {});
    text_.read.push_back(std::move(file));
  }

  /// Of a folder only text is read.
  void add_folder(const std::filesystem::path& folder) {
    ++source_;
    const std::size_t before = text_.read.size();
    for (const std::filesystem::path& path : files_below(folder)) {
      TextFile file = examined(path);
      if (file.remark.empty()) file.remark = require_new(path, folder);
      (file.remark.empty() ? text_.read : text_.skipped).push_back(std::move(file));
    }
    require<IoError>(text_.read.size() > before, folder.string(),
                     ": this folder holds no text file; name a folder with UTF-8 text, or the "
                     "files themselves (hidden entries and folders called build, out or runs are "
                     "skipped)");
  }

  /// The bytes of all files, with a newline between them. Needs memory for these bytes only.
  Text read() {
    std::uintmax_t total = text_.read.size();
    for (const TextFile& file : text_.read) total += file.bytes;
    text_.bytes.reserve(total);
    for (const TextFile& file : text_.read) {
      if (!text_.bytes.empty()) text_.bytes.push_back('\n');
      const std::size_t begin = text_.bytes.size();
      text_.bytes.resize(begin + file.bytes);
      read_whole(file, std::span(text_.bytes).subspan(begin));
    }
    return std::move(text_);
  }

 private:
  struct Seen {
    std::filesystem::path path;
    std::filesystem::path folder;  ///< that gave it; empty: it was named
    int source;
  };

  /// Opens and judges a file; `last_` is then its identity.
  TextFile examined(const std::filesystem::path& path) {
    OpenFile file(path);
    std::array<std::uint8_t, text_probe_bytes> probe;
    const std::size_t count = file.read(probe);
    last_ = file.identity();
    return {path, file.size(), why_no_text(std::span(probe).first(count), file.size() > count)};
  }

  /// Notes the last file that was examined. Two links in one folder to one file: returns a remark
  /// about the second.
  /// @param folder  that gave it; empty: it was named
  /// @throws ConfigError  if another source gave it: validation would see what was trained on
  std::string require_new(const std::filesystem::path& path, const std::filesystem::path& folder) {
    const auto [place, added] = seen_.try_emplace(last_, Seen{path, folder, source_});
    if (added) return "";
    const Seen& first = place->second;
    std::string same = "the same file as " + first.path.string();
    if (first.source == source_) return same;
    const bool one_path = path.lexically_normal() == first.path.lexically_normal();
    std::string what = (folder.empty() ? "" : folder.string() + ": its ") + path.string() + " is ";
    what += !one_path              ? same
            : first.folder.empty() ? "named already"
                                   : "in the folder " + first.folder.string() + " already";
    throw ConfigError(what + "; name each text once, or validation would see what was trained on");
  }

  static void read_whole(const TextFile& source, std::span<std::uint8_t> target) {
    OpenFile file(source.path);
    const std::size_t count = file.read(target);
    std::uint8_t more = 0;
    const bool longer = file.read({&more, 1}) != 0;
    if (count == target.size() && !longer) return;
    reading_failed(source.path, message("it should hold ", target.size(), " bytes, but ",
                                        longer ? "more" : std::to_string(count),
                                        " came; try again when nothing else changes it"));
  }

  void skip(const std::filesystem::directory_entry& entry, const char* remark) {
    std::error_code ignored;
    const std::uintmax_t bytes = entry.is_regular_file(ignored) ? entry.file_size(ignored) : 0;
    text_.skipped.push_back({entry.path(), ignored ? 0 : bytes, remark});
  }

  /// Why a folder's entry is not looked into; null for a file and for a folder to descend into.
  static const char* why_skipped(const std::filesystem::directory_entry& entry) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with('.')) return "hidden";
    if (entry.is_directory()) {
      if (entry.is_symlink()) return "a link to a folder";
      const bool built = name == "build" || name == "out" || name == "runs";
      return built ? "a folder called build, out or runs" : nullptr;
    }
    return entry.is_regular_file() ? nullptr : "neither a file nor a folder";
  }

  /// The regular files below `folder` that are not skipped, sorted by path.
  std::vector<std::filesystem::path> files_below(const std::filesystem::path& folder) {
    std::vector<std::filesystem::path> files;
    try {
      using Walk = std::filesystem::recursive_directory_iterator;
      for (Walk entry(folder); entry != Walk(); ++entry) {
        if (const char* reason = why_skipped(*entry)) {
          entry.disable_recursion_pending();
          skip(*entry, reason);
        } else if (!entry->is_directory()) {
          files.push_back(entry->path());
        }
      }
    } catch (const std::filesystem::filesystem_error& error) {
      reading_failed(error.path1().empty() ? folder : error.path1(), error.code().value());
    }
    std::sort(files.begin(), files.end());
    return files;
  }

  Text text_;
  std::map<std::pair<dev_t, ino_t>, Seen> seen_;
  std::pair<dev_t, ino_t> last_{};
  int source_ = 0;
};

}  // namespace detail

/// Reads text files, one after the other, with a newline byte between them, and says which.
///
/// A file that is named is read whatever it holds. A folder is read recursively, sorted by path;
/// of its files only those count that are text: not empty, no NUL byte in the first 8 KiB, and
/// these are valid UTF-8. Hidden entries, folders called `build`, `out` or `runs`, and links to
/// folders are skipped there. Takes memory for the text once.
/// @throws ConfigError  if `sources` is empty, or two of them give the same file
/// @throws IoError      if a path is missing, neither a file nor a folder, or not readable; if a
///                      named file is empty, or a folder holds no text
[[nodiscard]] inline Text load_text(const std::vector<std::filesystem::path>& sources) {
  require<ConfigError>(!sources.empty(), "no text is named; give at least one file or folder");
  detail::TextReader reader;
  for (const std::filesystem::path& source : sources) {
    require<IoError>(!source.empty(), "'' is an empty name; name a text file or a folder of them");
    std::error_code error;
    const std::filesystem::file_status status = std::filesystem::status(source, error);
    require<IoError>(status.type() != std::filesystem::file_type::not_found, source.string(),
                     ": there is no such file or folder; check the path");
    if (std::filesystem::is_directory(status)) {
      reader.add_folder(source);
      continue;
    }
    if (!std::filesystem::exists(status)) detail::reading_failed(source, error.value());
    require<IoError>(std::filesystem::is_regular_file(status), source.string(),
                     ": neither a file nor a folder; name one of these");
    reader.add_file(source);
  }
  return reader.read();
}

/// The bytes that `load_text` reads.
[[nodiscard]] inline std::vector<std::uint8_t> read_text(
    const std::vector<std::filesystem::path>& sources) {
  return load_text(sources).bytes;
}

}  // namespace octavo
