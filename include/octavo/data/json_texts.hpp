/// @file
/// The texts of a file of JSON Lines.
#pragma once

#include <octavo/core/error.hpp>
#include <octavo/core/utf8.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace octavo::inline OCTAVO_ABI {

namespace detail {

/// Reads JSON strictly (RFC 8259), one object a line, and keeps of each the string "text". It
/// stands where its line stood or before, so a text needs no memory beside its file's.
class JsonTexts {
 public:
  /// @param file   for messages
  /// @param bytes  of the file, overwritten
  JsonTexts(const std::filesystem::path& file, std::span<std::uint8_t> bytes)
      : file_(file), bytes_(bytes) {}

  /// Puts the texts to the front of the bytes, with a byte between them; returns how many bytes
  /// that are. Lines of nothing but blanks have none.
  /// @throws IoError  naming file, line and byte of what is no JSON, or of an object without one
  ///                  string "text"
  std::size_t read(std::uint8_t between) {
    bool is_first = true;
    for (; at_ < bytes_.size(); ++line_) {
      skip_blanks();
      if (at_ < bytes_.size() && bytes_[at_] != '\n') {
        if (!is_first) bytes_[end_++] = between;
        is_first = false;
        object(true, 0);
        skip_blanks();
        if (at_ < bytes_.size() && bytes_[at_] != '\n') fail("more than one value on the line");
      }
      ++at_;
    }
    return end_;
  }

 private:
  static constexpr int most_levels = 64;

  [[noreturn]] void fail(const char* what) const {
    throw IoError(message(file_.string(), ": line ", line_, ", byte ", at_, ": ", what,
                          "; give one JSON object a line, with a string \"text\""));
  }

  [[nodiscard]] std::uint8_t here() const { return at_ < bytes_.size() ? bytes_[at_] : 0; }
  void skip_blanks() {
    while (here() == ' ' || here() == '\t' || here() == '\r') ++at_;
  }
  void expect(char letter, const char* what) {
    if (at_ >= bytes_.size() || bytes_[at_] != static_cast<std::uint8_t>(letter)) fail(what);
    ++at_;
  }

  /// @param is_outermost  whether its member "text" is kept
  void object(bool is_outermost, int level) {
    bool has_text = false;
    expect('{', "an object should begin here");
    skip_blanks();
    if (here() != '}') {
      for (;;) {
        key_.clear();
        string([this](std::uint8_t byte) { key_ += static_cast<char>(byte); });
        skip_blanks();
        expect(':', "':' should stand here");
        skip_blanks();
        if (is_outermost && key_ == "text") {
          if (has_text) fail("\"text\" stands twice in the object");
          has_text = true;
          string([this](std::uint8_t byte) { bytes_[end_++] = byte; });
        } else {
          value(level + 1);
        }
        if (!goes_on('}')) break;
      }
    }
    expect('}', "'}' or ',' should stand here");
    if (is_outermost && !has_text) fail("the object that ends here has no \"text\"");
  }

  /// Whether a comma stands before the next member; one that is missing is found by `expect`.
  bool goes_on(char end) {
    skip_blanks();
    if (here() != ',') return false;
    ++at_;
    skip_blanks();
    if (here() == static_cast<std::uint8_t>(end)) fail("a value should follow the comma");
    return true;
  }

  void value(int level) {
    if (level > most_levels) fail("values are nested too deeply");
    const std::uint8_t first = here();
    if (first == '{') return object(false, level);
    if (first == '[') return array(level);
    if (first == '"') return string([](std::uint8_t) {});
    if (first == '-' || (first >= '0' && first <= '9')) return number();
    for (const std::string_view word : {"true", "false", "null"}) {
      if (first == static_cast<std::uint8_t>(word[0])) {
        for (const char letter : word) expect(letter, "true, false or null should stand here");
        return;
      }
    }
    fail("a value should stand here");
  }

