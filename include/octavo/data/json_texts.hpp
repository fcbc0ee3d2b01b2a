/// @file
/// The texts of a file of JSON Lines.
#pragma once

#include <octavo/core/error.hpp>
#include <octavo/core/json_reader.hpp>
#include <octavo/data/file_kind.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace octavo OCTAVO_ABI {

/// Where a text lies in the bytes of all that were read.
struct TextPlace {
  std::size_t begin = 0;
  std::size_t bytes = 0;
};

namespace detail {

/// A line of a file, without its end.
struct FileLine {
  const std::filesystem::path& file;
  std::int64_t number = 1;   ///< counted from 1
  std::uint64_t offset = 0;  ///< of its first byte in the file
  std::string_view text;

  [[nodiscard]] std::string place() const { return message(file.string(), ": line ", number); }
  [[nodiscard]] bool is_blank() const {
    return text.find_first_not_of(" \t\r") == std::string_view::npos;
  }
};

/// The string under `key` of the object that a line is.
/// @param advice  behind the error where the object has none
/// @throws IoError  naming file, line and byte of what is no JSON, or is an object without it
[[nodiscard]] inline std::string json_text(const FileLine& line, const std::string& key,
                                           const std::string& advice = "") {
  JsonReader json(line.text, line.place(), 0, "correct the line, or leave it out");
  std::optional<std::string> text;
  json.object([&](const std::string& name) {
    if (name == key) {
      text = json.string();
    } else {
      json.skip();
    }
  });
  json.end();
  require<IoError>(text.has_value(), line.place(), ": the object has no \"", key,
                   "\"; give one JSON object a line, with a string of this name", advice);
  return std::move(*text);
}

/// Puts the strings "text" of all lines, behind a byte-order mark, to the front of a file's bytes,
/// with a byte between them; blank lines have none. A text is shorter than its line, so it needs no
/// memory beside the file's.
/// @param texts  to which is added where each lies in `bytes`
/// @returns how many bytes they are
/// @throws IoError  as `json_text` does
inline std::size_t keep_json_texts(const std::filesystem::path& file, std::span<std::uint8_t> bytes,
                                   std::uint8_t between, std::vector<TextPlace>& texts) {
  const std::string_view all(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  std::size_t kept = 0;
  bool is_first = true;
  FileLine line{file, 1, byte_order_mark_length(all), {}};
  for (; line.offset < all.size(); line.offset += line.text.size() + 1, ++line.number) {
    line.text = all.substr(line.offset);
    line.text = line.text.substr(0, line.text.find('\n'));
    if (line.is_blank()) continue;
    const std::string text = json_text(line, "text");
    if (!std::exchange(is_first, false)) bytes[kept++] = between;
    std::copy(text.begin(), text.end(), bytes.begin() + static_cast<std::ptrdiff_t>(kept));
    texts.push_back({kept, text.size()});
    kept += text.size();
  }
  return kept;
}

}  // namespace detail

}  // namespace octavo
