/// @file
/// The gated activation on the `Cuda` device.
#pragma once

#include <octavo/kernels/activation_formula.hpp>
#include <octavo/kernels/cuda/cast/produce.cuh>
#include <octavo/kernels/swiglu.hpp>

namespace octavo OCTAVO_ABI::detail {

/// The source of an activated gate times up.
/// @tparam Gate  `SiluGate` or `GeluGate`
/// @tparam T     format of the result
/// @tparam W     format of `gate_up`: T or E4M3
template <class Gate, class T, class W = T>
struct GatedSource {
  static constexpr int parts = 1;
  static constexpr int rounds_in_flight = std::is_same_v<W, E4M3> ? 8 : 4;  // 64 bytes of each
  static constexpr bool makes_zeros = true;
  const W* gate_up;  ///< [rows, 2 · ffn]
  Index ffn;
  LargestCounter counter{};  ///< of values in E4M3

  struct Loaded {
    Run<W> gate, up;
  };
  /// Returns the activation times `factor`.
  __device__ static Produced<T, 1> produced(const Loaded& loaded, float factor) {
    const Floats gates = to_floats(loaded.gate);
    const Floats ups = to_floats(loaded.up);
    Floats y;
#pragma unroll
    for (int i = 0; i < run_size; ++i) {
      y.values[i] = Gate::gated(gates.values[i], ups.values[i]) * factor;
    }
    return {{to_run<T>(y)}};
  }

  template <bool Vectors>
  struct Runs {
    const W* gate;
    const W* up;
    int stride;
    LargestCounter counter;
    std::uint32_t largest = 0;  ///< values that `counter` counts

    __device__ Loaded load(int i, int count) const {
      return {load_run<Vectors>(gate + i * stride, count),
              load_run<Vectors>(up + i * stride, count)};
    }
    __device__ Produced<T, 1> make(int, const Loaded& loaded) {
      if constexpr (std::is_same_v<W, E4M3>) largest += counter.of(loaded.gate, loaded.up);
      return produced(loaded, 1.0f);
    }
    __device__ void finish() const {
      if constexpr (std::is_same_v<W, E4M3>) counter.add(largest);
    }
  };

  [[nodiscard]] bool vectors() const { return rows_are_vectors(ffn, gate_up); }

  template <bool Vectors>
  __device__ Runs<Vectors> runs(Index row, Index column) const {
    const W* gate = gate_up + row * 2 * ffn + column;
    return {opaque(gate), opaque(gate + ffn), static_cast<int>(2 * ffn), counter};
  }
};

/// The source of the gradients of gate and up values.
template <class Gate, class T, class W = T>
struct GatedGradientSource {
  static constexpr int parts = 2;
  static constexpr int rounds_in_flight = 2;
  static constexpr bool makes_zeros = true;
  const T* y_gradient;  ///< [rows, ffn]
  const W* gate_up;     ///< [rows, 2 · ffn]
  Index ffn;

  struct Loaded {
    Run<W> gate, up;
    Run<T> gradient;
  };
  /// Returns the gradients times `factor`.
  __device__ static Produced<T, 2> produced(const Loaded& loaded, float factor) {
    const Floats gates = to_floats(loaded.gate);
    const Floats ups = to_floats(loaded.up);
    const Floats gradients = to_floats(loaded.gradient);
    Floats gate_gradient;
    Floats up_gradient;
#pragma unroll
    for (int i = 0; i < run_size; ++i) {
      const GateGradients of =
          Gate::gradients(gradients.values[i] * factor, gates.values[i], ups.values[i]);
      gate_gradient.values[i] = of.gate;
      up_gradient.values[i] = of.up;
    }
    return {{to_run<T>(gate_gradient), to_run<T>(up_gradient)}};
  }

  template <bool Vectors>
  struct Runs {
    typename GatedSource<Gate, T, W>::template Runs<Vectors> inputs;
    const T* gradient;
    int stride;

    __device__ Loaded load(int i, int count) const {
      const auto [gate, up] = inputs.load(i, count);
      return {gate, up, load_run<Vectors>(gradient + i * stride, count)};
    }
    __device__ Produced<T, 2> make(int, const Loaded& loaded) const {
      return produced(loaded, 1.0f);
    }
  };

  [[nodiscard]] bool vectors() const { return rows_are_vectors(ffn, y_gradient, gate_up); }

  template <bool Vectors>
  __device__ Runs<Vectors> runs(Index row, Index column) const {
    return {GatedSource<Gate, T, W>{gate_up, ffn}.template runs<Vectors>(row, column),
            opaque(y_gradient + row * ffn + column), static_cast<int>(ffn)};
  }
};

/// See swiglu_forward.
template <class Gate, LinearPrecision P, OperandKind Kind, class W>
void gated_forward_body(const char* name, TensorView<const W, 2, Cuda> gate_up,
                        const Operand<P, Kind, Cuda>& y, OperandStatistics* statistics,
                        const Context<Cuda>& context) {
  // The rows that are read are twice as long as those that are written.
  require_operand_size<P>(name, gate_up.extent(0), gate_up.extent(1));
  using T = typename PrecisionTraits<P>::Storage;
  const GatedSource<Gate, T, W> source{
      gate_up.data(), y.values.extent(1), {statistics, gate_up.size()}};
  kernels::produce(name, source, y, context);
}

/// See swiglu_backward.
template <class Gate, LinearPrecision P, OperandKind Kind, class T, class W>
void gated_backward_body(const char* name, TensorView<const T, 2, Cuda> y_gradient,
                         TensorView<const W, 2, Cuda> gate_up,
                         const Operand<P, Kind, Cuda>& gate_up_gradient,
                         const Context<Cuda>& context) {
  require_operand_size<P>(name, gate_up.extent(0), gate_up.extent(1));
  const GatedGradientSource<Gate, T, W> source{y_gradient.data(), gate_up.data(),
                                               y_gradient.extent(1)};
  kernels::produce(name, source, gate_up_gradient, context);
}

}  // namespace octavo::detail
