/// @file
/// A model that goes on with a text, without its type.
#pragma once

#include <octavo/core/error.hpp>
#include <octavo/models/model.hpp>

#include <cstdint>
#include <span>

namespace octavo OCTAVO_ABI {

/// A text in tokens, and a model that says what may follow: what `generate` draws from, and what
/// programs that choose model and precision at run time hold.
class TextModel {
 public:
  TextModel() = default;
  TextModel(const TextModel&) = delete;
  TextModel& operator=(const TextModel&) = delete;
  virtual ~TextModel() = default;

  [[nodiscard]] virtual const ModelFacts& facts() const = 0;
  /// Tokens of the text so far.
  [[nodiscard]] virtual Index length() const = 0;
  /// Tokens of a text, at most.
  [[nodiscard]] virtual Index longest() const = 0;

  /// Forgets all but the first tokens of the text.
  /// @param length  of what is left, at most `length()`
  /// @throws UsageError  for more
  virtual void truncate(Index length) = 0;

  /// Adds tokens to the text.
  /// @param tokens  at least 1, and as many as there is room for
  /// @param logits  [vocabulary] of the token that follows them, written
  /// @throws ConfigError  for no tokens, more than the text has room for, or one outside of the
  ///                      vocabulary; nothing is added
  /// @throws ShapeError   for another number of logits
  virtual void append(std::span<const std::int32_t> tokens, std::span<float> logits) = 0;
};

namespace detail {

/// See TextModel::truncate.
inline void check_truncated(Index length, Index current) {
  require<UsageError>(length >= 0 && length <= current, "a text of ", current,
                      " tokens is to be cut to ", length, "; give 0 to ", current);
}

/// See TextModel::append.
inline void check_appended(const TextModel& model, std::span<const std::int32_t> tokens,
                           std::size_t logits) {
  const auto count = static_cast<Index>(tokens.size());
  const Index vocabulary = model.facts().vocabulary;
  require<ConfigError>(count > 0, "a text is to go on by no tokens; give at least 1");
  require<ConfigError>(count <= model.longest() - model.length(), "a text of ", model.length(),
                       " tokens is to go on by ", count, ", but there is room for ",
                       model.longest(), "; give fewer, or make room for a longer text");
  require<ShapeError>(static_cast<Index>(logits) == vocabulary, "there is room for ", logits,
                      " logits; the model has ", vocabulary);
  for (const std::int32_t token : tokens) {
    require<ConfigError>(token >= 0 && token < vocabulary, "token ", token,
                         " lies outside of the vocabulary of ", vocabulary,
                         "; use the tokenizer that the model was made for");
  }
}

}  // namespace detail
}  // namespace octavo
