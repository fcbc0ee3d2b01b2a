/// @file
/// Batches of tokens: shuffled and resumable for training, fixed for evaluation.
#pragma once

#include <octavo/core/device.hpp>
#include <octavo/core/error.hpp>
#include <octavo/core/random.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

namespace octavo::inline OCTAVO_ABI {

/// The two parts of a text.
struct TokenSplit {
  std::span<const std::uint8_t> train;
  std::span<const std::uint8_t> validation;
};

/// Splits off the end of a text for validation.
/// @param fraction  of the tokens that are for validation, between 0 and 1
/// @param minimum   number of tokens that validation gets even where `fraction` gives fewer
/// @throws ConfigError  if `fraction` is out of range, or nothing would be left to train on
[[nodiscard]] inline TokenSplit split_validation(std::span<const std::uint8_t> tokens,
                                                 double fraction = 0.1, Index minimum = 2) {
  require<ConfigError>(fraction > 0.0 && fraction < 1.0, "validation fraction is ", fraction,
                       "; give a number between 0 and 1, such as 0.1");
  require<ConfigError>(minimum >= 2, "minimum of validation tokens is ", minimum,
                       "; give at least 2, an input and its target");
  const auto count = static_cast<Index>(tokens.size());
  const auto share = static_cast<Index>(std::floor(fraction * static_cast<double>(count)));
  const Index validation = std::max(share, minimum);
  require<ConfigError>(validation < count, "the text has ", count, " tokens and validation needs ",
                       validation,
                       " of them, which leaves none to train on; give more text, or lower the "
                       "sequence length");
  const auto train = static_cast<std::size_t>(count - validation);
  return {tokens.first(train), tokens.subspan(train)};
}

namespace detail {

inline void require_batch_shape(Index sequences, Index sequence_length) {
  require<ConfigError>(sequences >= 1, "sequences is ", sequences, "; give at least 1");
  require<ConfigError>(sequence_length >= 1, "sequence length is ", sequence_length,
                       "; give at least 1");
  // A batch of more tokens could not be counted, let alone allocated.
  require<ConfigError>(sequences <= std::numeric_limits<std::int32_t>::max() / sequence_length,
                       "a batch of ", sequences, " sequences of ", sequence_length,
                       " tokens is too large; lower the batch or the sequence length");
}

inline void require_batch_room(std::size_t inputs, std::size_t targets, Index needed) {
  require<ShapeError>(static_cast<Index>(inputs) == needed && static_cast<Index>(targets) == needed,
                      "room for ", inputs, " inputs and ", targets, " targets; a batch has ",
                      needed, " of each (sequences * sequence length)");
}

}  // namespace detail

/// Settings of a `TokenStream`.
struct TokenStreamOptions {
  Index sequences = 1;          ///< windows in a batch
  Index sequence_length = 128;  ///< tokens in a window
  std::uint64_t seed = 0;       ///< of the order of windows
  bool shuffle = true;          ///< false: in the order of the text, in every epoch
};

/// An endless stream of training batches over tokens that the caller keeps alive.
///
/// An epoch cuts the text into windows of `sequence_length` tokens that do not overlap; the target
/// of a window's last token is the first token of the next. Each epoch begins its first window at
/// another random offset below `sequence_length` and visits every window once, in random order;
/// tokens before the first window and after the last are left out of that epoch. Windows that do
/// not fill a batch are not dropped: the batch takes the rest from the next epoch.
///
/// What the stream yields depends on text, sequence length, seed and shuffle only, not on the
/// number of sequences in a batch, nor on the standard library.
class TokenStream {
 public:
  /// Where a stream stands. `source` identifies text and options, so that a state is not taken up
  /// by another stream.
  struct State {
    std::uint64_t epoch = 0;
    Index position = 0;  ///< windows of this epoch that were handed out
    std::uint64_t source = 0;

    friend bool operator==(const State&, const State&) = default;
  };

