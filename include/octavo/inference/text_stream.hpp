/// @file
/// The text of tokens as they come, in whole characters.
#pragma once

#include <octavo/core/utf8.hpp>

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace octavo OCTAVO_ABI {

/// Bytes that come piece by piece, such as those of tokens, as valid UTF-8 that goes on: characters
/// wait until they are whole, and what may be the begin of a text that stops it waits until that is
/// known. A byte that belongs to no character becomes U+FFFD.
class TextStream {
 public:
  /// @param stops  texts that end the text and are no part of it; empty ones are passed over
  explicit TextStream(std::vector<std::string> stops = {}) : stops_(std::move(stops)) {
    std::erase(stops_, "");
  }

  /// @return what of the text is certain by now and was not before; nothing once it is stopped
  [[nodiscard]] std::string add(std::string_view bytes) {
    if (is_stopped_) return {};
    waiting_ += bytes;
    std::size_t stop = std::string::npos;
    for (const std::string& text : stops_) stop = std::min(stop, waiting_.find(text));
    is_stopped_ = stop != std::string::npos;
    if (is_stopped_) waiting_.resize(stop);
    return take(is_stopped_ ? stop : waiting_.size() - begun_stop(), is_stopped_);
  }

  /// @return what waits: no bytes come any more
  [[nodiscard]] std::string end() { return take(waiting_.size(), true); }

  [[nodiscard]] bool is_stopped() const { return is_stopped_; }

 private:
  /// Bytes at the end that a text to stop at begins with.
  [[nodiscard]] std::size_t begun_stop() const {
    std::size_t longest = 0;
    for (const std::string& text : stops_) {
      for (std::size_t size = std::min(text.size() - 1, waiting_.size()); size > longest; --size) {
        if (waiting_.ends_with(std::string_view(text).substr(0, size))) longest = size;
      }
    }
    return longest;
  }

  /// Whether more bytes may make a character of what `text` begins with.
  static bool may_become_one(std::string_view text) {
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

  /// Takes the first bytes of what waits, but for a character at the end that is not whole.
  /// @param all  no more bytes come
  std::string take(std::size_t count, bool all) {
    constexpr const char* replacement = "\xef\xbf\xbd";
    std::string text;
    std::string_view rest = std::string_view(waiting_).substr(0, count);
    while (!rest.empty()) {
      const std::size_t length = utf8_length(rest);
      if (length == 0 && !all && rest.size() < 4 && may_become_one(rest)) break;
      text += length == 0 ? std::string_view(replacement) : rest.substr(0, length);
      rest.remove_prefix(std::max<std::size_t>(1, length));
    }
    waiting_.erase(0, count - rest.size());
    return text;
  }

  std::vector<std::string> stops_;
  std::string waiting_;
  bool is_stopped_ = false;
};

}  // namespace octavo
