/// @file
/// The backward of layer normalisation on the `Cuda` device: one row per warp or per block.
#pragma once

#include <octavo/kernels/cuda/layer_norm.cuh>

namespace octavo OCTAVO_ABI::detail {

/// Maximum number of rows of partial sums of the parameters' gradients: two blocks for each
/// multiprocessor.
inline constexpr Index layer_norm_pieces = 264;

template <class T>
struct LayerNormBackwardArguments {
  const T* y_gradient;      ///< [rows, columns]
  const T* x;               ///< [rows, columns]
  const T* weight;          ///< [columns]
  const float* statistics;  ///< [rows, 2]
  T* x_gradient;            ///< [rows, columns], added to
  float* weight_sums;       ///< [blocks, columns]
  float* bias_sums;         ///< [blocks, columns]
  Index rows;
  Index columns;

  [[nodiscard]] __device__ RowStatistics of_row(Index row) const {
    return {statistics[2 * row], statistics[2 * row + 1]};
  }
};

/// Adds inverse · (g − mean_g − n · mean_gn) to `gradient`, with n the normalised x.
struct LayerNormGradient {
  RowStatistics statistics;
  float mean_g;
  float mean_gn;

  [[nodiscard]] __device__ float normalised(float x) const {
    return (x - statistics.mean) * statistics.inverse;
  }
  [[nodiscard]] __device__ float operator()(float g, float x) const {
    return statistics.inverse * (g - mean_g - normalised(x) * mean_gn);
  }
};

/// Sums each lane's run `own` over the block's warps, to a row of sums. All threads must call it.
template <int Warps>
__device__ void store_warp_sums(const Floats& own, float* target, Index first_column,
                                Index columns) {
  __shared__ float warp_sums[Warps][warp_columns];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
#pragma unroll
  for (int i = 0; i < run_size; ++i) warp_sums[warp][lane * run_size + i] = own.values[i];
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < warp_columns; i += Warps * 32) {
    float total = 0;
    for (int w = 0; w < Warps; ++w) total += warp_sums[w][i];
    if (first_column + i < columns) target[first_column + i] = total;
  }
  __syncthreads();
}

/// Returns the warps of a block with this many runs per lane.
template <int Held>
inline constexpr int backward_warps = Held > 4 ? 4 : 8;

/// Processes rows that fit a warp's registers, with the sums of the parameters' gradients.
template <int Held, class T>
OCTAVO_KERNEL void __launch_bounds__(backward_warps<Held> * 32)
    layer_norm_backward_held_kernel(const LayerNormBackwardArguments<T> arguments) {
  constexpr int warps = backward_warps<Held>;
  const Index columns = arguments.columns;
  const auto column = [](int i) {
    return Index{threadIdx.x % 32} * run_size + Index{i} * warp_columns;
  };
  const auto load = [&](Run<T>(&runs)[Held], const T* row) {
#pragma unroll
    for (int i = 0; i < Held; ++i) {
      runs[i] = load_run<true>(row + column(i), columns - column(i));
    }
  };
  Run<T> weights[Held];
  load(weights, arguments.weight);
  Floats weight_sums[Held]{};
  Floats bias_sums[Held]{};
  for (Index row = Index{blockIdx.x} * warps + threadIdx.x / 32; row < arguments.rows;
       row += Index{gridDim.x} * warps) {
    Run<T> y_gradient[Held];
    Run<T> x[Held];
    Run<T> x_gradient[Held];
    load(y_gradient, arguments.y_gradient + row * columns);
    load(x, arguments.x + row * columns);
    load(x_gradient, arguments.x_gradient + row * columns);
    LayerNormGradient gradient{arguments.of_row(row), 0, 0};
    // Beyond the end of the row, all gradients and weights are zero.
#pragma unroll
    for (int i = 0; i < Held; ++i) {
      const Floats dy = to_floats(y_gradient[i]);
      const Floats values = to_floats(x[i]);
      const Floats w = to_floats(weights[i]);
#pragma unroll
      for (int j = 0; j < run_size; ++j) {
        const float n = gradient.normalised(values.values[j]);
        const float g = dy.values[j] * w.values[j];
        gradient.mean_g += g;
        gradient.mean_gn += g * n;
        weight_sums[i].values[j] += dy.values[j] * n;
        bias_sums[i].values[j] += dy.values[j];
      }
    }
    gradient.mean_g = warp_sum(gradient.mean_g) / static_cast<float>(columns);
    gradient.mean_gn = warp_sum(gradient.mean_gn) / static_cast<float>(columns);
#pragma unroll
    for (int i = 0; i < Held; ++i) {
      const Floats dy = to_floats(y_gradient[i]);
      const Floats values = to_floats(x[i]);
      const Floats w = to_floats(weights[i]);
      Floats result = to_floats(x_gradient[i]);
#pragma unroll
      for (int j = 0; j < run_size; ++j) {
        result.values[j] += gradient(dy.values[j] * w.values[j], values.values[j]);
      }
      store_floats<true>(arguments.x_gradient + row * columns + column(i), columns - column(i),
                         result);
    }
  }
  const Index sums_row = Index{blockIdx.x} * columns;
#pragma unroll
  for (int i = 0; i < Held; ++i) {
    const Index first = Index{i} * warp_columns;
    store_warp_sums<warps>(weight_sums[i], arguments.weight_sums + sums_row, first, columns);
    store_warp_sums<warps>(bias_sums[i], arguments.bias_sums + sums_row, first, columns);
  }
}