  void array(int level) {
    expect('[', "an array should begin here");
    skip_blanks();
    if (here() != ']') {
      do value(level + 1);
      while (goes_on(']'));
    }
    expect(']', "']' or ',' should stand here");
  }

  void digits() {
    const std::size_t begin = at_;
    while (here() >= '0' && here() <= '9') ++at_;
    if (at_ == begin) fail("a digit should stand here");
  }

  void number() {
    if (here() == '-') ++at_;
    if (here() == '0') {
      ++at_;
    } else {
      digits();
    }
    if (here() == '.') {
      ++at_;
      digits();
    }
    if (here() != 'e' && here() != 'E') return;
    ++at_;
    if (here() == '+' || here() == '-') ++at_;
    digits();
  }

  /// Gives `put` the bytes of a string, in UTF-8.
  template <class Put>
  void string(const Put& put) {
    expect('"', "a string should begin here");
    while (here() != '"') {
      if (at_ >= bytes_.size() || bytes_[at_] < 0x20) fail("a string is not closed");
      if (bytes_[at_] == '\\') {
        ++at_;
        escape(put);
        continue;
      }
      const auto rest = bytes_.subspan(at_);
      const std::size_t length =
          utf8_length({reinterpret_cast<const char*>(rest.data()), rest.size()});
      if (length == 0) fail("this is not UTF-8");
      for (std::size_t i = 0; i < length; ++i) put(bytes_[at_++]);
    }
    ++at_;
  }

  template <class Put>
  void escape(const Put& put) {
    constexpr std::string_view letters = "\"\\/bfnrt";
    constexpr std::string_view meant = "\"\\/\b\f\n\r\t";
    if (here() == 'u') return code_point(put);
    const std::size_t place = letters.find(static_cast<char>(here()));
    if (at_ >= bytes_.size() || place == std::string_view::npos) fail("no such escape");
    ++at_;
    put(static_cast<std::uint8_t>(meant[place]));
  }

  /// The four digits behind "u".
  std::uint32_t code_unit() {
    expect('u', "the second half of a surrogate pair should stand here");
    std::uint32_t code = 0;
    for (int i = 0; i < 4; ++i, ++at_) {
      const std::uint8_t digit = here();
      const bool is_number = digit >= '0' && digit <= '9';
      const std::uint32_t letter = digit | 0x20u;
      if (!is_number && (letter < 'a' || letter > 'f'))
        fail("four digits of base 16 should follow");
      code = code * 16 + (is_number ? digit - std::uint32_t{'0'} : letter - 'a' + 10);
    }
    return code;
  }

  template <class Put>
  void code_point(const Put& put) {
    std::uint32_t code = code_unit();
    if (code >= 0xdc00 && code < 0xe000) fail("half of a surrogate pair stands alone");
    if (code >= 0xd800 && code < 0xdc00) {
      expect('\\', "half of a surrogate pair stands alone");
      const std::uint32_t low = code_unit();
      if (low < 0xdc00 || low >= 0xe000) fail("half of a surrogate pair stands alone");
      code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    }
    if (code < 0x80) return put(static_cast<std::uint8_t>(code));
    const int shift = code < 0x800 ? 6 : code < 0x10000 ? 12 : 18;
    const std::uint32_t mark = code < 0x800 ? 0xc0 : code < 0x10000 ? 0xe0 : 0xf0;
    put(static_cast<std::uint8_t>(mark | code >> shift));
    for (int rest = shift - 6; rest >= 0; rest -= 6)
      put(static_cast<std::uint8_t>(0x80 | (code >> rest & 0x3fu)));
  }

  const std::filesystem::path& file_;
  std::span<std::uint8_t> bytes_;
  std::size_t at_ = 0;   ///< the next byte to read
  std::size_t end_ = 0;  ///< of the texts
  int line_ = 1;
  std::string key_;
};

}  // namespace detail

}  // namespace octavo
