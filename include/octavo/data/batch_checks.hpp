/// @file
/// Checks of arguments that all sources of batches share.
#pragma once

#include <octavo/core/device.hpp>
#include <octavo/core/error.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>

namespace octavo OCTAVO_ABI {

namespace detail {

inline void require_batch_shape(Index sequences, Index sequence_length) {
  require<ConfigError>(sequences >= 1, "sequences must be at least 1, but is ", sequences);
  require<ConfigError>(sequence_length >= 1, "sequence length must be at least 1, but is ",
                       sequence_length);
  // The number of tokens of a larger batch would overflow.
  require<ConfigError>(sequences <= std::numeric_limits<std::int32_t>::max() / sequence_length,
                       "a batch of ", sequences, " sequences of ", sequence_length,
                       " tokens is too large; reduce the batch or the sequence length");
}

/// Ranks are numbered from 0 to `ranks` - 1.
inline void require_rank(int rank, int ranks) {
  require<ConfigError>(ranks >= 1, "the number of ranks must be at least 1, but is ", ranks);
  require<ConfigError>(rank >= 0 && rank < ranks, "rank must be 0 to ", ranks - 1, " of ", ranks,
                       " ranks, but is ", rank);
}

inline void require_batch_room(std::size_t inputs, std::size_t targets, Index needed) {
  require<ShapeError>(static_cast<Index>(inputs) == needed && static_cast<Index>(targets) == needed,
                      "a batch needs room for ", needed,
                      " inputs and targets (sequences * sequence length), but there is room for ",
                      inputs, " and ", targets);
}

}  // namespace detail

}  // namespace octavo
