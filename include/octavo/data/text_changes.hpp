/// @file
/// The changes that a tokenizer makes to a text before it splits the text into words.
#pragma once

#include <octavo/core/error.hpp>
#include <octavo/core/utf8.hpp>
#include <octavo/data/character_map.hpp>
#include <octavo/data/normal_form.hpp>
#include <octavo/data/tokenizer.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace octavo OCTAVO_ABI {

namespace detail {

/// A change of a text.
struct TextChange {
  enum class Kind {
    normalize,
    replace,
    prepend,
    map_characters,
    map_and_join_spaces,  ///< the same, then keeps one of adjacent spaces, and none at the start
    remove_at_end,        ///< removes all repetitions of `text` at the end
  };

  Kind kind = Kind::normalize;
  NormalForm form = NormalForm::nfc;
  std::string from{};            ///< replaced by `text`
  std::string text{};            ///< replaces `from`, or is prepended to a text that is not empty
  bool only_if_missing = false;  ///< does not prepend to a text that begins with `text`
  bool only_at_start = false;    ///< does not prepend after a special token
  std::shared_ptr<const CharacterMap> map{};  ///< of the kinds that map characters
};

/// Returns the first byte in [from, until) that begins no UTF-8 character. If none exists, returns
/// the end of the character at or after `until`.
/// @param from  a boundary between characters
[[nodiscard]] inline std::size_t utf8_until(std::string_view text, std::size_t from,
                                            std::size_t until) {
  constexpr std::uint64_t high_bits = 0x8080808080808080u;
  std::uint64_t eight = 0;
  while (from < until) {
    while (from + sizeof eight <= until) {
      std::memcpy(&eight, text.data() + from, sizeof eight);
      if ((eight & high_bits) != 0) break;
      from += sizeof eight;
    }
    if (from >= until) break;
    const std::size_t length = utf8_length(text.substr(from));
    if (length == 0) break;
    from += length;
  }
  return from;
}

/// Texts that outlive the views of them.
using ChangedTexts = std::deque<std::string>;

/// Returns the text in a normal form. Bytes that are not UTF-8 do not change.
/// @param normalize  null: text that the form may change is an error
[[nodiscard]] inline std::string_view normal_form(std::string_view text, NormalForm form,
                                                  NormalizeText normalize, ChangedTexts& texts) {
  std::string changed;
  std::size_t kept = 0;  // `changed` covers the text up to here
  for (std::size_t from = 0; from < text.size();) {
    const std::size_t end = utf8_until(text, from, text.size());
    const std::string_view valid = text.substr(from, end - from);
    const std::size_t place = unchanged_prefix(valid, form);
    if (place < valid.size()) {
      require<ConfigError>(
          normalize != nullptr, "the tokenizer normalises text, which may change '",
          valid.substr(place, utf8_length(valid.substr(place))), "' at byte ", from + place,
          " of the text, but it was loaded without a normalisation function; pass "
          "normalize_by_utf8proc to load_tokenizer, or build the program with utf8proc");
      changed.append(text.substr(kept, from - kept)).append(normalize(valid, form));
      kept = end;
    }
    from = end;
    while (from < text.size() && utf8_length(text.substr(from)) == 0) ++from;
  }
  if (kept == 0) return text;
  changed.append(text.substr(kept));
  return texts.emplace_back(std::move(changed));
}

/// Returns the text with each `from` replaced by `to`, from left to right.
[[nodiscard]] inline std::string_view replaced(std::string_view text, std::string_view from,
                                               std::string_view to, ChangedTexts& texts) {
  std::size_t found = text.find(from);
  if (found == std::string_view::npos) return text;
  std::string changed;
  changed.reserve(text.size() + text.size() / 4);
  std::size_t kept = 0;
  for (; found != std::string_view::npos; found = text.find(from, kept)) {
    changed.append(text.substr(kept, found - kept)).append(to);
    kept = found + from.size();
  }
  changed.append(text.substr(kept));
  return texts.emplace_back(std::move(changed));
}

/// Makes each change in order.
/// @param position   what precedes the text
/// @param normalize  null: text that a normal form may change is an error
/// @throws ConfigError  if `normalize` is missing, or the text becomes much longer
[[nodiscard]] inline std::string_view changed(std::string_view text,
                                              const std::vector<TextChange>& changes,
                                              TextPosition position, NormalizeText normalize,
                                              ChangedTexts& texts) {
  constexpr std::size_t max_times = 16;
  const std::size_t most = std::max<std::size_t>(text.size(), 64) * max_times;
  for (const TextChange& change : changes) {
    require<ConfigError>(text.size() <= most, "the tokenizer makes a text more than ", max_times,
                         " times as long before it splits it; use another tokenizer");
    if (change.kind == TextChange::Kind::normalize) {
      text = normal_form(text, change.form, normalize, texts);
    } else if (change.kind == TextChange::Kind::replace) {
      text = replaced(text, change.from, change.text, texts);
    } else if (change.kind == TextChange::Kind::map_characters) {
      text = texts.emplace_back(change.map->changed(text));
    } else if (change.kind == TextChange::Kind::map_and_join_spaces) {
      const bool is_start = position != TextPosition::after_text;
      text = texts.emplace_back(change.map->changed_with_joined_spaces(text, is_start));
    } else if (change.kind == TextChange::Kind::remove_at_end) {
      while (text.ends_with(change.text)) text.remove_suffix(change.text.size());
    } else {
      const bool is_separate =
          position == TextPosition::start ||
          (position == TextPosition::after_special_token && !change.only_at_start);
      if (is_separate && !text.empty() &&
          !(change.only_if_missing && text.starts_with(change.text)))
        text = texts.emplace_back(change.text).append(text);
    }
  }
  return text;
}

}  // namespace detail

}  // namespace octavo
