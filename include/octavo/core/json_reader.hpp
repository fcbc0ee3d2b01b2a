/// @file
/// Strict reading of JSON from other programs.
#pragma once

#include <octavo/core/error.hpp>
#include <octavo/core/utf8.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace octavo OCTAVO_ABI {

/// Reads a JSON text from beginning to end, value by value, without copying it:
///
///     JsonReader json(text, "config.json");
///     json.object([&](const std::string& key) {
///       if (key == "hidden_size") hidden = json.natural(); else json.skip();
///     });
///     json.end();
///
/// A text that cannot be read causes an IoError that names its place and the byte. Keys of an
/// object are unique, strings are valid UTF-8, and the depth is bounded. The error states that the
/// text is not JSON, or which value is not of the expected kind, and what to do. Source: RFC 8259.
class JsonReader {
 public:
  enum class Kind { object, array, string, number, boolean, null };

  /// Maximum depth of nested objects and arrays.
  static constexpr int deepest = 32;

  /// @param text    must outlive the reader
  /// @param place   source of the text, such as a file's path
  /// @param offset  of its first byte there
  /// @param advice  what to do about a JSON value that is not of the expected kind
  JsonReader(std::string_view text, std::string place, std::size_t offset = 0,
             std::string_view advice = "correct it, or use another file")
      : text_(text), place_(std::move(place)), offset_(offset), advice_(advice) {}

  /// Returns the kind of the next value.
  [[nodiscard]] Kind peek() {
    switch (next()) {
      case '{':
        return Kind::object;
      case '[':
        return Kind::array;
      case '"':
        return Kind::string;
      case 't':
      case 'f':
        return Kind::boolean;
      case 'n':
        return Kind::null;
      default:
        return Kind::number;
    }
  }

  /// Reads an object. `member(key)` reads the value of each key.
  template <class Member>
  void object(const Member& member) {
    Step& step = open('{', "an object");
    std::set<std::string> keys;
    for (bool more = !closes('}'); more; more = has_next('}')) {
      if (next() != '"') fail_syntax(at_, "a key in double quotes is expected");
      const std::size_t begin = at_;
      const std::string key = string();
      if (!keys.insert(key).second) {
        fail_content(begin, message("the key ", excerpt(key), " appears twice"));
      }
      if (next() != ':') fail_syntax(at_, "a ':' is missing");
      ++at_;
      step.key = &key;
      member(key);
      step.key = nullptr;
    }
    --depth_;
  }

  /// Reads an array. `element()` reads each element.
  template <class Element>
  void array(const Element& element) {
    Step& step = open('[', "an array");
    for (bool more = !closes(']'); more; more = has_next(']')) {
      ++step.elements;
      element();
    }
    --depth_;
  }

  [[nodiscard]] std::string string() {
    if (next() != '"') fail_type("a string");
    const std::size_t begin = at_++;
    std::string value;
    while (byte() != '"') {
      const std::size_t plain = at_;
      while (is_plain(byte())) ++at_;
      value += text_.substr(plain, at_ - plain);
      if (at_ > plain) continue;
      const std::size_t length = utf8_length(text_.substr(at_));
      if (at_ >= text_.size()) fail_syntax(begin, "the string does not end");
      if (length == 0) fail_syntax(at_, "the bytes are not valid UTF-8");
      if (byte() == '\\') {
        append_escaped(value);
      } else if (length > 1) {
        value += text_.substr(at_, length);
        at_ += length;
      } else {
        fail_syntax(at_, "a string contains a control character");
      }
    }
    ++at_;
    return value;
  }

  /// Reads a whole number from 0 to `most`.
  [[nodiscard]] std::int64_t natural(std::int64_t most = std::numeric_limits<std::int64_t>::max()) {
    if (peek() != Kind::number) fail_type(message("a whole number from 0 to ", most));
    const std::string_view digits = number_text();
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (error != std::errc{} || end != digits.data() + digits.size() || digits.front() == '-' ||
        value > most) {
      fail_content(at_ - digits.size(),
                   message(excerpt(digits), " is not a whole number from 0 to ", most));
    }
    return value;
  }

