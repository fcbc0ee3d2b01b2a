/// @file
/// The update of delayed scales on the `Cuda` device.
#pragma once

#include <octavo/kernels/cuda/for_each.cuh>
#include <octavo/kernels/cuda/run.cuh>
#include <octavo/kernels/quantize.hpp>

namespace octavo {
namespace detail {

/// Threads of a block that works on a slot: one warp.
inline constexpr int slot_threads = 32;

/// One warp a slot: `update_slot`, with the history's largest entry found by all lanes.
template <Device D>
OCTAVO_KERNEL void __launch_bounds__(slot_threads)
    update_slots_kernel(TensorView<ScalingSlot, 1, D> slots, const ScalingRule* rules,
                        float* history, Index longest, std::int32_t group) {
  const ScalingRule rule = rules[blockIdx.x];
  if (rule.group != group) return;
  ScalingSlot& slot = slots.data()[blockIdx.x];
  history += Index{blockIdx.x} * longest;
  const std::uint32_t amax_bits = slot.amax_bits;
  const auto length = static_cast<std::uint32_t>(rule.history_length);
  const bool takes_in = amax_bits != 0 && amax_bits < 0x7f800000u && length != 0;
  std::uint32_t used_bits = amax_bits;
  if (takes_in && rule.most_recent == 0) {
#pragma unroll 8
    for (std::uint32_t i = threadIdx.x; i < length; i += slot_threads) {
      // The new amax takes the place of the oldest.
      if (i != slot.position) used_bits = max(used_bits, float_bits(history[i]));
    }
  }
  used_bits = __reduce_max_sync(0xffffffffu, used_bits);
  if (threadIdx.x != 0) return;
  slot.amax_bits = 0;
  slot.last_amax_bits = amax_bits;
  if (amax_bits >= 0x7f800000u) ++slot.nonfinite;
  if (!takes_in) return;
  history[slot.position] = float_from_bits(amax_bits);
  slot.position = (slot.position + 1) % length;
  slot.scale =
      delayed_scale(rule.target, float_from_bits(used_bits), slot.scale, rule.power_of_two != 0);
  slot.scale_inverse = __fdiv_rn(1.0f, slot.scale);
}

struct ClearStatistics {
  ScalingSlot* slots;
  __device__ void operator()(Index i) const {
    slots[i].elements = slots[i].saturated = slots[i].flushed = 0;
  }
};

}  // namespace detail

/// See update_delayed_scales.
inline void update_delayed_scales_body(TensorView<ScalingSlot, 1, Cuda> slots,
                                       TensorView<const ScalingRule, 1, Cuda> rules,
                                       TensorView<float, 2, Cuda> history, OperandKind group,
                                       const Context<Cuda>& context) {
  detail::launch("update_delayed_scales", detail::update_slots_kernel<Cuda>, slots.extent(0),
                 detail::slot_threads, 0, context, slots, rules.data(), history.data(),
                 history.extent(1), static_cast<std::int32_t>(group));
}

/// See clear_statistics.
inline void clear_statistics_body(TensorView<ScalingSlot, 1, Cuda> slots,
                                  const Context<Cuda>& context) {
  kernels::for_each_index("clear_statistics", slots.extent(0), context,
                          detail::ClearStatistics{slots.data()});
}

}  // namespace octavo
