/// @file
/// Layer normalisation.
#pragma once

#include <octavo/kernels/norm_epsilon.hpp>
#include <octavo/kernels/quantize.hpp>

namespace octavo OCTAVO_ABI {

/// Computes y[t, :] = (x[t, :] − m[t]) · r[t] · weight + bias, with m[t] the row's mean and r[t] =
/// 1 / sqrt(variance(x[t]) + epsilon), quantised for y's precision.
/// @param x           [tokens, hidden]
/// @param weight      [hidden]
/// @param bias        [hidden]
/// @param y           [tokens, hidden]
/// @param statistics  [2 · tokens]: m[0], r[0], m[1], r[1], …, saved for the backward
/// @throws ShapeError  if shapes do not match, or if a matrix is too large for the device: see
///                     `kernels/cuda/limits.hpp`
/// @throws ConfigError  if epsilon is negative or not finite
/// @note enqueues; does not synchronise
/// Source: Ba, Kiros and Hinton 2016, arXiv 1607.06450.
template <LinearPrecision P, OperandKind Kind, class T, Device D>
void layer_norm_forward(TensorView<const T, 2, D> x, TensorView<const T, 1, D> weight,
                        TensorView<const T, 1, D> bias, float epsilon, const Operand<P, Kind, D>& y,
                        TensorView<float, 1, D> statistics, const Context<D>& context) {
  check_shape("layer_norm_forward", "weight", weight, {x.extent(1)});
  check_shape("layer_norm_forward", "bias", bias, {x.extent(1)});
  check_shape("layer_norm_forward", "y", y.values, x.shape());
  check_shape("layer_norm_forward", "statistics", statistics, {2 * x.extent(0)});
  detail::check_norm_epsilon("layer_norm_forward", epsilon);
  layer_norm_forward_body(x, weight, bias, epsilon, y, statistics, context);
}

/// Adds the gradient of x to `x_gradient`, and those of weight and bias to their gradients.
/// @param y_gradient       [tokens, hidden]
/// @param x                [tokens, hidden]
/// @param weight           [hidden]
/// @param statistics       [2 · tokens], of the forward
/// @param x_gradient       [tokens, hidden]
/// @param weight_gradient  [hidden]
/// @param bias_gradient    [hidden]
/// @throws ShapeError  if shapes do not match, or if a matrix is too large for the device: see
///                     `kernels/cuda/limits.hpp`
/// @note enqueues; does not synchronise
template <class T, class G, Device D>
void layer_norm_backward(TensorView<const T, 2, D> y_gradient, TensorView<const T, 2, D> x,
                         TensorView<const T, 1, D> weight, TensorView<const float, 1, D> statistics,
                         TensorView<T, 2, D> x_gradient, TensorView<G, 1, D> weight_gradient,
                         TensorView<G, 1, D> bias_gradient, const Context<D>& context) {
  check_shape("layer_norm_backward", "y_gradient", y_gradient, x.shape());
  check_shape("layer_norm_backward", "weight", weight, {x.extent(1)});
  check_shape("layer_norm_backward", "statistics", statistics, {2 * x.extent(0)});
  check_shape("layer_norm_backward", "x_gradient", x_gradient, x.shape());
  check_shape("layer_norm_backward", "weight_gradient", weight_gradient, {x.extent(1)});
  check_shape("layer_norm_backward", "bias_gradient", bias_gradient, {x.extent(1)});
  layer_norm_backward_body(y_gradient, x, weight, statistics, x_gradient, weight_gradient,
                           bias_gradient, context);
}

}  // namespace octavo

#include <octavo/kernels/cpu/layer_norm.hpp>
