/// @file
/// The gated activation on the `Cuda` device.
#pragma once

#include <octavo/kernels/cuda/quantize.cuh>
#include <octavo/kernels/swiglu.hpp>

namespace octavo {
namespace detail {

/// 1 + e^−x.
__device__ inline float one_plus_exp(float x) { return 1.0f + __expf(-x); }

/// The source of silu(gate) · up.
template <class T>
struct SwigluSource {
  static constexpr int parts = 1;
  static constexpr int rounds_in_flight = 4;
  const T* gate_up;  ///< [rows, 2 · ffn]
  Index ffn;

  [[nodiscard]] bool vectors() const { return rows_are_vectors(ffn, gate_up); }

  template <bool Vectors>
  __device__ Produced<T, 1> run(Index row, Index column, Index count) const {
    const T* source = gate_up + row * 2 * ffn + column;
    const Floats gate = load_floats<Vectors>(source, count);
    const Floats up = load_floats<Vectors>(source + ffn, count);
    Floats y;
#pragma unroll
    for (int i = 0; i < run_size; ++i) {
      const float g = gate.values[i];
      y.values[i] = __fdividef(g, one_plus_exp(g)) * up.values[i];
    }
    return {{to_run<T>(y)}};
  }
};

/// The source of the gradients of gates and of ups.
template <class T>
struct SwigluGradientSource {
  static constexpr int parts = 2;
  static constexpr int rounds_in_flight = 2;
  const T* y_gradient;  ///< [rows, ffn]
  const T* gate_up;     ///< [rows, 2 · ffn]
  Index ffn;

  [[nodiscard]] bool vectors() const { return rows_are_vectors(ffn, y_gradient, gate_up); }

  template <bool Vectors>
  __device__ Produced<T, 2> run(Index row, Index column, Index count) const {
    const T* source = gate_up + row * 2 * ffn + column;
    const Floats gate = load_floats<Vectors>(source, count);
    const Floats up = load_floats<Vectors>(source + ffn, count);
    const Floats gradient = load_floats<Vectors>(y_gradient + row * ffn + column, count);
    Floats gate_gradient;
    Floats up_gradient;
#pragma unroll
    for (int i = 0; i < run_size; ++i) {
      const float g = gate.values[i];
      const float d = gradient.values[i];
      const float s = __fdividef(1.0f, one_plus_exp(g));
      gate_gradient.values[i] = d * up.values[i] * s * (1.0f + g * (1.0f - s));
      up_gradient.values[i] = d * g * s;
    }
    return {{to_run<T>(gate_gradient), to_run<T>(up_gradient)}};
  }
};

}  // namespace detail

/// See swiglu_forward.
template <LinearPrecision P, OperandKind Kind, class T>
void swiglu_forward_body(TensorView<const T, 2, Cuda> gate_up, const Operand<P, Kind, Cuda>& y,
                         const Context<Cuda>& context) {
  const detail::SwigluSource<T> source{gate_up.data(), y.values.extent(1)};
  detail::produce("swiglu_forward", source, y, context);
}

/// See swiglu_backward.
template <LinearPrecision P, OperandKind Kind, class T>
void swiglu_backward_body(TensorView<const T, 2, Cuda> y_gradient,
                          TensorView<const T, 2, Cuda> gate_up,
                          const Operand<P, Kind, Cuda>& gate_up_gradient,
                          const Context<Cuda>& context) {
  const detail::SwigluGradientSource<T> source{y_gradient.data(), gate_up.data(),
                                               y_gradient.extent(1)};
  detail::produce("swiglu_backward", source, gate_up_gradient, context);
}

}  // namespace octavo