  [[nodiscard]] double number() {
    if (peek() != Kind::number) fail_type("a number");
    const std::string_view digits = number_text();
    double value = 0;
    if (std::from_chars(digits.data(), digits.data() + digits.size(), value).ec != std::errc{}) {
      fail_content(at_ - digits.size(),
                   message(excerpt(digits), " is beyond the range of a double"));
    }
    return value;
  }

  [[nodiscard]] bool boolean() {
    if (takes("true")) return true;
    if (!takes("false")) fail_type("true or false");
    return false;
  }

  /// Reads a `null`, if one comes next.
  [[nodiscard]] bool null() { return takes("null"); }

  /// Skips a value of any kind.
  void skip() {
    switch (peek()) {
      case Kind::object:
        return object([this](const std::string&) { skip(); });
      case Kind::array:
        return array([this] { skip(); });
      case Kind::string:
        return static_cast<void>(string());
      case Kind::boolean:
      case Kind::null:
        if (!takes("true") && !takes("false") && !null()) fail_syntax(at_, "a value is expected");
        return;
      case Kind::number:
        return static_cast<void>(number_text());
    }
  }

  /// Requires that only white space follows.
  void end() {
    space();
    if (at_ != text_.size()) fail_syntax(at_, "the text continues after its value");
  }

  /// Rejects the value that was read last.
  /// @param advice  what to do; empty repeats the reader's
  /// @throws IoError  with `what` and the value's place
  [[noreturn]] void fail(const std::string& what, std::string_view advice = {}) const {
    fail_content(at_, what, advice);
  }

  /// Returns the keys of an object for a message: only "a", "b". Of many keys, it names the first.
  static std::string listed(const std::vector<std::string>& keys) {
    constexpr std::size_t most = 8;
    std::string text = keys.empty() ? "no key" : "only ";
    for (std::size_t i = 0; i < std::min(keys.size(), most); ++i) {
      text += message(i == 0 ? "\"" : ", \"", excerpt(keys[i]), '"');
    }
    return keys.size() > most ? text + ", ..." : text;
  }

