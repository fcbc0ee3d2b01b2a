/// @file
/// Division of attention to a KV cache among blocks on the `Cuda` device, and its workspace. Needs
/// no CUDA, so that any machine can plan memory.
#pragma once

#include <octavo/attention/cached_attention.hpp>

#include <algorithm>

namespace octavo OCTAVO_ABI {

namespace detail {

/// Number of query rows, of adjacent heads and then adjacent rows, that share the keys and values
/// read by a block.
inline constexpr Index cached_queries = 4;
/// Minimum number of keys of a part, a multiple of the number of keys that a block has in flight;
/// the size of a part is a multiple of it.
OCTAVO_HOST_DEVICE constexpr Index least_split_keys(Index head_dim) {
  return head_dim <= 64 ? 64 : 32;
}
inline constexpr Index max_splits = 64;
/// Number of blocks that keep the multiprocessors of an H200 busy.
inline constexpr Index cached_attention_blocks = 528;

/// The blocks of one launch. Independent of positions: each block reads the positions and processes
/// its part of the keys that exist by then.
struct CacheSplits {
  Index tiles;   ///< of query rows, for each KV head
  Index splits;  ///< parts of the keys

  CacheSplits(HeadLayout layout, Index rows, Index capacity)
      : tiles(ceil_divide(rows * (layout.heads / layout.kv_heads), cached_queries)) {
    const Index wanted =
        ceil_divide(cached_attention_blocks, std::max<Index>(tiles * layout.kv_heads, 1));
    splits = std::clamp<Index>(
        std::min(wanted, ceil_divide(capacity, least_split_keys(layout.head_dim))), 1, max_splits);
  }
};

/// Returns the keys of each part; the last nonempty part may have fewer, and later parts have none.
OCTAVO_HOST_DEVICE constexpr Index keys_of_split(Index keys, Index splits, Index head_dim) {
  return round_up(ceil_divide(keys, splits), least_split_keys(head_dim));
}

}  // namespace detail

/// Returns the bytes of workspace that `cached_attention` of this number of rows needs, in any
/// format: the output of each part, with its maximum score and its sum of exponentials.
inline std::size_t cached_attention_workspace(HeadLayout layout, Index rows, Index capacity,
                                              const DeviceLimits<Cuda>&) {
  const Index splits = detail::CacheSplits(layout, rows, capacity).splits;
  const Index floats = splits == 1 ? 0 : rows * layout.heads * splits * (layout.head_dim + 2);
  return static_cast<std::size_t>(floats) * sizeof(float);
}

}  // namespace octavo
