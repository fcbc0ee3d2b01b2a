/// @file
/// Reading tokenizers from Hugging Face's tokenizer.json. Needs PCRE2: see split_pattern.hpp.
#pragma once

#include <octavo/core/json_reader.hpp>
#include <octavo/data/byte_pair_tokenizer.hpp>
#include <octavo/data/sentencepiece_file.hpp>
#include <octavo/data/text_changes.hpp>
#include <octavo/data/tiktoken_file.hpp>
#include <octavo/data/token_decoder.hpp>
#include <octavo/data/token_table.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace octavo OCTAVO_ABI {

namespace detail {

/// Reads a tokenizer.json. Unknown parts are errors. Ignores only the parts that `encode` does not
/// use: special tokens around a text (post_processor), truncation and padding.
class TokenizerJsonReader {
 public:
  /// @param normalize  null: added tokens that a normal form may change are an error
  TokenizerJsonReader(const std::filesystem::path& path, std::string_view text,
                      NormalizeText normalize)
      : path_(path), json_(text, path.string(), 0, "use another tokenizer"), table_(path.string()) {
    model_.normalize = normalize;
  }

  BytePairModel read() {
    bool has_model = false;
    json_.object([&](const std::string& key) {
      if (key == "version") {
        require_text("version", "1.0");
      } else if (key == "truncation" || key == "padding") {
        // They change the lengths in a batch, not the tokens of a text.
        if (!json_.null()) {
          model_.ignored.push_back(key);
          json_.skip();
        }
      } else if (key == "added_tokens") {
        json_.array([this] { added_token(); });
      } else if (key == "normalizer") {
        normalizer();
      } else if (key == "pre_tokenizer") {
        pre_tokenizer();
      } else if (key == "post_processor") {
        post_processor();
      } else if (key == "decoder") {
        decoder_.read(json_);
      } else if (key == "model") {
        model();
        has_model = true;
      } else {
        unknown(key);
      }
    });
    json_.end();
    if (!has_model) refuse("it has no member 'model'");
    require_consistent();
    normalize_added_tokens();
    model_.pairs = pairs();
    if (!has_byte_level_) model_.leading_spaces = decoder_.leading_spaces();
    return std::move(model_);
  }

 private:
  [[noreturn]] void refuse(std::string_view what) const {
    throw IoError(message(path_.string(), ": ", what));
  }
  [[noreturn]] void unknown(std::string_view what) const {
    json_.fail(message("'", what, "' is not supported"));
  }
  void require_null(std::string_view what) {
    if (!json_.null()) json_.fail(message("only null is supported for ", what));
  }
  void require_boolean(std::string_view what, bool expected) {
    if (json_.boolean() != expected)
      json_.fail(message("only ", expected ? "true" : "false", " is supported for ", what));
  }
  void require_text(std::string_view what, std::string_view expected) {
    if (json_.string() != expected)
      json_.fail(message("only ", expected, " is supported for ", what));
  }
  /// Reads null or an empty string.
  void require_nothing(std::string_view what) {
    if (!json_.null() && !json_.string().empty())
      json_.fail(message("only null is supported for ", what));
  }
  std::int32_t token() {
    return static_cast<std::int32_t>(json_.natural(std::numeric_limits<std::int32_t>::max() / 2));
  }

  [[nodiscard]] BytePairs pairs() {
    if (has_byte_level_)
      return table_.byte_level(model_.added, decoder_, has_byte_fallback_, ignores_merges_);
    if (type_ == "BPE") return table_.characters(model_.added, decoder_, has_byte_fallback_);
    constexpr double unknown_penalty = 10;
    scores_.unknown_score =
        *std::min_element(scores_.scores.begin(), scores_.scores.end()) - unknown_penalty;
    return table_.unigram(model_.added, decoder_, has_byte_fallback_, unknown_, std::move(scores_));
  }

  void added_token() {
    AddedToken added;
    bool has_token = false;
    json_.object([&](const std::string& key) {
      if (key == "id") {
        added.token = token();
        has_token = true;
      } else if (key == "content") {
        added.text = json_.string();
      } else if (key == "special") {
        added.is_special = json_.boolean();
      } else if (key == "normalized") {
        added.is_normalised = json_.boolean();
      } else if (key == "lstrip") {
        added.strips_left = json_.boolean();
      } else if (key == "rstrip") {
        added.strips_right = json_.boolean();
      } else if (key == "single_word") {
        require_boolean(key, false);
      } else {
        unknown(key);
      }
    });
    if (!has_token || added.text.empty()) json_.fail("an added token needs an id and a content");
    model_.added.push_back(std::move(added));
  }

