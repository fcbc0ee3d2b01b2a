/// @file
/// Sums over data exchanged between ranks, on the `Cpu` device.
#pragma once

#include <octavo/kernels/cpu/sums.hpp>
#include <octavo/kernels/rank_sums.hpp>

namespace octavo OCTAVO_ABI::detail {

/// See sum_parts.
template <class Part, class Sum>
void sum_parts_body(const RankParts<Part, Cpu>& parts, TensorView<Sum, 1, Cpu> sum, bool accumulate,
                    const Context<Cpu>& context) {
  parallel_pieces(sum.size(), context, [&](Index begin, Index end) {
    for (Index i = begin; i < end; ++i) {
      float total = accumulate ? static_cast<float>(sum.data()[i]) : 0.0f;
      for (Index rank = 0; rank < parts.ranks(); ++rank) {
        total += static_cast<float>(parts.of(rank)[i]);
      }
      sum.data()[i] = Sum(total);
    }
  });
}

/// See sum_statuses.
inline void sum_statuses_body(TensorView<const double, 2, Cpu> of_ranks,
                              TensorView<StepStatus, 1, Cpu> status, const Context<Cpu>&) {
  set_sums(*status.data(), of_ranks.data(), of_ranks.extent(0));
}

}  // namespace octavo::detail
