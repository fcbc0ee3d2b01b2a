// Formats text from files and models for display: UTF-8, control characters, HTML, numbers.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include <fmt/format.h>

namespace programs {

inline constexpr char32_t replacement_character = 0xFFFD;

/// Decodes the code point at `position` and moves `position` past it. A malformed byte yields
/// U+FFFD and is skipped alone, so decoding always ends.
inline char32_t next_code_point(std::string_view text, std::size_t& position) {
  const auto byte = [&](std::size_t at) { return static_cast<unsigned char>(text[at]); };
  const unsigned char first = byte(position++);
  if (first < 0x80) return first;
  const int following = first >= 0xF0 ? 3 : first >= 0xE0 ? 2 : 1;
  if (first < 0xC2 || first > 0xF4) return replacement_character;
  char32_t code = first & (0x3Fu >> following);
  for (int i = 0; i < following; ++i) {
    const std::size_t at = position + static_cast<std::size_t>(i);
    if (at >= text.size() || (byte(at) & 0xC0) != 0x80) return replacement_character;
    code = (code << 6) | (byte(at) & 0x3Fu);
  }
  constexpr char32_t smallest[] = {0, 0x80, 0x800, 0x10000};
  if (code < smallest[following] || code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF))
    return replacement_character;
  position += static_cast<std::size_t>(following);
  return code;
}

/// Returns a word for a shell: quoted, unless it contains only characters that are common in file
/// names.
inline std::string shell_word(const std::string& word) {
  constexpr std::string_view plain =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-+=./:,@%";
  if (!word.empty() && word.find_first_not_of(plain) == std::string::npos) return word;
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? "'\\''" : std::string(1, c);
  return quoted + '\'';
}

/// Prints to standard error. Ignores errors, because a message must not end the program.
template <class... Arguments>
void print_stderr(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
  try {
    fmt::print(stderr, format, std::forward<Arguments>(arguments)...);
  } catch (const std::system_error&) {
  }
}

/// Returns a hash as files and messages show it.
inline std::string hash_text(std::uint64_t hash) { return fmt::format("{:016x}", hash); }

inline void append_utf8(std::string& out, char32_t code) {
  const auto put = [&](char32_t byte) {
    out += static_cast<char>(static_cast<unsigned char>(byte));
  };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xC0 | (code >> 6));
    put(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    put(0xE0 | (code >> 12));
    put(0x80 | ((code >> 6) & 0x3F));
    put(0x80 | (code & 0x3F));
  } else {
    put(0xF0 | (code >> 18));
    put(0x80 | ((code >> 12) & 0x3F));
    put(0x80 | ((code >> 6) & 0x3F));
    put(0x80 | (code & 0x3F));
  }
}

/// Whether a code point is a control character, or a format character that hides or reorders the
/// text around it.
inline bool is_invisible(char32_t code) {
  const auto within = [code](char32_t first, char32_t last) {
    return code >= first && code <= last;
  };
  return code < 0x20 || within(0x7F, 0x9F) || within(0x200B, 0x200F) || within(0x2028, 0x202E) ||
         within(0x2060, 0x206F) || code == 0xAD || code == 0xFEFF;
}

enum class LineBreaks { mark, mark_and_keep, keep };

/// Returns valid UTF-8 without invisible characters: line feed becomes ↵, tab ⇥, the others \x1B or
/// \u202E. LineBreaks::mark_and_keep also keeps the line break after the mark; LineBreaks::keep
/// keeps line feeds and tabs unchanged.
/// @param limit  maximum number of code points of `text` to show; … replaces the rest
inline std::string visible(std::string_view text, LineBreaks line_breaks = LineBreaks::mark,
                           std::size_t limit = std::string_view::npos) {
  std::string out;
  std::size_t position = 0;
  for (std::size_t count = 0; position < text.size(); ++count) {
    if (count == limit) return out + "…";
    const char32_t code = next_code_point(text, position);
    if (line_breaks == LineBreaks::keep && (code == U'\n' || code == U'\t')) {
      out += static_cast<char>(code);
    } else if (code == U'\n') {
      out += line_breaks == LineBreaks::mark ? "↵" : "↵\n";
    } else if (code == U'\t') {
      out += "⇥";
    } else if (is_invisible(code)) {
      const auto value = static_cast<std::uint32_t>(code);
      out += value < 0x100 ? fmt::format("\\x{:02X}", value) : fmt::format("\\u{:04X}", value);
    } else {
      append_utf8(out, code);
    }
  }
  return out;
}

inline std::size_t code_points(std::string_view text) {
  std::size_t count = 0;
  for (std::size_t position = 0; position < text.size(); ++count) next_code_point(text, position);
  return count;
}

/// Escapes text for element content and quoted attributes.
inline std::string html(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

/// Formats 1234567 as 1,234,567.
inline std::string grouped(std::uint64_t value) {
  std::string digits = std::to_string(value);
  for (std::size_t at = digits.size(); at > 3;) digits.insert(at -= 3, 1, ',');
  return digits;
}

/// "1 step", "1,234 steps".
inline std::string counted(std::uint64_t count, const std::string& noun) {
  return grouped(count) + ' ' + noun + (count == 1 ? "" : "s");
}

/// Formats up to three significant digits, for quantities of unknown magnitude.
inline std::string compact(double value) {
  return std::isfinite(value) ? fmt::format("{:.3g}", value) : "not finite";
}

/// Formats a fraction in [0, 1] as a percentage; a positive one that rounds to zero is "< 0.01 %".
inline std::string percentage(double share) {
  if (!std::isfinite(share)) return "not finite";
  if (share > 0 && share < 0.00005) return "< 0.01 %";
  return fmt::format("{:.2f} %", 100 * share);
}

}  // namespace programs
