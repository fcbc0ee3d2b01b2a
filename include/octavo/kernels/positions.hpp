/// @file
/// Token embeddings with learned positions.
#pragma once

#include <octavo/tensor/batch.hpp>
#include <octavo/tensor/tensor.hpp>

namespace octavo OCTAVO_ABI {

namespace detail {

template <class T, Device D>
void check_positions(const char* operation, TensorView<T, 2, D> positions, Index tokens,
                     Index sequence) {
  if (sequence <= 0 || sequence > positions.extent(0) || tokens % sequence != 0) {
    throw ShapeError(message(operation, ": ", tokens, " tokens in sequences of ", sequence,
                             " need whole sequences and ", sequence, " positions, but there are ",
                             positions.extent(0), " positions"));
  }
}

}  // namespace detail

/// Computes y[t, :] = table[tokens[t], :] + positions[places(t), :].
/// @param tokens     [tokens], each from 0 to the table's rows − 1; consecutive sequences
/// @param table      [vocabulary, hidden]
/// @param positions  [tokens of a sequence or more, hidden]
/// @param places     position of each token in its sequence or document
/// @param y          [tokens, hidden]
/// @throws ShapeError  if shapes do not match
/// @note enqueues; does not synchronise
template <class T, Device D>
void position_embedding_forward(TensorView<const std::int32_t, 1, D> tokens,
                                TensorView<const T, 2, D> table,
                                TensorView<const T, 2, D> positions, RowPositions places,
                                TensorView<T, 2, D> y, const Context<D>& context) {
  check_shape("position_embedding_forward", "y", y, {tokens.extent(0), table.extent(1)});
  check_shape("position_embedding_forward", "positions", positions,
              {positions.extent(0), table.extent(1)});
  detail::check_positions("position_embedding_forward", positions, tokens.extent(0), places.tokens);
  position_embedding_forward_body(tokens, table, positions, places, y, context);
}

/// Adds the gradient of every position: the sum over the sequences, in FP32 and in a fixed order.
/// If documents begin inside sequences, use `embedding_backward` with their positions instead.
/// @param y_gradient          [tokens, hidden]
/// @param sequence            tokens per sequence
/// @param positions_gradient  [sequence or more, hidden]
/// @throws ShapeError  if shapes do not match
/// @note enqueues; does not synchronise
template <class T, class G, Device D>
void positions_backward(TensorView<const T, 2, D> y_gradient, Index sequence,
                        TensorView<G, 2, D> positions_gradient, const Context<D>& context) {
  check_shape("positions_backward", "positions_gradient", positions_gradient,
              {positions_gradient.extent(0), y_gradient.extent(1)});
  detail::check_positions("positions_backward", positions_gradient, y_gradient.extent(0), sequence);
  positions_backward_body(y_gradient, sequence, positions_gradient, context);
}

}  // namespace octavo

#include <octavo/kernels/cpu/positions.hpp>
