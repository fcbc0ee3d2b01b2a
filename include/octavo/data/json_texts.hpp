/// @file
/// Reading the texts of JSON Lines files.
#pragma once

#include <octavo/core/error.hpp>
#include <octavo/core/json_reader.hpp>

#include <cstddef>
#include <optional>
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

/// Whether a line contains only white space.
inline bool is_blank(std::string_view line) {
  return line.find_first_not_of(" \t\r") == std::string_view::npos;
}

/// Returns the string under `key` of the JSON object on a line.
/// @param place   file and line, for messages
/// @param advice  what to do if the object lacks the key
/// @throws IoError  naming file, line and byte, if the line is not a JSON object with this string
[[nodiscard]] inline std::string json_text(std::string_view line, const std::string& place,
                                           const std::string& key, const std::string& advice) {
  JsonReader json(line, place, 0, "correct the line, or leave it out");
  if (json.peek() == JsonReader::Kind::array) {
    json.fail("expected an object, but found an array",
              "write one object per line: jq -c '.[]' FILE");
  }
  std::optional<std::string> text;
  std::vector<std::string> others;
  bool is_chat = false;
  json.object([&](const std::string& name) {
    if (name == key) {
      text = json.string();
    } else {
      is_chat = is_chat || name == "messages" || name == "conversations";
      others.push_back(name);
      json.skip();
    }
  });
  json.end();
  require<IoError>(text.has_value(), place, ": the object has no \"", key, "\", ",
                   is_chat ? "because it is a chat; train on chats with finetune_llama --chats"
                           : message("but ", JsonReader::listed(others), "; ", advice));
  return std::move(*text);
}

}  // namespace detail

}  // namespace octavo
