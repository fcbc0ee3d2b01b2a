/// @file
/// The decoder of a tokenizer.json: how texts of the vocabulary become bytes.
#pragma once

#include <octavo/core/json_reader.hpp>
#include <octavo/data/text_changes.hpp>

#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace octavo OCTAVO_ABI {

namespace detail {

/// SentencePiece's mark of a space.
inline constexpr std::string_view space_mark = "\u2581";

/// Returns the byte that a token such as <0x0A> represents.
[[nodiscard]] inline std::optional<std::uint8_t> byte_of_name(std::string_view text) {
  if (text.size() != 6 || !text.starts_with("<0x") || text.back() != '>') return std::nullopt;
  std::uint8_t byte = 0;
  const char* digits = text.data() + 3;
  const auto [end, error] = std::from_chars(digits, digits + 2, byte, 16);
  if (error != std::errc{} || end != digits + 2) return std::nullopt;
  return byte;
}

/// Returns the text of the token that represents a byte, such as <0x0A>.
[[nodiscard]] inline std::string name_of_byte(std::uint8_t byte) {
  constexpr std::string_view digits = "0123456789ABCDEF";
  return {'<', '0', 'x', digits[byte >> 4], digits[byte & 15u], '>'};
}

/// Reads a JSON object whose first member is "type". Calls `member(type, key)` for each other
/// member, and `member(type, "")` at the end.
template <class Member>
void read_typed(JsonReader& json, const Member& member) {
  std::string type;
  json.object([&](const std::string& key) {
    if (key == "type") {
      type = json.string();
      return;
    }
    if (type.empty()) json.fail("the type must come first");
    member(type, key);
  });
  member(type, "");
}

/// The steps of a decoder, in order.
class TokenDecoder {
 public:
  TokenDecoder() = default;
  /// Returns the decoder of a SentencePiece model, which converts marks to spaces.
  /// @param spaces  maximum number of spaces that are removed from the start of a text
  [[nodiscard]] static TokenDecoder of_sentencepiece(bool has_byte_fallback, std::size_t spaces) {
    TokenDecoder decoder;
    decoder.steps_.push_back(
        {.type = "Replace", .pattern = std::string(space_mark), .content = " "});
    if (has_byte_fallback) decoder.steps_.push_back({.type = "ByteFallback"});
    if (spaces > 0) decoder.steps_.push_back({.type = "Strip", .content = " ", .start = spaces});
    return decoder;
  }

  void read(JsonReader& json) {
    Step step;
    read_typed(json, [&](const std::string& type, const std::string& key) {
      if (type == "Sequence" && key == "decoders") {
        json.array([&] { read(json); });
      } else if (type == "Replace" && key == "pattern") {
        json.object([&](const std::string& kind) {
          if (kind != "String")
            json.fail(message("'pattern ", kind, "' of a decoder is not supported"));
          step.pattern = json.string();
        });
      } else if ((type == "Replace" || type == "Strip") && key == "content") {
        step.content = json.string();
      } else if (type == "Strip" && (key == "start" || key == "stop")) {
        (key == "start" ? step.start : step.stop) =
            static_cast<std::size_t>(json.natural(max_stripped));
      } else if (type == "ByteLevel" && !key.empty()) {
        (void)json.boolean();  // these matter only for a pre_tokenizer
      } else if (!key.empty()) {
        json.fail(message("'decoder ", type, ' ', key, "' is not supported"));
      } else if (type == "Replace" && step.pattern.empty()) {
        json.fail("a decoder Replace has no pattern");
      } else if (type != "Sequence") {
        step.type = type;
        steps_.push_back(step);
      }
    });
  }

  /// Returns the reason why byte-level BPE cannot have this decoder, or "". Decoders before
  /// ByteLevel, as transformers writes for GGUF, are allowed if they have no effect on the tokens,
  /// which must not contain byte names or marks; see `reason_against`.
  [[nodiscard]] std::string reason_against_byte_level() const {
    for (std::size_t i = 0; i < steps_.size(); ++i) {
      const Step& step = steps_[i];
      const bool is_last = i + 1 == steps_.size();
      if (step.type == "ByteLevel" && !is_last) return "a decoder after ByteLevel is not supported";
      if (step.type == "ByteLevel" || step.type == "ByteFallback" || step.type == "Fuse") continue;
      if (step.type != "Replace") return message("'decoder ", step.type, "' is not supported");
      if (step.pattern != space_mark || step.content != " ")
        return message("with ByteLevel, the pattern of the decoder Replace must be '", space_mark,
                       "' and its content ' '");
    }
    return steps_.empty() || steps_.back().type == "ByteLevel"
               ? ""
               : "the decoder must end with ByteLevel";
  }

  /// Returns the reason why the steps before ByteLevel would change a token, or "".
  [[nodiscard]] std::string reason_against(std::string_view text) const {
    for (const Step& step : steps_) {
      if (step.type == "ByteFallback" && byte_of_name(text).has_value())
        return "represents a byte; only byte-level BPE without such tokens is supported";
      if (step.type == "Replace" && text.find(step.pattern) != std::string_view::npos)
        return "contains the mark that the decoder replaces; only BPE without it is supported";
    }
    return "";
  }

  /// Returns the reason why character-level BPE cannot have this decoder, or "".
  [[nodiscard]] std::string reason_against_characters() const {
    if (steps_.empty()) return "a decoder is required, such as of Replace and Fuse";
    bool is_fused = false;
    bool has_bytes = false;
    for (const Step& step : steps_) {
      if (step.type == "Replace" && step.content.size() > step.pattern.size())
        return "a decoder Replace whose content is longer than its pattern is not supported";
      if (step.type == "Replace" && !has_bytes && !is_fused) continue;
      if (step.type == "Strip" && is_fused && step.content == " " && step.stop == 0) continue;
      if (step.type == "ByteFallback" && !is_fused) {
        has_bytes = true;
      } else if (step.type == "Fuse") {
        is_fused = true;
      } else {
        return message("'decoder ", step.type,
                       "' is not supported here: without ByteLevel, the decoder may have Replace, "
                       "ByteFallback, Fuse, and Strip of leading spaces, in this order");
      }
    }
    return is_fused ? "" : "without ByteLevel, the decoder must have Fuse";
  }

  /// Returns the bytes of a token of character-level BPE.
  [[nodiscard]] std::string bytes_of(std::string_view text) const {
    ChangedTexts texts;
    for (const Step& step : steps_) {
      if (step.type == "Replace") text = replaced(text, step.pattern, step.content, texts);
      const auto byte = byte_of_name(text);
      if (step.type == "ByteFallback" && byte.has_value())
        text = texts.emplace_back(1, static_cast<char>(*byte));
    }
    return std::string(text);
  }

  /// Returns the maximum number of spaces that are removed from the start of a text.
  [[nodiscard]] std::size_t leading_spaces() const {
    std::size_t count = 0;
    for (const Step& step : steps_)
      if (step.type == "Strip") count += step.start;
    return count;
  }

 private:
  static constexpr std::int64_t max_stripped = 1'000;

  struct Step {
    std::string type{};
    std::string pattern{};
    std::string content{};
    std::size_t start = 0;
    std::size_t stop = 0;
  };

  std::vector<Step> steps_;
};

}  // namespace detail

}  // namespace octavo
