/// @file
/// Bias gradients of linear layers.
#pragma once

#include <octavo/kernels/quantize.hpp>

namespace octavo OCTAVO_ABI {

namespace detail {

/// Number of rows whose columns one block of a device sums at once; a matrix is summed in such
/// pieces.
inline constexpr Index column_sum_rows = 128;

}  // namespace detail

/// Returns the bytes of workspace that column sums need on any device.
constexpr std::size_t column_sums_workspace(Index rows, Index columns) {
  return static_cast<std::size_t>(ceil_divide(rows, detail::column_sum_rows) * columns) *
         sizeof(float);
}

/// Casts the gradient of a linear layer's output like `quantize`, and adds its column sums,
/// computed before the cast, to the bias gradient: in FP32 and in a fixed order.
/// @param y_gradient     [tokens, out]
/// @param bias_gradient  [out]
/// @throws ShapeError  if shapes do not match, or if a matrix is too large for the device: see
///                     `kernels/cuda/limits.hpp`
/// @note enqueues; does not synchronise; uses `column_sums_workspace` bytes of the context's
///   workspace
template <LinearPrecision P, class G, Device D>
void bias_backward(const Operand<P, OperandKind::output_gradient, D>& y_gradient,
                   TensorView<G, 1, D> bias_gradient, const Context<D>& context) {
  check_shape("bias_backward", "bias_gradient", bias_gradient, {y_gradient.values.extent(1)});
  bias_backward_body(y_gradient, bias_gradient, context);
}

}  // namespace octavo

#include <octavo/kernels/cpu/bias.hpp>
