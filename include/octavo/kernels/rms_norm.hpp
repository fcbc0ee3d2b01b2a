/// @file
/// Root-mean-square normalisation.
#pragma once

#include <octavo/kernels/norm_epsilon.hpp>
#include <octavo/kernels/quantize.hpp>

#include <type_traits>

namespace octavo OCTAVO_ABI {

/// The weight of a normalisation: its values plus a constant.
template <class T, Device D>
struct NormWeight {
  TensorView<const T, 1, D> values{};  ///< [hidden]
  float offset = 0;                    ///< 1 if values are differences from 1, as in Gemma

  NormWeight(TensorView<const T, 1, D> weight, float constant = 0)  // NOLINT: views convert
      : values(weight), offset(constant) {}
};

/// The normalisation of a row by `rms_norm_forward`, for operations that normalise their input
/// themselves.
template <class T, Device D>
struct RowNorm {
  TensorView<const T, 1, D> weight{};  ///< [hidden]; empty: the row is unchanged
  float epsilon = 0;
};

/// Computes y[t, :] = x[t, :] · r[t] · weight, with r[t] = 1 / sqrt(mean(x[t, :]²) + epsilon),
/// quantised for y's precision.
/// @param x            [tokens, hidden]
/// @param weight       [hidden]
/// @param y            [tokens, hidden]
/// @param inverse_rms  [tokens]; r, saved for the backward
/// @throws ShapeError  if shapes do not match, or if a matrix is too large for the device: see
///                     `kernels/cuda/limits.hpp`
/// @throws ConfigError  if epsilon is negative or not finite
/// @note enqueues; does not synchronise
/// Source: Zhang and Sennrich 2019, arXiv 1910.07467.
template <LinearPrecision P, OperandKind Kind, class T, Device D>
void rms_norm_forward(TensorView<const T, 2, D> x,
                      const std::type_identity_t<NormWeight<T, D>>& weight, float epsilon,
                      const Operand<P, Kind, D>& y, TensorView<float, 1, D> inverse_rms,
                      const Context<D>& context) {
  check_shape("rms_norm_forward", "weight", weight.values, {x.extent(1)});
  check_shape("rms_norm_forward", "y", y.values, x.shape());
  check_shape("rms_norm_forward", "inverse_rms", inverse_rms, {x.extent(0)});
  detail::check_norm_epsilon("rms_norm_forward", epsilon);
  rms_norm_forward_body(x, weight, epsilon, y, inverse_rms, context);
}

/// Adds the gradient of x to `x_gradient`, and that of the weight to `weight_gradient`, unless it
/// is empty because the weight is frozen.
/// @param y_gradient       [tokens, hidden]
/// @param x                [tokens, hidden]
/// @param weight           [hidden]
/// @param inverse_rms      [tokens], of the forward
/// @param x_gradient       [tokens, hidden]
/// @param weight_gradient  [hidden]
/// @throws ShapeError  if shapes do not match, or if a matrix is too large for the device: see
///                     `kernels/cuda/limits.hpp`
/// @note enqueues; does not synchronise
template <class T, class G, Device D>
void rms_norm_backward(TensorView<const T, 2, D> y_gradient, TensorView<const T, 2, D> x,
                       const std::type_identity_t<NormWeight<T, D>>& weight,
                       TensorView<const float, 1, D> inverse_rms, TensorView<T, 2, D> x_gradient,
                       TensorView<G, 1, D> weight_gradient, const Context<D>& context) {
  check_shape("rms_norm_backward", "y_gradient", y_gradient, x.shape());
  check_shape("rms_norm_backward", "weight", weight.values, {x.extent(1)});
  check_shape("rms_norm_backward", "inverse_rms", inverse_rms, {x.extent(0)});
  check_shape("rms_norm_backward", "x_gradient", x_gradient, x.shape());
  if (!weight_gradient.empty()) {
    check_shape("rms_norm_backward", "weight_gradient", weight_gradient, {x.extent(1)});
  }
  rms_norm_backward_body(y_gradient, x, weight, inverse_rms, x_gradient, weight_gradient, context);
}

}  // namespace octavo

#include <octavo/kernels/cpu/rms_norm.hpp>
