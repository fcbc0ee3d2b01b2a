/// @file
/// Packing several texts into one.
#pragma once

#include <octavo/core/error.hpp>

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace octavo OCTAVO_ABI::detail {

inline void append_text(std::string& packed, std::string_view text) {
  const auto length = static_cast<std::uint64_t>(text.size());
  packed.append(reinterpret_cast<const char*>(&length), sizeof length).append(text);
}

/// Removes the first text from a packed one and returns it.
/// @throws CommError  if it has none
inline std::string_view take_text(std::string_view& packed) {
  std::uint64_t length = 0;
  if (packed.size() >= sizeof length) std::memcpy(&length, packed.data(), sizeof length);
  require<CommError>(packed.size() >= sizeof length && packed.size() - sizeof length >= length,
                     "a rank sent ", packed.size(), " bytes that are not a text");
  const std::string_view text = packed.substr(sizeof length, length);
  packed.remove_prefix(sizeof length + length);
  return text;
}

}  // namespace octavo OCTAVO_ABI::detail
