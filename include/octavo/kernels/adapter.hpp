/// @file
/// Conversions between the parameters and the GEMM operands of a fused linear layer's adapters.
#pragma once

#include <octavo/tensor/tensor.hpp>

namespace octavo OCTAVO_ABI {

/// Layout of the adapters of a fused linear layer, such as those of queries and of values. Their
/// matrices A are stacked: [count · rank, in], padded with rows of zeros to `width`. Their matrices
/// B are also stacked: [Σ rows, rank]. The *spread* B, [out, width], contains the matrices B side
/// by side, each in its own rows of the result, multiplied by the scale, and zeros elsewhere. One
/// GEMM with the stacked A and one with the spread B then compute all adapters.
struct AdapterLayout {
  /// The rows of the layer's weight, which are columns of its result, that one adapter covers.
  struct Part {
    Index begin = 0;
    Index rows = 0;
  };
  static constexpr std::size_t most = 3;
  Array<Part, most> parts{};  ///< in order; `count` of them
  int count = 0;
  Index rank = 0;
  Index width = 0;  ///< at least count · rank
  float scale = 1;  ///< alpha / rank

  /// Returns the total number of rows of the matrices B.
  [[nodiscard]] OCTAVO_HOST_DEVICE Index rows() const {
    Index sum = 0;
    for (int i = 0; i < count; ++i) sum += parts[static_cast<std::size_t>(i)].rows;
    return sum;
  }
  /// Returns the element of the stacked B at this position of the spread B; negative: none.
  [[nodiscard]] OCTAVO_HOST_DEVICE Index stacked(Index row, Index column) const {
    Index before = 0;
    for (int i = 0; i < count; ++i) {
      const Part& part = parts[static_cast<std::size_t>(i)];
      const Index own = row - part.begin;
      const Index j = column - i * rank;
      if (own >= 0 && own < part.rows && j >= 0 && j < rank) return (before + own) * rank + j;
      before += part.rows;
    }
    return -1;
  }
  /// Returns the position in the spread B of element `i` of the stacked B.
  [[nodiscard]] OCTAVO_HOST_DEVICE Index spread(Index i) const {
    Index row = i / rank;
    int part = 0;
    while (row >= parts[static_cast<std::size_t>(part)].rows) {
      row -= parts[static_cast<std::size_t>(part++)].rows;
    }
    return (parts[static_cast<std::size_t>(part)].begin + row) * width + part * rank + i % rank;
  }
};

/// Writes the spread B, multiplied by the scale.
/// @param stacked  [Σ rows, rank]
/// @param spread   [out, width], written
/// @note enqueues; does not synchronise
template <class T, Device D>
void spread_adapters(TensorView<const T, 2, D> stacked, const AdapterLayout& layout,
                     TensorView<T, 2, D> spread, const Context<D>& context) {
  check_shape("spread_adapters", "stacked", stacked, {layout.rows(), layout.rank});
  check_shape("spread_adapters", "spread", spread, {spread.extent(0), layout.width});
  spread_adapters_body(stacked, layout, spread, context);
}

/// Computes the gradient of the stacked B from that of the spread B, multiplied by the scale. It is
/// added to if `accumulate` and overwritten otherwise.
/// @param spread_gradient  [out, width]
/// @param gradient         [Σ rows, rank]
/// @note enqueues; does not synchronise
template <class G, Device D>
void stack_adapter_gradients(TensorView<const G, 2, D> spread_gradient, const AdapterLayout& layout,
                             TensorView<G, 2, D> gradient, bool accumulate,
                             const Context<D>& context) {
  check_shape("stack_adapter_gradients", "spread_gradient", spread_gradient,
              {spread_gradient.extent(0), layout.width});
  check_shape("stack_adapter_gradients", "gradient", gradient, {layout.rows(), layout.rank});
  stack_adapter_gradients_body(spread_gradient, layout, gradient, accumulate, context);
}

}  // namespace octavo

#include <octavo/kernels/cpu/adapter.hpp>
