/// @file
/// Shuffled, mixed and resumable batches of tokens for training.
#pragma once

#include <octavo/core/device.hpp>
#include <octavo/core/error.hpp>
#include <octavo/core/random.hpp>
#include <octavo/data/batch_checks.hpp>
#include <octavo/data/permutation.hpp>
#include <octavo/data/tokens.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace octavo OCTAVO_ABI {

/// Settings of a `TokenStream`.
struct TokenStreamOptions {
  Index sequences = 1;          ///< windows per batch
  Index sequence_length = 128;  ///< tokens per window
  std::uint64_t seed = 0;       ///< random seed of the order of windows
  bool shuffle = true;          ///< false: every epoch has the order of the text
};

/// The position of a stream, and the identity of the stream.
struct TokenPosition {
  /// The position in one share of the tokens.
  struct Share {
    std::int64_t epoch = 0;
    std::int64_t window = 0;  ///< number of windows of this epoch that were returned
    /// The lag of the share behind its weight, in fractions of a window. The weights of all shares
    /// add up to one window, and the lags of all shares to 0.
    std::int64_t lag = 0;

    friend bool operator==(const Share&, const Share&) = default;
  };

  std::vector<Share> shares;
  /// Hash of tokens and options, so that no other stream resumes from this position.
  std::uint64_t source = 0;

  friend bool operator==(const TokenPosition&, const TokenPosition&) = default;
};

/// An endless stream of training batches.
///
/// An epoch divides the tokens into non-overlapping windows of `sequence_length` tokens; the target
/// of a window's last token is the first token of the next window. In each epoch, the first window
/// begins at a different random offset below `sequence_length`, and every window is used once, in
/// an order that is computed (`Permutation`); tokens before the first window and after the last are
/// not used in that epoch. Windows that do not fill a batch are not dropped: the batch is filled
/// with windows of the next epoch.
///
/// Several shares have separate epochs. The next window comes from the share that lags the most
/// behind its weight. Of any n consecutive windows, the number that come from a share is therefore
/// n times its fraction of the total weight, to within a few windows.
///
/// The stream depends only on the shares, sequence length, seed and shuffle, not on the number of
/// sequences per batch or on the standard library.
class TokenStream {
 public:
  /// @throws ConfigError  if an option is out of range, or the text is shorter than
  ///                      (sequences + 1) * sequence_length tokens
  TokenStream(Tokens tokens, TokenStreamOptions options)
      : TokenStream(std::vector<TokenShare>{{"the text", std::move(tokens)}}, options) {}

  /// @throws ConfigError  if an option or a weight is out of range, or the tokens of a share are
  ///                      fewer than (its sequences in a batch + 1) * sequence_length
  TokenStream(std::vector<TokenShare> shares, TokenStreamOptions options) : options_(options) {
    detail::require_batch_shape(options.sequences, options.sequence_length);
    require<ConfigError>(!shares.empty(), "there are no training tokens; name some data");
    double total = 0;
    for (const TokenShare& share : shares) {
      require<ConfigError>(share.weight > 0 && std::isfinite(share.weight), share.name,
                           ": its weight must be positive, but is ", share.weight);
      total += share.weight;
    }
    require<ConfigError>(std::isfinite(total), "the sum of weights must be finite, but is ", total,
                         "; use smaller weights, such as fractions of 1");
    for (TokenShare& share : shares) add(std::move(share), total);
    position_.source = identify();
    window_.resize(static_cast<std::size_t>(options.sequence_length) + 1);
  }

  /// Fills the next batch; target[s, t] is the token after input[s, t].
  /// @param inputs   [sequences, sequence_length]
  /// @param targets  [sequences, sequence_length]
  /// @throws ShapeError  if a span has another size
  /// @throws IoError     if tokens cannot be read or are outside of the vocabulary
  void next(std::span<std::int32_t> inputs, std::span<std::int32_t> targets) {
    next(inputs, targets, 0, options_.sequences);
  }

