/// @file
/// GELU on the `Cpu` device.
#pragma once

#include <octavo/kernels/activation_formula.hpp>
#include <octavo/kernels/cpu/bias.hpp>
#include <octavo/kernels/gelu.hpp>

namespace octavo OCTAVO_ABI::detail {

/// See gelu_forward.
template <LinearPrecision P, OperandKind Kind, class T>
void gelu_forward_body(TensorView<const T, 2, Cpu> x, const Operand<P, Kind, Cpu>& y,
                       const Context<Cpu>& context) {
  const Index ffn = x.extent(1);
  parallel_for(x.extent(0), ffn, context, [&](Index t) {
    const T* row = x.row(t);
    T* result = y.values.row(t);
    for (Index i = 0; i < ffn; ++i) {
      const float value = static_cast<float>(row[i]);
      result[i] = T(value * gelu_sigmoid(value));
    }
  });
  quantize(y, context);
}

/// See gelu_backward.
template <LinearPrecision P, OperandKind Kind, class T, class G>
void gelu_backward_body(TensorView<const T, 2, Cpu> y_gradient, TensorView<const T, 2, Cpu> x,
                        const Operand<P, Kind, Cpu>& x_gradient,
                        TensorView<G, 1, Cpu> bias_gradient, const Context<Cpu>& context) {
  const Index ffn = x.extent(1);
  parallel_for(x.extent(0), ffn, context, [&](Index t) {
    const T* row = x.row(t);
    const T* dy = y_gradient.row(t);
    T* result = x_gradient.values.row(t);
    for (Index i = 0; i < ffn; ++i) {
      const float value = static_cast<float>(row[i]);
      result[i] = T(static_cast<float>(dy[i]) * gelu_derivative(value, gelu_sigmoid(value)));
    }
  });
  if (!bias_gradient.empty()) add_column_sums(x_gradient.values, bias_gradient, context);
  quantize(x_gradient, context);
}

}  // namespace octavo::detail
