/// @file
/// Consecutive tokens, in memory or in files.
#pragma once

#include <octavo/core/device.hpp>
#include <octavo/core/error.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace octavo OCTAVO_ABI {

namespace detail {

/// A hash of 64-bit words (FNV-1a, a word at a time).
class WordHash {
 public:
  void add(std::uint64_t word) { value_ = (value_ ^ word) * 0x100000001b3u; }
  [[nodiscard]] std::uint64_t value() const { return value_; }

 private:
  std::uint64_t value_ = 0xcbf29ce484222325u;
};

}  // namespace detail

/// A source of tokens. Several threads may read concurrently.
class TokenSource {
 public:
  virtual ~TokenSource() = default;

  /// Returns the number of tokens.
  [[nodiscard]] virtual Index size() const = 0;
  /// Copies the tokens from `first` on. The source must have enough.
  /// @throws IoError  naming file and byte, if they cannot be read or are outside of the vocabulary
  virtual void read(Index first, std::span<std::int32_t> tokens) const = 0;
  /// Returns a hash of the tokens. The source defines which tokens it includes.
  [[nodiscard]] virtual std::uint64_t hash(Index first, Index count) const = 0;
};

namespace detail {

/// The bytes of a text as tokens.
class TextTokens final : public TokenSource {
 public:
  explicit TextTokens(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}
  explicit TextTokens(std::vector<std::uint8_t> bytes) : own_(std::move(bytes)), bytes_(own_) {}
  TextTokens(const TextTokens&) = delete;
  TextTokens& operator=(const TextTokens&) = delete;

  [[nodiscard]] Index size() const override { return static_cast<Index>(bytes_.size()); }
  void read(Index first, std::span<std::int32_t> tokens) const override {
    std::ranges::copy(part(first, static_cast<Index>(tokens.size())), tokens.begin());
  }
  /// Of every token.
  [[nodiscard]] std::uint64_t hash(Index first, Index count) const override {
    WordHash hash;
    for (const std::uint8_t byte : part(first, count)) hash.add(byte);
    return hash.value();
  }

 private:
  [[nodiscard]] std::span<const std::uint8_t> part(Index first, Index count) const {
    return bytes_.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count));
  }

  std::vector<std::uint8_t> own_;
  std::span<const std::uint8_t> bytes_;
};

}  // namespace detail

/// Consecutive tokens: the bytes of a text in memory, the content of files, or a part of either.
/// Copies share their source.
class Tokens {
 public:
  /// Creates no tokens.
  Tokens() = default;
  /// Creates tokens from the bytes of a text, which must outlive this object.
  template <class Bytes>
    requires std::convertible_to<const Bytes&, std::span<const std::uint8_t>>
  Tokens(const Bytes& bytes)  // NOLINT: texts convert implicitly
      : Tokens(std::make_shared<detail::TextTokens>(std::span<const std::uint8_t>(bytes))) {}
  explicit Tokens(std::shared_ptr<const TokenSource> source)
      : source_(std::move(source)), size_(source_->size()) {}
  /// Creates tokens that own their text.
  [[nodiscard]] static Tokens owning(std::vector<std::uint8_t> bytes) {
    return Tokens(std::make_shared<detail::TextTokens>(std::move(bytes)));
  }

  [[nodiscard]] Index size() const { return size_; }

  /// Returns the `count` tokens from `first` on.
  /// @throws ShapeError  if there are fewer
  [[nodiscard]] Tokens part(Index first, Index count) const {
    require_part(first, count);
    Tokens result = *this;
    result.begin_ += first;
    result.size_ = count;
    return result;
  }

  /// Copies the tokens from `first` on.
  /// @throws ShapeError  if there are fewer
  /// @throws IoError     naming file and byte, if they cannot be read or are outside of the
  ///                     vocabulary
  void read(Index first, std::span<std::int32_t> tokens) const {
    require_part(first, static_cast<Index>(tokens.size()));
    if (!tokens.empty()) source_->read(begin_ + first, tokens);
  }

  /// Returns a hash of the tokens: of all tokens of a text, and of those of a file that `TokenFile`
  /// includes.
  [[nodiscard]] std::uint64_t hash() const { return size_ == 0 ? 0 : source_->hash(begin_, size_); }

 private:
  void require_part(Index first, Index count) const {
    require<ShapeError>(first >= 0 && count >= 0 && first <= size_ - count, "tokens ", first,
                        " to ", first + count, " must be within the ", size_, " tokens");
  }

  std::shared_ptr<const TokenSource> source_;
  Index begin_ = 0;
  Index size_ = 0;
};

namespace detail {

/// The concatenation of several tokens.
class JoinedTokens final : public TokenSource {
 public:
  explicit JoinedTokens(std::vector<Tokens> parts) : parts_(std::move(parts)) {
    for (const Tokens& part : parts_) ends_.push_back(size() + part.size());
  }

  [[nodiscard]] Index size() const override { return ends_.empty() ? 0 : ends_.back(); }
  void read(Index first, std::span<std::int32_t> tokens) const override {
    for_each_part(first, static_cast<Index>(tokens.size()),
                  [&](const Tokens& part, Index begin, Index count) {
                    part.read(begin, tokens.first(static_cast<std::size_t>(count)));
                    tokens = tokens.subspan(static_cast<std::size_t>(count));
                  });
  }
  [[nodiscard]] std::uint64_t hash(Index first, Index count) const override {
    WordHash hash;
    for_each_part(first, count, [&](const Tokens& part, Index begin, Index some) {
      hash.add(part.part(begin, some).hash());
    });
    return hash.value();
  }

 private:
  /// Calls `f(part, first, count)` for each part that contains some of the `count` tokens from
  /// `first` on.
  template <class F>
  void for_each_part(Index first, Index count, const F& f) const {
    auto place = static_cast<std::size_t>(std::ranges::upper_bound(ends_, first) - ends_.begin());
    for (; count > 0; ++place) {
      const Index begin = first - (ends_[place] - parts_[place].size());
      const Index some = std::min(count, parts_[place].size() - begin);
      f(parts_[place], begin, some);
      first += some;
      count -= some;
    }
  }

  std::vector<Tokens> parts_;
  std::vector<Index> ends_;  ///< end of each part, in the concatenation
};

}  // namespace detail

/// Concatenates tokens.
[[nodiscard]] inline Tokens joined(std::vector<Tokens> parts) {
  if (parts.size() == 1) return parts.front();
  return Tokens(std::make_shared<detail::JoinedTokens>(std::move(parts)));
}

/// Tokens that a run reads, and their weight.
struct TokenShare {
  std::string name;  ///< for messages
  Tokens tokens;
  double weight = 1.0;  ///< relative to the sum of all weights
};

}  // namespace octavo
