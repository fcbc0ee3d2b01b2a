/// @file
/// Weights that ranks cast in shards, on the `Cpu` device.
#pragma once

#include <octavo/kernels/cpu/sums.hpp>
#include <octavo/kernels/fp8_weights.hpp>

#include <algorithm>
#include <atomic>

namespace octavo OCTAVO_ABI::detail {

/// See raise_amax.
template <class T>
void raise_amax_body(TensorView<const T, 1, Cpu> values, TensorView<std::uint32_t, 1, Cpu> amax,
                     const Context<Cpu>& context) {
  const std::atomic_ref<std::uint32_t> shared(*amax.data());
  parallel_pieces(values.size(), context, [&](Index begin, Index end) {
    std::uint32_t largest = 0;
    for (Index i = begin; i < end; ++i) {
      largest = std::max(largest, float_bits(static_cast<float>(values.data()[i])) & 0x7fffffffu);
    }
    std::uint32_t seen = shared.load(std::memory_order_relaxed);
    while (seen < largest &&
           !shared.compare_exchange_weak(seen, largest, std::memory_order_relaxed)) {
    }
  });
}

/// See set_current_scales.
inline void set_current_scales_body(TensorView<const std::uint32_t, 1, Cpu> found,
                                    const ScalingArrays<Cpu>& operands,
                                    TensorView<const ScalingRule, 1, Cpu> rules, bool record,
                                    const Context<Cpu>&) {
  for (Index i = 0; i < operands.size(); ++i) {
    const ScalingSlot slot = operands.slot(i);
    set_scale_of(*slot.scaling, rules.data()[i], found.data()[i]);
    if (record) *slot.amax_bits = std::max(*slot.amax_bits, found.data()[i]);
  }
}

/// See transpose_fp8_values. Small blocks keep the cache lines of both matrices in the cache.
template <class Format>
void transpose_fp8_values_body(
    const QuantizedView<Format, PerTensor, Layout::row_major, Cpu>& fp8_values,
    const QuantizedView<Format, PerTensor, Layout::transposed, Cpu>& target,
    const Context<Cpu>& context) {
  constexpr Index block = 32;
  const Index rows = fp8_values.outer();
  const Index columns = fp8_values.inner();
  parallel_for(ceil_divide(columns, block), block * rows, context, [&](Index strip) {
    const Index end = std::min((strip + 1) * block, columns);
    for (Index top = 0; top < rows; top += block) {
      const Index bottom = std::min(top + block, rows);
      for (Index c = strip * block; c < end; ++c) {
        for (Index r = top; r < bottom; ++r) {
          target.data()[c * rows + r] = fp8_values.data()[r * columns + c];
        }
      }
    }
  });
}

}  // namespace octavo::detail
