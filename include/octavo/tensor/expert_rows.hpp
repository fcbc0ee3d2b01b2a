/// @file
/// The order of tokens by expert in a mixture of experts.
#pragma once

#include <octavo/tensor/tensor_view.hpp>

#include <algorithm>
#include <cstdint>

namespace octavo OCTAVO_ABI {

/// The rows of each expert begin at a multiple of this number. A tile of a GEMM and a block of
/// scales therefore belong to one expert.
inline constexpr Index expert_tile = 128;

/// Returns the number of rows that suffice for any distribution of `pairs` (token, choice) pairs
/// over `experts`: a multiple of `expert_tile`. At most `pairs` experts have rows.
constexpr Index expert_row_count(Index pairs, Index experts) {
  return (pairs + std::min(pairs, experts) * (expert_tile - 1)) / expert_tile * expert_tile;
}

/// The rows of a mixture of experts. Each token has `choices` pairs, one for each expert that it
/// chooses, and each pair has a row. The rows of expert 0 come first, in the order of their pairs,
/// then padding up to a multiple of `expert_tile`, then the rows of expert 1, and so on. No pair is
/// dropped. The counts are known only on the device, so that a step can be recorded once: all sizes
/// are those of the worst case, and rows after the last expert's are unused.
template <Device D>
struct ExpertRows {
  /// [rows]: token · choices + choice; -1 for padding and for unused rows.
  TensorView<std::int32_t, 1, D> pairs;
  TensorView<std::int32_t, 2, D> places;  ///< [tokens, choices]: the row of each pair
  TensorView<std::int32_t, 1, D>
      offsets;  ///< [experts + 1]: each expert's first row, then the first unused row
  TensorView<std::int32_t, 1, D> tiles;  ///< [rows / expert_tile]: experts; -1 for unused tiles

  [[nodiscard]] OCTAVO_HOST_DEVICE Index rows() const { return pairs.extent(0); }
  [[nodiscard]] OCTAVO_HOST_DEVICE Index tokens() const { return places.extent(0); }
  [[nodiscard]] OCTAVO_HOST_DEVICE Index choices() const { return places.extent(1); }
  [[nodiscard]] OCTAVO_HOST_DEVICE Index experts() const { return offsets.extent(0) - 1; }
};

}  // namespace octavo
