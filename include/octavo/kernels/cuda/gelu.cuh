/// @file
/// GELU on the `Cuda` device.
#pragma once

#include <octavo/kernels/activation_formula.hpp>
#include <octavo/kernels/cuda/bias.cuh>
#include <octavo/kernels/cuda/quantize.cuh>
#include <octavo/kernels/gelu.hpp>

namespace octavo OCTAVO_ABI::detail {

/// The source of gelu(x).
template <class T>
struct GeluSource {
  static constexpr int parts = 1;
  static constexpr int rounds_in_flight = 8;
  static constexpr bool makes_zeros = true;
  const T* x;  ///< [rows, columns]
  Index columns;

  template <bool Vectors>
  struct Runs {
    const T* first;
    int stride;

    __device__ Run<T> load(int i, int count) const {
      return load_run<Vectors>(first + i * stride, count);
    }
    __device__ Produced<T, 1> make(int, const Run<T>& loaded) const {
      Floats values = to_floats(loaded);
#pragma unroll
      for (float& value : values.values) value *= gelu_sigmoid(value);
      return {{to_run<T>(values)}};
    }
  };

  [[nodiscard]] bool vectors() const { return rows_are_vectors(columns, x); }

  template <bool Vectors>
  __device__ Runs<Vectors> runs(Index row, Index column) const {
    return {opaque(x + row * columns + column), static_cast<int>(columns)};
  }
};

/// The source of the gradient of x.
template <class T>
struct GeluGradientSource {
  static constexpr int parts = 1;
  static constexpr int rounds_in_flight = 4;
  static constexpr bool makes_zeros = true;
  const T* y_gradient;  ///< [rows, columns]
  const T* x;           ///< [rows, columns]
  Index columns;

  struct Loaded {
    Run<T> x, gradient;
  };

  template <bool Vectors>
  struct Runs {
    const T* x;
    const T* gradient;
    int stride;

    __device__ Loaded load(int i, int count) const {
      return {load_run<Vectors>(x + i * stride, count),
              load_run<Vectors>(gradient + i * stride, count)};
    }
    __device__ Produced<T, 1> make(int, const Loaded& loaded) const {
      const Floats values = to_floats(loaded.x);
      Floats gradients = to_floats(loaded.gradient);
#pragma unroll
      for (int i = 0; i < run_size; ++i) {
        const float value = values.values[i];
        gradients.values[i] *= gelu_derivative(value, gelu_sigmoid(value));
      }
      return {{to_run<T>(gradients)}};
    }
  };

  [[nodiscard]] bool vectors() const { return rows_are_vectors(columns, y_gradient, x); }

  template <bool Vectors>
  __device__ Runs<Vectors> runs(Index row, Index column) const {
    const Index first = row * columns + column;
    return {opaque(x + first), opaque(y_gradient + first), static_cast<int>(columns)};
  }
};

/// See gelu_forward.
template <LinearPrecision P, OperandKind Kind, class T>
void gelu_forward_body(TensorView<const T, 2, Cuda> x, const Operand<P, Kind, Cuda>& y,
                       const Context<Cuda>& context) {
  require_operand_size<P>("gelu_forward", x.extent(0), x.extent(1));
  const GeluSource<T> source{x.data(), x.extent(1)};
  produce("gelu_forward", source, y, context);
}

/// See gelu_backward.
template <LinearPrecision P, OperandKind Kind, class T, class G>
void gelu_backward_body(TensorView<const T, 2, Cuda> y_gradient, TensorView<const T, 2, Cuda> x,
                        const Operand<P, Kind, Cuda>& x_gradient,
                        TensorView<G, 1, Cuda> bias_gradient, const Context<Cuda>& context) {
  constexpr const char* name = "gelu_backward";
  require_operand_size<P>(name, x.extent(0), x.extent(1));
  const GeluGradientSource<T> source{y_gradient.data(), x.data(), x.extent(1)};
  if (bias_gradient.empty()) {
    produce(name, source, x_gradient, context);
  } else {
    require_summed_rows(name, x.extent(0));
    produce_and_sum<true>(name, source, x_gradient, bias_gradient, context);
  }
}

}  // namespace octavo::detail