  /// Returns a text, truncated to a length that fits in a message.
  static std::string excerpt(std::string_view text) {
    constexpr std::size_t most = 60;
    if (text.size() <= most) return std::string(text);
    // The excerpt ends with a whole character, which has at most 4 bytes.
    std::size_t end = most;
    while (end > most - 3 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
    return message(text.substr(0, end), "...");
  }

 private:
  /// The position of a value in an object or array.
  struct Step {
    const std::string* key = nullptr;  ///< of the member that is being read
    std::size_t elements = 0;          ///< read so far, including the current one
  };

  [[noreturn]] void fail_syntax(std::size_t at, const std::string& what) const {
    throw IoError(message(place_, ": at byte ", offset_ + at, ": ", what,
                          "; it is damaged, or not JSON: use another copy"));
  }
  [[noreturn]] void fail_content(std::size_t at, const std::string& what,
                                 std::string_view advice = {}) const {
    const std::string path = this->path();
    throw IoError(message(place_, ": at byte ", offset_ + at, path.empty() ? "" : ", in ", path,
                          ": ", what, "; ", advice.empty() ? advice_ : advice));
  }
  /// Reports that the next value is not `wanted`; if it is not JSON either, reports that error
  /// instead.
  [[noreturn]] void fail_type(const std::string& wanted) {
    next();
    const std::size_t begin = at_;
    skip();
    fail_content(begin, message("expected ", wanted, ", but found ",
                                excerpt(text_.substr(begin, at_ - begin))));
  }

  /// Returns the path to the current value, such as "messages[2].role"; empty for the whole text.
  [[nodiscard]] std::string path() const {
    std::string path;
    for (int i = 0; i < depth_; ++i) {
      const Step& step = path_[static_cast<std::size_t>(i)];
      if (step.key != nullptr && !path.empty()) path += '.';
      if (step.key != nullptr) path += excerpt(*step.key);
      if (step.elements != 0) path += message('[', step.elements - 1, ']');
    }
    return path;
  }

  /// Whether the character is ASCII and represents itself in a string.
  static bool is_plain(char letter) {
    const auto code = static_cast<unsigned char>(letter);
    return code >= 0x20 && code < 0x80 && letter != '"' && letter != '\\';
  }
  [[nodiscard]] char byte() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  void space() {
    while (byte() == ' ' || byte() == '\t' || byte() == '\n' || byte() == '\r') ++at_;
  }
  /// Returns the first byte of the next value or delimiter.
  char next() {
    space();
    if (at_ == text_.size()) fail_syntax(at_, "the text ends early");
    return text_[at_];
  }
  bool takes(std::string_view word) {
    space();
    if (!text_.substr(at_).starts_with(word)) return false;
    at_ += word.size();
    return true;
  }

  Step& open(char bracket, const char* what) {
    if (next() != bracket) fail_type(what);
    if (depth_ == deepest) {
      fail_content(at_, message("values are nested more than ", deepest, " deep"));
    }
    ++at_;
    return path_[static_cast<std::size_t>(depth_++)] = {};
  }
  bool closes(char bracket) {
    if (next() != bracket) return false;
    ++at_;
    return true;
  }
  bool has_next(char bracket) {
    if (closes(bracket)) return false;
    if (byte() != ',') fail_syntax(at_, message("a ',' or '", bracket, "' is missing"));
    ++at_;
    return true;
  }

  void digits() {
    if (byte() < '0' || byte() > '9') fail_syntax(at_, "a value is expected");
    while (byte() >= '0' && byte() <= '9') ++at_;
  }
  std::string_view number_text() {
    next();
    const std::size_t begin = at_;
    if (byte() == '-') ++at_;
    if (byte() == '0') {
      ++at_;
    } else {
      digits();
    }
    if (byte() == '.') {
      ++at_;
      digits();
    }
    if (byte() == 'e' || byte() == 'E') {
      ++at_;
      if (byte() == '+' || byte() == '-') ++at_;
      digits();
    }
    return text_.substr(begin, at_ - begin);
  }

  /// Reads four hexadecimal digits.
  std::uint32_t code_unit() {
    std::uint32_t code = 0;
    const std::string_view four = text_.substr(std::min(at_, text_.size()), 4);
    const auto [end, error] = std::from_chars(four.data(), four.data() + four.size(), code, 16);
    if (four.size() != 4 || error != std::errc{} || end != four.data() + 4) {
      fail_syntax(at_, "four hexadecimal digits are expected");
    }
    at_ += 4;
    return code;
  }
  void append_escaped(std::string& value) {
    constexpr std::string_view letters = "\"\\/bfnrt";
    constexpr std::string_view meanings = "\"\\/\b\f\n\r\t";
    const std::size_t begin = at_++;
    const std::size_t found = at_ < text_.size() ? letters.find(byte()) : std::string_view::npos;
    if (found != std::string_view::npos) {
      ++at_;
      value += meanings[found];
      return;
    }
    if (byte() != 'u') fail_syntax(begin, "unknown escape sequence");
    ++at_;
    std::uint32_t code = code_unit();
    if (code >= 0xd800 && code < 0xdc00 && text_.substr(at_).starts_with("\\u")) {
      at_ += 2;
      const std::uint32_t low = code_unit();
      if (low < 0xdc00 || low > 0xdfff) fail_syntax(begin, "half of a surrogate pair");
      code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    }
    if (code >= 0xd800 && code <= 0xdfff) fail_syntax(begin, "half of a surrogate pair");
    append_utf8(value, code);
  }
  static void append_utf8(std::string& value, std::uint32_t code) {
    const auto add = [&value](std::uint32_t bits) { value += static_cast<char>(bits); };
    if (code < 0x80) return add(code);
    if (code < 0x800) {
      add(0xc0 | code >> 6);
    } else if (code < 0x10000) {
      add(0xe0 | code >> 12);
      add(0x80 | (code >> 6 & 0x3f));
    } else {
      add(0xf0 | code >> 18);
      add(0x80 | (code >> 12 & 0x3f));
      add(0x80 | (code >> 6 & 0x3f));
    }
    add(0x80 | (code & 0x3f));
  }

  std::string_view text_;
  std::string place_;
  std::size_t offset_;
  std::string_view advice_;
  std::size_t at_ = 0;
  int depth_ = 0;
  std::array<Step, deepest> path_;  ///< the first `depth_` are in use
};

}  // namespace octavo
