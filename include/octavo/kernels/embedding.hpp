/// @file
/// Look-up of token embeddings.
#pragma once

#include <octavo/tensor/tensor.hpp>

namespace octavo OCTAVO_ABI {

/// Computes y[t, :] = table[tokens[t], :]; 0 for a negative token, NaN for one beyond the table's
/// rows.
/// @param tokens  [tokens], each below the table's rows
/// @param table   [vocabulary, hidden]
/// @param y       [tokens, hidden]
/// @note enqueues; does not synchronise
template <class T, Device D>
void embedding_forward(TensorView<const std::int32_t, 1, D> tokens, TensorView<const T, 2, D> table,
                       TensorView<T, 2, D> y, const Context<D>& context) {
  check_shape("embedding_forward", "y", y, {tokens.extent(0), table.extent(1)});
  embedding_forward_body(tokens, table, y, context);
}

/// Returns the bytes of workspace that `embedding_backward` needs for this many tokens on any
/// device. `Cuda` needs the most: its sort uses four arrays of 4 bytes per token, in addition to
/// CUB's counters.
constexpr std::size_t embedding_workspace(Index tokens) {
  constexpr std::size_t bytes_per_token = 24;
  constexpr std::size_t counters = std::size_t{256} << 10;
  return static_cast<std::size_t>(tokens) * bytes_per_token + counters;
}

/// Adds each token's gradient to its row; occurrences of the same token are summed in FP32 and in a
/// fixed order. A token that is negative or beyond the table's rows is skipped.
/// @param tokens          [tokens]
/// @param y_gradient      [tokens, hidden]
/// @param table_gradient  [vocabulary, hidden]
/// @note enqueues; does not synchronise; uses `embedding_workspace` bytes of the context's
///   workspace
template <class T, class G, Device D>
void embedding_backward(TensorView<const std::int32_t, 1, D> tokens,
                        TensorView<const T, 2, D> y_gradient, TensorView<G, 2, D> table_gradient,
                        const Context<D>& context) {
  check_shape("embedding_backward", "y_gradient", y_gradient,
              {tokens.extent(0), table_gradient.extent(1)});
  embedding_backward_body(tokens, y_gradient, table_gradient, context);
}

}  // namespace octavo

#include <octavo/kernels/cpu/embedding.hpp>
