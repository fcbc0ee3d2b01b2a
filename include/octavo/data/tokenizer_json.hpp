/// @file
/// Reading tokenizers from Hugging Face's tokenizer.json. Needs PCRE2: see split_pattern.hpp.
#pragma once

#include <octavo/core/json_reader.hpp>
#include <octavo/data/byte_alphabet.hpp>
#include <octavo/data/byte_pair_tokenizer.hpp>
#include <octavo/data/tiktoken_file.hpp>

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

/// Reads a tokenizer.json. Refuses every part that it does not know. Ignores only the parts that
/// `encode` does not use: special tokens around a text (post_processor), truncation and padding.
class TokenizerJsonReader {
 public:
  TokenizerJsonReader(const std::filesystem::path& path, std::string_view text)
      : path_(path), json_(text, path.string(), 0, "use another tokenizer") {}

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
        decoder();
      } else if (key == "model") {
        model();
        has_model = true;
      } else {
        unknown(key);
      }
    });
    json_.end();
    if (!has_model) refuse("it has no member 'model'");
    if (!has_byte_level_)
      refuse("its pre_tokenizer must end with ByteLevel: only byte-level BPE is supported");
    make_tokens();
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
      } else if (key == "lstrip" || key == "rstrip" || key == "single_word") {
        require_boolean(key, false);
      } else {
        unknown(key);
      }
    });
    if (!has_token || added.text.empty()) json_.fail("an added token needs an id and a content");
    model_.added.push_back(std::move(added));
  }

  /// Reads an object whose first member is "type".
  template <class Member>
  void typed(const Member& member) {
    std::string type;
    json_.object([&](const std::string& key) {
      if (key == "type") {
        type = json_.string();
        return;
      }
      if (type.empty()) json_.fail("the type must come first");
      member(type, key);
    });
    member(type, "");
  }

  void normalizer() {
    if (json_.null()) return;
    typed([this](const std::string& type, const std::string& key) {
      if (const auto form = normal_form_named(type); form.has_value() && key.empty()) {
        model_.forms.push_back(*form);
      } else if (type == "Sequence" && key == "normalizers") {
        json_.array([this] { normalizer(); });
      } else if (type != "Sequence" || !key.empty()) {
        unknown(message("normalizer ", type, ' ', key));
      }
    });
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
    typed([&](const std::string& type, const std::string& key) {
      if (type == "Sequence" && key == "pretokenizers") {
        json_.array([this] { pre_tokenizer(); });
      } else if (type == "ByteLevel") {
        byte_level(key, splits);
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

  void byte_level(const std::string& key, bool& splits) {
    if (key == "add_prefix_space") {
      require_boolean(key, false);
    } else if (key == "trim_offsets") {
      (void)json_.boolean();  // changes offsets in the text, not tokens
    } else if (key == "use_regex") {
      splits = json_.boolean();
    } else if (key.empty()) {
      has_byte_level_ = true;
      // Source: GPT-2's encoder.py.
      if (splits)
        add_pattern(
            "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+");
    } else {
      unknown(key);
    }
  }

  void split(const std::string& key, std::string& pattern) {
    if (key == "pattern") {
      json_.object([&](const std::string& kind) {
        if (kind != "Regex") unknown(message("pattern ", kind));
        pattern = json_.string();
      });
    } else if (key == "behavior") {
      require_text(key, "Isolated");
    } else if (key == "invert") {
      (void)json_.boolean();  // the pieces are equal if each is kept
    } else if (key.empty()) {
      if (pattern.empty()) json_.fail("Split has no pattern");
      add_pattern(pattern);
    } else {
      unknown(key);
    }
  }

  void add_pattern(std::string_view pattern) {
    model_.patterns.emplace_back(pattern, path_.string());
  }

  void post_processor() {
    if (json_.null()) return;
    typed([this](const std::string& type, const std::string& key) {
      if (type == "Sequence" && key == "processors") {
        json_.array([this] { post_processor(); });
      } else if (type == "ByteLevel" || type == "TemplateProcessing") {
        if (!key.empty()) json_.skip();
      } else if (type != "Sequence" || !key.empty()) {
        unknown(message("post_processor ", type, ' ', key));
      }
    });
  }

  /// Reads ByteLevel, or a sequence that ends with it, as transformers writes for GGUF. The
  /// decoders before it have no effect if no token is a byte's number and none has SentencePiece's
  /// mark.
  void decoder() {
    one_decoder();
    if (!has_byte_decoder_) json_.fail("the decoder must end with ByteLevel");
  }
  void one_decoder() {
    bool has_pattern = false;
    bool has_content = false;
    typed([&](const std::string& type, const std::string& key) {
      if (type == "Sequence" && key == "decoders") {
        json_.array([this] { one_decoder(); });
      } else if (type == "Replace" && key == "pattern") {
        json_.object([this](const std::string& kind) {
          if (kind != "String") unknown(message("pattern ", kind));
          require_text("a pattern of the decoder Replace", word_mark);
        });
        has_pattern = true;
      } else if (type == "Replace" && key == "content") {
        require_text("the content of the decoder Replace", " ");
        has_content = true;
      } else if (type == "ByteLevel" && !key.empty()) {
        (void)json_.boolean();  // these matter only for a pre_tokenizer
      } else if (!key.empty()) {
        unknown(message("decoder ", type, ' ', key));
      } else if (type != "Sequence") {
        if (has_byte_decoder_) json_.fail("a decoder after ByteLevel is not supported");
        if (type == "ByteLevel") {
          has_byte_decoder_ = true;
        } else if (type == "ByteFallback") {
          must_lack_numbers_ = true;
        } else if (type == "Replace" && has_pattern && has_content) {
          must_lack_words_ = true;
        } else if (type != "Fuse") {
          unknown(message("decoder ", type));
        }
      }
    });
  }

  void model() {
    json_.object([this](const std::string& key) {
      if (key == "type") {
        require_text("the type of the model", "BPE");
      } else if (key == "vocab") {
        json_.object([this](const std::string& text) { vocabulary_.emplace_back(text, token()); });
      } else if (key == "merges") {
        json_.array([this] { merge(); });
      } else if (key == "ignore_merges") {
        ignores_merges_ = json_.boolean();
      } else if (key == "byte_fallback") {
        must_lack_numbers_ |= json_.boolean();
      } else if (key == "dropout") {
        require_null(key);
      } else if (key == "unk_token" || key == "fuse_unk") {
        json_.skip();  // a byte without a token is an error when a text has it
      } else if (key == "continuing_subword_prefix" || key == "end_of_word_suffix") {
        require_nothing(key);
      } else {
        unknown(key);
      }
    });
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
    if (pair[0].empty() || pair[1].empty()) json_.fail("a merge has fewer than two tokens");
    merges_.push_back(std::move(pair));
  }

  /// Throws if the decoders that were skipped would change this token.
  void require_plain(std::int32_t token, const std::string& text) const {
    if (must_lack_numbers_ && text.size() == 6 && text.starts_with("<0x"))
      refuse(message("the token ", token, ", '", text,
                     "', stands for a byte; only byte-level BPE without such tokens is supported"));
    if (must_lack_words_ && text.find(word_mark) != std::string::npos)
      refuse(message(
          "the token ", token, ", '", text,
          "', contains the mark that the decoder replaces; only BPE without it is supported"));
  }

  void make_tokens() {
    const std::size_t most = vocabulary_.size() + model_.added.size();
    std::vector<bool> is_there(most);
    std::size_t end = 0;
    BytePairs& pairs = model_.pairs;
    pairs.bytes.resize(most);
    pairs.byte_tokens.fill(-1);
    const auto take = [&](std::int32_t token, const std::string& text) -> std::string& {
      const auto place = static_cast<std::size_t>(token);
      if (place >= most)
        refuse(message("the token of '", text, "' must be below ", most,
                       ", the number of tokens, but is ", token));
      is_there[place] = true;
      end = std::max(end, place + 1);
      return pairs.bytes[place];
    };
    TokenMap known;
    for (const auto& [text, token] : vocabulary_) {
      std::string& bytes = take(token, text);
      if (!bytes.empty()) refuse(message("the token ", token, " appears twice in the vocabulary"));
      if (text.empty()) refuse(message("the text of token ", token, " is empty"));
      require_plain(token, text);
      known.emplace(text, token);
      const bool is_of_bytes = alphabet_.decode(text, bytes);
      if (!is_of_bytes) bytes = text;
      if (is_of_bytes && bytes.size() == 1)
        pairs.byte_tokens[static_cast<std::uint8_t>(bytes[0])] = token;
      if (is_of_bytes && ignores_merges_) pairs.whole_words.emplace(bytes, token);
    }
    for (const AddedToken& added : model_.added) {
      require_plain(added.token, added.text);
      std::string& bytes = take(added.token, added.text);
      const auto of_vocabulary = known.find(added.text);
      const bool is_new = bytes.empty() && of_vocabulary == known.end();
      if (!is_new && (of_vocabulary == known.end() || of_vocabulary->second != added.token))
        refuse(message("the added token ", added.token, ", '", added.text,
                       "', has another text in the vocabulary, or appears twice"));
      known.emplace(added.text, added.token);
      bytes = added.text;
    }
    for (std::size_t i = 0; i < end; ++i)
      if (!is_there[i]) refuse(message("there is no token ", i, "; token IDs must be consecutive"));
    pairs.bytes.resize(end);
    make_merges(known);
  }

  void make_merges(const TokenMap& known) {
    model_.pairs.merges = PairMerges(merges_.size());
    for (std::size_t i = 0; i < merges_.size(); ++i) {
      const std::string& left = merges_[i][0];
      const std::string& right = merges_[i][1];
      const auto token_of = [&](const std::string& text) {
        const auto found = known.find(text);
        if (found == known.end())
          refuse(message("merge ", i, ", of '", left, "' and '", right, "': '", text,
                         "' is not in the vocabulary"));
        return found->second;
      };
      const PairMerge merge{static_cast<std::int32_t>(i), token_of(left + right)};
      if (!model_.pairs.merges.add(token_of(left), token_of(right), merge))
        refuse(message("merge ", i, ", of '", left, "' and '", right, "', appears twice"));
    }
  }

  const std::filesystem::path& path_;
  JsonReader json_;
  ByteAlphabet alphabet_;
  BytePairModel model_;
  static constexpr std::string_view word_mark = "\u2581";  // SentencePiece's mark of a word
  bool has_byte_level_ = false;
  bool has_byte_decoder_ = false;
  bool must_lack_numbers_ = false;  ///< tokens such as <0x41>
  bool must_lack_words_ = false;    ///< tokens with a word_mark
  bool ignores_merges_ = false;
  std::vector<std::pair<std::string, std::int32_t>> vocabulary_;
  std::vector<std::array<std::string, 2>> merges_;
};

}  // namespace detail

/// Reads a tokenizer.json of byte-level BPE, as of GPT-2, Llama 3, Qwen and SmolLM2.
/// @param normalize  function that brings text into the tokenizer's normal form, such as
///                   normalize_by_utf8proc. Null: encoding text that the form may change is an
///                   error
/// @throws IoError  naming the file and, if possible, the byte, if the file cannot be read, is not
///                  a valid tokenizer.json, or has parts that are unknown or contradictory
[[nodiscard]] inline BytePairTokenizer load_tokenizer_json(const std::filesystem::path& path,
                                                           NormalizeText normalize = nullptr) {
  const std::string text = read_text_file(path, detail::most_tokenizer_bytes);
  detail::BytePairModel model = detail::TokenizerJsonReader(path, text).read();
  model.normalize = normalize;
  return BytePairTokenizer(std::move(model));
}

/// Reads a tokenizer.json if the name ends in .json, else Llama 3's tokenizer.model.
/// @throws IoError  as `load_tokenizer_json` and `load_llama3_tokenizer` do
[[nodiscard]] inline BytePairTokenizer load_tokenizer(const std::filesystem::path& path,
                                                      NormalizeText normalize = nullptr) {
  return path.extension() == ".json" ? load_tokenizer_json(path, normalize)
                                     : load_llama3_tokenizer(path);
}

}  // namespace octavo
