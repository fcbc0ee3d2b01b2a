/// @file
/// The gated activation on the `Cpu` device.
#pragma once

#include <octavo/kernels/activation_formula.hpp>
#include <octavo/kernels/swiglu.hpp>

namespace octavo OCTAVO_ABI::detail {

/// Adds to `statistics` how many values there are, and how many of them have the largest magnitude
/// or are NaN.
inline void count_largest(TensorView<const E4M3, 2, Cpu> values, OperandStatistics& statistics,
                          const Context<Cpu>& context) {
  const std::uint32_t largest = E4M3(FormatTraits<E4M3>::max).bits;
  std::uint64_t total = 0;
  parallel_for(values.extent(0), values.extent(1), context, [&](Index t) {
    const E4M3* row = values.row(t);
    std::uint32_t count = 0;
    for (Index i = 0; i < values.extent(1); ++i) {
      count += (row[i].bits & magnitude_mask<E4M3>) >= largest ? 1u : 0u;
    }
    std::atomic_ref(total).fetch_add(count, std::memory_order_relaxed);
  });
  statistics.elements += static_cast<std::uint64_t>(values.size());
  statistics.saturated += total;
}

/// See swiglu_forward.
/// @tparam Gate       `SiluGate` or `GeluGate`
/// @tparam W          format of `gate_up`
/// @param statistics  null unless W is E4M3
template <class Gate, LinearPrecision P, OperandKind Kind, class W>
void gated_forward_body(const char*, TensorView<const W, 2, Cpu> gate_up,
                        const Operand<P, Kind, Cpu>& y, OperandStatistics* statistics,
                        const Context<Cpu>& context) {
  if constexpr (std::is_same_v<W, E4M3>) {
    if (statistics != nullptr) count_largest(gate_up, *statistics, context);
  }
  const Index ffn = y.values.extent(1);
  using T = typename PrecisionTraits<P>::Storage;
  parallel_for(y.values.extent(0), 2 * ffn, context, [&](Index t) {
    const W* gate = gate_up.row(t);
    const W* up = gate + ffn;
    T* result = y.values.row(t);
    for (Index i = 0; i < ffn; ++i) {
      result[i] = T(Gate::gated(static_cast<float>(gate[i]), static_cast<float>(up[i])));
    }
  });
  quantize(y, context);
}

/// See swiglu_backward.
template <class Gate, LinearPrecision P, OperandKind Kind, class T, class W>
void gated_backward_body(const char*, TensorView<const T, 2, Cpu> y_gradient,
                         TensorView<const W, 2, Cpu> gate_up,
                         const Operand<P, Kind, Cpu>& gate_up_gradient,
                         const Context<Cpu>& context) {
  const Index ffn = y_gradient.extent(1);
  parallel_for(y_gradient.extent(0), 3 * ffn, context, [&](Index t) {
    const W* gate = gate_up.row(t);
    const W* up = gate + ffn;
    const T* dy = y_gradient.row(t);
    T* gate_gradient = gate_up_gradient.values.row(t);
    T* up_gradient = gate_gradient + ffn;
    for (Index i = 0; i < ffn; ++i) {
      const GateGradients gradients = Gate::gradients(
          static_cast<float>(dy[i]), static_cast<float>(gate[i]), static_cast<float>(up[i]));
      gate_gradient[i] = T(gradients.gate);
      up_gradient[i] = T(gradients.up);
    }
  });
  quantize(gate_up_gradient, context);
}

}  // namespace octavo::detail
