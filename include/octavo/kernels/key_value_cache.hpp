/// @file
/// The KV cache for decoding, and appending rows to it.
#pragma once

#include <octavo/kernels/rope.hpp>

#include <cstdint>

namespace octavo OCTAVO_ABI {

/// The rotated keys and the values of one layer, one row for each position of one sequence.
template <class T, Device D>
struct KeyValueCache {
  TensorView<T, 2, D> keys;    ///< [capacity, kv_heads · head_dim]
  TensorView<T, 2, D> values;  ///< [capacity, kv_heads · head_dim]

  [[nodiscard]] Index capacity() const { return keys.extent(0); }
};

/// The destination of queries, keys and values that are appended to a cache: the parameters of
/// `append_to_cache`.
template <class T, Device D>
struct CacheRows {
  HeadLayout layout{};
  TensorView<const float, 2, D> rotation{};
  TensorView<const std::int32_t, 1, D> positions{};
  KeyValueCache<T, D> cache{};
};

namespace detail {

/// Throws ShapeError unless the cache has these heads and room for the new rows.
template <class T, Device D>
void check_cache(const char* operation, TensorView<const T, 2, D> qkv, HeadLayout layout,
                 TensorView<const std::int32_t, 1, D> positions, const KeyValueCache<T, D>& cache) {
  const Index rows = qkv.extent(0);
  const Index columns = layout.kv_heads * layout.head_dim;
  check_shape(operation, "qkv", qkv, {rows, layout.columns()});
  check_shape(operation, "positions", positions, {rows});
  check_shape(operation, "keys of the cache", cache.keys, {cache.capacity(), columns});
  check_shape(operation, "values of the cache", cache.values, {cache.capacity(), columns});
  require<ShapeError>(rows <= cache.capacity(), operation, ": there are ", rows,
                      " new rows, but the cache has ", cache.capacity(),
                      "; pass fewer rows or a larger cache");
}

}  // namespace detail

/// Rotates the queries of new rows in place, and writes their rotated keys and their values to the
/// cache, each row at its position. Elements have the same bits as those of `rope_forward`.
/// @param qkv        [rows, layout.columns()]; queries are overwritten, keys and values are not
///                   modified
/// @param norm       empty, or the weights of the normalisation before the rotation
/// @param rotation   [capacity or more, head_dim], see `rope_forward`; empty: nothing is rotated or
///                   normalised, for example because `rope_forward` has already rotated the rows
/// @param positions  [rows]: position of each row, in device memory, so that a recorded graph works
///                   for every step; all different, from 0 to capacity − 1
/// @throws ShapeError  if shapes do not match; on `Cpu` also for a position outside the cache,
///                     which `Cuda` neither rotates nor writes
/// @note enqueues; does not synchronise
template <class T, Device D>
void append_to_cache(TensorView<T, 2, D> qkv, HeadLayout layout,
                     const std::type_identity_t<QkNorm<const T, D>>& norm,
                     const std::type_identity_t<TensorView<const float, 2, D>>& rotation,
                     TensorView<const std::int32_t, 1, D> positions,
                     const KeyValueCache<T, D>& cache, const Context<D>& context) {
  detail::check_cache<T, D>("append_to_cache", qkv, layout, positions, cache);
  if (!rotation.empty()) {
    detail::check_rope("append_to_cache", layout, norm, rotation, cache.capacity());
  }
  append_to_cache_body(qkv, layout, norm, rotation, positions, cache, context);
}

/// Does the same without a norm.
template <class T, Device D>
void append_to_cache(TensorView<T, 2, D> qkv, const CacheRows<T, D>& rows,
                     const Context<D>& context) {
  append_to_cache(qkv, rows.layout, {}, rows.rotation, rows.positions, rows.cache, context);
}

}  // namespace octavo

#include <octavo/kernels/cpu/key_value_cache.hpp>
