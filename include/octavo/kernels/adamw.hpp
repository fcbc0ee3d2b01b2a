/// @file
/// The AdamW update of one parameter.
#pragma once

#include <octavo/core/random.hpp>
#include <octavo/kernels/step_status.hpp>

#include <cmath>

namespace octavo {

/// What changes from step to step; lives on the device.
struct AdamWStep {
  float learning_rate;
  float first_correction;   ///< 1 − beta1^t
  float second_correction;  ///< 1 − beta2^t
  std::uint32_t step;       ///< t, from 1; also seeds stochastic rounding
};

/// What stays the same through a run.
struct AdamWSettings {
  float beta1 = 0.9f;
  float beta2 = 0.95f;
  float epsilon = 1e-8f;
  float weight_decay = 0.1f;  ///< applied to matrices only
  std::uint64_t seed = 0;     ///< of stochastic rounding
};

/// One parameter and its optimizer state.
/// @tparam W  format of the weight
/// @tparam G  format of the gradient
/// @tparam M  format of the moments: `Fp32`, or `Bf16` with stochastic rounding
template <class W, class G, class M, Device D>
struct AdamWParameter {
  TensorView<W, 1, D> weight;          ///< [elements]
  TensorView<const G, 1, D> gradient;  ///< [elements]
  /// [elements], the FP32 master weight; empty: the weight itself is updated, with stochastic
  /// rounding where it is not FP32
  TensorView<float, 1, D> master;
  TensorView<M, 1, D> first_moment;   ///< [elements]
  TensorView<M, 1, D> second_moment;  ///< [elements]
  float weight_decay = 0;
  std::uint64_t random_stream = 0;  ///< differs between parameters
};

/// w ← w · (1 − lr · decay) − lr · m̂ / (√v̂ + epsilon), with gradients times the clip coefficient;
/// nothing changes if the step is skipped.
/// @param step    [1]
/// @param status  [1]
/// @note enqueues; does not synchronise
/// Source: Loshchilov and Hutter 2017, arXiv 1711.05101.
template <class W, class G, class M, Device D>
void adamw_update(const AdamWParameter<W, G, M, D>& parameter, const AdamWSettings& settings,
                  TensorView<const AdamWStep, 1, D> step, TensorView<const StepStatus, 1, D> status,
                  const Context<D>& context) {
  check_shape("adamw_update", "gradient", parameter.gradient, parameter.weight.shape());
  check_shape("adamw_update", "first moment", parameter.first_moment, parameter.weight.shape());
  check_shape("adamw_update", "second moment", parameter.second_moment, parameter.weight.shape());
  adamw_update_body(parameter, settings, step, status, context);
}

namespace detail {

/// Rounds to a storage format: FP32 as it is, BF16 stochastically.
template <class T>
OCTAVO_HOST_DEVICE T round_stochastic(float value, std::uint32_t random) {
  if constexpr (std::is_same_v<T, float>) {
    return value;
  } else {
    return T::stochastic(value, random);
  }
}

/// The random numbers of one parameter in one step: `use` 0 for moments, 1 for weights.
template <class Parameter>
OCTAVO_HOST_DEVICE RandomStream rounding_stream(const Parameter& parameter,
                                                const AdamWSettings& settings,
                                                const AdamWStep& step, std::uint64_t use) {
  return {settings.seed, ((parameter.random_stream * 2 + use) << 32) | step.step};
}

/// The update of one element, for every device. `random` gives 16 bits for each rounding.
template <class M>
OCTAVO_HOST_DEVICE float adamw_element(float weight, float gradient, M& first, M& second,
                                       const AdamWSettings& settings, const AdamWStep& step,
                                       float decay, std::uint32_t random) {
  const float m = settings.beta1 * static_cast<float>(first) + (1.0f - settings.beta1) * gradient;
  const float v =
      settings.beta2 * static_cast<float>(second) + (1.0f - settings.beta2) * gradient * gradient;
  first = round_stochastic<M>(m, random);
  second = round_stochastic<M>(v, random >> 16);
  const float denominator = sqrtf(v / step.second_correction) + settings.epsilon;
  const float update = m / step.first_correction / denominator;
  return weight * (1.0f - step.learning_rate * decay) - step.learning_rate * update;
}

}  // namespace detail
}  // namespace octavo

#include <octavo/kernels/cpu/adamw.hpp>
