/// @file
/// A random permutation that is computed instead of stored.
#pragma once

#include <octavo/core/device.hpp>
#include <octavo/core/random.hpp>

#include <bit>
#include <cstdint>

namespace octavo OCTAVO_ABI {

/// A random permutation of the numbers below `size`. Each element is computed separately, in the
/// same time and memory for 2^40 numbers as for ten.
///
/// A Feistel network permutes the numbers of an even number of bits, at most four times `size`; a
/// number beyond `size` is permuted again until it is below. Source: Black and Rogaway, "Ciphers
/// with arbitrary finite domains", CT-RSA 2002.
class Permutation {
 public:
  /// @param size    at least 1
  /// @param stream  random numbers; permutations of different streams are independent
  Permutation(Index size, RandomStream stream)
      : size_(static_cast<std::uint64_t>(size)),
        stream_(stream),
        half_bits_((static_cast<int>(std::bit_width(size_ - 1)) + 1) / 2) {}

  /// Returns the element at `place`, 0 ≤ place < size.
  [[nodiscard]] Index operator()(Index place) const {
    auto number = static_cast<std::uint64_t>(place);
    do {
      number = permuted(number);
    } while (number >= size_);
    return static_cast<Index>(number);
  }

 private:
  /// Three rounds are pseudorandom in theory; small halves need more rounds.
  static constexpr std::uint64_t rounds = 10;

  [[nodiscard]] std::uint64_t permuted(std::uint64_t number) const {
    const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
    std::uint64_t left = number >> half_bits_;
    std::uint64_t right = number & mask;
    for (std::uint64_t round = 0; round < rounds; ++round) {
      const std::uint64_t random = random_word(stream_, round << 32 | right);
      const std::uint64_t next = left ^ (random & mask);
      left = right;
      right = next;
    }
    return left << half_bits_ | right;
  }

  std::uint64_t size_;
  RandomStream stream_;
  int half_bits_;
};

}  // namespace octavo
