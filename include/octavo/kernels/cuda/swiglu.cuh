/// @file
/// The gated activation on the `Cuda` device.
#pragma once

#include <octavo/kernels/cuda/cast/produce.cuh>
#include <octavo/kernels/swiglu.hpp>
#include <octavo/kernels/swiglu_formula.hpp>

namespace octavo OCTAVO_ABI::detail {

/// The source of silu(gate) · up.
template <class T>
struct SwigluSource {
  static constexpr int parts = 1;
  static constexpr int rounds_in_flight = 4;
  static constexpr bool makes_zeros = true;
  const T* gate_up;  ///< [rows, 2 · ffn]
  Index ffn;

  struct Loaded {
    Run<T> gate, up;
  };

  template <bool Vectors>
  struct Runs {
    const T* gate;
    const T* up;
    int stride;

    __device__ Loaded load(int i, int count) const {
      return {load_run<Vectors>(gate + i * stride, count),
              load_run<Vectors>(up + i * stride, count)};
    }
    __device__ Produced<T, 1> make(int, const Loaded& loaded) const {
      const Floats gates = to_floats(loaded.gate);
      const Floats ups = to_floats(loaded.up);
      Floats y;
#pragma unroll
      for (int i = 0; i < run_size; ++i) {
        y.values[i] = gated(gates.values[i], ups.values[i]);
      }
      return {{to_run<T>(y)}};
    }
  };

  [[nodiscard]] bool vectors() const { return rows_are_vectors(ffn, gate_up); }

  template <bool Vectors>
  __device__ Runs<Vectors> runs(Index row, Index column) const {
    const T* gate = gate_up + row * 2 * ffn + column;
    return {opaque(gate), opaque(gate + ffn), static_cast<int>(2 * ffn)};
  }
};

/// The source of the gradients of gates and of ups.
template <class T>
struct SwigluGradientSource {
  static constexpr int parts = 2;
  static constexpr int rounds_in_flight = 2;
  static constexpr bool makes_zeros = true;
  const T* y_gradient;  ///< [rows, ffn]
  const T* gate_up;     ///< [rows, 2 · ffn]
  Index ffn;

  struct Loaded {
    Run<T> gate, up, gradient;
  };

  template <bool Vectors>
  struct Runs {
    typename SwigluSource<T>::template Runs<Vectors> inputs;
    const T* gradient;
    int stride;

    __device__ Loaded load(int i, int count) const {
      const auto [gate, up] = inputs.load(i, count);
      return {gate, up, load_run<Vectors>(gradient + i * stride, count)};
    }
    __device__ Produced<T, 2> make(int, const Loaded& loaded) const {
      const Floats gates = to_floats(loaded.gate);
      const Floats ups = to_floats(loaded.up);
      const Floats gradients = to_floats(loaded.gradient);
      Floats gate_gradient;
      Floats up_gradient;
#pragma unroll
      for (int i = 0; i < run_size; ++i) {
        const float g = gates.values[i];
        const float d = gradients.values[i];
        const float s = __fdividef(1.0f, one_plus_exp(g));
        gate_gradient.values[i] = d * ups.values[i] * s * (1.0f + g * (1.0f - s));
        up_gradient.values[i] = d * g * s;
      }
      return {{to_run<T>(gate_gradient), to_run<T>(up_gradient)}};
    }
  };

  [[nodiscard]] bool vectors() const { return rows_are_vectors(ffn, y_gradient, gate_up); }

  template <bool Vectors>
  __device__ Runs<Vectors> runs(Index row, Index column) const {
    return {SwigluSource<T>{gate_up, ffn}.template runs<Vectors>(row, column),
            opaque(y_gradient + row * ffn + column), static_cast<int>(ffn)};
  }
};

/// See swiglu_forward.
template <LinearPrecision P, OperandKind Kind, class T>
void swiglu_forward_body(TensorView<const T, 2, Cuda> gate_up, const Operand<P, Kind, Cuda>& y,
                         const Context<Cuda>& context) {
  // The rows that are read are twice as long as those that are written.
  require_operand_size<P>("swiglu_forward", gate_up.extent(0), gate_up.extent(1));
  const SwigluSource<T> source{gate_up.data(), y.values.extent(1)};
  kernels::produce("swiglu_forward", source, y, context);
}

/// See swiglu_backward.
template <LinearPrecision P, OperandKind Kind, class T>
void swiglu_backward_body(TensorView<const T, 2, Cuda> y_gradient,
                          TensorView<const T, 2, Cuda> gate_up,
                          const Operand<P, Kind, Cuda>& gate_up_gradient,
                          const Context<Cuda>& context) {
  require_operand_size<P>("swiglu_backward", gate_up.extent(0), gate_up.extent(1));
  const SwigluGradientSource<T> source{y_gradient.data(), gate_up.data(), y_gradient.extent(1)};
  kernels::produce("swiglu_backward", source, gate_up_gradient, context);
}

}  // namespace octavo::detail
