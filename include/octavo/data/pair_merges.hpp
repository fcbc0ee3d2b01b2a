/// @file
/// A hash table of pairs of tokens.
#pragma once

#include <octavo/core/version.hpp>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace octavo OCTAVO_ABI::detail {

/// The token that two adjacent tokens merge to, and its rank: lower ranks merge first.
struct PairMerge {
  std::int32_t rank = std::numeric_limits<std::int32_t>::max();
  std::int32_t token = -1;

  [[nodiscard]] bool exists() const { return token >= 0; }
};

/// A hash table from pairs of tokens to their merges.
class PairMerges {
 public:
  /// @param count  maximum number of pairs
  explicit PairMerges(std::size_t count = 0)
      : slots_(std::bit_ceil(2 * count + 2)), mask_(slots_.size() - 1) {}

  /// Adds a pair.
  /// @return false, without a change, if the table has the pair
  bool add(std::int32_t left, std::int32_t right, PairMerge merge) {
    const std::uint64_t key = key_of(left, right);
    std::size_t at = place_of(key);
    while (slots_[at].merge.exists()) {
      if (slots_[at].key == key) return false;
      at = (at + 1) & mask_;
    }
    slots_[at] = {key, merge};
    return true;
  }

  [[nodiscard]] PairMerge find(std::int32_t left, std::int32_t right) const {
    const std::uint64_t key = key_of(left, right);
    std::size_t at = place_of(key);
    while (slots_[at].merge.exists() && slots_[at].key != key) at = (at + 1) & mask_;
    return slots_[at].merge;
  }

 private:
  struct Slot {
    std::uint64_t key = 0;
    PairMerge merge;
  };

  static std::uint64_t key_of(std::int32_t left, std::int32_t right) {
    return (std::uint64_t{static_cast<std::uint32_t>(left)} << 32) |
           static_cast<std::uint32_t>(right);
  }
  [[nodiscard]] std::size_t place_of(std::uint64_t key) const {
    const std::uint64_t mixed = (key ^ (key >> 32)) * 0x9e3779b97f4a7c15u;
    return static_cast<std::size_t>(mixed >> 32) & mask_;
  }

  std::vector<Slot> slots_;
  std::size_t mask_;
};

}  // namespace octavo OCTAVO_ABI::detail
