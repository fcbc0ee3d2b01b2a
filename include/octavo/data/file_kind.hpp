/// @file
/// Recognising files that are not UTF-8 text by their first bytes.
#pragma once

#include <octavo/core/error.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>

namespace octavo OCTAVO_ABI::detail {

/// The byte-order mark with which some programs begin UTF-8 text. It is not part of the text.
inline constexpr std::string_view byte_order_mark = "\xEF\xBB\xBF";

/// Bytes of the byte-order mark with which `text` begins: 0 if it begins with none.
constexpr std::size_t byte_order_mark_length(std::string_view text) {
  return text.starts_with(byte_order_mark) ? byte_order_mark.size() : 0;
}

/// A file format that is not text.
struct FileKind {
  std::string_view name;     ///< as messages name it
  std::string_view command;  ///< converts the file FILE to text; empty if there is none
};

/// Whether a file is a safetensors file: the length of a JSON object in 8 bytes, followed by that
/// object. Source: https://huggingface.co/docs/safetensors
inline bool is_safetensors(std::string_view bytes) {
  return bytes.size() > 8 && bytes[8] == '{' &&
         bytes.substr(4, 4) == std::string_view("\0\0\0\0", 4);
}

/// Returns the format of a file that begins with `bytes`, or null if it is not a known format.
/// @param bytes  at least the first 16 bytes of the file, or all if it has fewer
/// Source: magic numbers of file(1), https://github.com/file/file/tree/master/magic/Magdir
inline const FileKind* file_kind(std::string_view bytes) {
  using namespace std::string_view_literals;
  struct Magic {
    std::string_view bytes;
    FileKind kind;
  };
  // Longer marks are tested first: UTF-32's begins with UTF-16's.
  static constexpr std::array magics{
      Magic{"\xff\xfe\0\0"sv, {"UTF-32", "iconv -f UTF-32 -t UTF-8 FILE"}},
      Magic{"\0\0\xfe\xff"sv, {"UTF-32", "iconv -f UTF-32 -t UTF-8 FILE"}},
      Magic{"\xff\xfe"sv, {"UTF-16", "iconv -f UTF-16 -t UTF-8 FILE"}},
      Magic{"\xfe\xff"sv, {"UTF-16", "iconv -f UTF-16 -t UTF-8 FILE"}},
      Magic{"\x1f\x8b"sv, {"gzip data", "gzip -dc FILE"}},
      Magic{"\x28\xb5\x2f\xfd"sv, {"Zstandard data", "zstd -dc FILE"}},
      Magic{"\x50\x2a\x4d\x18"sv, {"Zstandard data", "zstd -dc FILE"}},
      Magic{"\xfd"
            "7zXZ\0"sv,
            {"xz data", "xz -dc FILE"}},
      Magic{"\x04\x22\x4d\x18"sv, {"LZ4 data", "lz4 -dc FILE"}},
      Magic{"BZh"sv, {"bzip2 data", "bzip2 -dc FILE"}},
      Magic{"PK\x03\x04"sv, {"a zip archive", "unzip -p FILE"}},
      Magic{"7z\xbc\xaf\x27\x1c"sv, {"a 7z archive", "7z x -so FILE"}},
      Magic{"PAR1"sv, {"Parquet", "scripts/parquet-to-jsonl FILE"}},
      Magic{"ARROW1\0\0"sv, {"an Arrow file", ""}},
      Magic{"GGUF"sv, {"a GGUF model", ""}},
      Magic{"\x93NUMPY"sv, {"a NumPy array", ""}},
      Magic{"\x89HDF\r\n"sv, {"HDF5", ""}},
      Magic{"SQLite format 3\0"sv, {"an SQLite database", ""}},
      Magic{"%PDF-"sv, {"PDF", "pdftotext FILE -"}},
      Magic{"\x89PNG\r\n"sv, {"a PNG image", ""}},
      Magic{"\xff\xd8\xff"sv, {"a JPEG image", ""}},
      Magic{"\x7f"
            "ELF"sv,
            {"an ELF program or library", ""}},
  };
  static constexpr FileKind safetensors{"safetensors", ""};
  const auto* const found = std::find_if(magics.begin(), magics.end(), [bytes](const Magic& magic) {
    return bytes.starts_with(magic.bytes);
  });
  if (found != magics.end()) return &found->kind;
  return is_safetensors(bytes) ? &safetensors : nullptr;
}

/// Throws if a file that must contain text begins like a file of another known format.
/// @param bytes    as `file_kind` needs them
/// @param package  if not empty, a package with which Octavo could read the file
/// @throws E  with the command that converts the file
template <class E = IoError>
void require_text(const std::filesystem::path& path, std::string_view bytes,
                  std::string_view package = {}) {
  const FileKind* const kind = file_kind(bytes);
  if (kind == nullptr) return;
  std::string advice = "pass a text file";
  if (!kind->command.empty()) advice = message("convert it first: ", kind->command, " > TEXT");
  if (!package.empty())
    advice = message("install ", package, " and build Octavo again, or ", advice);
  throw E(message(path.string(), " must be UTF-8 text, but is ", kind->name, "; ", advice));
}

}  // namespace octavo OCTAVO_ABI::detail
