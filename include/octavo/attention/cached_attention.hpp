/// @file
/// Causal attention of new rows to all rows before them, whose keys and values are kept.
#pragma once

#include <octavo/attention/attention.hpp>
#include <octavo/kernels/key_value_cache.hpp>

namespace octavo OCTAVO_ABI {

/// output = softmax(Q · Kᵀ / √head_dim) · V for each head of new rows, where a row sees the rows of
/// the cache up to its position; `heads / kv_heads` neighbouring query heads share a KV head.
/// Serves one row, as decoding has, and many: a prompt, or what is added to a text that was seen
/// before.
///
/// On `Cpu` a row has the bits that `attention_forward` makes for the whole sequence, however the
/// sequence is cut into rows that come together. `Cuda` is made for few rows: it reads keys and
/// values once for every 4 query rows and without tensor cores. For a long prompt at the beginning
/// of a sequence `attention_forward` of its rows gives the same, but for the order of sums, and is
/// faster; `append_to_cache` without a rotation keeps its keys and values.
/// @param qkv        [rows, layout.columns()], of which the queries are read, after RoPE
/// @param positions  [rows]: of each row, in the device's memory, each one more than that before it
/// @param cache      holds the keys and values up to the last position, as `append_to_cache` writes
///                   them; what lies behind them is not read
/// @param output     [rows, heads · head_dim]
/// @throws ShapeError   if shapes do not fit; on `Cpu` for positions outside the cache, in whose
///                      place `Cuda` takes the nearest inside, and for positions that do not follow
///                      each other
/// @throws ConfigError  for a head_dim that attention on `Cuda` does not serve: see
///                      `attention_implementation`
/// @note enqueues; does not synchronise; uses `cached_attention_workspace` bytes of the context's.
///       On `Cuda` what is enqueued does not depend on positions, so that one recorded graph serves
///       all steps; equal inputs give equal bits
/// Source: Dao et al. 2023, "Flash-Decoding for long-context inference".
template <class T, Device D>
void cached_attention(TensorView<const T, 2, D> qkv, HeadLayout layout,
                      TensorView<const std::int32_t, 1, D> positions,
                      const KeyValueCache<std::type_identity_t<T>, D>& cache,
                      TensorView<T, 2, D> output, const Context<D>& context) {
  detail::check_cache<T, D>("cached_attention", qkv, layout, positions, cache);
  require_even_sharing("cached_attention", layout);
  check_shape("cached_attention", "output", output,
              {qkv.extent(0), layout.heads * layout.head_dim});
  if (qkv.extent(0) == 0) return;
  cached_attention_body(qkv, layout, positions, cache, output, context);
}

}  // namespace octavo

#include <octavo/attention/cpu/cached_attention.hpp>
