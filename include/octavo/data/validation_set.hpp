/// @file
/// The tokens of evaluations.
#pragma once

#include <octavo/core/context.hpp>
#include <octavo/core/error.hpp>
#include <octavo/data/batch_checks.hpp>
#include <octavo/data/tokens.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

namespace octavo OCTAVO_ABI {

/// Tokens for training and for validation.
struct TokenSplit {
  Tokens train;
  Tokens validation;
};

/// Splits off the end of a text for validation.
/// @param fraction  fraction of tokens for validation, between 0 and 1
/// @param minimum   minimum number of tokens for validation
/// @throws ConfigError  if `fraction` is out of range, or no training tokens remain
[[nodiscard]] inline TokenSplit split_validation(const Tokens& tokens, double fraction = 0.1,
                                                 Index minimum = 2) {
  require<ConfigError>(fraction > 0.0 && fraction < 1.0,
                       "validation fraction must be between 0 and 1, but is ", fraction);
  require<ConfigError>(minimum >= 2,
                       "minimum number of validation tokens must be at least 2 "
                       "(an input and its target), but is ",
                       minimum);
  const Index count = tokens.size();
  const auto share = static_cast<Index>(std::floor(fraction * static_cast<double>(count)));
  const Index validation = std::max(share, minimum);
  require<ConfigError>(validation < count, "the text has ", count, " tokens and validation needs ",
                       validation,
                       " of them, so none is left for training; add text, or reduce the sequence "
                       "length");
  return {tokens.part(0, count - validation), tokens.part(count - validation, validation)};
}

/// Splits off the ends of shares, each as `split_validation` does, and joins them.
/// @param shares  modified: the training tokens remain
/// @throws ConfigError  if the fraction is out of range, or no tokens of a share remain
[[nodiscard]] inline Tokens split_off_validation(std::vector<TokenShare>& shares, double fraction,
                                                 Index minimum) {
  std::vector<Tokens> ends;
  for (TokenShare& share : shares) {
    TokenSplit split = split_validation(share.tokens, fraction, minimum);
    share.tokens = std::move(split.train);
    ends.push_back(std::move(split.validation));
  }
  return joined(std::move(ends));
}

/// Settings of a `ValidationSet`.
struct ValidationOptions {
  Index sequences = 1;          ///< windows per batch
  Index sequence_length = 128;  ///< tokens per window
  Index max_batches = std::numeric_limits<Index>::max();
};

/// The same batches in every evaluation: windows in the order of the text, without overlap. Each
/// token except the first is a target once. If `max_batches` is too small for all windows, equally
/// spaced windows are used. The last batch is padded with input 0 and target −1, which losses
/// ignore.
class ValidationSet {
 public:
  static constexpr std::int32_t ignored_target = -1;

  /// @throws ConfigError  if an option is out of range, or there are fewer than two tokens
  ValidationSet(Tokens tokens, ValidationOptions options)
      : tokens_(std::move(tokens)), options_(options) {
    detail::require_batch_shape(options.sequences, options.sequence_length);
    require<ConfigError>(options.max_batches >= 1, "max_batches must be at least 1, but is ",
                         options.max_batches);
    require<ConfigError>(tokens_.size() >= 2, "the text to evaluate must have at least 2 tokens, ",
                         "an input and its target, but has ", tokens_.size(), "; add text");
    read_.resize(static_cast<std::size_t>(options.sequence_length) + 1);
  }

  [[nodiscard]] Index batches() const {
    return std::min(options_.max_batches, ceil_divide(tokens_.size() - 1, batch_tokens()));
  }

  /// Returns the number of targets of all batches, without padding.
  [[nodiscard]] Index tokens() const {
    return std::min(tokens_.size() - 1, batches() * batch_tokens());
  }

  /// Returns a hash of the tokens and of the windows. Losses of sets with equal hashes are
  /// comparable, even if their batch sizes differ.
  [[nodiscard]] std::uint64_t hash() const {
    const Index all = ceil_divide(tokens_.size() - 1, options_.sequence_length);
    detail::WordHash hash;
    hash.add(tokens_.hash());
    hash.add(static_cast<std::uint64_t>(options_.sequence_length));
    hash.add(static_cast<std::uint64_t>(std::min(all, batches() * options_.sequences)));
    return hash.value();
  }

  /// Fills batch `batch`, 0 ≤ batch < batches().
  /// @param inputs   [sequences, sequence_length]
  /// @param targets  [sequences, sequence_length]; −1 for padding
  /// @throws ShapeError  if there is no such batch, or a span has another size
  /// @throws IoError     if tokens cannot be read or are outside of the vocabulary
  void get(Index batch, std::span<std::int32_t> inputs, std::span<std::int32_t> targets) {
    require<ShapeError>(batch >= 0 && batch < batches(), "batch must be between 0 and ",
                        batches() - 1, ", but is ", batch);
    detail::require_batch_room(inputs.size(), targets.size(), batch_tokens());
    const auto length = static_cast<std::size_t>(options_.sequence_length);
    for (Index sequence = 0; sequence < options_.sequences; ++sequence) {
      get_window(place_of(batch * options_.sequences + sequence), inputs.first(length),
                 targets.first(length));
      inputs = inputs.subspan(length);
      targets = targets.subspan(length);
    }
  }

 private:
  /// Returns the index of the first token of a window.
  [[nodiscard]] Index place_of(Index window) const {
    const Index all = ceil_divide(tokens_.size() - 1, options_.sequence_length);
    const Index taken = batches() * options_.sequences;
    return (taken < all ? window * all / taken : window) * options_.sequence_length;
  }

  void get_window(Index first, std::span<std::int32_t> inputs, std::span<std::int32_t> targets) {
    const Index left = std::max<Index>(0, tokens_.size() - first);
    const auto count = static_cast<std::size_t>(std::min(options_.sequence_length + 1, left));
    if (count > 0) tokens_.read(first, std::span(read_).first(count));
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const bool counts = i + 1 < count;
      inputs[i] = counts ? read_[i] : 0;
      targets[i] = counts ? read_[i + 1] : ignored_target;
    }
  }

  [[nodiscard]] Index batch_tokens() const { return options_.sequences * options_.sequence_length; }

  Tokens tokens_;
  ValidationOptions options_;
  std::vector<std::int32_t> read_;  ///< of a window, and the target of its last token
};

}  // namespace octavo
