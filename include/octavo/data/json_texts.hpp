/// @file
/// Reading the texts of JSON Lines files.
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

/// The position of a text in the bytes of all texts.
struct TextPlace {
  std::size_t begin = 0;
  std::size_t bytes = 0;
};

namespace detail {

/// A line of a file, without its line feed.
struct FileLine {
  const std::filesystem::path& file;
  std::int64_t number = 1;   ///< counted from 1
  std::uint64_t offset = 0;  ///< offset of the first byte in the file
  std::string_view text;

  [[nodiscard]] std::string place() const { return message(file.string(), ": line ", number); }
  [[nodiscard]] bool is_blank() const {
    return text.find_first_not_of(" \t\r") == std::string_view::npos;
  }
};

/// Returns the string under `key` of the JSON object on a line.
/// @param advice  appended to the message if the object lacks the key
/// @throws IoError  naming file, line and byte, if the line is not a JSON object with this string
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
                   "\"; write one JSON object per line, with this string", advice);
  return std::move(*text);
}

/// Replaces the content of a JSON Lines file by the strings "text" of all lines, with a separator
/// byte between them. Skips a byte-order mark and blank lines. A text is shorter than its line, so
/// the function works in place.
/// @param texts  receives the position of each text in `bytes`
/// @return the number of bytes that are used
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
