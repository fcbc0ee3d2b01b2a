/// @file
/// The input of a layer before its normalisation.
#pragma once

#include <octavo/layers/mode.hpp>
#include <octavo/tensor/tensor_view.hpp>

#include <type_traits>

namespace octavo OCTAVO_ABI {

/// The input of an inference-only layer, before the norm that precedes it. A GEMM of one row
/// normalises the row itself; more rows are first written to the layer's operand.
/// @tparam Norm   `RMSNorm<…>`, or a type with its `forward` and `row_norm`
/// @tparam Input  the layer's operand
template <class Norm, class Input, class T, Device D>
struct BeforeNorm {
  const Norm& norm;
  TensorView<const T, 2, D> x;  ///< [tokens, in]
  Input normalised;
  TensorView<float, 1, D> statistics;  ///< saved by the norm

  /// Writes the normalised rows to the operand and returns it.
  [[nodiscard]] const Input& written(const Context<D>& context) const {
    norm.forward(x, normalised, statistics, context);
    return normalised;
  }
};

template <class Norm, class Input, class T, Device D>
BeforeNorm(const Norm&, TensorView<const T, 2, D>, Input, TensorView<float, 1, D>)
    -> BeforeNorm<Norm, Input, T, D>;

/// Whether a layer in mode `M` receives its input before the norm.
template <class M, class Norm>
inline constexpr bool leaves_norm_to_layer =
    std::is_same_v<M, Mode::generate> && requires(const Norm& norm) { norm.row_norm(); };

}  // namespace octavo
