/// @file
/// Building a JSON object on one line.
#pragma once

#include <octavo/core/utf8.hpp>

#include <array>
#include <charconv>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace octavo OCTAVO_ABI {

namespace detail {

/// Types that JSON writes without quotes. A `char` is not a number.
template <class T>
concept JsonNumber = std::is_arithmetic_v<T> && !std::same_as<T, char>;

}  // namespace detail

/// Builds a JSON object: `JsonLine{}.add("event", "step").add("loss", 1.5).str()`.
/// The text is always valid JSON on one line: control characters are escaped, and bytes that are
/// not valid UTF-8 become U+FFFD. Keys must be unique. Source: RFC 8259.
class JsonLine {
 public:
  /// Adds a string.
  JsonLine& add(std::string_view key, std::string_view value) {
    add_key(key);
    add_string(value);
    return *this;
  }

  /// Adds `true`, `false`, an integer, or the shortest decimal number that reads back as the same
  /// floating-point value of its type; `null` for Inf and NaN.
  template <detail::JsonNumber T>
  JsonLine& add(std::string_view key, T value) {
    add_key(key);
    if constexpr (std::same_as<T, bool>) {
      text_ += value ? "true" : "false";
    } else {
      add_number(value);
    }
    return *this;
  }

  /// Adds `null`.
  JsonLine& add(std::string_view key, std::nullptr_t) {
    add_key(key);
    text_ += "null";
    return *this;
  }

  /// Adds an object.
  JsonLine& add(std::string_view key, const JsonLine& value) {
    add_key(key);
    text_ += value.str();
    return *this;
  }

  /// Adds an array of objects.
  JsonLine& add(std::string_view key, std::span<const JsonLine> values) {
    return add_array(key, values, [this](const JsonLine& value) { text_ += value.str(); });
  }

  /// Adds an array of numbers, each written as `add` does.
  JsonLine& add(std::string_view key, std::span<const double> values) {
    return add_array(key, values, [this](double value) { add_number(value); });
  }

  /// Adds an array of integers.
  JsonLine& add(std::string_view key, std::span<const std::int64_t> values) {
    return add_array(key, values, [this](std::int64_t value) { add_number(value); });
  }

  /// Adds an array of strings.
  JsonLine& add(std::string_view key, std::span<const std::string> values) {
    return add_array(key, values, [this](const std::string& value) { add_string(value); });
  }

  /// Returns the object, without a line feed.
  [[nodiscard]] std::string str() const { return '{' + text_ + '}'; }

 private:
  template <class T, class Write>
  JsonLine& add_array(std::string_view key, std::span<const T> values, const Write& write) {
    add_key(key);
    text_ += '[';
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (i > 0) text_ += ',';
      write(values[i]);
    }
    text_ += ']';
    return *this;
  }

  void add_key(std::string_view key) {
    if (!text_.empty()) text_ += ',';
    add_string(key);
    text_ += ':';
  }

  template <class T>
  void add_number(T value) {
    if constexpr (std::floating_point<T>) {
      if (!std::isfinite(value)) {
        text_ += "null";
        return;
      }
    }
    std::array<char, 64> digits;  // enough for the shortest decimal form of any arithmetic type
    const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr;
    text_ += std::string_view(digits.data(), static_cast<std::size_t>(end - digits.data()));
  }

  void add_string(std::string_view value) {
    text_ += '"';
    while (!value.empty()) {
      const std::size_t length = utf8_length(value);
      if (length == 1) {
        add_ascii(value.front());
      } else {
        text_ += length == 0 ? std::string_view("\xef\xbf\xbd") : value.substr(0, length);
      }
      value.remove_prefix(length == 0 ? 1 : length);
    }
    text_ += '"';
  }

  void add_ascii(char character) {
    constexpr std::string_view hexadecimal = "0123456789abcdef";
    const auto code = static_cast<unsigned char>(character);
    if (code < 0x20) {
      text_ += "\\u00";
      text_ += hexadecimal[code >> 4];
      text_ += hexadecimal[code & 0xfu];
      return;
    }
    if (character == '"' || character == '\\') text_ += '\\';
    text_ += character;
  }

  std::string text_;  ///< the text between the braces
};

}  // namespace octavo
