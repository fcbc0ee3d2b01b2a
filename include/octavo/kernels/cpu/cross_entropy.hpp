/// @file
/// Cross-entropy on the `Cpu` device.
#pragma once

#include <octavo/core/math.hpp>
#include <octavo/kernels/cpu/sums.hpp>
#include <octavo/kernels/cross_entropy.hpp>

#include <algorithm>
#include <cmath>
#include <limits>

namespace octavo OCTAVO_ABI::detail {

/// See cross_entropy.
template <class T>
void cross_entropy_body(TensorView<T, 2, Cpu> logits,
                        TensorView<const std::int32_t, 1, Cpu> targets,
                        TensorView<float, 1, Cpu> losses, Index vocabulary,
                        TensorView<const float, 1, Cpu> gradient_scale,
                        const Context<Cpu>& context) {
  const Index padded = logits.extent(1);
  parallel_for(logits.extent(0), padded, context, [&](Index t) {
    T* row = logits.row(t);
    const Index target = targets.data()[t];
    const bool ignored = target < 0;
    const bool exists = !ignored && target < vocabulary;
    constexpr float nan = std::numeric_limits<float>::quiet_NaN();
    const float largest = lane_max(vocabulary, [&](Index i) { return static_cast<float>(row[i]); });
    const float sum = lane_sum(
        vocabulary, [&](Index i) { return fast_exp(static_cast<float>(row[i]) - largest); });
    const float at_target = exists ? static_cast<float>(row[target]) : nan;
    losses.data()[t] = ignored ? 0.0f : std::log(sum) - (at_target - largest);
    if (gradient_scale.empty()) return;
    const float of_target = exists ? gradient_scale.data()[0] : nan;
    const float scale = ignored ? 0.0f : of_target;
    const float factor = scale / sum;
    for (Index i = 0; i < vocabulary; ++i) {
      row[i] = T(fast_exp(static_cast<float>(row[i]) - largest) * factor);
    }
    if (exists) row[target] = T(fast_exp(at_target - largest) * factor - scale);
    std::fill(row + vocabulary, row + padded, T(0.0f));
  });
}

}  // namespace octavo::detail