  void normalizer() {
    if (json_.null()) return;
    TextChange change;
    read_typed(json_, [&](const std::string& type, const std::string& key) {
      if (const auto form = normal_form_named(type); form.has_value() && key.empty()) {
        model_.changes.push_back({.kind = TextChange::Kind::normalize, .form = *form});
      } else if (type == "Sequence" && key == "normalizers") {
        json_.array([this] { normalizer(); });
      } else if (type == "Prepend" && key == "prepend") {
        change = {.kind = TextChange::Kind::prepend, .text = json_.string()};
      } else if (type == "Replace" && key == "pattern") {
        change.kind = TextChange::Kind::replace;
        change.from = string_pattern();
      } else if (type == "Replace" && key == "content") {
        change.text = json_.string();
      } else if (key.empty() && (type == "Prepend" || type == "Replace")) {
        if (type == "Prepend" ? change.text.empty() : change.from.empty())
          json_.fail(message("the normalizer ", type, " has no text"));
        model_.changes.push_back(change);
      } else if (type != "Sequence" || !key.empty()) {
        unknown(message("normalizer ", type, ' ', key));
      }
    });
  }

  /// Reads {"String": "..."}.
  std::string string_pattern() {
    std::string pattern;
    json_.object([&](const std::string& kind) {
      if (kind != "String") unknown(message("pattern ", kind));
      pattern = json_.string();
    });
    return pattern;
  }

  static std::optional<NormalForm> normal_form_named(std::string_view name) {
    if (name == "NFC") return NormalForm::nfc;
    if (name == "NFD") return NormalForm::nfd;
    if (name == "NFKC") return NormalForm::nfkc;
    if (name == "NFKD") return NormalForm::nfkd;
    return std::nullopt;
  }

  void pre_tokenizer() {
    if (json_.null()) return;
    if (has_byte_level_) json_.fail("a pre_tokenizer after ByteLevel is not supported");
    std::string pattern;
    bool splits = true;
    TextChange prefix{.kind = TextChange::Kind::prepend, .only_if_missing = true};
    read_typed(json_, [&](const std::string& type, const std::string& key) {
      if (type == "Sequence" && key == "pretokenizers") {
        json_.array([this] { pre_tokenizer(); });
      } else if (type == "ByteLevel") {
        byte_level(key, splits, prefix);
      } else if (type == "Metaspace") {
        metaspace(key, splits, prefix);
      } else if (type == "Digits") {
        if (key == "individual_digits")
          splits = json_.boolean();
        else if (key.empty())
          add_pattern(splits ? "\\p{N}" : "\\p{N}+");
        else
          unknown(key);
      } else if (type == "Split") {
        split(key, pattern);
      } else if (type != "Sequence" || !key.empty()) {
        unknown(message("pre_tokenizer ", type, ' ', key));
      }
    });
  }

  void byte_level(const std::string& key, bool& splits, TextChange& prefix) {
    if (key == "add_prefix_space") {
      prefix.text = json_.boolean() ? " " : "";
    } else if (key == "trim_offsets") {
      (void)json_.boolean();  // changes offsets in the text, not tokens
    } else if (key == "use_regex") {
      splits = json_.boolean();
    } else if (key.empty()) {
      has_byte_level_ = true;
      add_prefix(prefix);
      // Source: GPT-2's encoder.py.
      if (splits)
        add_pattern(
            "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+");
    } else {
      unknown(key);
    }
  }

  /// Reads Metaspace, which replaces spaces by a mark, puts a mark before the text, and may split
  /// before each mark.
  void metaspace(const std::string& key, bool& splits, TextChange& prefix) {
    if (key == "replacement") {
      require_text(key, space_mark);
      prefix.text = space_mark;
    } else if (key == "prepend_scheme") {
      const std::string scheme = json_.string();
      if (scheme != "first" && scheme != "always" && scheme != "never")
        unknown(message("prepend_scheme ", scheme));
      prefix.only_at_start = scheme == "first";
      has_prefix_ = has_prefix_ && scheme != "never";
    } else if (key == "add_prefix_space") {
      has_prefix_ = json_.boolean() && has_prefix_;
    } else if (key == "str_rep") {
      require_text(key, space_mark);
    } else if (key == "split") {
      splits = json_.boolean();
    } else if (key.empty()) {
      if (prefix.text.empty()) json_.fail("Metaspace has no replacement");
      require_first("Metaspace");
      model_.piece_changes.push_back(
          {.kind = TextChange::Kind::replace, .from = " ", .text = std::string(space_mark)});
      if (!has_prefix_) prefix.text.clear();
      add_prefix(prefix);
      if (splits) add_pattern(message(space_mark, "[^", space_mark, "]*"));
    } else {
      unknown(key);
    }
  }

