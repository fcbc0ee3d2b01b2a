/// @file
/// The gated activation of Llama's MLP.
#pragma once

#include <octavo/kernels/quantize.hpp>

namespace octavo OCTAVO_ABI {

/// Computes y = silu(gate) · up, with silu(x) = x / (1 + e^−x), quantised for y's precision.
/// @param gate_up  [tokens, 2 · ffn]: the gates of a token, then its ups
/// @param y        [tokens, ffn]
/// @throws ShapeError  if shapes do not match, or if a matrix is too large for the device: see
///                     `kernels/cuda/limits.hpp`
/// @note enqueues; does not synchronise
/// Source: Shazeer 2020, arXiv 2002.05202.
template <LinearPrecision P, OperandKind Kind, class T, Device D>
void swiglu_forward(TensorView<const T, 2, D> gate_up, const Operand<P, Kind, D>& y,
                    const Context<D>& context) {
  check_shape("swiglu_forward", "gate_up", gate_up, {y.values.extent(0), 2 * y.values.extent(1)});
  swiglu_forward_body(gate_up, y, context);
}

/// Computes the gradient of `gate_up`, quantised for its precision.
/// @param y_gradient        [tokens, ffn]
/// @param gate_up           [tokens, 2 · ffn]
/// @param gate_up_gradient  [tokens, 2 · ffn]; its values must not alias `gate_up`
/// @throws ShapeError  if shapes do not match, or if a matrix is too large for the device: see
///                     `kernels/cuda/limits.hpp`
/// @note enqueues; does not synchronise
template <LinearPrecision P, OperandKind Kind, class T, Device D>
void swiglu_backward(TensorView<const T, 2, D> y_gradient, TensorView<const T, 2, D> gate_up,
                     const Operand<P, Kind, D>& gate_up_gradient, const Context<D>& context) {
  check_shape("swiglu_backward", "gate_up", gate_up,
              {y_gradient.extent(0), 2 * y_gradient.extent(1)});
  check_shape("swiglu_backward", "gate_up_gradient", gate_up_gradient.values, gate_up.shape());
  swiglu_backward_body(y_gradient, gate_up, gate_up_gradient, context);
}

}  // namespace octavo

#include <octavo/kernels/cpu/swiglu.hpp>
