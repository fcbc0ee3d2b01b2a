/// @file
/// The AdamW update on the `Cpu` device.
#pragma once

#include <octavo/kernels/adamw.hpp>
#include <octavo/kernels/cpu/vector.hpp>

#include <algorithm>

namespace octavo::inline OCTAVO_ABI::detail {

/// See adamw_update.
template <class W, class G, class M>
void adamw_update_body(const AdamWParameter<W, G, M, Cpu>& parameter, const AdamWSettings& settings,
                       TensorView<const AdamWStep, 1, Cpu> step,
                       TensorView<const StepStatus, 1, Cpu> status, const Context<Cpu>& context) {
  if (status.data()->skip != 0) return;
  const AdamWStep now = *step.data();
  const float clip = status.data()->clip_coefficient;
  const AdamWFactors factors = adamw_factors(settings, now, parameter.weight_decay);
  float* master = parameter.master.data();
  W* weight = parameter.weight.data();
  const auto update = [&](Index begin, Index end) {
    const auto bits = [&](auto format, Rounding rounding) {
      return rounding_bits<decltype(format)>(parameter, now, rounding, begin / rounding_run);
    };
    const RoundingBits first = bits(M{}, Rounding::first_moment);
    const RoundingBits second = bits(M{}, Rounding::second_moment);
    const RoundingBits rest = master != nullptr ? RoundingBits{} : bits(W{}, Rounding::weight);
    for (Index i = begin; i < end; ++i) {
      const int e = static_cast<int>(i - begin);
      const float old = master != nullptr ? master[i] : static_cast<float>(weight[i]);
      const float updated =
          adamw_element(old, static_cast<float>(parameter.gradient.data()[i]) * clip,
                        parameter.first_moment.data()[i], parameter.second_moment.data()[i],
                        factors, first[e], second[e]);
      if (master != nullptr) master[i] = updated;
      weight[i] = master != nullptr ? W(updated) : round_stochastic<W>(updated, rest[e]);
    }
  };
  parallel_runs(parameter.weight.extent(0), context, [&](Index begin, Index end) {
    for (Index run = begin; run < end; run += rounding_run) {
      update(run, std::min(run + rounding_run, end));
    }
  });
}

}  // namespace octavo::detail
