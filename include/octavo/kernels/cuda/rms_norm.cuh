/// @file
/// Root-mean-square normalisation on the `Cuda` device.
#pragma once

#include <octavo/kernels/cuda/quantize.cuh>
#include <octavo/kernels/rms_norm.hpp>

namespace octavo {
namespace detail {

/// Finds the inverse root mean square of a row a block.
/// @param y          null, or the normalised rows are written to it
/// @param amax_bits  null, or raised to the bits of max |y|
template <bool Vectors, class T>
OCTAVO_KERNEL void __launch_bounds__(512)
    rms_norm_kernel(const T* x, const T* weight, Index columns, float epsilon, float* inverse_rms,
                    T* y, std::uint32_t* amax_bits) {
  const Index begin = Index{threadIdx.x} * run_size;
  const Index stride = Index{blockDim.x} * run_size;
  x += Index{blockIdx.x} * columns;
  float squares = 0;
  for (Index column = begin; column < columns; column += stride) {
    const Floats values = load_floats<Vectors>(x + column, columns - column);
#pragma unroll
    for (const float value : values.values) squares += value * value;
  }
  const float mean = block_sum(squares) / static_cast<float>(columns);
  const float inverse = 1.0f / sqrtf(mean + epsilon);
  if (threadIdx.x == 0) inverse_rms[blockIdx.x] = inverse;
  if (y == nullptr) return;
  y += Index{blockIdx.x} * columns;
  std::uint32_t magnitudes = 0;
  for (Index column = begin; column < columns; column += stride) {
    Floats values = load_floats<Vectors>(x + column, columns - column);
    const Floats weights = load_floats<Vectors>(weight + column, columns - column);
#pragma unroll
    for (int i = 0; i < run_size; ++i) {
      values.values[i] = values.values[i] * inverse * weights.values[i];
    }
    const Run<T> run = to_run<T>(values);
    store_run<Vectors>(y + column, columns - column, run);
    if constexpr (std::is_same_v<T, Bf16>) magnitudes = larger_magnitudes(magnitudes, run);
  }
  if (amax_bits != nullptr) raise_to_block_amax(magnitudes, amax_bits);
}

/// The source of normalised rows whose inverse root mean squares are known.
template <class T>
struct RmsNormSource {
  static constexpr int parts = 1;
  static constexpr int rounds_in_flight = 4;
  const T* x;                ///< [rows, columns]
  const T* weight;           ///< [columns]
  const float* inverse_rms;  ///< [rows]
  Index columns;

  [[nodiscard]] bool vectors() const { return rows_are_vectors(columns, x, weight); }

