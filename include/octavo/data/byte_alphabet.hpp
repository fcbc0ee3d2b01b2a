/// @file
/// How vocabularies of byte-level BPE write bytes as characters.
#pragma once

#include <octavo/core/utf8.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace octavo OCTAVO_ABI {

namespace detail {

/// Converts characters of GPT-2's alphabet to the bytes that they represent. Printable bytes are
/// represented by their Latin-1 characters, the other 68 bytes, in order, by the characters from
/// U+0100 on. Source: bytes_to_unicode in GPT-2's encoder.py.
class ByteAlphabet {
 public:
  ByteAlphabet() {
    bytes_.fill(-1);
    std::size_t next = 256;
    for (int byte = 0; byte < 256; ++byte) {
      const bool is_itself =
          (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
      bytes_[is_itself ? static_cast<std::size_t>(byte) : next++] = byte;
    }
  }

  /// @param text  valid UTF-8
  /// @return whether all characters are in the alphabet
  bool decode(std::string_view text, std::string& bytes) const {
    bytes.clear();
    while (!text.empty()) {
      const std::size_t length = utf8_length(text);
      const auto first = static_cast<std::uint8_t>(text[0]);
      std::size_t code = first;
      if (length == 2) code = (first & 0x1fu) << 6 | (static_cast<std::uint8_t>(text[1]) & 0x3fu);
      if (length > 2 || code >= bytes_.size() || bytes_[code] < 0) return false;
      bytes += static_cast<char>(static_cast<std::uint8_t>(bytes_[code]));
      text.remove_prefix(length);
    }
    return true;
  }

 private:
  std::array<int, 256 + 68> bytes_{};
};

}  // namespace detail

}  // namespace octavo
