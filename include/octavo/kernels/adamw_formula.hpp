/// @file
/// AdamW's settings and its formulas for one element: one place for every device.
#pragma once

#include <octavo/core/device.hpp>
#include <octavo/core/random.hpp>
#include <octavo/formats/formats.hpp>

#include <cmath>
#include <type_traits>

namespace octavo::inline OCTAVO_ABI {

/// What changes from step to step; lives on the device.
struct AdamWStep {
  float learning_rate;
  float first_correction;   ///< 1 − beta1^t
  float second_correction;  ///< 1 − beta2^t
  std::uint32_t step;       ///< t, from 1
  std::uint64_t seed = 0;   ///< of stochastic rounding, beside the step
};

/// What stays the same through a run.
struct AdamWSettings {
  float beta1 = 0.9f;
  float beta2 = 0.95f;
  float epsilon = 1e-8f;
  float weight_decay = 0.1f;  ///< applied to matrices only
};

namespace detail {

/// Neighbouring elements whose bits for one rounding come from one call of `philox`.
inline constexpr int rounding_run = 8;

/// Neighbouring elements of a parameter whose moments share a scale, where moments have scales.
inline constexpr int moment_group = 128;

/// Whether moments in this format have scales.
template <class Moment>
inline constexpr bool has_moment_scales = std::is_same_v<Moment, EightBit>;

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

/// 24 bits of a word: byte `top`, the byte below it, and the one below that; the uppermost is the
/// one below the lowest.
OCTAVO_HOST_DEVICE inline std::uint32_t three_bytes(std::uint32_t word, int top) {
#if defined(__CUDA_ARCH__)
  const int selector = 0x4000 | top << 8 | (top + 3) % 4 << 4 | (top + 2) % 4;
  return __byte_perm(word, 0, static_cast<unsigned>(selector));
#else
  const int left = 24 - 8 * top;
  return (word << left | word >> (32 - left) % 32) >> 8;
#endif
}

/// The random bits for one rounding of `rounding_run` neighbouring elements.
struct RoundingBits {
  Array<std::uint32_t, 4> words;

  /// @return the bits of the run's i-th element in the lower 16, others above
  OCTAVO_HOST_DEVICE std::uint32_t operator[](int i) const {
    return words[static_cast<std::size_t>(i / 2)] >> (i % 2 * 16);
  }

  /// The 24 bits for a moment's i-th element in `EightBit`. Both moments take theirs from the words
  /// of the first: each of the four bytes of a word is the upper one for a moment of one of its two
  /// elements. What depends on the bits below is one rounding in 256, so they are nearly
  /// independent of each other.
  OCTAVO_HOST_DEVICE std::uint32_t of_moment(Rounding moment, int i) const {
    const int top = i % 2 * 2 + (moment == Rounding::first_moment ? 1 : 0);
    return three_bytes(words[static_cast<std::size_t>(i / 2)], top);
  }
};

/// What rounding the elements of the part from `rounding_run` · `run` on takes; nothing where `T`,
/// the format that is rounded to, is FP32.
template <class T, class Parameter>
OCTAVO_HOST_DEVICE RoundingBits rounding_bits(const Parameter& parameter, const AdamWStep& step,
                                              Rounding rounding, Index run) {
  if constexpr (std::is_same_v<T, float>) {
    return {};
  } else {
    const std::uint64_t use = parameter.random_stream * 4 + static_cast<std::uint64_t>(rounding);
    const Index place = parameter.first_element / rounding_run + run;
    return RoundingBits{
        philox({step.seed, (use << 32) | step.step}, static_cast<std::uint64_t>(place))};
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
          fmaxf(settings.epsilon, FormatTraits<Fp32>::min_normal),
          1.0f - step.learning_rate * decay,
          step.learning_rate / step.first_correction,
          1.0f / step.second_correction};
}

/// m / (√v + epsilon) for v ≥ 0 and an epsilon that is no subnormal number. `Cuda` takes the
/// hardware's square root and reciprocal, which are off by 2^-22 at most and flush subnormal v:
/// exact ones would take a third of the update's instructions.
OCTAVO_HOST_DEVICE inline float moment_ratio(float m, float v, float epsilon) {
#if defined(__CUDA_ARCH__)
  float root;
  float inverse;
  asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(root) : "f"(v));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(root + epsilon));
  return m * inverse;
#else
  return m / (sqrtf(v) + epsilon);
#endif
}

/// The update of one element, for every device.
/// @param first_bits, second_bits  for rounding the moments
template <class Moment>
OCTAVO_HOST_DEVICE float adamw_element(float weight, float gradient, Moment& first, Moment& second,
                                       const AdamWFactors& factors, std::uint32_t first_bits,
                                       std::uint32_t second_bits) {
  const float m = factors.beta1 * static_cast<float>(first) + (1.0f - factors.beta1) * gradient;
  const float v =
      factors.beta2 * static_cast<float>(second) + (1.0f - factors.beta2) * gradient * gradient;
  first = round_stochastic<Moment>(m, first_bits);
  second = round_stochastic<Moment>(v, second_bits);
  const float ratio = moment_ratio(m, v * factors.second_correction, factors.epsilon);
  return weight * factors.kept - factors.step_size * ratio;
}

}  // namespace detail
}  // namespace octavo
