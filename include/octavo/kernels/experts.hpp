/// @file
/// Rows of a mixture of experts: their order by expert, copies of tokens to rows, the experts'
/// activation, and sums of rows to tokens.
#pragma once

#include <octavo/kernels/quantize.hpp>
#include <octavo/tensor/expert_rows.hpp>

namespace octavo OCTAVO_ABI {

namespace detail {

template <Device D>
void check_expert_rows(const char* operation, const ExpertRows<D>& rows) {
  const Index count = expert_row_count(rows.tokens() * rows.choices(), rows.experts());
  check_shape(operation, "pairs", rows.pairs, {count});
  check_shape(operation, "tiles", rows.tiles, {count / expert_tile});
}

}  // namespace detail

/// Returns the bytes of workspace that `order_by_expert` needs on any device. `Cuda` needs the
/// most: its sort uses four arrays of 4 bytes per pair, in addition to CUB's counters.
constexpr std::size_t expert_order_workspace(Index pairs) {
  constexpr std::size_t bytes_per_pair = 24;
  constexpr std::size_t counters = std::size_t{256} << 10;
  return static_cast<std::size_t>(pairs) * bytes_per_pair + counters;
}

/// Assigns the (token, choice) pairs to rows: see ExpertRows.
/// @param experts  [tokens, choices], each below the number of experts
/// @param rows     overwritten
/// @throws ShapeError  if shapes do not match
/// @note enqueues; does not synchronise; uses `expert_order_workspace` bytes of the context's
///   workspace
template <Device D>
void order_by_expert(TensorView<const std::int32_t, 2, D> experts, const ExpertRows<D>& rows,
                     const Context<D>& context) {
  check_shape("order_by_expert", "experts", experts, rows.places.shape());
  detail::check_expert_rows("order_by_expert", rows);
  order_by_expert_body(experts, rows, context);
}

/// Copies each token to the rows of its pairs, quantised for the precision of `y`. Padding and
/// unused rows are 0.
/// @param x  [tokens, columns]
/// @param y  [rows, columns]
/// @throws ShapeError  if shapes do not match, or if a matrix is too large for the device: see
///                     `kernels/cuda/limits.hpp`
/// @note enqueues; does not synchronise
template <LinearPrecision P, OperandKind Kind, class T, Device D>
void copy_to_experts(TensorView<const T, 2, D> x, const ExpertRows<D>& rows,
                     const Operand<P, Kind, D>& y, const Context<D>& context) {
  check_shape("copy_to_experts", "x", x, {rows.tokens(), x.extent(1)});
  check_shape("copy_to_experts", "y", y.values, {rows.rows(), x.extent(1)});
  copy_to_experts_body(x, rows, y, context);
}

/// Computes y[t] = addend[t] + Σ of the rows of token t, in FP32: first the rows in the order of
/// the choices, then the addend, with one rounding.
/// @param x       [rows, columns]
/// @param addend  [tokens, columns]; empty: nothing is added. May be `y` itself
/// @param y       [tokens, columns]
/// @throws ShapeError  if shapes do not match
/// @note enqueues; does not synchronise
template <class T, Device D>
void sum_of_experts(TensorView<const T, 2, D> x, const ExpertRows<D>& rows,
                    TensorView<const T, 2, D> addend, TensorView<T, 2, D> y,
                    const Context<D>& context) {
  check_shape("sum_of_experts", "x", x, {rows.rows(), y.extent(1)});
  check_shape("sum_of_experts", "y", y, {rows.tokens(), x.extent(1)});
  if (!addend.empty()) check_shape("sum_of_experts", "addend", addend, y.shape());
  sum_of_experts_body(x, rows, addend, y, context);
}

/// Computes y = weight · silu(gate) · up, quantised for the precision of `y`. The down projection
/// is linear, so the weight can be a factor of its input instead of its output. The backward then
/// does not need the output.
/// @param gate_up  [rows, 2 · ffn]: the gate values of a row, then its up values; 0 in padding and
///                 unused rows
/// @param weights  [tokens, choices]
/// @param y        [rows, ffn]; 0 in padding and unused rows
/// @throws ShapeError  if shapes do not match, or if a matrix is too large for the device: see
///                     `kernels/cuda/limits.hpp`
/// @note enqueues; does not synchronise
template <LinearPrecision P, OperandKind Kind, class T, Device D>
void experts_swiglu_forward(TensorView<const T, 2, D> gate_up,
                            TensorView<const float, 2, D> weights, const ExpertRows<D>& rows,
                            const Operand<P, Kind, D>& y, const Context<D>& context) {
  constexpr const char* name = "experts_swiglu_forward";
  check_shape(name, "gate_up", gate_up, {rows.rows(), 2 * y.values.extent(1)});
  check_shape(name, "weights", weights, rows.places.shape());
  check_shape(name, "y", y.values, {rows.rows(), y.values.extent(1)});
  experts_swiglu_forward_body(gate_up, weights, rows, y, context);
}

/// Computes the gradients of `gate_up`, quantised for its precision, and of the weights.
/// @param y_gradient        [rows, ffn]
/// @param gate_up           [rows, 2 · ffn]
/// @param weights           [tokens, choices]
/// @param gate_up_gradient  [rows, 2 · ffn]; its values must not alias `gate_up`
/// @param weight_gradient   [tokens, choices], overwritten
/// @throws ShapeError  if shapes do not match, or if a matrix is too large for the device: see
///                     `kernels/cuda/limits.hpp`
/// @note enqueues; does not synchronise
template <LinearPrecision P, OperandKind Kind, class T, Device D>
void experts_swiglu_backward(TensorView<const T, 2, D> y_gradient,
                             TensorView<const T, 2, D> gate_up,
                             TensorView<const float, 2, D> weights, const ExpertRows<D>& rows,
                             const Operand<P, Kind, D>& gate_up_gradient,
                             TensorView<float, 2, D> weight_gradient, const Context<D>& context) {
  constexpr const char* name = "experts_swiglu_backward";
  check_shape(name, "y_gradient", y_gradient, {rows.rows(), y_gradient.extent(1)});
  check_shape(name, "gate_up", gate_up, {rows.rows(), 2 * y_gradient.extent(1)});
  check_shape(name, "weights", weights, rows.places.shape());
  check_shape(name, "gate_up_gradient", gate_up_gradient.values, gate_up.shape());
  check_shape(name, "weight_gradient", weight_gradient, rows.places.shape());
  experts_swiglu_backward_body(y_gradient, gate_up, weights, rows, gate_up_gradient,
                               weight_gradient, context);
}

}  // namespace octavo

#include <octavo/kernels/cpu/experts.hpp>
