/// @file
/// Attention to cached keys and values on the `Cpu` device, with the loops for whole sequences.
#pragma once

#include <octavo/attention/cached_attention.hpp>
#include <octavo/attention/cpu/attention.hpp>

namespace octavo OCTAVO_ABI {

/// Returns the bytes of workspace that `cached_attention` of this number of rows needs, in any
/// format.
inline std::size_t cached_attention_workspace(HeadLayout layout, Index rows, Index capacity,
                                              const DeviceLimits<Cpu>& limits) {
  const Index floats = detail::ForwardScratch::floats(capacity, layout.head_dim, rows);
  return static_cast<std::size_t>(limits.threads * floats) * sizeof(float);
}

namespace detail {

/// See cached_attention.
template <class T>
void cached_attention_body(TensorView<const T, 2, Cpu> qkv, HeadLayout layout,
                           const AttentionOptions& options,
                           TensorView<const std::int32_t, 1, Cpu> positions,
                           const KeyValueCache<T, Cpu>& cache, TensorView<T, 2, Cpu> output,
                           const Context<Cpu>& context) {
  const Index heads = layout.heads;
  const Index kv_heads = layout.kv_heads;
  const Index dim = layout.head_dim;
  const Index rows = qkv.extent(0);
  const Index before = positions.data()[0];
  check_cache_positions("cached_attention", positions, cache.capacity());
  for (Index row = 0; row < rows; ++row) {
    require<ShapeError>(positions.data()[row] == before + row, "cached_attention: row ", row,
                        " has position ", positions.data()[row], " and row 0 ", before,
                        "; positions must be consecutive");
  }
  auto* memory = workspace_of<float>(
      context, cached_attention_workspace(layout, rows, cache.capacity(), context),
      "cached_attention");
  const Index floats = ForwardScratch::floats(cache.capacity(), dim, rows);
  const Index keys = before + rows;
  const Index first_key = BlockKeys(options, before, rows).begin;
  const Index group = heads / kv_heads;
  parallel_for(kv_heads, (keys - first_key) * dim * (1 + group), context, [&](Index kv) {
    const ForwardScratch w(memory + thread_index() * floats, cache.capacity(), dim, rows);
    const auto load = [&](const TensorView<T, 2, Cpu>& from, float* target) {
      load_head(from.row(first_key) + kv * dim, kv_heads * dim, keys - first_key, dim,
                target + first_key * dim);
    };
    load(cache.keys, w.keys);
    load(cache.values, w.values);
    float log_sum_exp[attention_block];
    for (Index head = kv * group; head < (kv + 1) * group; ++head) {
      for (Index first = 0; first < rows; first += attention_block) {
        const Index count = std::min(attention_block, rows - first);
        attend(qkv.row(first) + head * dim, layout.columns(), options, before + first, count, dim,
               w, log_sum_exp, output.row(first) + head * dim, heads * dim);
      }
    }
  });
}

}  // namespace detail

}  // namespace octavo
