/// @file
/// Layout of heads in a row of fused queries, keys and values.
#pragma once

#include <octavo/core/device.hpp>
#include <octavo/core/error.hpp>
#include <octavo/core/macros.hpp>

namespace octavo OCTAVO_ABI {

/// The parts of one row of fused queries, keys and values: `heads` queries, then `kv_heads` keys,
/// then `kv_heads` values, each of `head_dim` elements.
struct HeadLayout {
  Index heads = 0;
  Index kv_heads = 0;
  Index head_dim = 0;

  /// Returns the number of heads of queries, keys and values.
  [[nodiscard]] OCTAVO_HOST_DEVICE constexpr Index all_heads() const {
    return heads + 2 * kv_heads;
  }
  [[nodiscard]] OCTAVO_HOST_DEVICE constexpr Index columns() const {
    return all_heads() * head_dim;
  }
  /// Whether every KV head is shared by the same number of query heads.
  [[nodiscard]] constexpr bool shares_evenly() const { return heads % kv_heads == 0; }
};

/// @throws ShapeError  unless the number of heads is a multiple of the number of KV heads
inline void require_even_sharing(const char* operation, const HeadLayout& layout) {
  require<ShapeError>(layout.shares_evenly(), operation, ": ", layout.heads, " heads cannot share ",
                      layout.kv_heads,
                      " KV heads evenly; make the heads a multiple of the KV heads");
}

}  // namespace octavo
