/// @file
/// The AdamW update on the `Cpu` device.
#pragma once

#include <octavo/kernels/adamw.hpp>
#include <octavo/kernels/cpu/sums.hpp>

#include <algorithm>
#include <cmath>
#include <span>
#include <type_traits>

namespace octavo OCTAVO_ABI::detail {

/// Arguments that all element updates of a parameter share.
struct AdamWStepArguments {
  AdamWStep step;
  AdamWFactors factors;
};

/// Updates the elements from `begin` to `end`.
/// @param first, second  their moments, which are rounded to `M`
/// @param bits           (rounding, i): the random bits for the i-th of them
template <class W, class G, class Moment, class M>
void update_run(const AdamWParameter<W, G, Moment, Cpu>& parameter, const AdamWStepArguments& now,
                Index begin, Index end, M* first, M* second, auto&& bits) {
  float* master = parameter.master.data();
  W* weight = parameter.weight.data();
  for (Index i = begin; i < end; ++i) {
    const Index e = i - begin;
    const float old = master != nullptr ? master[i] : static_cast<float>(weight[i]);
    const float updated = adamw_element(
        old, static_cast<float>(parameter.gradient.data()[i]), first[e], second[e], now.factors,
        bits(Rounding::first_moment, e), bits(Rounding::second_moment, e));
    if (master != nullptr) master[i] = updated;
    weight[i] =
        master != nullptr ? W(updated) : round_stochastic<W>(updated, bits(Rounding::weight, e));
  }
}

/// Does the same for a group of elements that share the bits of a rounding.
template <class W, class G, class M>
void update_run(const AdamWParameter<W, G, M, Cpu>& parameter, const AdamWStepArguments& now,
                Index begin, Index end) {
  const Index run = begin / rounding_run;
  const bool has_master = parameter.master.data() != nullptr;
  const RoundingBits bits[] = {
      rounding_bits<M>(parameter, now.step, Rounding::first_moment, run),
      rounding_bits<M>(parameter, now.step, Rounding::second_moment, run),
      has_master ? RoundingBits{} : rounding_bits<W>(parameter, now.step, Rounding::weight, run)};
  update_run(parameter, now, begin, end, parameter.first_moment.data() + begin,
             parameter.second_moment.data() + begin, [&](Rounding rounding, Index i) {
               return bits[static_cast<int>(rounding)][static_cast<int>(i)];
             });
}

/// Whether no element is rounded stochastically: FP32 moments with master weights, or with FP32
/// weights and none.
template <class W, class G, class M>
bool rounds_to_nearest(const AdamWParameter<W, G, M, Cpu>& parameter) {
  const bool has_master = parameter.master.data() != nullptr;
  return std::is_same_v<M, float> && std::is_same_v<W, float> != has_master;
}

/// Updates elements of such a parameter, in loops that compilers vectorise.
template <class W, class G>
void update_to_nearest(const AdamWParameter<W, G, float, Cpu>& parameter,
                       const AdamWFactors& factors, Index begin, Index end) {
  const G* gradient = parameter.gradient.data();
  float* first = parameter.first_moment.data();
  float* second = parameter.second_moment.data();
  W* weight = parameter.weight.data();
  float* exact = parameter.master.data();
  if constexpr (std::is_same_v<W, float>) exact = weight;
  for (Index i = begin; i < end; ++i) {
    exact[i] = adamw_element(exact[i], static_cast<float>(gradient[i]), first[i], second[i],
                             factors, 0u, 0u);
  }
  if constexpr (!std::is_same_v<W, float>) {
    for (Index i = begin; i < end; ++i) weight[i] = W(exact[i]);
  }
}

/// Returns the largest magnitude of a group, ignoring NaN.
inline float group_amax(std::span<const float> group) {
  float largest = 0;
  for (const float value : group) largest = std::max(largest, std::abs(value));
  return largest;
}

/// The random bits for all roundings of a group of elements with `EightBit` moments.
struct GroupRoundingBits {
  SharedRoundingBits calls[SharedRoundingBits::calls_per_group];

  template <class Parameter>
  GroupRoundingBits(const Parameter& parameter, const AdamWStep& step, Index group) {
    for (Index c = 0; c < SharedRoundingBits::calls_per_group; ++c) {
      calls[c] =
          shared_rounding_bits(parameter, step, group * SharedRoundingBits::calls_per_group + c);
    }
  }
  /// @return  a word whose upper bits are random
  [[nodiscard]] std::uint32_t of(Rounding rounding, Index i) const {
    const Index run = i / rounding_run;
    return calls[run % SharedRoundingBits::calls_per_group].of(
        rounding, static_cast<int>(run / SharedRoundingBits::calls_per_group),
        static_cast<int>(i % rounding_run));
  }
};

/// Rounds the moments of a group to codes, and returns their scale.
template <class Code>
E8M0 encode_group(std::span<const float> moments, EightBit* codes, const GroupRoundingBits& bits,
                  Rounding rounding) {
  const E8M0 scale = Code::Levels::scale(group_amax(moments));
  for (std::size_t i = 0; i < moments.size(); ++i) {
    codes[i] = EightBit::upper(Code::encode(Code::saturated(moments[i], scale), scale,
                                            bits.of(rounding, static_cast<Index>(i))));
  }
  return scale;
}

/// Updates the elements from `begin` to `end`, whose moments have one scale each.
template <class W, class G>
void update_group(const AdamWParameter<W, G, EightBit, Cpu>& parameter,
                  const AdamWStepArguments& now, Index begin, Index end) {
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
  const GroupRoundingBits bits(parameter, now.step, begin / moment_group);
  update_run(parameter, now, begin, end, m, v,
             [&](Rounding rounding, Index i) { return bits.of(rounding, i) >> 16; });
  const auto size = static_cast<std::size_t>(count);
  first_scale = encode_group<FirstMomentCode>({m, size}, first, bits, Rounding::first_moment);
  second_scale = encode_group<SecondMomentCode>({v, size}, second, bits, Rounding::second_moment);
}

/// See adamw_update.
template <class W, class G, class M>
void adamw_update_body(const AdamWParameter<W, G, M, Cpu>& parameter, const AdamWSettings& settings,
                       TensorView<const AdamWStep, 1, Cpu> step,
                       TensorView<const StepStatus, 1, Cpu> status, const Context<Cpu>& context) {
  if (status.data()->skip != 0) return;
  const AdamWStepArguments now{*step.data(),
                               adamw_factors(settings, *step.data(), parameter.weight_decay,
                                             status.data()->clip_coefficient)};
  parallel_pieces(parameter.weight.extent(0), context, [&](Index begin, Index end) {
    if constexpr (std::is_same_v<M, float>) {
      if (rounds_to_nearest(parameter)) {
        return update_to_nearest(parameter, now.factors, begin, end);
      }
    }
    for (Index at = begin; at < end; at += adamw_multiple<M>) {
      const Index behind = std::min(at + adamw_multiple<M>, end);
      if constexpr (has_moment_scales<M>) {
        update_group(parameter, now, at, behind);
      } else {
        update_run(parameter, now, at, behind);
      }
    }
  });
}

}  // namespace octavo::detail
