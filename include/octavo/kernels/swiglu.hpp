/// @file
/// Gated activations of MLPs.
#pragma once

#include <octavo/kernels/activation_formula.hpp>
#include <octavo/kernels/quantize.hpp>

namespace octavo OCTAVO_ABI {

namespace detail {

template <class Gate, class Y, class W, Device D>
void gated_forward(const char* name, TensorView<const W, 2, D> gate_up, const Y& y,
                   OperandStatistics* statistics, const Context<D>& context) {
  check_shape(name, "gate_up", gate_up, {y.values.extent(0), 2 * y.values.extent(1)});
  gated_forward_body<Gate>(name, gate_up, y, statistics, context);
}
template <class Gate, class Y, class T, class W, Device D>
void gated_backward(const char* name, TensorView<const T, 2, D> y_gradient,
                    TensorView<const W, 2, D> gate_up, const Y& gate_up_gradient,
                    const Context<D>& context) {
  check_shape(name, "gate_up", gate_up, {y_gradient.extent(0), 2 * y_gradient.extent(1)});
  check_shape(name, "gate_up_gradient", gate_up_gradient.values, gate_up.shape());
  gated_backward_body<Gate>(name, y_gradient, gate_up, gate_up_gradient, context);
}

}  // namespace detail

/// Computes y = silu(gate) · up, with silu(x) = x / (1 + e^−x), quantised for y's precision: the
/// gated activation of Llama's MLP.
/// @param gate_up  [tokens, 2 · ffn]: the gate values of a token, then its up values; of y's
///                 storage format or of E4M3
/// @param y        [tokens, ffn]
/// @throws ShapeError  if shapes do not match, or if a matrix is too large for the device: see
///                     `kernels/cuda/limits.hpp`
/// @note enqueues; does not synchronise
/// Source: Shazeer 2020, arXiv 2002.05202.
template <LinearPrecision P, OperandKind Kind, class W, Device D>
void swiglu_forward(TensorView<const W, 2, D> gate_up, const Operand<P, Kind, D>& y,
                    const Context<D>& context) {
  detail::gated_forward<detail::SiluGate>("swiglu_forward", gate_up, y, nullptr, context);
}

/// Does the same for gates and ups in E4M3, and counts those that may have saturated.
/// @param statistics  null, or of `gate_up`: adds the number of its values to `elements`, and the
///                    number of those of magnitude 448 or NaN to `saturated`
template <LinearPrecision P, OperandKind Kind, Device D>
void swiglu_forward(TensorView<const E4M3, 2, D> gate_up, const Operand<P, Kind, D>& y,
                    OperandStatistics* statistics, const Context<D>& context) {
  detail::gated_forward<detail::SiluGate>("swiglu_forward", gate_up, y, statistics, context);
}

/// Computes the gradient of `gate_up`, quantised for its precision.
/// @param y_gradient        [tokens, ffn]
/// @param gate_up           [tokens, 2 · ffn], as in the forward
/// @param gate_up_gradient  [tokens, 2 · ffn]; its values must not alias `gate_up`
/// @throws ShapeError  if shapes do not match, or if a matrix is too large for the device: see
///                     `kernels/cuda/limits.hpp`
/// @note enqueues; does not synchronise
template <LinearPrecision P, OperandKind Kind, class T, class W, Device D>
void swiglu_backward(TensorView<const T, 2, D> y_gradient, TensorView<const W, 2, D> gate_up,
                     const Operand<P, Kind, D>& gate_up_gradient, const Context<D>& context) {
  detail::gated_backward<detail::SiluGate>("swiglu_backward", y_gradient, gate_up, gate_up_gradient,
                                           context);
}

/// Computes y = gelu(gate) · up, with the tanh approximation of `gelu_forward`: the gated
/// activation of Gemma's MLP. Shapes and errors are those of `swiglu_forward`.
template <LinearPrecision P, OperandKind Kind, class W, Device D>
void geglu_forward(TensorView<const W, 2, D> gate_up, const Operand<P, Kind, D>& y,
                   const Context<D>& context) {
  detail::gated_forward<detail::GeluGate>("geglu_forward", gate_up, y, nullptr, context);
}

/// Does the same for gates and ups in E4M3, and counts as `swiglu_forward` does.
template <LinearPrecision P, OperandKind Kind, Device D>
void geglu_forward(TensorView<const E4M3, 2, D> gate_up, const Operand<P, Kind, D>& y,
                   OperandStatistics* statistics, const Context<D>& context) {
  detail::gated_forward<detail::GeluGate>("geglu_forward", gate_up, y, statistics, context);
}

/// Computes the gradient of `gate_up`: see `swiglu_backward`.
template <LinearPrecision P, OperandKind Kind, class T, class W, Device D>
void geglu_backward(TensorView<const T, 2, D> y_gradient, TensorView<const W, 2, D> gate_up,
                    const Operand<P, Kind, D>& gate_up_gradient, const Context<D>& context) {
  detail::gated_backward<detail::GeluGate>("geglu_backward", y_gradient, gate_up, gate_up_gradient,
                                           context);
}

}  // namespace octavo

#include <octavo/kernels/cpu/swiglu.hpp>
