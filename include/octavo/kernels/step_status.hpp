/// @file
/// Loss, gradient norm and the decision whether a step counts, all on the device.
#pragma once

#include <octavo/tensor/tensor.hpp>

#include <limits>

namespace octavo OCTAVO_ABI {

/// Above which a step is skipped though it is finite. Infinities: none is.
struct StepLimits {
  double loss_sum = std::numeric_limits<double>::infinity();
  double gradient_norm = std::numeric_limits<double>::infinity();
};

/// What is known of a step once its gradients are complete. Lives on the device; the trainer reads
/// it once a step.
struct StepStatus {
  /// How many of the first members are sums. Whoever holds a part of the gradients, or of the
  /// tokens, adds up its own; one sum over all of them makes the whole's, and then all decide
  /// alike. A gradient that several hold is one of them's own. By how many targets the sum of
  /// losses is divided is no part of this: gradients are divided by it before there are sums.
  static constexpr Index sums = 3;
  static constexpr std::uint32_t skip_not_finite = 1;
  static constexpr std::uint32_t skip_above_limits = 2;

  double squared_norm;     ///< Σ of squared gradients, each counted once
  double loss_sum;         ///< Σ of the losses of all tokens
  double nonfinite;        ///< Σ of operands whose casts met an Inf or NaN
  float gradient_norm;     ///< square root of `squared_norm`
  float clip_coefficient;  ///< factor for every gradient, at most 1
  /// Not 0: nothing may change. `skip_not_finite`: loss, gradient or an operand is not finite.
  /// `skip_above_limits`: all are, but loss or norm is above its limit.
  std::uint32_t skip;
  std::uint32_t arrivals;  ///< blocks of a running add_squared_norm that are done; 0 before, after
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

/// Adds to `status.nonfinite` by how much the operands' counts rose.
/// @param after   [operands], after the step
/// @param before  [operands], as they were before the step
/// @param status  [1]
/// @note enqueues; does not synchronise
template <Device D>
void add_nonfinite(TensorView<const OperandStatistics, 1, D> after,
                   TensorView<const OperandStatistics, 1, D> before,
                   TensorView<StepStatus, 1, D> status, const Context<D>& context) {
  check_shape("add_nonfinite", "before", before, {after.extent(0)});
  add_nonfinite_body(after, before, status, context);
}

/// Decides from the sums: norm, clipping, and whether to skip. A step is skipped if its loss or its
/// gradient norm is not finite, or if a cast met what is not: it would otherwise hide an Inf; or if
/// the loss or the norm is above its limit.
/// @param max_gradient_norm  gradients are scaled down to this norm; 0 leaves them
/// @param limits    [1]
/// @param status    [1], with all sums
/// @note enqueues; does not synchronise
template <Device D>
void decide_step(float max_gradient_norm, TensorView<const StepLimits, 1, D> limits,
                 TensorView<StepStatus, 1, D> status, const Context<D>& context) {
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

/// The decision, for every device.
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
