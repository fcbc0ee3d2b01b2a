/// @file
/// The text of generated tokens, in whole characters.
#pragma once

#include <octavo/core/utf8.hpp>

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace octavo OCTAVO_ABI {

/// Converts pieces of bytes, such as those of tokens, to valid UTF-8. An incomplete character is
/// held back until its remaining bytes arrive. The possible beginning of a stop text is held back
/// until the text is complete or does not match. A byte that belongs to no character becomes
/// U+FFFD.
class TextStream {
 public:
  /// @param stops  texts that end the text without being part of it; empty ones are ignored
  explicit TextStream(std::vector<std::string> stops = {}) : stop_texts_(std::move(stops)) {
    std::erase(stop_texts_, "");
  }

  /// Adds bytes.
  /// @return the text that can be returned now; nothing after a stop text
  [[nodiscard]] std::string add(std::string_view bytes) {
    if (is_stopped_) return {};
    pending_ += bytes;
    std::size_t stop = std::string::npos;
    for (const std::string& text : stop_texts_) stop = std::min(stop, pending_.find(text));
    is_stopped_ = stop != std::string::npos;
    if (is_stopped_) pending_.resize(stop);
    return take(is_stopped_ ? stop : pending_.size() - partial_stop_size(), is_stopped_);
  }

  /// Ends the text.
  /// @return the text that was waiting
  [[nodiscard]] std::string end() { return take(pending_.size(), true); }

  [[nodiscard]] bool is_stopped() const { return is_stopped_; }

 private:
  /// Returns the number of bytes at the end that may begin a stop text.
  [[nodiscard]] std::size_t partial_stop_size() const {
    std::size_t longest = 0;
    for (const std::string& text : stop_texts_) {
      for (std::size_t size = std::min(text.size() - 1, pending_.size()); size > longest; --size) {
        if (pending_.ends_with(std::string_view(text).substr(0, size))) longest = size;
      }
    }
    return longest;
  }

  /// Whether `text` begins with an incomplete character.
  static bool is_incomplete_character(std::string_view text) {
    std::string longer(text);
    for (const char next : {'\x80', '\x90', '\xa0', '\xbf'}) {
      longer.resize(text.size());
      while (longer.size() < 4) {
        longer.push_back(longer.size() == text.size() ? next : '\x80');
        if (utf8_length(longer) == longer.size()) return true;
      }
    }
    return false;
  }

  /// Removes and returns the first waiting bytes, except an incomplete character at the end.
  /// @param all  also removes incomplete characters, because no more bytes follow
  std::string take(std::size_t count, bool all) {
    constexpr const char* replacement = "\xef\xbf\xbd";
    std::string text;
    std::string_view rest = std::string_view(pending_).substr(0, count);
    while (!rest.empty()) {
      const std::size_t length = utf8_length(rest);
      if (length == 0 && !all && rest.size() < 4 && is_incomplete_character(rest)) break;
      text += length == 0 ? std::string_view(replacement) : rest.substr(0, length);
      rest.remove_prefix(std::max<std::size_t>(1, length));
    }
    pending_.erase(0, count - rest.size());
    return text;
  }

  std::vector<std::string> stop_texts_;
  std::string pending_;
  bool is_stopped_ = false;
};

}  // namespace octavo
