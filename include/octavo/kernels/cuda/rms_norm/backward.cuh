/// @file
/// The kernels of RMSNorm's backward.
#pragma once

#include <octavo/kernels/cuda/rms_norm/rows.cuh>

namespace octavo OCTAVO_ABI::detail {

/// Maximum number of rows of partial sums of the weight's gradient.
inline constexpr Index rms_norm_pieces = 264;

template <class T>
struct RmsNormBackwardArguments {
  const T* y_gradient;       ///< [rows, columns]
  const T* x;                ///< [rows, columns]
  const T* weight;           ///< [columns]
  float weight_offset;       ///< see NormWeight
  const float* inverse_rms;  ///< [rows]
  T* x_gradient;             ///< [rows, columns], added to
  float* weight_sums;        ///< [blocks, columns]
  Index rows;
  Index columns;
};

/// Processes every `gridDim.x`-th row; sums of the weight's gradient stay in shared memory: each
/// thread's first four columns of a run, then its last four, so that adjacent threads access
/// different banks.
template <bool Vectors, class T>
OCTAVO_KERNEL void __launch_bounds__(512)
    rms_norm_backward_kernel(const RmsNormBackwardArguments<T> arguments) {
  extern __shared__ float4 column_sums[];
  const Index columns = arguments.columns;
  const Index runs = (columns + run_size - 1) / run_size;
  for (Index run = threadIdx.x; run < runs; run += blockDim.x) {
    column_sums[run] = column_sums[runs + run] = float4{};
  }
  for (Index row = blockIdx.x; row < arguments.rows; row += gridDim.x) {
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
      const Floats weight = offset_weights(load_run<Vectors>(arguments.weight + column, count),
                                           arguments.weight_offset);
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
      const Floats weight = offset_weights(load_run<Vectors>(arguments.weight + column, count),
                                           arguments.weight_offset);
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

/// Maximum number of threads per block of the kernel below.
inline constexpr int held_threads = 512;
/// Columns of a row in such a block for each run of a thread.
inline constexpr Index held_columns = Index{held_threads} * run_size;

/// One thread's part of a row.
/// @tparam Runs  runs of each array, `blockDim.x` runs apart
template <int Runs, class T>
struct HeldRow {
  Run<T> y_gradient[Runs];
  Run<T> x[Runs];
  Run<T> x_gradient[Runs];
  float inverse;

  __device__ HeldRow(const RmsNormBackwardArguments<T>& arguments, Index row)
      : inverse(arguments.inverse_rms[row]) {
    const Index columns = arguments.columns;
#pragma unroll
    for (int i = 0; i < Runs; ++i) {
      const Index column = (Index{threadIdx.x} + i * blockDim.x) * run_size;
      const Index place = row * columns + column;
      y_gradient[i] = load_run<true>(arguments.y_gradient + place, columns - column);
      x[i] = load_run<true>(arguments.x + place, columns - column);
      x_gradient[i] = load_run<true>(arguments.x_gradient + place, columns - column);
    }
  }
};

/// Does the same as rms_norm_backward_kernel for rows that fit a block's registers, including the
/// sums of the weight's gradient. The next row is loaded while the current one is processed.
template <int Runs, class T>
OCTAVO_KERNEL void __launch_bounds__(held_threads, Runs * sizeof(T) == 2 ? 2 : 1)
    rms_norm_backward_held_kernel(const RmsNormBackwardArguments<T> arguments) {
  const Index columns = arguments.columns;
  const auto column = [&](int i) { return (Index{threadIdx.x} + i * blockDim.x) * run_size; };
  Run<T> weights[Runs];
  Floats sums[Runs]{};
#pragma unroll
  for (int i = 0; i < Runs; ++i) {
    weights[i] = load_run<true>(arguments.weight + column(i), columns - column(i));
  }
  HeldRow<Runs, T> next(arguments, blockIdx.x);
  for (Index row = blockIdx.x; row < arguments.rows; row += gridDim.x) {
    const HeldRow<Runs, T> held = next;
    if (row + gridDim.x < arguments.rows) next = HeldRow<Runs, T>(arguments, row + gridDim.x);
    const float inverse = held.inverse;
    float dot = 0;
#pragma unroll
    for (int i = 0; i < Runs; ++i) {
      const Floats gradient = to_floats(held.y_gradient[i]);
      const Floats value = to_floats(held.x[i]);
      const Floats weight = offset_weights(weights[i], arguments.weight_offset);
#pragma unroll
      for (int j = 0; j < run_size; ++j) {
        dot += gradient.values[j] * weight.values[j] * value.values[j];
        sums[i].values[j] += gradient.values[j] * value.values[j] * inverse;
      }
    }
    const float mean = block_sum(dot) * inverse * inverse / static_cast<float>(columns);
#pragma unroll
    for (int i = 0; i < Runs; ++i) {
      const Floats gradient = to_floats(held.y_gradient[i]);
      const Floats value = to_floats(held.x[i]);
      const Floats weight = offset_weights(weights[i], arguments.weight_offset);
      Floats result = to_floats(held.x_gradient[i]);
#pragma unroll
      for (int j = 0; j < run_size; ++j) {
        const float g = gradient.values[j] * weight.values[j];
        result.values[j] += inverse * (g - value.values[j] * mean);
      }
      store_floats<true>(arguments.x_gradient + row * columns + column(i), columns - column(i),
                         result);
    }
  }
  float* target = arguments.weight_sums + Index{blockIdx.x} * columns;
#pragma unroll
  for (int i = 0; i < Runs; ++i) {
    store_floats<true>(target + column(i), columns - column(i), sums[i]);
  }
}

}  // namespace octavo::detail