  /// @throws ConfigError  if an option is out of range, or the text is shorter than
  ///                      (sequences + 1) * sequence_length tokens
  TokenStream(std::span<const std::uint8_t> tokens, TokenStreamOptions options)
      : tokens_(tokens), options_(options) {
    const Index length = options.sequence_length;
    detail::require_batch_shape(options.sequences, length);
    const auto count = static_cast<Index>(tokens.size());
    // Then each epoch has the windows of a batch, whatever its offset.
    const Index needed = (options.sequences + 1) * length;
    require<ConfigError>(count >= needed, "the text has ", count, " tokens, but a batch of ",
                         options.sequences, " sequences of ", length, " tokens needs at least ",
                         needed, "; give more text, or lower the sequence length or the batch");
    source_ = identify();
    order_.resize(static_cast<std::size_t>((count - 1) / length));
    begin_epoch(0);
  }

  /// Fills the next batch; target[s, t] is the token after input[s, t].
  /// @param inputs   [sequences, sequence_length]
  /// @param targets  [sequences, sequence_length]
  /// @throws ShapeError  if a span has another size
  void next(std::span<std::int32_t> inputs, std::span<std::int32_t> targets) {
    const auto length = static_cast<std::size_t>(options_.sequence_length);
    detail::require_batch_room(inputs.size(), targets.size(),
                               options_.sequences * options_.sequence_length);
    for (std::size_t at = 0; at < inputs.size(); at += length) {
      const auto window = tokens_.subspan(next_window(), length + 1);
      for (std::size_t t = 0; t < length; ++t) {
        inputs[at + t] = window[t];
        targets[at + t] = window[t + 1];
      }
    }
  }

  /// Epochs that were handed out; 1.5 is the middle of the second.
  [[nodiscard]] double epoch() const {
    return static_cast<double>(epoch_) +
           static_cast<double>(position_) / static_cast<double>(windows_);
  }

  [[nodiscard]] State state() const { return {epoch_, position_, source_}; }

  /// Continues where the stream that gave `state` stood.
  /// @throws ConfigError  if that stream had another text, sequence length, seed or shuffle
  void restore(const State& state) {
    require<ConfigError>(state.source == source_,
                         "the state belongs to another stream; resume with the text, sequence "
                         "length, seed and shuffle of the run that saved it");
    const Index windows = windows_after(offset_of(state.epoch));
    require<ConfigError>(state.position >= 0 && state.position <= windows, "the state says window ",
                         state.position, " of epoch ", state.epoch, ", which has ", windows,
                         "; the state is damaged, take an older one");
    begin_epoch(state.epoch);
    position_ = state.position;
  }

 private:
  /// Random numbers of an epoch; the constant ("token" in ASCII) keeps them apart from whatever
  /// else draws from the same seed.
  [[nodiscard]] std::uint64_t random_below(std::uint64_t bound, std::uint64_t epoch,
                                           Index position) const {
    const RandomStream stream{options_.seed, 0x746f6b656e000000u + epoch};
    const auto words = philox(stream, static_cast<std::uint64_t>(position));
    // 64 bits over a bound below 2^32 leave a bias below 2^-32.
    return ((std::uint64_t{words[0]} << 32) | words[1]) % bound;
  }

  [[nodiscard]] Index offset_of(std::uint64_t epoch) const {
    if (!options_.shuffle) return 0;
    const auto length = static_cast<std::uint64_t>(options_.sequence_length);
    return static_cast<Index>(random_below(length, epoch, 0));
  }

  [[nodiscard]] Index windows_after(Index offset) const {
    return (static_cast<Index>(tokens_.size()) - 1 - offset) / options_.sequence_length;
  }

  void begin_epoch(std::uint64_t epoch) {
    epoch_ = epoch;
    position_ = 0;
    offset_ = offset_of(epoch);
    windows_ = windows_after(offset_);
    for (Index i = 0; i < windows_; ++i) order_[static_cast<std::size_t>(i)] = i;
    if (!options_.shuffle) return;
    // Fisher and Yates; std::shuffle gives another order with each standard library.
    for (Index i = windows_ - 1; i > 0; --i) {
      const std::uint64_t other = random_below(static_cast<std::uint64_t>(i) + 1, epoch, i);
      std::swap(order_[static_cast<std::size_t>(i)], order_[other]);
    }
  }

