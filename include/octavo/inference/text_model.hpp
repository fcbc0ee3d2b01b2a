/// @file
/// The interface of models that continue a text.
#pragma once

#include <octavo/core/error.hpp>
#include <octavo/models/model.hpp>

#include <cstdint>
#include <span>

namespace octavo OCTAVO_ABI {

/// A text in tokens and a model that predicts the next token. `generate` samples from it, and
/// programs that choose model and precision at run time use it.
class TextModel {
 public:
  TextModel() = default;
  TextModel(const TextModel&) = delete;
  TextModel& operator=(const TextModel&) = delete;
  virtual ~TextModel() = default;

  [[nodiscard]] virtual const ModelFacts& facts() const = 0;
  /// Returns the number of tokens of the text so far.
  [[nodiscard]] virtual Index length() const = 0;
  /// Returns the maximum number of tokens of a text.
  [[nodiscard]] virtual Index longest() const = 0;
  /// Returns the maximum number of tokens that `append` processes together. `generate` can be
  /// stopped between such pieces of a prompt.
  [[nodiscard]] virtual Index piece() const { return longest(); }

  /// Removes all tokens of the text except the first `length`.
  /// @param length  at most `length()`
  /// @throws UsageError  if it is larger
  virtual void truncate(Index length) = 0;

  /// Appends tokens to the text.
  /// @param tokens  at least 1, at most `longest() - length()`
  /// @param logits  [vocabulary]: written, the logits of the next token; if empty, they are not
  ///                computed
  /// @throws ConfigError  if there are no tokens, too many tokens, or a token outside the
  /// vocabulary; the text does not change
  /// @throws ShapeError   if the number of logits is wrong
  virtual void append(std::span<const std::int32_t> tokens, std::span<float> logits) = 0;
};

namespace detail {

/// See TextModel::truncate.
inline void check_truncated(Index length, Index current) {
  require<UsageError>(length >= 0 && length <= current, "cannot truncate a text of ", current,
                      " tokens to ", length, "; pass 0 to ", current);
}

/// See TextModel::append.
inline void check_appended(const TextModel& model, std::span<const std::int32_t> tokens,
                           std::size_t logits) {
  const auto count = static_cast<Index>(tokens.size());
  const Index vocabulary = model.facts().vocabulary;
  require<ConfigError>(count > 0, "no tokens to append; pass at least one");
  require<ConfigError>(count <= model.longest() - model.length(), "cannot append ", count,
                       " tokens to a text of ", model.length(), ": the maximum length is ",
                       model.longest(),
                       "; pass fewer, or create the session with a larger `longest`");
  require<ShapeError>(logits == 0 || static_cast<Index>(logits) == vocabulary,
                      "the number of logits must be ", vocabulary, " or 0, but is ", logits);
  for (const std::int32_t token : tokens) {
    require<ConfigError>(token >= 0 && token < vocabulary, "token ", token,
                         " is outside the vocabulary of ", vocabulary,
                         "; use the model's tokenizer");
  }
}

}  // namespace detail
}  // namespace octavo
