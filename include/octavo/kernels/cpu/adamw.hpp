/// @file
/// The AdamW update on the `Cpu` device.
#pragma once

#include <octavo/kernels/adamw.hpp>
#include <octavo/kernels/cpu/vector.hpp>

namespace octavo {

/// See adamw_update.
template <class W, class G, class M>
void adamw_update_body(const AdamWParameter<W, G, M, Cpu>& parameter, const AdamWSettings& settings,
                       TensorView<const AdamWStep, 1, Cpu> step,
                       TensorView<const StepStatus, 1, Cpu> status, const Context<Cpu>& context) {
  if (status.data()->skip != 0) return;
  constexpr bool random_moments = !std::is_same_v<M, float>;
  constexpr bool random_weights = !std::is_same_v<W, float>;
  const AdamWStep now = *step.data();
  const float clip = status.data()->clip_coefficient;
  const RandomStream moments = detail::rounding_stream(parameter, settings, now, 0);
  const RandomStream weights = detail::rounding_stream(parameter, settings, now, 1);
  float* master = parameter.master.data();
  detail::parallel_runs(parameter.weight.extent(0), context, [&](Index begin, Index end) {
    for (Index i = begin; i < end; ++i) {
      const auto position = static_cast<std::uint64_t>(i);
      const float old =
          master != nullptr ? master[i] : static_cast<float>(parameter.weight.data()[i]);
      const std::uint32_t random = random_moments ? random_word(moments, position) : 0;
      const float updated =
          detail::adamw_element(old, static_cast<float>(parameter.gradient.data()[i]) * clip,
                                parameter.first_moment.data()[i], parameter.second_moment.data()[i],
                                settings, now, parameter.weight_decay, random);
      if (master != nullptr) {
        master[i] = updated;
        parameter.weight.data()[i] = W(updated);
      } else {
        const std::uint32_t bits = random_weights ? random_word(weights, position) : 0;
        parameter.weight.data()[i] = detail::round_stochastic<W>(updated, bits);
      }
    }
  });
}

}  // namespace octavo