  /// Position of the next window's first token.
  std::size_t next_window() {
    if (position_ == windows_) begin_epoch(epoch_ + 1);
    const Index window = order_[static_cast<std::size_t>(position_++)];
    return static_cast<std::size_t>(offset_ + window * options_.sequence_length);
  }

  /// FNV-1a of what decides the order and content of batches.
  [[nodiscard]] std::uint64_t identify() const {
    std::uint64_t hash = 0xcbf29ce484222325u;
    const auto add = [&hash](std::uint64_t value) { hash = (hash ^ value) * 0x100000001b3u; };
    for (const std::uint8_t token : tokens_) add(token);
    add(static_cast<std::uint64_t>(options_.sequence_length));
    add(options_.seed);
    add(options_.shuffle ? 1 : 0);
    return hash;
  }

  std::span<const std::uint8_t> tokens_;
  TokenStreamOptions options_;
  std::vector<Index> order_;  ///< the epoch's windows in the order of visit
  std::uint64_t source_ = 0;
  std::uint64_t epoch_ = 0;
  Index position_ = 0;
  Index offset_ = 0;
  Index windows_ = 0;
};

/// Settings of a `ValidationSet`.
struct ValidationOptions {
  Index sequences = 1;          ///< windows in a batch
  Index sequence_length = 128;  ///< tokens in a window
  Index max_batches = std::numeric_limits<Index>::max();
};

/// The same batches in every evaluation: windows in the order of the text, without overlap. Each
/// token but the first is a target once, unless `max_batches` ends the set before. What the last
/// batch has too much of is input 0 with target −1, which no loss counts.
class ValidationSet {
 public:
  static constexpr std::int32_t ignored_target = -1;

  /// @param tokens  the caller keeps them alive
  /// @throws ConfigError  if an option is out of range, or there are fewer than two tokens
  ValidationSet(std::span<const std::uint8_t> tokens, ValidationOptions options)
      : tokens_(tokens), options_(options) {
    detail::require_batch_shape(options.sequences, options.sequence_length);
    require<ConfigError>(options.max_batches >= 1, "max_batches is ", options.max_batches,
                         "; give at least 1");
    require<ConfigError>(tokens.size() >= 2, "the validation text has ", tokens.size(),
                         " tokens, but an input and its target need 2; give more text, or raise "
                         "the validation fraction");
  }

  [[nodiscard]] Index batches() const {
    const Index targets = static_cast<Index>(tokens_.size()) - 1;
    return std::min(options_.max_batches, (targets + batch_tokens() - 1) / batch_tokens());
  }

  /// Targets of all batches that a loss counts.
  [[nodiscard]] Index tokens() const {
    return std::min(static_cast<Index>(tokens_.size()) - 1, batches() * batch_tokens());
  }

  /// Fills batch `batch`, 0 ≤ batch < batches().
  /// @param inputs   [sequences, sequence_length]
  /// @param targets  [sequences, sequence_length]; −1 where there is none
  /// @throws ShapeError  if there is no such batch, or a span has another size
  void get(Index batch, std::span<std::int32_t> inputs, std::span<std::int32_t> targets) const {
    require<ShapeError>(batch >= 0 && batch < batches(), "batch ", batch, " of a set of ",
                        batches(), "; batches count from 0");
    detail::require_batch_room(inputs.size(), targets.size(), batch_tokens());
    const auto first = static_cast<std::size_t>(batch * batch_tokens());
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const bool counts = first + i + 1 < tokens_.size();
      inputs[i] = counts ? std::int32_t{tokens_[first + i]} : 0;
      targets[i] = counts ? std::int32_t{tokens_[first + i + 1]} : ignored_target;
    }
  }

 private:
  [[nodiscard]] Index batch_tokens() const { return options_.sequences * options_.sequence_length; }

  std::span<const std::uint8_t> tokens_;
  ValidationOptions options_;
};

}  // namespace octavo
