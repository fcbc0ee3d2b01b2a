/// @file
/// Bias gradients on the `Cpu` device.
#pragma once

#include <octavo/kernels/bias.hpp>
#include <octavo/kernels/cpu/sums.hpp>

namespace octavo OCTAVO_ABI::detail {

/// Computes sums[c] += Σ over rows of values[r, c], with columns in parallel and rows in order, so
/// that the order of summation is fixed.
template <class T, class G>
void add_column_sums(TensorView<T, 2, Cpu> values, TensorView<G, 1, Cpu> sums,
                     const Context<Cpu>& context) {
  constexpr Index width = 64;
  parallel_for(ceil_divide(values.extent(1), width), width * values.extent(0), context,
               [&](Index piece) {
                 const Index begin = piece * width;
                 const Index columns = std::min(width, values.extent(1) - begin);
                 std::array<float, width> found{};
                 for (Index r = 0; r < values.extent(0); ++r) {
                   const T* row = values.row(r) + begin;
                   for (Index i = 0; i < columns; ++i) {
                     found[static_cast<std::size_t>(i)] += static_cast<float>(row[i]);
                   }
                 }
                 for (Index i = 0; i < columns; ++i) {
                   G& target = sums.data()[begin + i];
                   target = G(static_cast<float>(target) + found[static_cast<std::size_t>(i)]);
                 }
               });
}

/// See bias_backward.
template <LinearPrecision P, class G>
void bias_backward_body(const Operand<P, OperandKind::output_gradient, Cpu>& y_gradient,
                        TensorView<G, 1, Cpu> bias_gradient, const Context<Cpu>& context) {
  add_column_sums(y_gradient.values, bias_gradient, context);
  quantize(y_gradient, context);
}

}  // namespace octavo::detail
