/// @file
/// AdamW's settings and its formulas for one element, shared by all devices.
#pragma once

#include <octavo/core/device.hpp>
#include <octavo/core/random.hpp>
#include <octavo/formats/formats.hpp>

#include <cmath>
#include <type_traits>

namespace octavo OCTAVO_ABI {

/// Settings that change from step to step; stored on the device.
struct AdamWStep {
  float learning_rate;
  float first_correction;   ///< 1 − beta1^t
  float second_correction;  ///< 1 − beta2^t
  std::uint32_t step;       ///< t, from 1
  std::uint64_t seed = 0;   ///< of stochastic rounding, in addition to the step
};

/// Settings that are constant during a training.
struct AdamWSettings {
  float beta1 = 0.9f;
  float beta2 = 0.95f;
  float epsilon = 1e-8f;
  float weight_decay = 0.1f;  ///< applied only to matrices
};

namespace detail {

/// Number of adjacent elements whose bits for one rounding come from one call of `philox`.
inline constexpr int rounding_run = 8;

/// Number of adjacent elements of a parameter that share the scale of a moment, for formats with
/// scales.
inline constexpr int moment_group = 128;

/// Whether moments in this format have scales.
template <class Moment>
inline constexpr bool has_moment_scales = std::is_same_v<Moment, EightBit>;

/// Alignment of parts of a parameter: elements that are rounded together.
template <class Moment>
inline constexpr Index adamw_multiple = has_moment_scales<Moment> ? moment_group : rounding_run;

/// Rounds the result of a computation to a storage format. FP32 is unchanged; BF16 is rounded as by
/// `Bf16::stochastic`, but without its branches, which would cost more than the update. Values at
/// or above the largest BF16 number are truncated, so they remain finite, Inf or a quiet NaN.
/// @param random  the lower 16 bits are used
template <class T>
OCTAVO_HOST_DEVICE T round_stochastic(float value, std::uint32_t random) {
  if constexpr (std::is_same_v<T, float>) {
    return value;
  } else {
    static_assert(std::is_same_v<T, Bf16>,
                  "adamw_update: weights and moments must be Fp32 or Bf16");
    const std::uint32_t bits = float_bits(value);
    const std::uint32_t sum = bits + (random & 0xffffu);
    const bool is_below = fabsf(value) < FormatTraits<Bf16>::max;
    return Bf16::from_bits(static_cast<std::uint16_t>((is_below ? sum : bits) >> 16));
  }
}

/// The values that are rounded stochastically.
enum class Rounding : std::uint64_t { first_moment, second_moment, weight };

/// The random bits for one rounding of `rounding_run` adjacent elements.
struct RoundingBits {
  Array<std::uint32_t, 4> words;

  /// @return the bits of the i-th element in the lower 16 bits; the others are arbitrary
  OCTAVO_HOST_DEVICE std::uint32_t operator[](int i) const {
    return words[static_cast<std::size_t>(i / 2)] >> (i % 2 * 16);
  }
};

/// Returns the words of `philox` at a position of a parameter's stream.
template <class Parameter>
OCTAVO_HOST_DEVICE Array<std::uint32_t, 4> rounding_words(const Parameter& parameter,
                                                          const AdamWStep& step, Rounding rounding,
                                                          Index place) {
  const std::uint64_t use = parameter.random_stream * 4 + static_cast<std::uint64_t>(rounding);
  return philox({step.seed, (use << 32) | step.step}, static_cast<std::uint64_t>(place));
}

/// Returns the bits for rounding the elements of the part starting at `rounding_run` · `run`; empty
/// if `T`, the target format, is FP32.
template <class T, class Parameter>
OCTAVO_HOST_DEVICE RoundingBits rounding_bits(const Parameter& parameter, const AdamWStep& step,
                                              Rounding rounding, Index run) {
  if constexpr (std::is_same_v<T, float>) {
    return {};
  } else {
    const Index first = parameter.first_element / rounding_run;
    return RoundingBits{rounding_words(parameter, step, rounding, first + run)};
  }
}

/// The random bits for all roundings of sixteen elements with `EightBit` moments: groups c and c +
/// 8 of the sixteen in a block of 128. Four adjacent elements share a word, and their roundings use
/// the upper bits of its products with odd factors. These depend on the whole word, and any two of
/// them are practically independent. A product is cheaper than an additional call of `philox`.
struct SharedRoundingBits {
  static constexpr Index calls_per_group = 8;

  Array<std::uint32_t, 4> words;

