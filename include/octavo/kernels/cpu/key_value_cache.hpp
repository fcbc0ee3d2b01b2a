/// @file
/// Appending rows to a KV cache on the `Cpu` device.
#pragma once

#include <octavo/kernels/cpu/rope.hpp>
#include <octavo/kernels/key_value_cache.hpp>

#include <algorithm>

namespace octavo OCTAVO_ABI::detail {

/// @throws ShapeError  if a position is outside a cache of `capacity` rows
inline void check_cache_positions(const char* operation,
                                  TensorView<const std::int32_t, 1, Cpu> positions,
                                  Index capacity) {
  for (Index row = 0; row < positions.extent(0); ++row) {
    const Index position = positions.data()[row];
    require<ShapeError>(position >= 0 && position < capacity, operation, ": row ", row,
                        " has position ", position, ", but the cache has ", capacity,
                        " rows; use a larger cache or fewer rows");
  }
}

/// See append_to_cache.
template <class T>
void append_to_cache_body(TensorView<T, 2, Cpu> qkv, HeadLayout layout,
                          const QkNorm<const T, Cpu>& norm,
                          TensorView<const float, 2, Cpu> rotation,
                          TensorView<const std::int32_t, 1, Cpu> positions,
                          const KeyValueCache<T, Cpu>& cache, const Context<Cpu>& context) {
  check_cache_positions("append_to_cache", positions, cache.capacity());
  const Index dim = layout.head_dim;
  const auto rotate = [&](const T* head, T* target, TensorView<const T, 1, Cpu> weight, Index at) {
    if (!rotation.empty()) {
      rotate_normalised_head(head, target, weight.data(), norm.epsilon, norm.offset, dim,
                             rotation.row(at));
    } else if (head != target) {
      std::copy(head, head + dim, target);
    }
  };
  parallel_for(qkv.extent(0), qkv.extent(1), context, [&](Index row) {
    const Index position = positions.data()[row];
    T* head = qkv.row(row);
    for (Index h = 0; h < layout.heads; ++h, head += dim) rotate(head, head, norm.query, position);
    T* key = cache.keys.row(position);
    for (Index h = 0; h < layout.kv_heads; ++h, head += dim, key += dim) {
      rotate(head, key, norm.key, position);
    }
    std::copy(head, head + layout.kv_heads * dim, cache.values.row(position));
  });
}

}  // namespace octavo::detail
