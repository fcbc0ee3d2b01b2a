/// @file
/// Token embeddings with learned positions on the `Cpu` device.
#pragma once

#include <octavo/core/context.hpp>
#include <octavo/kernels/positions.hpp>

namespace octavo OCTAVO_ABI::detail {

/// See position_embedding_forward.
template <class T>
void position_embedding_forward_body(TensorView<const std::int32_t, 1, Cpu> tokens,
                                     TensorView<const T, 2, Cpu> table,
                                     TensorView<const T, 2, Cpu> positions, RowPositions places,
                                     TensorView<T, 2, Cpu> y, const Context<Cpu>& context) {
  parallel_for(tokens.extent(0), table.extent(1), context, [&](Index t) {
    const T* token = table.row(tokens.data()[t]);
    const T* position = positions.row(places(t));
    T* row = y.row(t);
    for (Index c = 0; c < table.extent(1); ++c) {
      row[c] = T(static_cast<float>(token[c]) + static_cast<float>(position[c]));
    }
  });
}

/// See positions_backward.
template <class T, class G>
void positions_backward_body(TensorView<const T, 2, Cpu> y_gradient, Index sequence,
                             TensorView<G, 2, Cpu> positions_gradient,
                             const Context<Cpu>& context) {
  parallel_for(sequence, y_gradient.size() / sequence, context, [&](Index position) {
    G* target = positions_gradient.row(position);
    for (Index c = 0; c < y_gradient.extent(1); ++c) {
      float sum = 0;
      for (Index t = position; t < y_gradient.extent(0); t += sequence) {
        sum += static_cast<float>(y_gradient.row(t)[c]);
      }
      target[c] = G(static_cast<float>(target[c]) + sum);
    }
  });
}

}  // namespace octavo::detail
