/// @file
/// Outputs of a GEMM of few rows that are queries, keys and values to be cached.
#pragma once

#include <octavo/kernels/cuda/rope/rotation.cuh>
#include <octavo/kernels/key_value_cache.hpp>

namespace octavo OCTAVO_ABI::detail {

/// The destination of one output, and its rotation.
template <class T>
struct CachedOutput {
  T* target = nullptr;  ///< null: not stored
  float cosine = 1.0f;
  float sine = 0.0f;  ///< with the sign that `rotated` expects
  bool rotates = false;

  /// @param partner  the output with which it is rotated, half a head away
  __device__ void store(T output, float partner) const {
    if (target == nullptr) return;
    *target = rotates ? T(rotated(static_cast<float>(output), cosine, sine, partner)) : output;
  }
};

/// Destinations of outputs; the results have the same bits as those of append_to_cache.
template <class T>
struct CachedOutputs {
  const std::int32_t* positions = nullptr;  ///< [rows]; null: no cache
  const float* rotation = nullptr;          ///< null: no rotation
  T* keys = nullptr;
  T* values = nullptr;
  Index capacity = 0;
  unsigned heads = 0, kv_heads = 0, head_dim = 0;

  /// @param result  [rows, (heads + 2 · kv_heads) · head_dim]
  [[nodiscard]] __device__ CachedOutput<T> place(T* result, int row, Index out) const {
    const unsigned all_heads = heads + 2 * kv_heads;
    const unsigned head = static_cast<unsigned>(out) / head_dim;
    const unsigned column = static_cast<unsigned>(out) % head_dim;
    const Index position = positions[row];
    const bool is_inside = position >= 0 && position < capacity;
    const bool is_query = head < heads;
    const bool is_value = head >= heads + kv_heads;
    CachedOutput<T> output;
    if (is_query) {
      output.target = result + Index{row} * all_heads * head_dim + out;
    } else if (is_inside) {
      const unsigned kv_head = head - (is_value ? heads + kv_heads : heads);
      output.target =
          (is_value ? values : keys) + (position * kv_heads + kv_head) * head_dim + column;
    }
    if (is_inside && !is_value && rotation != nullptr) {
      const unsigned half = head_dim / 2;
      const float* angles = rotation + position * head_dim + column % half;
      output.rotates = true;
      output.cosine = angles[0];
      output.sine = column < half ? -angles[half] : angles[half];
    }
    return output;
  }
};

template <class T>
CachedOutputs<T> cached_outputs(const CacheRows<T, Cuda>& rows) {
  const auto& [layout, rotation, positions, cache] = rows;
  const auto narrow = [](Index value) { return static_cast<unsigned>(value); };
  return {positions.data(), rotation.data(),      cache.keys.data(),       cache.values.data(),
          cache.capacity(), narrow(layout.heads), narrow(layout.kv_heads), narrow(layout.head_dim)};
}

}  // namespace octavo::detail