  void require_first(std::string_view what) {
    if (!model_.patterns.empty() || !model_.piece_changes.empty())
      json_.fail(message(what, " is supported only as the first pre_tokenizer"));
  }

  void add_prefix(const TextChange& prefix) {
    if (prefix.text.empty()) return;
    if (has_byte_level_) require_first("add_prefix_space");
    model_.piece_changes.push_back(prefix);
  }

  void split(const std::string& key, std::string& pattern) {
    if (key == "pattern") {
      json_.object([&](const std::string& kind) {
        if (kind != "Regex" && kind != "String") unknown(message("pattern ", kind));
        (kind == "Regex" ? pattern : split_text_) = json_.string();
      });
    } else if (key == "behavior") {
      const std::string behavior = json_.string();
      if (behavior != "Isolated" && split_text_.empty())
        json_.fail(message("only Isolated is supported for ", key));
    } else if (key == "invert") {
      // Without effect: all pieces are kept, whichever of them the pattern matches.
      (void)json_.boolean();
    } else if (key.empty()) {
      if (pattern.empty() && split_text_.empty()) json_.fail("Split has no pattern");
      if (!pattern.empty()) add_pattern(pattern);
    } else {
      unknown(key);
    }
  }

  void add_pattern(std::string_view pattern) {
    model_.patterns.emplace_back(pattern, path_.string());
  }

  void post_processor() {
    if (json_.null()) return;
    read_typed(json_, [this](const std::string& type, const std::string& key) {
      if (type == "Sequence" && key == "processors") {
        json_.array([this] { post_processor(); });
      } else if (type == "ByteLevel" || type == "TemplateProcessing") {
        if (!key.empty()) json_.skip();
      } else if (type != "Sequence" || !key.empty()) {
        unknown(message("post_processor ", type, ' ', key));
      }
    });
  }

  void model() {
    json_.object([this](const std::string& key) {
      if (key == "type") {
        type_ = json_.string();
        if (type_ != "BPE" && type_ != "Unigram")
          json_.fail("only BPE and Unigram are supported for the type of the model");
      } else if (key == "vocab" && json_.peek() == JsonReader::Kind::array) {
        json_.array([this] { scored_token(); });
      } else if (key == "unk_id" && !json_.null()) {
        unknown_ = token();
      } else if (key == "vocab") {
        json_.object([this](const std::string& text) { table_.add(text, token()); });
      } else if (key == "merges") {
        json_.array([this] { merge(); });
      } else if (key == "ignore_merges") {
        ignores_merges_ = json_.boolean();
      } else if (key == "byte_fallback") {
        has_byte_fallback_ = json_.boolean();
      } else if (key == "dropout") {
        require_null(key);
      } else if (key == "unk_token" || key == "fuse_unk") {
        json_.skip();  // a character without a token is an error when a text has it
      } else if (key == "continuing_subword_prefix" || key == "end_of_word_suffix") {
        require_nothing(key);
      } else {
        unknown(key);
      }
    });
  }

  /// Reads a token of a Unigram model: ["a", -1.5].
  void scored_token() {
    std::size_t count = 0;
    json_.array([&] {
      if (count == 0)
        table_.add(json_.string(), static_cast<std::int32_t>(scores_.scores.size()));
      else if (count == 1)
        scores_.scores.push_back(json_.number());
      else
        json_.fail("a token of a Unigram model has more than a text and a score");
      ++count;
    });
    if (count < 2) json_.fail("a token of a Unigram model needs a text and a score");
  }

