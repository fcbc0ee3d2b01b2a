/// @file
/// Loss, gradient norm and the decision whether to skip a step, all on the device.
#pragma once

#include <octavo/tensor/tensor.hpp>

#include <cmath>
#include <limits>

namespace octavo OCTAVO_ABI {

/// Limits above which a finite step is skipped. Infinity: no limit.
struct StepLimits {
  double loss_sum = std::numeric_limits<double>::infinity();
  double gradient_norm = std::numeric_limits<double>::infinity();
};

/// The status of a step after its gradients are complete. Stored on the device; the host reads it
/// once per step.
struct StepStatus {
  /// Number of leading members that are sums. Each rank with a shard of the gradients or tokens
  /// computes its own sums; after one sum over all ranks, all ranks make the same decision. If
  /// several ranks have the same gradient, it counts on only one of them. The number of targets, by
  /// which the sum of losses is divided, is not included, because gradients are divided by it
  /// earlier.
  static constexpr Index sums = 3;
  static constexpr std::uint32_t skip_not_finite = 1;
  static constexpr std::uint32_t skip_above_limits = 2;

  double squared_norm;     ///< Σ of squared gradients, each counted once
  double loss_sum;         ///< Σ of the losses of all tokens
  double nonfinite;        ///< number of operands whose casts encountered an Inf or NaN
  float gradient_norm;     ///< square root of `squared_norm`
  float clip_coefficient;  ///< factor of every gradient, at most 1
  /// If not 0, the step must not change anything. `skip_not_finite`: the loss, the gradient or an
  /// operand is not finite. `skip_above_limits`: all are finite, but the loss or the norm is above
  /// its limit.
  std::uint32_t skip;
  std::uint32_t arrivals;  ///< number of finished blocks during add_squared_norm; 0 before and
                           ///< after
};

/// Adds the losses to `status.loss_sum`, in a fixed order.
/// @param losses  [tokens]
/// @param status  [1]
/// @note enqueues; does not synchronise
template <Device D>
void add_losses(TensorView<const float, 1, D> losses, TensorView<StepStatus, 1, D> status,
                const Context<D>& context) {
  add_losses_body(losses, status, context);
}

/// Adds Σ gradient² to `status.squared_norm`, in a fixed order.
/// @param gradient  [elements]
/// @param status    [1]
/// @note enqueues; does not synchronise
template <class G, Device D>
void add_squared_norm(TensorView<const G, 1, D> gradient, TensorView<StepStatus, 1, D> status,
                      const Context<D>& context) {
  add_squared_norm_body(gradient, status, context);
}

/// Adds the increase of the operands' counts to `status.nonfinite`.
/// @param after   [operands], after the step
/// @param before  [operands], before the step
/// @param status  [1]
/// @note enqueues; does not synchronise
template <Device D>
void add_nonfinite(TensorView<const OperandStatistics, 1, D> after,
                   TensorView<const OperandStatistics, 1, D> before,
                   TensorView<StepStatus, 1, D> status, const Context<D>& context) {
  check_shape("add_nonfinite", "before", before, {after.extent(0)});
  add_nonfinite_body(after, before, status, context);
}

/// Computes the norm and the clip coefficient from the sums, and decides whether to skip the step.
/// A step is skipped if its loss or gradient norm is not finite, if a cast encountered a non-finite
/// value, which the cast would otherwise hide, or if the loss or the norm is above its limit.
/// @param max_gradient_norm  gradients are scaled down to this norm; 0 disables clipping
/// @param limits    [1]
/// @param status    [1], with all sums
/// @throws ConfigError  if the maximum is negative or not finite
/// @note enqueues; does not synchronise
template <Device D>
void decide_step(float max_gradient_norm, TensorView<const StepLimits, 1, D> limits,
                 TensorView<StepStatus, 1, D> status, const Context<D>& context) {
  require<ConfigError>(max_gradient_norm >= 0 && std::isfinite(max_gradient_norm),
                       "decide_step: max_gradient_norm must be finite and at least 0, but is ",
                       max_gradient_norm, "; 0 disables clipping");
  decide_step_body(max_gradient_norm, limits, status, context);
}

/// Copies `source` over `target` if `status.skip` is set.
/// @param target  [bytes]
/// @param source  [bytes]
/// @param status  [1]
/// @note enqueues; does not synchronise
template <Device D>
void restore_if_skipped(TensorView<std::byte, 1, D> target,
                        TensorView<const std::byte, 1, D> source,
                        TensorView<const StepStatus, 1, D> status, const Context<D>& context) {
  check_shape("restore_if_skipped", "source", source, {target.extent(0)});
  restore_if_skipped_body(target, source, status, context);
}

namespace detail {

/// Makes the decision, on every device.
OCTAVO_HOST_DEVICE inline void decide(StepStatus& status, double norm, float max_gradient_norm,
                                      const StepLimits& limits) {
  status.gradient_norm = static_cast<float>(norm);
  const double clipped = static_cast<double>(max_gradient_norm) / (norm + 1e-6);
  status.clip_coefficient =
      max_gradient_norm > 0 && clipped < 1.0 ? static_cast<float>(clipped) : 1.0f;
  const bool finite = is_finite(status.gradient_norm) &&
                      is_finite(static_cast<float>(status.loss_sum)) && status.nonfinite == 0;
  const bool is_above = status.loss_sum > limits.loss_sum || norm > limits.gradient_norm;
  status.skip = !finite    ? StepStatus::skip_not_finite
                : is_above ? StepStatus::skip_above_limits
                           : 0;
}

}  // namespace detail
}  // namespace octavo

#include <octavo/kernels/cpu/step_status.hpp>
