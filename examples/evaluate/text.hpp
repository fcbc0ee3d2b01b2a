// The text to evaluate.
#pragma once

#include <octavo/data/data_files.hpp>
#include <octavo/data/tokenizer.hpp>
#include <octavo/octavo.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace evaluate {

/// Tokens that a model must predict.
struct EvaluatedText {
  octavo::Tokens tokens;
  std::optional<octavo::Index> bytes{};  ///< bytes of the text of the tokens, if known
};

namespace detail {

/// Tokens of an encoded text.
class EncodedTokens final : public octavo::TokenSource {
 public:
  explicit EncodedTokens(std::vector<std::int32_t> tokens) : tokens_(std::move(tokens)) {}

  [[nodiscard]] octavo::Index size() const override {
    return static_cast<octavo::Index>(tokens_.size());
  }
  void read(octavo::Index first, std::span<std::int32_t> tokens) const override {
    std::copy_n(tokens_.begin() + first, tokens.size(), tokens.begin());
  }
  [[nodiscard]] std::uint64_t hash(octavo::Index first, octavo::Index count) const override {
    octavo::detail::WordHash hash;
    for (octavo::Index i = first; i < first + count; ++i)
      hash.add(static_cast<std::uint64_t>(tokens_[static_cast<std::size_t>(i)]));
    return hash.value();
  }

 private:
  std::vector<std::int32_t> tokens_;
};

}  // namespace detail

/// Encodes text, or opens token files, as named by --data.
/// @param data          the files that were read
/// @param tokenizer     tokenizer of text
/// @param document_end  follows each text (a file, or a line of JSON Lines), which is encoded
///                      separately; if empty, all texts are concatenated first
/// @param vocabulary    size of the model's vocabulary
/// @throws ConfigError  if the text cannot be encoded, or has tokens outside the model's vocabulary
inline EvaluatedText evaluated_text(const octavo::Data& data, const octavo::Tokenizer& tokenizer,
                                    std::optional<std::int32_t> document_end,
                                    octavo::Index vocabulary,
                                    const octavo::Context<octavo::Cpu>& context) {
  std::vector<octavo::Tokens> parts;
  parts.reserve(data.train.size());
  for (const octavo::TokenShare& share : data.train) parts.push_back(share.tokens);
  EvaluatedText result{octavo::joined(std::move(parts))};
  if (!data.is_text) return result;
  const octavo::Index bytes = result.tokens.size();
  result.bytes = bytes;
  std::vector<std::int32_t> values(static_cast<std::size_t>(bytes));
  result.tokens.read(0, values);
  const std::string text(values.begin(), values.end());
  std::vector<std::string_view> documents;
  if (document_end.has_value()) {
    std::string_view rest = text;
    for (std::size_t share = 0; share < data.train.size(); ++share) {
      for (const octavo::TextPlace& place : data.texts[share]) {
        documents.push_back(rest.substr(place.begin, place.bytes));
      }
      rest.remove_prefix(static_cast<std::size_t>(data.train[share].tokens.size()));
    }
  } else {
    documents.emplace_back(text);
  }
  std::vector<std::int32_t> tokens;
  for (const std::vector<std::int32_t>& of_document : tokenizer.encode_all(documents, context)) {
    tokens.insert(tokens.end(), of_document.begin(), of_document.end());
    if (document_end.has_value()) tokens.push_back(*document_end);
  }
  const auto largest = std::ranges::max_element(tokens);
  octavo::require<octavo::ConfigError>(largest == tokens.end() || *largest < vocabulary,
                                       data.train.front().name, ": the tokenizer's token ",
                                       largest == tokens.end() ? 0 : *largest,
                                       " is outside the model's vocabulary of ", vocabulary,
                                       "; pass the tokenizer that the model was trained with");
  result.tokens = octavo::Tokens(std::make_shared<detail::EncodedTokens>(std::move(tokens)));
  return result;
}

}  // namespace evaluate
