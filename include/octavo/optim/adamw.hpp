/// @file
/// AdamW for a whole model; the formats of its state are template parameters.
#pragma once

#include <octavo/kernels/adamw.hpp>
#include <octavo/optim/elementwise_optimizer.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>

namespace octavo OCTAVO_ABI {

/// AdamW's rule.
/// Source: Loshchilov and Hutter 2017, arXiv 1711.05101.
struct AdamWRule {
  using Settings = AdamWSettings;
  using Step = AdamWStep;
  static constexpr std::size_t moments = 2;
  static constexpr const char* name = "AdamW";

  static void check(const AdamWSettings& settings) {
    const auto in = [](const char* which, float value, bool good, const char* advice) {
      require<ConfigError>(good, which, " must be ", advice, ", but is ", value);
    };
    const auto& [beta1, beta2, epsilon, weight_decay] = settings;
    in("beta1", beta1, beta1 >= 0 && beta1 < 1, "a number from 0 to below 1");
    in("beta2", beta2, beta2 >= 0 && beta2 < 1, "a number from 0 to below 1");
    in("epsilon", epsilon, epsilon > 0 && std::isfinite(epsilon), "a number above 0");
    in("weight_decay", weight_decay, weight_decay >= 0 && std::isfinite(weight_decay),
       "a number of at least 0");
  }

  static AdamWStep at(const AdamWSettings& settings, const StepNumbers& numbers) {
    const auto t = static_cast<double>(numbers.step);
    return {static_cast<float>(numbers.learning_rate),
            static_cast<float>(1.0 - std::pow(static_cast<double>(settings.beta1), t)),
            static_cast<float>(1.0 - std::pow(static_cast<double>(settings.beta2), t)),
            static_cast<std::uint32_t>(numbers.step), numbers.seed};
  }

  template <class W, class G, class Moment, Device D>
  static void update(const UpdatedElements<W, G, Moment, moments, D>& elements,
                     const AdamWSettings& settings, TensorView<const AdamWStep, 1, D> step,
                     TensorView<const StepStatus, 1, D> status, const Context<D>& context) {
    const StateArrays<Moment, moments, D>& state = elements.state;
    const AdamWParameter<W, G, Moment, D> parameter{
        .weight = elements.weight,
        .gradient = elements.gradient,
        .master = state.master,
        .first_moment = state.moments[0],
        .second_moment = state.moments[1],
        .first_scale = state.scales[0],
        .second_scale = state.scales[1],
        .weight_decay = elements.parameter.is_matrix() ? settings.weight_decay : 0.0f,
        .random_stream = elements.random_stream,
        .first_element = elements.first_element};
    adamw_update(parameter, settings, step, status, context);
  }
};

/// AdamW's state and update.
/// @tparam Master  `MasterWeights<Fp32>` or `MasterWeights<Bf16>`
/// @tparam Moment  `Moments<Fp32>`, `Moments<Bf16>` or `Moments<EightBit>`
template <class Master = MasterWeights<Fp32>, class Moment = Moments<Fp32>>
using AdamW = ElementwiseOptimizer<AdamWRule, Master, Moment>;

}  // namespace octavo
