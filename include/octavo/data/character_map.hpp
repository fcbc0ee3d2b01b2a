/// @file
/// The map of characters of a SentencePiece model.
#pragma once

#include <octavo/core/error.hpp>
#include <octavo/core/utf8.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace octavo OCTAVO_ABI::detail {

/// Replaces characters and sequences of characters, such as for NFKC, by a precompiled_charsmap:
/// the size of a double array of 32-bit units, the array, and the replacements, each ended by a
/// zero byte. Source: normalizer.cc of sentencepiece 0.2, and its darts.h.
class CharacterMap {
 public:
  CharacterMap() = default;  ///< replaces nothing
  /// @throws ConfigError  if the bytes are damaged
  explicit CharacterMap(std::string_view bytes) {
    require<ConfigError>(bytes.size() > unit_bytes, "a map of characters ends before its size");
    const std::size_t size = word(bytes);
    bytes.remove_prefix(unit_bytes);
    require<ConfigError>(size % unit_bytes == 0 && size > 0 && size < bytes.size(),
                         "a map of characters of ", bytes.size(), " bytes has an array of ", size);
    for (std::size_t at = 0; at < size; at += unit_bytes) units_.push_back(word(bytes.substr(at)));
    texts_ = bytes.substr(size);
    require<ConfigError>(texts_.back() == '\0', "a map of characters ends within a replacement");
  }

  [[nodiscard]] bool empty() const { return units_.empty(); }

  /// Calls `body(piece)` for each piece of the changed text: the replacement of the longest
  /// sequence at a position, or a character.
  /// @throws ConfigError  if the map is damaged
  template <class Body>
  void each(std::string_view text, const Body& body) const {
    while (!text.empty()) {
      std::size_t length = std::max<std::size_t>(utf8_length(text), 1);
      if (const std::optional<Match> match = longest_match(text); match.has_value()) {
        length = match->length;
        require<ConfigError>(match->replacement < texts_.size(), "a map of characters is damaged");
        body(std::string_view(texts_.c_str() + match->replacement));
      } else {
        body(text.substr(0, length));
      }
      text.remove_prefix(length);
    }
  }

  [[nodiscard]] std::string changed(std::string_view text) const {
    std::string result;
    result.reserve(text.size() + text.size() / 8);
    each(text, [&](std::string_view piece) { result += piece; });
    return result;
  }

  /// Returns the changed text with one space in place of adjacent ones, except within a
  /// replacement.
  /// @param is_start  removes spaces at the start
  [[nodiscard]] std::string changed_with_joined_spaces(std::string_view text, bool is_start) const {
    std::string result;
    result.reserve(text.size() + text.size() / 8);
    bool is_behind_space = is_start;
    each(text, [&](std::string_view piece) {
      while (is_behind_space && piece.starts_with(' ')) piece.remove_prefix(1);
      if (piece.empty()) return;
      result += piece;
      is_behind_space = piece.ends_with(' ');
    });
    return result;
  }

 private:
  static constexpr std::size_t unit_bytes = 4;

  struct Match {
    std::size_t length = 0;
    std::size_t replacement = 0;
  };

  /// Returns the first 4 bytes as a little-endian number.
  static std::uint32_t word(std::string_view bytes) {
    std::uint32_t value = 0;
    for (std::size_t i = unit_bytes; i-- > 0;)
      value = (value << 8) | static_cast<std::uint8_t>(bytes[i]);
    return value;
  }

  [[nodiscard]] std::optional<Match> longest_match(std::string_view text) const {
    const auto offset = [](std::uint32_t unit) { return (unit >> 10) << ((unit & 0x200u) >> 6); };
    std::optional<Match> longest;
    if (units_.empty()) return longest;
    std::size_t place = offset(units_.front());
    for (std::size_t i = 0; i < text.size(); ++i) {
      const auto byte = static_cast<std::uint8_t>(text[i]);
      place ^= byte;
      if (place >= units_.size() || (units_[place] & 0x800000ffu) != byte) break;
      const bool is_end = (units_[place] & 0x100u) != 0;
      place ^= offset(units_[place]);
      if (is_end && place < units_.size()) longest = {i + 1, units_[place] & 0x7fffffffu};
    }
    return longest;
  }

  std::vector<std::uint32_t> units_;
  std::string texts_;
};

}  // namespace octavo OCTAVO_ABI::detail