  /// Fills `count` sequences of the next batch, beginning with number `first`, and skips the others
  /// without reading them.
  /// @param inputs   [count, sequence_length]
  /// @param targets  [count, sequence_length]
  /// @throws ShapeError  if a span has another size, or a batch lacks these sequences
  /// @throws IoError     if tokens cannot be read or are outside of the vocabulary
  void next(std::span<std::int32_t> inputs, std::span<std::int32_t> targets, Index first,
            Index count) {
    require<ShapeError>(first >= 0 && count >= 0 && first <= options_.sequences - count,
                        "sequences ", first, " to ", first + count, " are requested of a batch of ",
                        options_.sequences);
    detail::require_batch_room(inputs.size(), targets.size(), count * options_.sequence_length);
    const auto length = static_cast<std::size_t>(options_.sequence_length);
    for (Index i = 0; i < options_.sequences; ++i) {
      const std::size_t share = next_share();
      const Index begin = next_window(share);
      if (i < first || i >= first + count) continue;
      shares_[share].tokens.read(begin, window_);
      const std::size_t at = static_cast<std::size_t>(i - first) * length;
      std::copy_n(window_.begin(), length, inputs.begin() + static_cast<std::ptrdiff_t>(at));
      std::copy_n(window_.begin() + 1, length, targets.begin() + static_cast<std::ptrdiff_t>(at));
    }
  }

  /// Returns the number of epochs of the share with the most epochs; 1.5 is the middle of the
  /// second.
  [[nodiscard]] double epoch() const {
    double most = 0;
    for (std::size_t i = 0; i < shares_.size(); ++i) {
      const TokenPosition::Share& at = position_.shares[i];
      const double part = static_cast<double>(at.window) / static_cast<double>(shares_[i].windows);
      most = std::max(most, static_cast<double>(at.epoch) + part);
    }
    return most;
  }

  [[nodiscard]] const TokenPosition& position() const { return position_; }
  [[nodiscard]] const TokenStreamOptions& options() const { return options_; }

  /// Continues at the position of another stream.
  /// @throws ConfigError  if that stream had other tokens, sequence length, seed or shuffle, or
  ///                      the position is not valid
  void restore(const TokenPosition& position) {
    require<ConfigError>(
        position.source == position_.source && position.shares.size() == shares_.size(),
        "the saved state belongs to another stream; resume with the data, sequence "
        "length, seed and shuffle of the run that saved it");
    std::int64_t lags = 0;
    for (std::size_t i = 0; i < shares_.size(); ++i) {
      const TokenPosition::Share& at = position.shares[i];
      const Index windows = at.epoch < 0 ? 0 : windows_after(i, offset_of(i, at.epoch));
      require<ConfigError>(at.epoch >= 0 && at.window >= 0 && at.window <= windows,
                           "the saved state is at window ", at.window, " of epoch ", at.epoch,
                           ", which has ", windows, "; it is damaged, use an older one");
      const std::int64_t most = total_weight_ * static_cast<std::int64_t>(shares_.size());
      require<ConfigError>(at.lag >= -most && at.lag <= most, "in the saved state, share ", i,
                           " lags ", at.lag, " parts of a window behind, but at most ", most,
                           " are possible; it is damaged, use an older one");
      lags += at.lag;
    }
    require<ConfigError>(lags == 0, "in the saved state, the lags of all shares add up to ", lags,
                         " instead of 0; it is damaged, use an older one");
    for (std::size_t i = 0; i < shares_.size(); ++i) begin_epoch(i, position.shares[i].epoch);
    position_ = position;
  }

 private:
  struct Share {
    Tokens tokens;
    std::int64_t parts;  ///< its weight, in parts of a window
    Index offset = 0;    ///< of this epoch's first window
    Index windows = 0;   ///< of this epoch
  };