  template <bool Vectors>
  __device__ Produced<T, 1> run(Index row, Index column, Index count) const {
    if (count <= 0) return {};
    Floats values = load_floats<Vectors>(x + row * columns + column, count);
    const Floats weights = load_floats<Vectors>(weight + column, count);
    const float inverse = inverse_rms[row];
#pragma unroll
    for (int i = 0; i < run_size; ++i) {
      values.values[i] = values.values[i] * inverse * weights.values[i];
    }
    return {{to_run<T>(values)}};
  }
};

/// Rows of sums of the weight's gradient that rms_norm_backward makes at most.
inline constexpr Index rms_norm_pieces = 264;

template <class T>
struct RmsNormBackwardArguments {
  const T* y_gradient;       ///< [rows, columns]
  const T* x;                ///< [rows, columns]
  const T* weight;           ///< [columns]
  const float* inverse_rms;  ///< [rows]
  T* x_gradient;             ///< [rows, columns], added to
  float* weight_sums;        ///< [blocks, columns]
  Index rows;
  Index columns;
  Index rows_a_block;
};

/// Works through a block's rows one after another; sums of the weight's gradient stay in shared
/// memory: each thread's first four columns of a run, then its last four, so that neighbouring
/// threads meet different banks.
template <bool Vectors, class T>
OCTAVO_KERNEL void __launch_bounds__(512)
    rms_norm_backward_kernel(const RmsNormBackwardArguments<T> arguments) {
  extern __shared__ float4 column_sums[];
  const Index columns = arguments.columns;
  const Index runs = (columns + run_size - 1) / run_size;
  for (Index run = threadIdx.x; run < runs; run += blockDim.x) {
    column_sums[run] = column_sums[runs + run] = float4{};
  }
  const Index begin = Index{blockIdx.x} * arguments.rows_a_block;
  const Index end = min(begin + arguments.rows_a_block, arguments.rows);
  for (Index row = begin; row < end; ++row) {
    const T* dy = arguments.y_gradient + row * columns;
    const T* x = arguments.x + row * columns;
    T* dx = arguments.x_gradient + row * columns;
    const float inverse = arguments.inverse_rms[row];
    float dot = 0;
    for (Index run = threadIdx.x; run < runs; run += blockDim.x) {
      const Index column = run * run_size;
      const Index count = columns - column;
      const Floats gradient = load_floats<Vectors>(dy + column, count);
      const Floats value = load_floats<Vectors>(x + column, count);
      const Floats weight = load_floats<Vectors>(arguments.weight + column, count);
      float sums[run_size];
#pragma unroll
      for (int i = 0; i < run_size; ++i) {
        dot += gradient.values[i] * weight.values[i] * value.values[i];
        sums[i] = gradient.values[i] * value.values[i] * inverse;
      }
      float4& low = column_sums[run];
      float4& high = column_sums[runs + run];
      low = make_float4(low.x + sums[0], low.y + sums[1], low.z + sums[2], low.w + sums[3]);
      high = make_float4(high.x + sums[4], high.y + sums[5], high.z + sums[6], high.w + sums[7]);
    }
    const float mean = block_sum(dot) * inverse * inverse / static_cast<float>(columns);
    for (Index run = threadIdx.x; run < runs; run += blockDim.x) {
      const Index column = run * run_size;
      const Index count = columns - column;
      const Floats gradient = load_floats<Vectors>(dy + column, count);
      const Floats value = load_floats<Vectors>(x + column, count);
      const Floats weight = load_floats<Vectors>(arguments.weight + column, count);
      Floats result = load_floats<Vectors>(dx + column, count);
#pragma unroll
      for (int i = 0; i < run_size; ++i) {
        const float g = gradient.values[i] * weight.values[i];
        result.values[i] += inverse * (g - value.values[i] * mean);
      }
      store_floats<Vectors>(dx + column, count, result);
    }
  }
  float* sums = arguments.weight_sums + Index{blockIdx.x} * columns;
  for (Index run = threadIdx.x; run < runs; run += blockDim.x) {
    const float4 low = column_sums[run];
    const float4 high = column_sums[runs + run];
    const float values[run_size] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
    for (int i = 0; i < run_size; ++i) {
      if (run * run_size + i < columns) sums[run * run_size + i] = values[i];
    }
  }
}

}  // namespace detail

/// See rms_norm_forward. Where the copies do not wait for the values' amax, the values are not
/// written: the rows are read for their root mean squares, and once more to be cast.
template <LinearPrecision P, OperandKind Kind, class T>
void rms_norm_forward_body(TensorView<const T, 2, Cuda> x, TensorView<const T, 1, Cuda> weight,
                           float epsilon, const Operand<P, Kind, Cuda>& y,
                           TensorView<float, 1, Cuda> inverse_rms, const Context<Cuda>& context) {
  constexpr const char* name = "rms_norm_forward";
  const auto normalise = [&](T* values, std::uint32_t* amax_bits) {
    const bool vectors = detail::rows_are_vectors(x.extent(1), x.data(), weight.data(), values);
    detail::launch(name,
                   vectors ? detail::rms_norm_kernel<true, T> : detail::rms_norm_kernel<false, T>,
                   x.extent(0), detail::row_threads(x.extent(1)), 0, context, x.data(),
                   weight.data(), x.extent(1), epsilon, inverse_rms.data(), values, amax_bits);
  };
  if constexpr (!QuantizedPrecision<P>) {
    normalise(y.values.data(), nullptr);
  } else if constexpr (detail::is_tensorwise<typename PrecisionTraits<P>::ScalingType>) {
    const auto find_amax = [&](std::uint32_t* bits) { normalise(y.values.data(), bits); };
    detail::cast_by_current_scale(name, y, find_amax, context);
  } else {
    normalise(nullptr, nullptr);
    const detail::RmsNormSource<T> source{x.data(), weight.data(), inverse_rms.data(), x.extent(1)};
    detail::produce(name, source, y, context);
  }
}

/// See rms_norm_backward. Uses the context's workspace for sums of the weight's gradient.
template <class T, class G>
void rms_norm_backward_body(TensorView<const T, 2, Cuda> y_gradient, TensorView<const T, 2, Cuda> x,
                            TensorView<const T, 1, Cuda> weight,
                            TensorView<const float, 1, Cuda> inverse_rms,
                            TensorView<T, 2, Cuda> x_gradient,
                            TensorView<G, 1, Cuda> weight_gradient, const Context<Cuda>& context) {
  constexpr const char* name = "rms_norm_backward";
  const Index rows = x.extent(0);
  const Index columns = x.extent(1);
  const Index fitting = static_cast<Index>(detail::kernel_workspace_bytes / sizeof(float)) /
                        std::max(Index{1}, columns);
  const Index most = std::clamp(fitting, Index{1}, detail::rms_norm_pieces);
  const Index rows_a_block = std::max(Index{1}, ceil_divide(rows, most));
  const Index pieces = ceil_divide(rows, rows_a_block);
  auto* sums = detail::workspace_elements<float>(pieces * columns, name, context);
  const bool vectors = detail::rows_are_vectors(columns, y_gradient.data(), x.data(), weight.data(),
                                                x_gradient.data());
  const detail::RmsNormBackwardArguments<T> arguments{
      y_gradient.data(), x.data(), weight.data(), inverse_rms.data(),
      x_gradient.data(), sums,     rows,          columns,
      rows_a_block};
  const auto shared_bytes =
      static_cast<std::size_t>(round_up(columns, detail::run_size)) * sizeof(float);
  detail::launch(name,
                 vectors ? detail::rms_norm_backward_kernel<true, T>
                         : detail::rms_norm_backward_kernel<false, T>,
                 pieces, detail::row_threads(columns), shared_bytes, context, arguments);
  detail::add_rows(name, sums, pieces, columns, weight_gradient.data(), context);
}

}  // namespace octavo
