/// @file
/// The AdamW update on the `Cpu` device.
#pragma once

#include <octavo/kernels/adamw.hpp>
#include <octavo/kernels/cpu/vector.hpp>

#include <algorithm>
#include <cmath>
#include <span>

namespace octavo::inline OCTAVO_ABI::detail {

/// What updates of all elements of a parameter share.
struct AdamWNow {
  AdamWStep step;
  AdamWFactors factors;
  float clip;
};

/// Updates the elements from `begin` to `end`, which share the bits of a rounding.
/// @param first, second  their moments, which are rounded to `M`
template <class W, class G, class Moment, class M>
void update_run(const AdamWParameter<W, G, Moment, Cpu>& parameter, const AdamWNow& now,
                Index begin, Index end, M* first, M* second) {
  float* master = parameter.master.data();
  W* weight = parameter.weight.data();
  const auto bits = [&](auto format, Rounding rounding) {
    return rounding_bits<decltype(format)>(parameter, now.step, rounding, begin / rounding_run);
  };
  const RoundingBits first_bits = bits(M{}, Rounding::first_moment);
  const RoundingBits second_bits = bits(M{}, Rounding::second_moment);
  const RoundingBits rest = master != nullptr ? RoundingBits{} : bits(W{}, Rounding::weight);
  for (Index i = begin; i < end; ++i) {
    const int e = static_cast<int>(i - begin);
    const float old = master != nullptr ? master[i] : static_cast<float>(weight[i]);
    const float updated =
        adamw_element(old, static_cast<float>(parameter.gradient.data()[i]) * now.clip, first[e],
                      second[e], now.factors, first_bits[e], second_bits[e]);
    if (master != nullptr) master[i] = updated;
    weight[i] = master != nullptr ? W(updated) : round_stochastic<W>(updated, rest[e]);
  }
}

/// The largest magnitude of a group, but for NaN.
inline float group_amax(std::span<const float> group) {
  float largest = 0;
  for (const float value : group) largest = std::max(largest, std::abs(value));
  return largest;
}

/// Updates the elements from `begin` to `end`, whose moments share a scale each.
template <class W, class G>
void update_group(const AdamWParameter<W, G, EightBit, Cpu>& parameter, const AdamWNow& now,
                  Index begin, Index end) {
  EightBit* first = parameter.first_moment.data() + begin;
  EightBit* second = parameter.second_moment.data() + begin;
  E8M0& first_scale = parameter.first_scale.data()[begin / moment_group];
  E8M0& second_scale = parameter.second_scale.data()[begin / moment_group];
  const Index count = end - begin;
  float m[moment_group];
  float v[moment_group];
  for (Index i = 0; i < count; ++i) {
    m[i] = FirstMomentCode::decode(first[i], first_scale);
    v[i] = SecondMomentCode::decode(second[i], second_scale);
  }
  for (Index i = 0; i < count; i += rounding_run) {
    update_run(parameter, now, begin + i, std::min(begin + i + rounding_run, end), m + i, v + i);
  }
  const auto size = static_cast<std::size_t>(count);
  first_scale = FirstMomentCode::Levels::scale(group_amax({m, size}));
  second_scale = SecondMomentCode::Levels::scale(group_amax({v, size}));
  RoundingBits bits{};
  for (Index i = 0; i < count; ++i) {
    const int e = static_cast<int>(i % rounding_run);
    if (e == 0) {
      bits = rounding_bits<EightBit>(parameter, now.step, Rounding::first_moment,
                                     (begin + i) / rounding_run);
    }
    first[i] = EightBit::upper(
        FirstMomentCode::encode(m[i], first_scale, bits.of_moment(Rounding::first_moment, e)));
    second[i] = EightBit::upper(
        SecondMomentCode::encode(v[i], second_scale, bits.of_moment(Rounding::second_moment, e)));
  }
}

/// See adamw_update.
template <class W, class G, class M>
void adamw_update_body(const AdamWParameter<W, G, M, Cpu>& parameter, const AdamWSettings& settings,
                       TensorView<const AdamWStep, 1, Cpu> step,
                       TensorView<const StepStatus, 1, Cpu> status, const Context<Cpu>& context) {
  if (status.data()->skip != 0) return;
  const AdamWNow now{*step.data(), adamw_factors(settings, *step.data(), parameter.weight_decay),
                     status.data()->clip_coefficient};
  parallel_runs(parameter.weight.extent(0), context, [&](Index begin, Index end) {
    for (Index at = begin; at < end; at += adamw_multiple<M>) {
      const Index behind = std::min(at + adamw_multiple<M>, end);
      if constexpr (has_moment_scales<M>) {
        update_group(parameter, now, at, behind);
      } else {
        update_run(parameter, now, at, behind, parameter.first_moment.data() + at,
                   parameter.second_moment.data() + at);
      }
    }
  });
}

}  // namespace octavo::detail
