/// @file
/// Reading tokenizers from SentencePiece models, such as the tokenizer.model of Llama 2, Mistral
/// and Gemma. Needs PCRE2: see split_pattern.hpp.
#pragma once

#include <octavo/data/byte_pair_tokenizer.hpp>
#include <octavo/data/character_map.hpp>
#include <octavo/data/open_file.hpp>
#include <octavo/data/protobuf_reader.hpp>
#include <octavo/data/text_changes.hpp>
#include <octavo/data/tiktoken_file.hpp>
#include <octavo/data/token_decoder.hpp>
#include <octavo/data/token_table.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

namespace octavo OCTAVO_ABI {

namespace detail {

/// Reads a SentencePiece model of the type BPE or Unigram. Unknown settings that change tokens are
/// errors. Source: sentencepiece_model.proto of sentencepiece 0.2.
class SentencePieceReader {
 public:
  SentencePieceReader(const std::filesystem::path& path, std::string_view bytes)
      : path_(path), file_(bytes, path.string()), table_(path.string()) {}

  BytePairModel read() {
    file_.each([this](const Field& field) {
      if (field.number == 1) piece(field.fields());
      if (field.number == 2) trainer(field.fields());
      if (field.number == 3) normalizer(field.fields(), "normalizer");
      has_trainer_ = has_trainer_ || field.number == 2;
      has_normalizer_ = has_normalizer_ || field.number == 3;
      if (field.number == 5) normalizer(field.fields(), "denormalizer");
    });
    if (!has_trainer_ || !has_normalizer_)
      refuse("the settings (trainer_spec and normalizer_spec) are missing from the file");
    if (is_suffix_ && escapes_) refuse("treat_whitespace_as_suffix is not supported");
    if (type_ != bpe && type_ != unigram)
      refuse(message("the type of a SentencePiece model must be BPE or UNIGRAM, but is ",
                     name_of_type()));
    if (!escapes_) refuse("a model without escape_whitespaces is not supported");
    add_pieces();
    if (type_ == bpe) find_merges();
    add_changes();
    const auto decoder = TokenDecoder::of_sentencepiece(has_byte_fallback_, leading_spaces());
    model_.leading_spaces = decoder.leading_spaces();
    model_.pairs = type_ == bpe
                       ? table_.characters(model_.added, decoder, has_byte_fallback_)
                       : table_.unigram(model_.added, decoder, has_byte_fallback_, -1, scores());
    return std::move(model_);
  }

 private:
  using Field = ProtobufReader::Field;

  static constexpr std::uint64_t unigram = 1;
  static constexpr std::uint64_t bpe = 2;
  /// Limits the time of trying all splits of a piece, which is quadratic in its length.
  static constexpr std::size_t longest_piece = 1024;

  enum class Kind { normal = 1, unknown, control, user_defined, unused, byte };
  struct Piece {
    std::string text;
    float score = 0;
    Kind kind = Kind::normal;
  };

  [[noreturn]] void refuse(std::string_view what) const {
    throw IoError(message(path_.string(), ": ", what, "; use another tokenizer"));
  }

  [[nodiscard]] std::string name_of_type() const {
    return type_ == 3 ? "WORD" : type_ == 4 ? "CHAR" : message(type_);
  }

  void piece(ProtobufReader fields) {
    Piece one;
    fields.each([&](const Field& field) {
      if (field.number == 1) one.text = field.text();
      if (field.number == 2) one.score = field.real();
      if (field.number != 3) return;
      const std::uint64_t kind = field.natural();
      if (kind < 1 || kind > 6)
        fields.fail(message("the type of a piece must be 1 to 6, but is ", kind));
      one.kind = static_cast<Kind>(kind);
    });
    const std::size_t place = pieces_.size();
    if (one.text.empty() || one.text.size() > longest_piece)
      fields.fail(message("piece ", place, " must have 1 to ", longest_piece, " bytes, but has ",
                          one.text.size()));
    if (utf8_until(one.text, 0, one.text.size()) != one.text.size())
      fields.fail(message("piece ", place, " is not valid UTF-8"));
    if (std::isnan(one.score))
      fields.fail(message("the score of piece ", place, " is not a number"));
    if (one.kind == Kind::unused)
      fields.fail(
          message("piece ", place, ", '", one.text, "', is unused, which is not supported"));
    pieces_.push_back(std::move(one));
  }

  void trainer(ProtobufReader fields) {
    fields.each([this](const Field& field) {
      if (field.number == 3) type_ = field.natural();
      if (field.number == 24) is_suffix_ = field.natural() != 0;
      if (field.number == 35) has_byte_fallback_ = field.natural() != 0;
    });
  }

  void normalizer(ProtobufReader fields, std::string_view name) {
    fields.each([&](const Field& field) {
      if (field.number == 2 && !field.text().empty()) map_characters(fields, name, field.text());
      if (name != "normalizer") return;
      if (field.number == 3) has_prefix_ = field.natural() != 0;
      if (field.number == 4) removes_spaces_ = field.natural() != 0;
      if (field.number == 5) escapes_ = field.natural() != 0;
    });
  }

  void map_characters(const ProtobufReader& fields, std::string_view name, std::string_view bytes) {
    if (name != "normalizer")
      fields.fail(message(
          "the ", name, " has a map of characters (precompiled_charsmap), which is not supported"));
    try {
      map_ = CharacterMap(bytes);
    } catch (const ConfigError& error) {
      fields.fail(error.what());
    }
  }

