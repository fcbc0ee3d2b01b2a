/// @file
/// Reading text files, and folders of them, as bytes.
#pragma once

#include <octavo/core/error.hpp>
#include <octavo/core/utf8.hpp>
#include <octavo/data/json_texts.hpp>
#include <octavo/data/seen_files.hpp>
#include <octavo/data/text_stream.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace octavo OCTAVO_ABI {

/// A file that was read, or an entry of a folder that was skipped.
struct TextFile {
  std::filesystem::path path;
  std::uintmax_t bytes = 0;  ///< 0 for entries that are not regular files
  /// The reason why the entry was skipped. For a file that was read because a source names it, the
  /// reason why it would be skipped in a folder, or a note about its content. May be empty.
  std::string remark;
  bool is_json_lines = false;  ///< the texts of the file's lines were read
  std::string format{};        ///< format of a token file, such as "llm.c, 2 bytes per token"
};

/// Text and its sources.
struct Text {
  std::vector<std::uint8_t> bytes;
  std::vector<TextPlace> texts;   ///< positions in `bytes`: one for each file or line of JSON Lines
  std::vector<TextFile> read;     ///< in the order of `bytes`
  std::vector<TextFile> skipped;  ///< the other entries of folders; a folder is listed once
};

namespace detail {

/// Whether a source is a folder, not a file.
/// @throws IoError  if it is neither
inline bool is_folder(const std::filesystem::path& source) {
  require<IoError>(!source.empty(), "the name of a text file or folder must not be empty");
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(source, error);
  require<IoError>(status.type() != std::filesystem::file_type::not_found, source.string(),
                   ": there is no such file or folder; check the path", start_of(source));
  if (std::filesystem::is_directory(status)) return true;
  if (!std::filesystem::exists(status)) reading_failed(source, error.value());
  require<IoError>(std::filesystem::is_regular_file(status), source.string(),
                   ": is neither a file nor a folder; name one of these");
  return false;
}

/// The number of bytes at the start of a file that determine whether it is text.
inline constexpr std::size_t text_probe_bytes = 8192;

/// Returns the reason why a file that begins with these bytes is not text; "" if it is text.
/// @param is_truncated  the file has more bytes, so the last character may be incomplete
inline std::string not_text_reason(std::span<const std::uint8_t> bytes, bool is_truncated) {
  std::string_view probe(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (probe.empty()) return "empty";
  if (const FileKind* kind = file_kind(probe); kind != nullptr)
    return message(kind->name, ", not UTF-8 text");
  if (probe.find('\0') != std::string_view::npos) return "binary: contains NUL bytes";
  while (!probe.empty()) {
    const std::size_t length = utf8_length(probe);
    if (length == 0) {
      if (is_truncated && probe.size() < 4) break;
      return message("not UTF-8: invalid byte ", bytes.size() - probe.size());
    }
    probe.remove_prefix(length);
  }
  return "";
}

/// Returns a note about a file whose bytes are read as text although it contains JSON, otherwise
/// "".
/// @param begin  the first bytes of the file
inline std::string json_note(const std::filesystem::path& path, std::string_view begin) {
  const std::size_t first = begin.find_first_not_of(" \t\r\n\xEF\xBB\xBF");
  const bool is_json = path.extension() == ".json" && first != std::string_view::npos &&
                       (begin[first] == '[' || begin[first] == '{');
  return is_json ? "JSON, read as it is written; to read its texts, write JSON Lines" : "";
}

/// Advice about a JSON object without a text.
inline constexpr const char* text_key_advice =
    "rename the key of the text, or write token files with prepare_data --key";

/// Finds the files that sources name and reads them.
class TextReader {
 public:
  /// @param seen     files that were read before
  /// @param between  separator byte between texts
  explicit TextReader(SeenFiles& seen, std::uint8_t between = '\n')
      : seen_(seen), separator_(between) {}

  /// Adds a file that a source names. Its content may be anything except a known format that is not
  /// text, which is recognised by the first bytes. If its name ends in .jsonl, .jsonl.gz or
  /// .jsonl.zst, it is read as JSON Lines.
  /// @param group  the pattern that matched it, if one did
  void add_file(const std::filesystem::path& path, const FileGroup& group = {}) {
    TextFile file = inspect(path, true);
    const std::string remark = seen_.add(last_identity_, path, group);
    if (!remark.empty()) file.remark = remark;
    (remark.empty() ? text_.read : text_.skipped).push_back(std::move(file));
  }

  /// Adds the text files of a folder and of the folders in it.
  void add_folder(const std::filesystem::path& folder) {
    const std::size_t before = text_.read.size();
    for (const std::filesystem::path& path : files_below(folder)) {
      TextFile file = inspect(path);
      if (file.remark.empty()) file.remark = seen_.add(last_identity_, path, {folder, false});
      (file.remark.empty() ? text_.read : text_.skipped).push_back(std::move(file));
    }
    require<IoError>(text_.read.size() > before, folder.string(),
                     ": this folder contains no text file; name a folder with UTF-8 text, or "
                     "the files themselves (hidden entries and folders called build, out or runs "
                     "are skipped)");
  }

  /// Whether `read` has any file to read.
  [[nodiscard]] bool has_text() const { return !text_.read.empty(); }

  /// Reads all files, with the separator between texts. Reserves memory for the bytes of the files;
  /// the text of compressed files needs more memory.
  Text read() {
    std::uintmax_t total = text_.read.size();
    for (const TextFile& file : text_.read) total += file.bytes;
    text_.bytes.reserve(total);
    for (const TextFile& file : text_.read) {
      if (file.is_json_lines) {
        read_lines(file);
      } else {
        read_whole(file);
      }
    }
    return std::move(text_);
  }

 private:
  /// Opens a file, checks whether it is text, and stores its identity in `last_identity_`.
  /// @param is_named  an empty file or a known format that is not text is an error
  TextFile inspect(const std::filesystem::path& path, bool is_named = false) {
    TextStream stream(path);
    std::array<std::uint8_t, text_probe_bytes + 1> probe;
    const std::size_t read = stream.read(probe);
    const auto begin = std::span(probe).first(std::min(read, text_probe_bytes));
    last_identity_ = stream.file().identity();
    TextFile file{path, stream.file().size(), not_text_reason(begin, read > begin.size())};
    file.is_json_lines = is_json_lines_name(path);
    if (!is_named) return file;
    require<IoError>(read > 0, path.string(), ": the file is empty; name a file with text");
    stream.require_text({reinterpret_cast<const char*>(begin.data()), begin.size()});
    require<IoError>(
        !stream.is_compressed() || std::find(begin.begin(), begin.end(), 0) == begin.end(),
        path.string(), ": its decompressed bytes are ", file.remark,
        "; name compressed text, or decompress token files first");
    if (file.remark.empty()) {
      file.remark = json_note(path, {reinterpret_cast<const char*>(begin.data()), begin.size()});
    }
    return file;
  }

  /// Begins a text.
  void begin_text() {
    if (!text_.texts.empty()) text_.bytes.push_back(separator_);
    text_.texts.push_back({text_.bytes.size(), 0});
  }
  void add_bytes(std::span<const std::uint8_t> bytes) {
    text_.bytes.insert(text_.bytes.end(), bytes.begin(), bytes.end());
    text_.texts.back().bytes += bytes.size();
  }

  void read_whole(const TextFile& source) {
    TextStream stream(source.path);
    std::vector<std::uint8_t> piece(piece_bytes);
    begin_text();
    for (bool is_first = true;; is_first = false) {
      auto read = std::span(piece).first(stream.read(piece));
      const bool ends = read.size() < piece.size();
      stream.require_size(source.bytes, ends);
      if (is_first) {
        const std::string_view begin(reinterpret_cast<const char*>(read.data()), read.size());
        read = read.subspan(byte_order_mark_length(begin));
      }
      add_bytes(read);
      if (ends) return;
    }
  }

  void read_lines(const TextFile& source) {
    FileLines lines(source.path, max_document_bytes);
    for (std::string line; lines.next(line);) {
      lines.stream().require_size(source.bytes, false);
      if (is_blank(line)) continue;
      const std::string text = json_text(line, lines.place(), "text", text_key_advice);
      begin_text();
      add_bytes({reinterpret_cast<const std::uint8_t*>(text.data()), text.size()});
    }
    lines.stream().require_size(source.bytes, true);
  }

  void skip(const std::filesystem::directory_entry& entry, const char* remark) {
    std::error_code ignored;
    const std::uintmax_t bytes = entry.is_regular_file(ignored) ? entry.file_size(ignored) : 0;
    text_.skipped.push_back({entry.path(), ignored ? 0 : bytes, remark});
  }

  /// Returns the reason for skipping a folder's entry; null for files and folders to read.
  static const char* skip_reason(const std::filesystem::directory_entry& entry) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with('.')) return "hidden";
    if (entry.is_directory()) {
      if (entry.is_symlink()) return "a link to a folder";
      const bool built = name == "build" || name == "out" || name == "runs";
      return built ? "a folder called build, out or runs" : nullptr;
    }
    return entry.is_regular_file() ? nullptr : "neither a file nor a folder";
  }

