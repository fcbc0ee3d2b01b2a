/// @file
/// Appending rows to a KV cache on the `Cuda` device.
#pragma once

#include <octavo/kernels/cuda/rope/head_norm.cuh>
#include <octavo/kernels/key_value_cache.hpp>

namespace octavo OCTAVO_ABI::detail {

/// Arguments of append_to_cache_kernel.
template <class T>
struct AppendArguments {
  T* qkv;  ///< [rows, (heads + 2 · kv_heads) · head_dim]
  const std::int32_t* positions;
  T* keys;    ///< [capacity, kv_heads · head_dim]
  T* values;  ///< [capacity, kv_heads · head_dim]
  const T* query_weight;
  const T* key_weight;
  const float* rotation;  ///< null: no rotation
  Index rows, capacity;
  std::uint32_t heads, kv_heads, head_dim;
  float epsilon, offset;
};

/// Rotates or copies one head per warp to its destination.
template <class T>
OCTAVO_KERNEL void __launch_bounds__(elementwise_threads)
    append_to_cache_kernel(const AppendArguments<T> arguments) {
  const auto& [qkv, positions, keys, values, query_weight, key_weight, rotation, rows, capacity,
               heads, kv_heads, dim, epsilon, offset] = arguments;
  launch_dependent_grids();
  wait_on_dependent_grids();
  const std::uint32_t all_heads = heads + 2 * kv_heads;
  const Index warp = global_thread() / 32;
  const Index row = warp / all_heads;
  if (row >= rows) return;
  const Index position = positions[row];
  if (position < 0 || position >= capacity) return;
  const auto head = static_cast<std::uint32_t>(warp % all_heads);
  T* source = qkv + (row * all_heads + head) * dim;
  const bool is_query = head < heads;
  const bool is_key = !is_query && head < heads + kv_heads;
  T* target = source;
  if (!is_query) {
    const std::uint32_t kv_head = is_key ? head - heads : head - heads - kv_heads;
    target = (is_key ? keys : values) + (position * kv_heads + kv_head) * dim;
  }
  if ((is_query || is_key) && rotation != nullptr) {
    warp_rotate<T>(source, target, is_query ? query_weight : key_weight, epsilon, offset, dim,
                   rotation + position * dim);
  } else if (!is_query) {
    warp_copy<T>(source, target, dim);
  }
}

/// See append_to_cache.
template <class T>
void append_to_cache_body(TensorView<T, 2, Cuda> qkv, HeadLayout layout,
                          const QkNorm<const T, Cuda>& norm,
                          TensorView<const float, 2, Cuda> rotation,
                          TensorView<const std::int32_t, 1, Cuda> positions,
                          const KeyValueCache<T, Cuda>& cache, const Context<Cuda>& context) {
  require_columns("append_to_cache", layout.columns());
  const auto narrow = [](Index value) { return static_cast<std::uint32_t>(value); };
  const Index heads = qkv.extent(0) * layout.all_heads();
  const AppendArguments<T> arguments{
      qkv.data(),        positions.data(),     cache.keys.data(),       cache.values.data(),
      norm.query.data(), norm.key.data(),      rotation.data(),         qkv.extent(0),
      cache.capacity(),  narrow(layout.heads), narrow(layout.kv_heads), narrow(layout.head_dim),
      norm.epsilon,      norm.offset};
  launch_dependent("append_to_cache", append_to_cache_kernel<T>,
                   dim3(narrow(ceil_divide(heads, head_warps))), elementwise_threads, 0, context,
                   arguments);
}

}  // namespace octavo::detail
