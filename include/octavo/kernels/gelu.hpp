/// @file
/// The activation of GPT-2's MLP.
#pragma once

#include <octavo/kernels/bias.hpp>
#include <octavo/kernels/quantize.hpp>

namespace octavo OCTAVO_ABI {

/// Computes y = gelu(x) in its tanh approximation, gelu(x) = x / 2 · (1 + tanh(√(2/π) · (x +
/// 0.044715 · x³))), quantised for y's precision. Hugging Face calls it `gelu_new`.
/// @param x  [tokens, ffn]
/// @param y  [tokens, ffn]
/// @throws ShapeError  if shapes do not match, or if a matrix is too large for the device: see
///                     `kernels/cuda/limits.hpp`
/// @note enqueues; does not synchronise
/// Source: Hendrycks and Gimpel 2016, arXiv 1606.08415.
template <LinearPrecision P, OperandKind Kind, class T, Device D>
void gelu_forward(TensorView<const T, 2, D> x, const Operand<P, Kind, D>& y,
                  const Context<D>& context) {
  check_shape("gelu_forward", "y", y.values, x.shape());
  gelu_forward_body(x, y, context);
}

/// Computes the gradient of x, quantised for its precision. Its column sums, computed before the
/// cast, are added to the gradient of the bias that was added to x.
/// @param y_gradient     [tokens, ffn]
/// @param x              [tokens, ffn]
/// @param x_gradient     [tokens, ffn]; its values must not alias `x`
/// @param bias_gradient  [ffn]; empty: no bias
/// @throws ShapeError  if shapes do not match, or if a matrix is too large for the device: see
///                     `kernels/cuda/limits.hpp`
/// @note enqueues; does not synchronise; uses `column_sums_workspace` bytes of the context's
///   workspace
template <LinearPrecision P, OperandKind Kind, class T, class G, Device D>
void gelu_backward(TensorView<const T, 2, D> y_gradient, TensorView<const T, 2, D> x,
                   const Operand<P, Kind, D>& x_gradient, TensorView<G, 1, D> bias_gradient,
                   const Context<D>& context) {
  check_shape("gelu_backward", "x", x, y_gradient.shape());
  check_shape("gelu_backward", "x_gradient", x_gradient.values, x.shape());
  if (!bias_gradient.empty()) {
    check_shape("gelu_backward", "bias_gradient", bias_gradient, {x.extent(1)});
  }
  gelu_backward_body(y_gradient, x, x_gradient, bias_gradient, context);
}

}  // namespace octavo

#include <octavo/kernels/cpu/gelu.hpp>
