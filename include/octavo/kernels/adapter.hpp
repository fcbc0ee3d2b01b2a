/// @file
/// The adapters of a fused linear layer as one: what stands between their parameters and GEMMs.
#pragma once

#include <octavo/tensor/tensor.hpp>

namespace octavo OCTAVO_ABI {

/// How the adapters of a fused linear layer, such as those of queries and of values, lie in its
/// product. Their matrices A stand below each other, [count · rank, in] and rows of zeros up to
/// `width`; their matrices B, too, [Σ rows, rank]. The *spread* B, [out, width], has each B beside
/// the others, in the rows of the result that are its own, times the scale, and zeros elsewhere: so
/// one product with the stacked A and one with the spread B are those of all adapters.
struct AdapterLayout {
  /// Rows of the layer's weight, columns of its result, that one adapter is for.
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

  /// Rows of all B.
  [[nodiscard]] OCTAVO_HOST_DEVICE Index rows() const {
    Index sum = 0;
    for (int i = 0; i < count; ++i) sum += parts[static_cast<std::size_t>(i)].rows;
    return sum;
  }
  /// The element of the stacked B that stands in this place of the spread one; below 0: none.
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
  /// The place in the spread B of element `i` of the stacked one.
  [[nodiscard]] OCTAVO_HOST_DEVICE Index spread(Index i) const {
    Index row = i / rank;
    int part = 0;
    while (row >= parts[static_cast<std::size_t>(part)].rows) {
      row -= parts[static_cast<std::size_t>(part++)].rows;
    }
    return (parts[static_cast<std::size_t>(part)].begin + row) * width + part * rank + i % rank;
  }
};

/// Writes the spread B, times the scale.
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

/// The gradient of the stacked B from that of the spread one, times the scale: added to what is
/// there if `accumulate`, else written over it.
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