  /// Reads a merge: "a b" or ["a", "b"].
  void merge() {
    std::array<std::string, 2> pair;
    if (json_.peek() == JsonReader::Kind::array) {
      std::size_t count = 0;
      json_.array([&] {
        if (count == 2) json_.fail("a merge has more than two tokens");
        pair[count++] = json_.string();
      });
    } else {
      const std::string text = json_.string();
      const std::size_t space = text.find(' ');
      if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos)
        json_.fail(message("the merge '", text, "' must be two tokens separated by a space"));
      pair = {text.substr(0, space), text.substr(space + 1)};
    }
    has_merges_ = true;
    if (pair[0].empty() || pair[1].empty()) json_.fail("a merge has fewer than two tokens");
    table_.add_merge(std::move(pair));
  }

  void require_consistent() const {
    const std::string reason = has_byte_level_ ? decoder_.reason_against_byte_level()
                                               : decoder_.reason_against_characters();
    if (!reason.empty()) refuse(reason);
    if ((type_ == "Unigram") == scores_.scores.empty() || (type_ == "Unigram" && has_merges_))
      refuse(
          "a model of the type BPE needs a vocab with numbers, and one of the type Unigram a vocab "
          "with scores and no merges");
    if (type_ == "Unigram" && has_byte_level_)
      refuse("Unigram is not supported with the pre_tokenizer ByteLevel");
    if (ignores_merges_ && !has_byte_level_)
      refuse("ignore_merges is supported only with the pre_tokenizer ByteLevel");
    if (!split_text_.empty() && (has_byte_level_ || !removes(split_text_)))
      refuse(
          message("'pattern String' of the pre_tokenizer Split is supported only if the "
                  "normalizer replaces the string, '",
                  split_text_, "'"));
  }

  /// Returns whether the normalizer removes this string from every text.
  [[nodiscard]] bool removes(std::string_view text) const {
    bool is_removed = false;
    for (const TextChange& change : model_.changes) {
      if (change.kind == TextChange::Kind::replace && change.from == text) is_removed = true;
      if (change.kind == TextChange::Kind::normalize || change.text.find(text) != std::string::npos)
        is_removed = false;
    }
    return is_removed && text.size() == 1;
  }

  /// Normalises added tokens that are searched for in normalised text.
  void normalize_added_tokens() {
    ChangedTexts texts;
    for (AddedToken& added : model_.added) {
      if (added.is_normalised)
        added.normalised =
            changed(added.text, model_.changes, TextPosition::start, model_.normalize, texts);
    }
  }

  const std::filesystem::path& path_;
  JsonReader json_;
  TokenTable table_;
  TokenDecoder decoder_;
  BytePairModel model_;
  std::string type_ = "BPE";
  Unigram scores_;             ///< of a Unigram model
  std::int32_t unknown_ = -1;  ///< the token of unknown characters of a Unigram model
  bool has_merges_ = false;
  std::string split_text_;  ///< splits the normalised text
  bool has_byte_level_ = false;
  bool has_byte_fallback_ = false;
  bool has_prefix_ = true;  ///< of Metaspace
  bool ignores_merges_ = false;
};

}  // namespace detail

/// Reads a tokenizer.json of byte-level BPE, as of GPT-2, Llama 3, Qwen and SmolLM2, of BPE of
/// characters, as of Llama 2, Mistral and Gemma, or of the type Unigram.
/// @param normalize  function that brings text into the tokenizer's normal form, such as
///                   normalize_by_utf8proc. Null: encoding text that the form may change is an
///                   error
/// @throws ConfigError  if an added token is not in the normal form and `normalize` is missing
/// @throws IoError  naming the file and, if possible, the byte, if the file cannot be read, is not
///                  a valid tokenizer.json, or has parts that are unknown or contradictory
[[nodiscard]] inline BytePairTokenizer load_tokenizer_json(const std::filesystem::path& path,
                                                           NormalizeText normalize = nullptr) {
  const std::string text = read_text_file(path, detail::max_tokenizer_bytes);
  return BytePairTokenizer(detail::TokenizerJsonReader(path, text, normalize).read());
}

/// Reads a tokenizer.json if the name ends in .json, else a SentencePiece model or Llama 3's
/// tokenizer.model.
/// @throws IoError  as `load_tokenizer_json`, `load_sentencepiece` and `load_llama3_tokenizer` do
[[nodiscard]] inline BytePairTokenizer load_tokenizer(const std::filesystem::path& path,
                                                      NormalizeText normalize = nullptr) {
  if (path.extension() == ".json") return load_tokenizer_json(path, normalize);
  return is_sentencepiece(path) ? load_sentencepiece(path) : load_llama3_tokenizer(path);
}

}  // namespace octavo
