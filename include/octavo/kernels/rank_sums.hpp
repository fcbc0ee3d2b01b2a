/// @file
/// Sums over data exchanged between ranks, in rank order.
#pragma once

#include <octavo/kernels/step_status.hpp>
#include <octavo/tensor/tensor.hpp>

namespace octavo OCTAVO_ABI {

/// The parts that this rank received from each rank, consecutive except for its own, which may be
/// elsewhere.
template <class Part, Device D>
struct RankParts {
  /// @param parts  [ranks, elements], of all ranks
  explicit RankParts(TensorView<const Part, 2, D> parts) : received(parts) {}
  /// @param others  [ranks, elements]; row `rank` is not read
  /// @param part    [elements], of `rank`
  RankParts(TensorView<const Part, 2, D> others, const Part* part, Index rank)
      : received(others), own(part), own_rank(rank) {}

  [[nodiscard]] OCTAVO_HOST_DEVICE Index ranks() const { return received.extent(0); }
  /// Number of elements of a part.
  [[nodiscard]] OCTAVO_HOST_DEVICE Index elements() const { return received.extent(1); }
  [[nodiscard]] OCTAVO_HOST_DEVICE const Part* of(Index rank) const {
    return rank == own_rank ? own : received.row(rank);
  }

  TensorView<const Part, 2, D> received;
  const Part* own = nullptr;
  Index own_rank = -1;  ///< -1: this rank's part is among the received ones
};

/// Computes sum[i] = Σ over ranks of element i of their parts, plus sum[i] if `accumulate`, in
/// FP32: first the existing sum, then in rank order, with one rounding.
/// @param sum  [elements]
/// @note enqueues; does not synchronise
template <class Part, class Sum, Device D>
void sum_parts(const RankParts<Part, D>& parts, TensorView<Sum, 1, D> sum, bool accumulate,
               const Context<D>& context) {
  check_shape("sum_parts", "sum", sum, {parts.elements()});
  if (sum.size() != 0) sum_parts_body(parts, sum, accumulate, context);
}

/// Sets the sums of the status to those over all ranks.
/// @param of_ranks  [ranks, StepStatus::sums], the first members of each rank's status
/// @param status    [1]
/// @note enqueues; does not synchronise
template <Device D>
void sum_statuses(TensorView<const double, 2, D> of_ranks, TensorView<StepStatus, 1, D> status,
                  const Context<D>& context) {
  check_shape("sum_statuses", "of_ranks", of_ranks, {of_ranks.extent(0), StepStatus::sums});
  sum_statuses_body(of_ranks, status, context);
}

namespace detail {

/// Computes the sums over all ranks, on every device.
OCTAVO_HOST_DEVICE inline void set_sums(StepStatus& status, const double* of_ranks, Index ranks) {
  double sums[StepStatus::sums] = {};
  for (Index rank = 0; rank < ranks; ++rank) {
    for (Index i = 0; i < StepStatus::sums; ++i) sums[i] += of_ranks[rank * StepStatus::sums + i];
  }
  status.squared_norm = sums[0];
  status.loss_sum = sums[1];
  status.nonfinite = sums[2];
}

}  // namespace detail
}  // namespace octavo

#include <octavo/kernels/cpu/rank_sums.hpp>
