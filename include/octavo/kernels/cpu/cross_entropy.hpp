/// @file
/// Cross-entropy on the `Cpu` device.
#pragma once

#include <octavo/core/math.hpp>
#include <octavo/kernels/cpu/vector.hpp>
#include <octavo/kernels/cross_entropy.hpp>

#include <algorithm>
#include <cmath>

namespace octavo {

/// See cross_entropy.
template <class T>
void cross_entropy_body(TensorView<T, 2, Cpu> logits,
                        TensorView<const std::int32_t, 1, Cpu> targets,
                        TensorView<float, 1, Cpu> losses, Index vocabulary,
                        TensorView<const float, 1, Cpu> gradient_scale,
                        const Context<Cpu>& context) {
  const Index padded = logits.extent(1);
  parallel_for(logits.extent(0), context, [&](Index t) {
    T* row = logits.row(t);
    const Index target = targets.data()[t];
    const bool ignored = target < 0;
    float largest = static_cast<float>(row[0]);
    for (Index i = 1; i < vocabulary; ++i) {
      const float value = static_cast<float>(row[i]);
      largest = value > largest ? value : largest;
    }
    const float sum = detail::lane_sum(
        vocabulary, [&](Index i) { return fast_exp(static_cast<float>(row[i]) - largest); });
    losses.data()[t] = ignored ? 0.0f : std::log(sum) - (static_cast<float>(row[target]) - largest);
    if (gradient_scale.empty()) return;
    const float scale = ignored ? 0.0f : gradient_scale.data()[0];
    const float factor = scale / sum;
    const float at_target = ignored ? 0.0f : static_cast<float>(row[target]);
    for (Index i = 0; i < vocabulary; ++i) {
      row[i] = T(fast_exp(static_cast<float>(row[i]) - largest) * factor);
    }
    if (!ignored) row[target] = T(fast_exp(at_target - largest) * factor - scale);
    std::fill(row + vocabulary, row + padded, T(0.0f));
  });
}

}  // namespace octavo
