/// @file
/// Sums over data exchanged between ranks, on the `Cuda` device.
#pragma once

#include <octavo/kernels/cuda/run.cuh>
#include <octavo/kernels/rank_sums.hpp>

namespace octavo OCTAVO_ABI::detail {

/// Maximum number of blocks of sum_parts: it overlaps the GEMMs of a backward, which need the rest
/// of the GPU more.
inline constexpr Index sum_parts_blocks = 264;

/// Sums parts; each thread processes a run of adjacent elements at a time.
/// @tparam Vectors  all addresses are aligned to 16 bytes, and `count` is a multiple of `run_size`
template <bool Vectors, class Part, class Sum>
OCTAVO_KERNEL void __launch_bounds__(elementwise_threads)
    sum_parts_kernel(RankParts<Part, Cuda> parts, Sum* sum, bool accumulate) {
  const Index count = parts.elements();
  const Index stride = Index{gridDim.x} * elementwise_threads * run_size;
  for (Index i = global_thread() * run_size; i < count; i += stride) {
    Floats total{};
    if (accumulate) total = load_floats<Vectors>(sum + i, count - i);
    for (Index rank = 0; rank < parts.ranks(); ++rank) {
      const Floats part = load_floats<Vectors>(parts.of(rank) + i, count - i);
#pragma unroll
      for (int e = 0; e < run_size; ++e) total.values[e] += part.values[e];
    }
    store_floats<Vectors>(sum + i, count - i, total);
  }
}

/// See sum_parts.
template <class Part, class Sum>
void sum_parts_body(const RankParts<Part, Cuda>& parts, TensorView<Sum, 1, Cuda> sum,
                    bool accumulate, const Context<Cuda>& context) {
  const Index count = sum.size();
  const Index blocks =
      std::min(ceil_divide(count, elementwise_threads * run_size), sum_parts_blocks);
  const auto run = [&](auto kernel) {
    launch("sum_parts", kernel, blocks, elementwise_threads, 0, context, parts, sum.data(),
           accumulate);
  };
  if (rows_are_vectors(count, parts.received.data(), parts.own, sum.data())) {
    run(sum_parts_kernel<true, Part, Sum>);
  } else {
    run(sum_parts_kernel<false, Part, Sum>);
  }
}

template <Device D>
OCTAVO_KERNEL void sum_statuses_kernel(const double* of_ranks, Index ranks, StepStatus* status) {
  set_sums(*status, of_ranks, ranks);
}

/// See sum_statuses.
inline void sum_statuses_body(TensorView<const double, 2, Cuda> of_ranks,
                              TensorView<StepStatus, 1, Cuda> status,
                              const Context<Cuda>& context) {
  launch("sum_statuses", sum_statuses_kernel<Cuda>, 1, 1, 0, context, of_ranks.data(),
         of_ranks.extent(0), status.data());
}

}  // namespace octavo::detail
