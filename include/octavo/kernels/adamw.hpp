/// @file
/// The AdamW update of one parameter.
#pragma once

#include <octavo/core/random.hpp>
#include <octavo/kernels/step_status.hpp>

#include <cmath>

namespace octavo {
namespace detail {

/// Neighbouring elements whose bits for one rounding come from one call of `philox`.
inline constexpr int rounding_run = 8;

}  // namespace detail

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

/// One parameter, or a part of it, and its optimizer state.
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
  Index first_element = 0;          ///< that a part begins with: a multiple of 8
};

namespace detail {

template <class W, class G, class M, Device D>
void check_adamw(const AdamWParameter<W, G, M, D>& parameter) {
  check_shape("adamw_update", "gradient", parameter.gradient, parameter.weight.shape());
  check_shape("adamw_update", "first moment", parameter.first_moment, parameter.weight.shape());
  check_shape("adamw_update", "second moment", parameter.second_moment, parameter.weight.shape());
}

}  // namespace detail

/// The elements from `begin` on of a parameter or a part of one, such as the shard of a rank.
/// @param begin  a multiple of 8
template <class W, class G, class M, Device D>
AdamWParameter<W, G, M, D> part_of(AdamWParameter<W, G, M, D> parameter, Index begin, Index count) {
  detail::check_adamw(parameter);
  require<ShapeError>(begin >= 0 && count >= 0 && begin + count <= parameter.weight.size(),
                      "part_of: elements ", begin, " to ", begin + count, " are wanted of ",
                      parameter.weight.size());
  const auto cut = [&](auto& view) {
    if (!view.empty()) view = view.rows(begin, count);
  };
  cut(parameter.weight);
  cut(parameter.gradient);
  cut(parameter.master);
  cut(parameter.first_moment);
  cut(parameter.second_moment);
  parameter.first_element += begin;
  return parameter;
}

/// w ← w · (1 − lr · decay) − lr · m̂ / (√v̂ + epsilon), with gradients times the clip coefficient;
/// nothing changes if the step is skipped.
///
/// Stochastic rounding adds 16 random bits to the 16 that BF16 drops. The bits of an element depend
/// on the seed, the step, the parameter's `random_stream`, the element's position in the parameter
/// and on what is rounded, alone: parts are updated to the bits of the whole. Philox gives 128 bits
/// at once, which eight neighbours share: element i takes half i mod 2, the lower first, of word (i
/// mod 8) / 2 at position i / 8 of the stream (4 · `random_stream` + r) · 2^32 + step; r is 0 for
/// the first moment, 1 for the second, 2 for the weight.
/// @param step    [1]
/// @param status  [1]
/// @note enqueues; does not synchronise
/// Source: Loshchilov and Hutter 2017, arXiv 1711.05101.
template <class W, class G, class M, Device D>
void adamw_update(const AdamWParameter<W, G, M, D>& parameter, const AdamWSettings& settings,
                  TensorView<const AdamWStep, 1, D> step, TensorView<const StepStatus, 1, D> status,
                  const Context<D>& context) {
  detail::check_adamw(parameter);
  if (parameter.weight.size() == 0) return;
  require<ShapeError>(parameter.first_element % detail::rounding_run == 0,
                      "adamw_update: a part begins with element ", parameter.first_element,
                      "; give a multiple of ", detail::rounding_run);
  adamw_update_body(parameter, settings, step, status, context);
}

namespace detail {

/// Rounds the result of a computation to a storage format: FP32 as it is, BF16 as
/// `Bf16::stochastic` does, but without its branches, which would cost more than the update. What
/// is not below the largest BF16 number loses its lower bits: it stays finite, Inf or a quiet NaN.
/// @param random  the lower 16 bits are used
template <class T>
OCTAVO_HOST_DEVICE T round_stochastic(float value, std::uint32_t random) {
  if constexpr (std::is_same_v<T, float>) {
    return value;
  } else {
    static_assert(std::is_same_v<T, Bf16>, "adamw_update: weights and moments are Fp32 or Bf16");
    constexpr float largest = 0x1.fep127f;
    const std::uint32_t added = fabsf(value) < largest ? random & 0xffffu : 0u;
    return Bf16::from_bits(static_cast<std::uint16_t>((float_bits(value) + added) >> 16));
  }
}

/// What is rounded stochastically.
enum class Rounding : std::uint64_t { first_moment, second_moment, weight };

/// The random bits for one rounding of `rounding_run` neighbouring elements.
struct RoundingBits {
  Array<std::uint32_t, 4> words;

  /// @return the bits of the run's i-th element in the lower 16, others above
  OCTAVO_HOST_DEVICE std::uint32_t operator[](int i) const {
    return words[static_cast<std::size_t>(i / 2)] >> (i % 2 * 16);
  }
};

/// What rounding the elements of the part from `rounding_run` · `run` on takes; nothing where `T`,
/// the format that is rounded to, is FP32.
template <class T, class Parameter>
OCTAVO_HOST_DEVICE RoundingBits rounding_bits(const Parameter& parameter,
                                              const AdamWSettings& settings, const AdamWStep& step,
                                              Rounding rounding, Index run) {
  if constexpr (std::is_same_v<T, float>) {
    return {};
  } else {
    const std::uint64_t use = parameter.random_stream * 4 + static_cast<std::uint64_t>(rounding);
    const Index place = parameter.first_element / rounding_run + run;
    return RoundingBits{
        philox({settings.seed, (use << 32) | step.step}, static_cast<std::uint64_t>(place))};
  }
}

/// What the update of every element takes from the settings and the step. The corrections of the
/// moments are multiplied by: two divisions a step, not two an element.
struct AdamWFactors {
  float beta1, beta2, epsilon;
  float kept;               ///< of a weight: 1 − lr · decay
  float step_size;          ///< lr / first correction
  float second_correction;  ///< its inverse
};

OCTAVO_HOST_DEVICE inline AdamWFactors adamw_factors(const AdamWSettings& settings,
                                                     const AdamWStep& step, float decay) {
  return {settings.beta1,
          settings.beta2,
          settings.epsilon,
          1.0f - step.learning_rate * decay,
          step.learning_rate / step.first_correction,
          1.0f / step.second_correction};
}

/// m / (√v + epsilon) for v ≥ 0. `Cuda` takes the hardware's square root and reciprocal, which
/// are off by 2^-22 at most and flush subnormal v: exact ones would take a third of the update's
/// instructions.
OCTAVO_HOST_DEVICE inline float moment_ratio(float m, float v, float epsilon) {
#if defined(__CUDA_ARCH__)
  float root;
  asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(root) : "f"(v));
  return __fdividef(m, root + epsilon);
#else
  return m / (sqrtf(v) + epsilon);
#endif
}

/// The update of one element, for every device.
/// @param first_bits, second_bits  for rounding the moments
template <class M>
OCTAVO_HOST_DEVICE float adamw_element(float weight, float gradient, M& first, M& second,
                                       const AdamWFactors& factors, std::uint32_t first_bits,
                                       std::uint32_t second_bits) {
  const float m = factors.beta1 * static_cast<float>(first) + (1.0f - factors.beta1) * gradient;
  const float v =
      factors.beta2 * static_cast<float>(second) + (1.0f - factors.beta2) * gradient * gradient;
  first = round_stochastic<M>(m, first_bits);
  second = round_stochastic<M>(v, second_bits);
  const float ratio = moment_ratio(m, v * factors.second_correction, factors.epsilon);
  return weight * factors.kept - factors.step_size * ratio;
}

}  // namespace detail
}  // namespace octavo

#include <octavo/kernels/cpu/adamw.hpp>
