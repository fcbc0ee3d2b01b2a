/// @file
/// The update of delayed scales on the `Cuda` device.
#pragma once

#include <octavo/kernels/cuda/for_each.cuh>
#include <octavo/kernels/cuda/run.cuh>
#include <octavo/kernels/quantize.hpp>

namespace octavo OCTAVO_ABI::detail {

/// Threads of a block that processes an operand: one warp.
inline constexpr int update_threads = 32;

/// Runs `update_operand` with one warp per operand; all lanes compute the history's maximum.
template <Device D>
OCTAVO_KERNEL void __launch_bounds__(update_threads)
    update_scales_kernel(ScalingArrays<D> operands, const ScalingRule* rules, float* history,
                         Index longest) {
  const ScalingRule rule = rules[blockIdx.x];
  std::uint32_t& recorded = operands.amax_bits.data()[blockIdx.x];
  OperandScale& scaling = operands.scales.data()[blockIdx.x];
  OperandStatistics& statistics = operands.statistics.data()[blockIdx.x];
  history += Index{blockIdx.x} * longest;
  const std::uint32_t amax_bits = recorded;
  const auto length = static_cast<std::uint32_t>(rule.history_length);
  const bool updates_history = amax_bits != 0 && amax_bits < 0x7f800000u && length != 0;
  std::uint32_t used_bits = amax_bits;
  if (updates_history && rule.most_recent == 0) {
#pragma unroll 8
    for (std::uint32_t i = threadIdx.x; i < length; i += update_threads) {
      // The new amax replaces the oldest.
      if (i != scaling.position) used_bits = max(used_bits, float_bits(history[i]));
    }
  }
  used_bits = __reduce_max_sync(0xffffffffu, used_bits);
  if (threadIdx.x != 0) return;
  recorded = 0;
  statistics.last_amax_bits = amax_bits;
  if (amax_bits >= 0x7f800000u) ++statistics.nonfinite;
  if (!updates_history) return;
  history[scaling.position] = float_from_bits(amax_bits);
  scaling.position = (scaling.position + 1) % length;
  scaling.scale =
      delayed_scale(rule.target, float_from_bits(used_bits), scaling.scale, rule.power_of_two != 0);
  scaling.scale_inverse = __fdiv_rn(1.0f, scaling.scale);
}

struct ClearStatistics {
  OperandStatistics* statistics;
  __device__ void operator()(Index i) const {
    statistics[i].elements = statistics[i].saturated = statistics[i].flushed = 0;
  }
};

/// See update_delayed_scales.
inline void update_delayed_scales_body(const ScalingArrays<Cuda>& operands,
                                       TensorView<const ScalingRule, 1, Cuda> rules,
                                       TensorView<float, 2, Cuda> history,
                                       const Context<Cuda>& context) {
  launch("update_delayed_scales", update_scales_kernel<Cuda>, operands.size(), update_threads, 0,
         context, operands, rules.data(), history.data(), history.extent(1));
}

/// See clear_statistics.
inline void clear_statistics_body(TensorView<OperandStatistics, 1, Cuda> statistics,
                                  const Context<Cuda>& context) {
  kernels::for_each_index("clear_statistics", statistics.extent(0), context,
                          ClearStatistics{statistics.data()});
}

}  // namespace octavo::detail