  /// Returns the regular files below `folder` that are not skipped, sorted by path.
  std::vector<std::filesystem::path> files_below(const std::filesystem::path& folder) {
    std::vector<std::filesystem::path> files;
    try {
      using Walk = std::filesystem::recursive_directory_iterator;
      for (Walk entry(folder); entry != Walk(); ++entry) {
        if (const char* reason = skip_reason(*entry)) {
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

  static constexpr std::size_t piece_bytes = std::size_t{1} << 20;

  Text text_;
  SeenFiles& seen_;
  std::uint8_t separator_;
  FileIdentity last_identity_{};
};

}  // namespace detail

/// Reads text files, with a newline byte between them, and lists the files that it read and
/// skipped.
///
/// A named file may contain anything except known formats that are not text, such as xz and UTF-16.
/// gzip and Zstandard data are decompressed if the program has the libraries for them
/// (octavo::zlib, octavo::zstd). From a file whose name ends in .jsonl, .jsonl.gz or .jsonl.zst,
/// the string "text" of the JSON object on each line is read, with newlines in between. A
/// byte-order mark is skipped. A folder is read recursively, sorted by path. In folders, only text
/// files are read: files that are not empty and whose first 8 KiB are valid UTF-8 without NUL
/// bytes. Hidden entries, folders called `build`, `out` or `runs`, and links to folders are
/// skipped. Each file is stored in memory only once.
/// @throws ConfigError  if `sources` is empty, or two of them name the same file
/// @throws IoError      if a path is missing, neither a file nor a folder, or not readable; if a
///                      named file is empty, not valid JSON Lines or not text, or a folder
///                      contains no text
[[nodiscard]] inline Text load_text(const std::vector<std::filesystem::path>& sources) {
  require<ConfigError>(!sources.empty(), "no text is given; pass at least one file or folder");
  detail::SeenFiles seen;
  detail::TextReader reader(seen);
  for (const std::filesystem::path& source : sources) {
    seen.begin_source();
    if (detail::is_folder(source)) {
      reader.add_folder(source);
    } else {
      reader.add_file(source);
    }
  }
  return reader.read();
}

/// Returns the bytes that `load_text` reads.
[[nodiscard]] inline std::vector<std::uint8_t> read_text(
    const std::vector<std::filesystem::path>& sources) {
  return load_text(sources).bytes;
}

}  // namespace octavo
