/// @file
/// Causal attention of new rows to all earlier rows through a KV cache.
#pragma once

#include <octavo/attention/attention.hpp>
#include <octavo/kernels/key_value_cache.hpp>

namespace octavo OCTAVO_ABI {

/// Computes output = softmax(scale · Q · Kᵀ) · V for each head of new rows. A row attends to the
/// rows of the cache up to its position that are in its window; `heads / kv_heads` adjacent query
/// heads share a KV head. Supports a single row, as in decoding, and many rows, as in a prompt or a
/// continuation of a cached text.
///
/// On `Cpu`, a row has the same bits as in `attention_forward` of the whole sequence, regardless of
/// how the sequence is divided into calls. `Cuda` is optimised for few rows: it reads keys and
/// values once for every 4 query rows and does not use tensor cores. For a long prompt at the
/// beginning of a sequence, `attention_forward` gives the same result, except for the order of
/// sums, and is faster; `append_to_cache` without a rotation then stores its keys and values.
/// @param qkv        [rows, layout.columns()], after RoPE; only the queries are read
/// @param positions  [rows]: position of each row, in device memory, each one more than the
///                   previous
/// @param cache      contains the keys and values up to the last position, as written by
///                   `append_to_cache`; later entries are not read
/// @param options    the window and the scale; products are always in the format `T`
/// @param output     [rows, heads · head_dim]
/// @throws ShapeError   if shapes do not match. On `Cpu`, also for positions that are outside the
///                      cache or not consecutive; `Cuda` clamps positions to the cache
/// @throws ConfigError  if attention on `Cuda` does not support head_dim: see
///                      `attention_implementation`
/// @note enqueues; does not synchronise; uses `cached_attention_workspace` bytes of the context's
///   workspace. On `Cuda` the enqueued work does not depend on positions, so that one recorded
///   graph can be replayed for all steps; equal inputs give equal bits. Source: Dao et al. 2023,
///   "Flash-Decoding for long-context inference".
template <class T, Device D>
void cached_attention(TensorView<const T, 2, D> qkv, HeadLayout layout,
                      const AttentionOptions& options,
                      TensorView<const std::int32_t, 1, D> positions,
                      const KeyValueCache<std::type_identity_t<T>, D>& cache,
                      TensorView<T, 2, D> output, const Context<D>& context) {
  detail::check_cache<T, D>("cached_attention", qkv, layout, positions, cache);
  require_even_sharing("cached_attention", layout);
  detail::check_options("cached_attention", options);
  check_shape("cached_attention", "output", output,
              {qkv.extent(0), layout.heads * layout.head_dim});
  if (qkv.extent(0) == 0) return;
  AttentionOptions in_storage = options;
  in_storage.forward = AttentionForward::storage;
  cached_attention_body(qkv, layout, in_storage, positions, cache, output, context);
}

}  // namespace octavo

#include <octavo/attention/cpu/cached_attention.hpp>