  void add(TokenShare share, double total) {
    const double part = share.weight / total;
    // Integers, so that no rounding errors accumulate.
    const auto parts = static_cast<std::int64_t>(std::max(1.0, std::floor(part * 0x1p32)));
    const Index length = options_.sequence_length;
    const double sequences = std::ceil(part * static_cast<double>(options_.sequences));
    // Each epoch then has enough windows for a batch, for any offset.
    const Index needed = (static_cast<Index>(sequences) + 1) * length;
    const Index count = share.tokens.size();
    require<ConfigError>(count >= needed, share.name, " has ", count, " tokens, but a batch of ",
                         options_.sequences, " sequences of ", length, " tokens needs at least ",
                         needed, "; add text, or reduce the sequence length or the batch");
    shares_.push_back({std::move(share.tokens), parts});
    position_.shares.push_back({});
    total_weight_ += parts;
    begin_epoch(shares_.size() - 1, 0);
  }

  /// Random numbers of an epoch of a share; the constants ("token" in ASCII, the golden ratio) make
  /// them independent of other random numbers of the same seed.
  [[nodiscard]] RandomStream random_of(std::size_t share, std::int64_t epoch) const {
    return {options_.seed + share * 0x9e3779b97f4a7c15u,
            0x746f6b656e000000u + static_cast<std::uint64_t>(epoch)};
  }

  [[nodiscard]] Index offset_of(std::size_t share, std::int64_t epoch) const {
    if (!options_.shuffle) return 0;
    constexpr std::uint64_t beyond_permutations = std::uint64_t{1} << 63;
    const auto words = philox(random_of(share, epoch), beyond_permutations);
    // 64 random bits modulo a length below 2^32 have a bias below 2^-32.
    const std::uint64_t random = (std::uint64_t{words[0]} << 32) | words[1];
    return static_cast<Index>(random % static_cast<std::uint64_t>(options_.sequence_length));
  }

  [[nodiscard]] Index windows_after(std::size_t share, Index offset) const {
    return (shares_[share].tokens.size() - 1 - offset) / options_.sequence_length;
  }

  void begin_epoch(std::size_t share, std::int64_t epoch) {
    shares_[share].offset = offset_of(share, epoch);
    shares_[share].windows = windows_after(share, shares_[share].offset);
    position_.shares[share].epoch = epoch;
    position_.shares[share].window = 0;
  }

  /// Returns the share of the next window: the first with the largest lag.
  std::size_t next_share() {
    std::size_t next = 0;
    for (std::size_t i = 0; i < shares_.size(); ++i) {
      position_.shares[i].lag += shares_[i].parts;
      if (position_.shares[i].lag > position_.shares[next].lag) next = i;
    }
    position_.shares[next].lag -= total_weight_;
    return next;
  }

  /// Returns the index of the first token of a share's next window.
  Index next_window(std::size_t share) {
    if (position_.shares[share].window == shares_[share].windows)
      begin_epoch(share, position_.shares[share].epoch + 1);
    const TokenPosition::Share& at = position_.shares[share];
    const Permutation order(shares_[share].windows, random_of(share, at.epoch));
    const Index window = options_.shuffle ? order(at.window) : at.window;
    ++position_.shares[share].window;
    return shares_[share].offset + window * options_.sequence_length;
  }

  /// Returns a hash of everything that determines the order and the content of batches.
  [[nodiscard]] std::uint64_t identify() const {
    detail::WordHash hash;
    for (const Share& share : shares_) {
      hash.add(share.tokens.hash());
      hash.add(static_cast<std::uint64_t>(share.parts));
    }
    hash.add(static_cast<std::uint64_t>(options_.sequence_length));
    hash.add(options_.seed);
    hash.add(options_.shuffle ? 1 : 0);
    return hash.value();
  }

  TokenStreamOptions options_;
  std::vector<Share> shares_;
  std::int64_t total_weight_ = 0;  ///< the sum of all weights, which is one window
  TokenPosition position_;
  std::vector<std::int32_t> window_;  ///< that is read, and its last target
};

}  // namespace octavo