  /// @param half  0: of group c, 1: of group c + 8
  /// @param i     element of the group
  /// @return      a word whose upper bits are random
  OCTAVO_HOST_DEVICE std::uint32_t of(Rounding rounding, int half, int i) const {
    constexpr std::uint32_t factors[4][3] = {{0x00000001u, 0x9E3779B1u, 0x85EBCA77u},
                                             {0xC2B2AE3Du, 0x27D4EB2Fu, 0x165667B1u},
                                             {0xD2511F53u, 0xCD9E8D57u, 0xBB67AE85u},
                                             {0xA511E9B3u, 0x8DA6B343u, 0xD8163841u}};
    const int word = 2 * half + i / 4;
    return words[static_cast<std::size_t>(word)] * factors[i % 4][static_cast<int>(rounding)];
  }
};

/// @param call  for the elements of the part starting at 128 · ⌊call / 8⌋
template <class Parameter>
OCTAVO_HOST_DEVICE SharedRoundingBits shared_rounding_bits(const Parameter& parameter,
                                                           const AdamWStep& step, Index call) {
  const Index first = parameter.first_element / moment_group * SharedRoundingBits::calls_per_group;
  return SharedRoundingBits{rounding_words(parameter, step, Rounding::first_moment, first + call)};
}

/// Returns 1 / x and √x of x ≥ 0. `Cuda` uses the hardware's approximations, which have a relative
/// error of at most 2^-22 and flush subnormal numbers: exact results would take a third of the
/// update's instructions.
OCTAVO_HOST_DEVICE inline float inverse(float x) {
#if defined(__CUDA_ARCH__)
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
#else
  return 1.0f / x;
#endif
}
OCTAVO_HOST_DEVICE inline float square_root(float x) {
#if defined(__CUDA_ARCH__)
  float result;
  asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
#else
  return sqrtf(x);
#endif
}

/// Coefficients for the update of every element, computed from the settings and the step to save
/// multiplications. With c the corrections and a = lr · √c2 / c1, the step lr · (m / c1) / (√(v /
/// c2) + epsilon) equals m / (√v / a + √c2 · epsilon / a).
struct AdamWFactors {
  float beta1, beta2;
  float first_share;   ///< coefficient of a gradient in m: (1 − beta1) · clip
  float second_share;  ///< its square is the coefficient of a squared gradient in v: √(1 − beta2) ·
                       ///< clip
  float kept;          ///< coefficient of a weight: 1 − lr · decay
  float inverse_step;  ///< 1 / a; finite
  float epsilon;       ///< √c2 · epsilon / a, a normal number; +∞ if weights must not change
};

/// @param clip  factor of gradients
OCTAVO_HOST_DEVICE inline AdamWFactors adamw_factors(const AdamWSettings& settings,
                                                     const AdamWStep& step, float decay,
                                                     float clip) {
  constexpr float least_step = 0x1p-100f;  // smaller rates, in particular 0, do not change weights
  const float root = square_root(step.second_correction);
  const float size = step.learning_rate * root * inverse(step.first_correction);
  const bool moves = size >= least_step;
  const float inverse_step = moves ? inverse(size) : 1.0f;
  constexpr float least = FormatTraits<Fp32>::min_normal;
  const float epsilon = fmaxf(settings.epsilon * root, least) * inverse_step;
  return {settings.beta1,
          settings.beta2,
          (1.0f - settings.beta1) * clip,
          square_root(1.0f - settings.beta2) * clip,
          1.0f - step.learning_rate * decay,
          inverse_step,
          moves ? fmaxf(epsilon, least) : INFINITY};
}

/// Updates one element, on every device.
/// @param first_bits, second_bits  for rounding the moments
template <class Moment>
OCTAVO_HOST_DEVICE float adamw_element(float weight, float gradient, Moment& first, Moment& second,
                                       const AdamWFactors& factors, std::uint32_t first_bits,
                                       std::uint32_t second_bits) {
  const float root = factors.second_share * gradient;
  const float m = factors.beta1 * static_cast<float>(first) + factors.first_share * gradient;
  const float v = factors.beta2 * static_cast<float>(second) + root * root;
  first = round_stochastic<Moment>(m, first_bits);
  second = round_stochastic<Moment>(v, second_bits);
  const float divisor = square_root(v) * factors.inverse_step + factors.epsilon;
  return weight * factors.kept - m * inverse(divisor);
}

}  // namespace detail
}  // namespace octavo
