/// @file
/// Loss, gradient norm and the decision whether to skip a step, on the `Cpu` device.
#pragma once

#include <octavo/kernels/cpu/sums.hpp>
#include <octavo/kernels/step_status.hpp>

#include <algorithm>
#include <cmath>

namespace octavo OCTAVO_ABI::detail {

/// See add_losses.
inline void add_losses_body(TensorView<const float, 1, Cpu> losses,
                            TensorView<StepStatus, 1, Cpu> status, const Context<Cpu>&) {
  double sum = 0;
  for (Index t = 0; t < losses.extent(0); ++t) sum += static_cast<double>(losses.data()[t]);
  status.data()->loss_sum += sum;
}

/// See add_squared_norm.
template <class G>
void add_squared_norm_body(TensorView<const G, 1, Cpu> gradient,
                           TensorView<StepStatus, 1, Cpu> status, const Context<Cpu>& context) {
  constexpr Index pieces = 64;
  std::array<double, pieces> sums{};
  const Index size = ceil_divide(gradient.extent(0), pieces);
  parallel_for(pieces, size, context, [&](Index piece) {
    const Index begin = std::min(gradient.extent(0), piece * size);
    const Index end = std::min(gradient.extent(0), begin + size);
    double sum = 0;
    for (Index first = begin; first < end; first += elementwise_piece) {
      const G* values = gradient.data() + first;
      sum += static_cast<double>(lane_sum(std::min(elementwise_piece, end - first), [&](Index i) {
        const float value = static_cast<float>(values[i]);
        return value * value;
      }));
    }
    sums[static_cast<std::size_t>(piece)] = sum;
  });
  for (const double sum : sums) status.data()->squared_norm += sum;
}

/// See add_nonfinite.
inline void add_nonfinite_body(TensorView<const OperandStatistics, 1, Cpu> after,
                               TensorView<const OperandStatistics, 1, Cpu> before,
                               TensorView<StepStatus, 1, Cpu> status, const Context<Cpu>&) {
  for (Index i = 0; i < after.extent(0); ++i) {
    status.data()->nonfinite += after.data()[i].nonfinite - before.data()[i].nonfinite;
  }
}

/// See decide_step.
inline void decide_step_body(float max_gradient_norm, TensorView<const StepLimits, 1, Cpu> limits,
                             TensorView<StepStatus, 1, Cpu> status, const Context<Cpu>&) {
  decide(*status.data(), std::sqrt(status.data()->squared_norm), max_gradient_norm, *limits.data());
}

/// See restore_if_skipped.
inline void restore_if_skipped_body(TensorView<std::byte, 1, Cpu> target,
                                    TensorView<const std::byte, 1, Cpu> source,
                                    TensorView<const StepStatus, 1, Cpu> status,
                                    const Context<Cpu>& context) {
  if (status.data()->skip != 0)
    copy_on_device(target.data(), source.data(), source.bytes(), context);
}

}  // namespace octavo::detail