  /// Adds the changes that precede the search for user-defined pieces.
  void add_changes() {
    using Change = TextChange::Kind;
    const std::string mark(space_mark);
    if (removes_spaces_ || !map_.empty())
      model_.changes.push_back(
          {.kind = removes_spaces_ ? Change::map_and_join_spaces : Change::map_characters,
           .map = std::make_shared<const CharacterMap>(map_)});
    if (has_prefix_) model_.changes.push_back({.kind = Change::prepend, .text = mark});
    model_.changes.push_back({.kind = Change::replace, .from = " ", .text = mark});
    if (removes_spaces_) model_.changes.push_back({.kind = Change::remove_at_end, .text = mark});
    for (const Piece& one : pieces_) {
      if (one.kind == Kind::user_defined && map_.changed(one.text) != one.text)
        refuse(message("the map of characters changes the user-defined piece '", one.text,
                       "', which is not supported"));
    }
  }

  /// Returns the number of spaces that decoding removes from the start of a text.
  [[nodiscard]] std::size_t leading_spaces() const {
    return removes_spaces_ ? longest_piece : has_prefix_ ? 1 : 0;
  }

  /// Returns the scores of a Unigram model, in which user-defined pieces are the most probable.
  [[nodiscard]] Unigram scores() const {
    constexpr float unknown_penalty = 10;
    Unigram model{.is_single = true};
    float least = std::numeric_limits<float>::max();
    float most = std::numeric_limits<float>::min();
    for (const Piece& one : pieces_) {
      if (one.kind != Kind::normal) continue;
      least = std::min(least, one.score);
      most = std::max(most, one.score);
    }
    for (const Piece& one : pieces_) {
      const float best_score = static_cast<float>(one.text.size()) * most;
      model.scores.push_back(one.kind == Kind::user_defined ? best_score - 0.1 : one.score);
    }
    model.unknown_score = least - unknown_penalty;
    return model;
  }

  void add_pieces() {
    for (std::size_t i = 0; i < pieces_.size(); ++i) {
      const Piece& one = pieces_[i];
      const auto token = static_cast<std::int32_t>(i);
      const bool is_scored = type_ == unigram && one.kind == Kind::user_defined;
      if (one.kind == Kind::normal || one.kind == Kind::byte || is_scored) {
        table_.add(one.text, token);
      } else {
        const bool is_user_defined = one.kind == Kind::user_defined;
        model_.added.push_back({.text = one.text,
                                .token = token,
                                .is_special = !is_user_defined,
                                .is_normalised = is_user_defined});
      }
      if (one.kind == Kind::normal) normal_.emplace(one.text);
      if (one.kind == Kind::byte && !byte_of_name(one.text).has_value())
        refuse(
            message("the piece ", i, ", '", one.text, "', must represent a byte, such as <0x0A>"));
    }
  }

  /// Two tokens merge if their concatenated texts are a normal piece. Pieces with higher scores
  /// merge first.
  void find_merges() {
    std::vector<const Piece*> sorted;
    for (const Piece& one : pieces_)
      if (one.kind == Kind::normal) sorted.push_back(&one);
    std::stable_sort(sorted.begin(), sorted.end(),
                     [](const Piece* a, const Piece* b) { return a->score > b->score; });
    std::int32_t rank = 0;
    for (std::size_t i = 0; i < sorted.size(); ++i) {
      if (i > 0 && sorted[i]->score < sorted[i - 1]->score) ++rank;
      const std::string_view text = sorted[i]->text;
      for (std::size_t cut = 0; cut < text.size();) {
        const std::size_t length = first_character(text.substr(cut)).length;
        if (normal_.find(std::string(text.substr(cut, length))) == normal_.end())
          refuse(message("the piece '", text, "' has the character '", text.substr(cut, length),
                         "', which is not a piece"));
        const std::string left(text.substr(0, cut));
        const std::string right(text.substr(cut));
        if (normal_.count(left) > 0 && normal_.count(right) > 0)
          table_.add_merge({left, right}, rank);
        cut += length;
      }
    }
  }

  const std::filesystem::path& path_;
  ProtobufReader file_;
  TokenTable table_;
  BytePairModel model_;
  std::vector<Piece> pieces_;
  std::unordered_set<std::string> normal_;  ///< texts of normal pieces
  CharacterMap map_;
  std::uint64_t type_ = unigram;
  bool has_byte_fallback_ = false;
  bool has_prefix_ = true;
  bool removes_spaces_ = true;
  bool escapes_ = true;
  bool is_suffix_ = false;
  bool has_trainer_ = false;
  bool has_normalizer_ = false;
};

}  // namespace detail

/// Returns whether a file may be a SentencePiece model: it begins with a piece. No tiktoken file
/// begins with this byte, a newline.
/// @throws IoError  if the file cannot be read
[[nodiscard]] inline bool is_sentencepiece(const std::filesystem::path& path) {
  std::uint8_t first = 0;
  detail::OpenFile file(path);
  return file.read({&first, 1}) == 1 && first == 0x0a;
}

/// Reads a tokenizer from a SentencePiece model of the type BPE, such as the tokenizer.model of
/// Llama 2, Mistral and Gemma, or Unigram, which sentencepiece trains by default. Control pieces
/// are its special tokens.
/// @throws IoError  naming the file and, if possible, the byte, if the file cannot be read, is not
///                  a valid model, is of another type, or has settings that are not supported
[[nodiscard]] inline BytePairTokenizer load_sentencepiece(const std::filesystem::path& path) {
  const std::string bytes = read_whole_file(path, detail::max_tokenizer_bytes);
  return BytePairTokenizer(detail::SentencePieceReader(path, bytes).read());
}

}  // namespace octavo