/// Processes rows of any length: one row per block, with the sums in shared memory, where each
/// thread has separate columns.
template <bool Vectors, class T>
OCTAVO_KERNEL void __launch_bounds__(512)
    layer_norm_backward_kernel(const LayerNormBackwardArguments<T> arguments) {
  extern __shared__ float layer_norm_sums[];  // [2, columns]
  const Index columns = arguments.columns;
  const auto for_each_run = [&](const auto& body) {
    for (Index column = Index{threadIdx.x} * run_size; column < columns;
         column += Index{blockDim.x} * run_size) {
      body(column, min(columns - column, Index{run_size}));
    }
  };
  for_each_run([&](Index column, Index count) {
    for (Index i = column; i < column + count; ++i) {
      layer_norm_sums[i] = layer_norm_sums[columns + i] = 0;
    }
  });
  for (Index row = blockIdx.x; row < arguments.rows; row += gridDim.x) {
    const T* dy_row = arguments.y_gradient + row * columns;
    const T* x_row = arguments.x + row * columns;
    T* dx_row = arguments.x_gradient + row * columns;
    LayerNormGradient gradient{arguments.of_row(row), 0, 0};
    float sum_g = 0;
    float sum_gn = 0;
    for_each_run([&](Index column, Index count) {
      const Floats dy = load_floats<Vectors>(dy_row + column, count);
      const Floats x = load_floats<Vectors>(x_row + column, count);
      const Floats w = load_floats<Vectors>(arguments.weight + column, count);
#pragma unroll
      for (int i = 0; i < run_size; ++i) {
        const float n = gradient.normalised(x.values[i]);
        const float g = dy.values[i] * w.values[i];
        sum_g += g;
        sum_gn += g * n;
        if (i >= count) continue;
        layer_norm_sums[column + i] += dy.values[i] * n;
        layer_norm_sums[columns + column + i] += dy.values[i];
      }
    });
    gradient.mean_g = block_sum(sum_g) / static_cast<float>(columns);
    gradient.mean_gn = block_sum(sum_gn) / static_cast<float>(columns);
    for_each_run([&](Index column, Index count) {
      const Floats dy = load_floats<Vectors>(dy_row + column, count);
      const Floats x = load_floats<Vectors>(x_row + column, count);
      const Floats w = load_floats<Vectors>(arguments.weight + column, count);
      Floats result = load_floats<Vectors>(dx_row + column, count);
#pragma unroll
      for (int i = 0; i < run_size; ++i) {
        result.values[i] += gradient(dy.values[i] * w.values[i], x.values[i]);
      }
      store_floats<Vectors>(dx_row + column, count, result);
    });
  }
  const Index sums_row = Index{blockIdx.x} * columns;
  for_each_run([&](Index column, Index count) {
    for (Index i = column; i < column + count; ++i) {
      arguments.weight_sums[sums_row + i] = layer_norm_sums[i];
      arguments.bias_sums[sums_row + i] = layer_norm_sums[columns + i];
    }
  });
}

/// See layer_norm_backward. Uses the context's workspace for partial sums of the parameters'
/// gradients.
template <class T, class G>
void layer_norm_backward_body(TensorView<const T, 2, Cuda> y_gradient,
                              TensorView<const T, 2, Cuda> x, TensorView<const T, 1, Cuda> weight,
                              TensorView<const float, 1, Cuda> statistics,
                              TensorView<T, 2, Cuda> x_gradient,
                              TensorView<G, 1, Cuda> weight_gradient,
                              TensorView<G, 1, Cuda> bias_gradient, const Context<Cuda>& context) {
  constexpr const char* name = "layer_norm_backward";
  const Index rows = x.extent(0);
  const Index columns = x.extent(1);
  require_columns(name, columns, max_layer_norm_columns(context.limits()));
  const Index fitting =
      static_cast<Index>(kernel_workspace_bytes / sizeof(float)) / std::max(Index{1}, 2 * columns);
  const Index pieces = std::min(rows, std::clamp(fitting, Index{1}, layer_norm_pieces));
  auto* sums = workspace_of<float>(
      context, static_cast<std::size_t>(2 * pieces * columns) * sizeof(float), name);
  const LayerNormBackwardArguments<T> arguments{
      y_gradient.data(),       x.data(), weight.data(), statistics.data(), x_gradient.data(), sums,
      sums + pieces * columns, rows,     columns};
  const bool vectors =
      rows_are_vectors(columns, y_gradient.data(), x.data(), weight.data(), x_gradient.data());
  const auto held = [&](auto* kernel, int warps) {
    launch(name, kernel, pieces, warps * 32, 0, context, arguments);
  };
  if (vectors && columns <= 3 * warp_columns) {
    held(layer_norm_backward_held_kernel<3, T>, backward_warps<3>);
  } else if (vectors && columns <= 4 * warp_columns) {
    held(layer_norm_backward_held_kernel<4, T>, backward_warps<4>);
  } else if (vectors && sizeof(T) == 2 && columns <= 7 * warp_columns) {
    held(layer_norm_backward_held_kernel<7, T>, backward_warps<7>);
  } else {
    launch(name,
           vectors ? layer_norm_backward_kernel<true, T> : layer_norm_backward_kernel<false, T>,
           pieces, row_threads(columns), static_cast<std::size_t>(2 * columns) * sizeof(float),
           context, arguments);
  }
  add_rows(name, sums, pieces, columns, weight_gradient.data(), context);
  add_rows(name, sums + pieces * columns, pieces, columns, bias_gradient.data(), context);
}

}  // namespace octavo::detail
