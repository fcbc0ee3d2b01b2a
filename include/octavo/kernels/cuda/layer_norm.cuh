/// @file
/// Layer normalisation on the `Cuda` device: a row a warp.
#pragma once

#include <octavo/kernels/cuda/quantize.cuh>
#include <octavo/kernels/layer_norm.hpp>

namespace octavo {
namespace detail {

// ---- forward ------------------------------------------------------------------------------------

/// Warps of a block, each with a row of its own.
inline constexpr int norm_warps = 8;
/// Columns of a row for each run that a lane holds.
inline constexpr int warp_columns = 32 * run_size;
/// Runs that a lane holds in the forward; those of longer rows are read anew in each pass.
inline constexpr int norm_held_runs = 4;

/// The lane's runs of a row.
/// @tparam Held  runs in registers; 0: none, each pass reads them
template <bool Vectors, int Held, class T>
struct LayerNormRow {
  const T* row;
  Index columns;
  Run<T> held[Held == 0 ? 1 : Held];

  __device__ LayerNormRow(const T* first, Index count) : row(first), columns(count) {
    if constexpr (Held > 0) {
#pragma unroll
      for (int i = 0; i < Held; ++i) {
        held[i] = load_run<Vectors>(row + column(i), columns - column(i));
      }
    }
  }
  /// Calls `body(column, values)` for every run that begins within the row.
  template <class Body>
  __device__ void for_each(const Body& body) const {
    if constexpr (Held > 0) {
#pragma unroll
      for (int i = 0; i < Held; ++i) {
        if (column(i) < columns) body(column(i), to_floats(held[i]));
      }
    } else {
      for (Index at = column(0); at < columns; at += warp_columns) {
        body(at, load_floats<Vectors>(row + at, columns - at));
      }
    }
  }
  /// Whether element `i` of the run at `column` lies within the row.
  [[nodiscard]] __device__ bool holds(Index at, int i) const { return Vectors || at + i < columns; }

 private:
  __device__ static Index column(int i) {
    return Index{threadIdx.x % 32} * run_size + i * warp_columns;
  }
};

/// Mean and inverse deviation of a row.
struct RowStatistics {
  float mean;
  float inverse;
};

/// Those of the warp's row, to all lanes.
template <class Row>
__device__ RowStatistics find_statistics(const Row& row, float epsilon) {
  const auto count = static_cast<float>(row.columns);
  float sum = 0;
  row.for_each([&](Index, const Floats& run) {
#pragma unroll
    for (const float value : run.values) sum += value;
  });
  const float mean = warp_sum(sum) / count;
  float squares = 0;
  row.for_each([&](Index column, const Floats& run) {
#pragma unroll
    for (int i = 0; i < run_size; ++i) {
      const float distance = row.holds(column, i) ? run.values[i] - mean : 0.0f;
      squares = __fmaf_rn(distance, distance, squares);
    }
  });
  return {mean, 1.0f / sqrtf(warp_sum(squares) / count + epsilon)};
}

/// (x − mean) · inverse · weight + bias.
__device__ inline Floats layer_normalised(Floats values, RowStatistics statistics,
                                          const Floats& weights, const Floats& biases) {
#pragma unroll
  for (int i = 0; i < run_size; ++i) {
    values.values[i] =
        (values.values[i] - statistics.mean) * statistics.inverse * weights.values[i] +
        biases.values[i];
  }
  return values;
}

template <class T>
struct LayerNormArguments {
  const T* x;         ///< [rows, columns]
  const T* weight;    ///< [columns]
  const T* bias;      ///< [columns]
  float* statistics;  ///< [rows, 2]
  T* y;               ///< [rows, columns]; not used unless it is written
  Index rows;
  Index columns;
  float epsilon;
};

/// Finds the statistics of a row a warp and, if it `Writes`, normalises it.
/// @param amax_bits  null, or raised to the bits of max |y|
template <bool Vectors, int Held, bool Writes, class T>
OCTAVO_KERNEL void __launch_bounds__(norm_warps * 32)
    layer_norm_kernel(const LayerNormArguments<T> arguments, std::uint32_t* amax_bits) {
  const Index row = Index{blockIdx.x} * norm_warps + threadIdx.x / 32;
  const Index columns = arguments.columns;
  std::uint32_t magnitudes = 0;
  if (row < arguments.rows) {
    const LayerNormRow<Vectors, Held, T> x(arguments.x + row * columns, columns);
    const RowStatistics statistics = find_statistics(x, arguments.epsilon);
    if (threadIdx.x % 32 == 0) {
      arguments.statistics[2 * row] = statistics.mean;
      arguments.statistics[2 * row + 1] = statistics.inverse;
    }
    if constexpr (Writes) {
      x.for_each([&](Index column, const Floats& values) {
        const Index count = columns - column;
        const Floats weights = load_floats<Vectors>(arguments.weight + column, count);
        const Floats biases = load_floats<Vectors>(arguments.bias + column, count);
        Run<T> run = to_run<T>(layer_normalised(values, statistics, weights, biases));
        // Beyond the row there is no value, so none that could be the largest.
        if constexpr (!Vectors) {
          run = first_elements(run, static_cast<int>(min(count, Index{run_size})));
        }
        store_run<Vectors>(arguments.y + row * columns + column, count, run);
        if constexpr (std::is_same_v<T, Bf16>) magnitudes = larger_magnitudes(magnitudes, run);
      });
    }
  }
  if (amax_bits != nullptr) raise_to_block_amax(magnitudes, amax_bits);
}

/// The source of normalised rows whose statistics are known.
struct LayerNormSource {
  static constexpr int parts = 1;
  static constexpr int rounds_in_flight = 4;
  const Bf16* x;            ///< [rows, columns]
  const Bf16* weight;       ///< [columns]
  const Bf16* bias;         ///< [columns]
  const float* statistics;  ///< [rows, 2]
  Index rows;
  Index columns;

  template <bool Vectors>
  struct Runs {
    const Bf16* x;
    const Bf16* weight;
    const Bf16* bias;
    const float* statistics;
    int stride;
    int columns_inside;
    int rows_inside;
    Run<Bf16> weights;
    Run<Bf16> biases;

    __device__ Run<Bf16> load(int i, int count) const {
      return load_run<Vectors>(x + i * stride, count);
    }
    __device__ void await() {
      weights = load_run<Vectors>(weight, columns_inside);
      biases = load_run<Vectors>(bias, columns_inside);
      const int row = static_cast<int>(threadIdx.x);
      if (row < tile_side && row < rows_inside) {
        of_tile()[row] = {statistics[2 * row], statistics[2 * row + 1]};
      }
      __syncthreads();
    }
    __device__ Produced<Bf16, 1> make(int i, const Run<Bf16>& loaded) const {
      // A bias would make something of the zeros beyond the matrix.
      if (i >= rows_inside || columns_inside <= 0) return {};
      const Floats values =
          layer_normalised(to_floats(loaded), of_tile()[i], to_floats(weights), to_floats(biases));
      if constexpr (Vectors) {
        return {{to_run<Bf16>(values)}};
      } else {
        return {{first_elements(to_run<Bf16>(values), columns_inside)}};
      }
    }
    /// Of the tile's rows, in shared memory.
    __device__ static RowStatistics* of_tile() {
      __shared__ RowStatistics rows[tile_side];
      return rows;
    }
  };

  [[nodiscard]] bool vectors() const { return rows_are_vectors(columns, x, weight, bias); }

  template <bool Vectors>
  __device__ Runs<Vectors> runs(Index row, Index column) const {
    return {opaque(x + row * columns + column),
            weight + column,
            bias + column,
            statistics + 2 * row,
            static_cast<int>(columns),
            static_cast<int>(min(columns - column, Index{run_size})),
            static_cast<int>(min(rows - row, Index{tile_side})),
            {},
            {}};
  }
};

/// Enqueues layer_norm_kernel.
template <bool Writes, class T>
void enqueue_layer_norm(const char* name, const LayerNormArguments<T>& arguments,
                        std::uint32_t* amax_bits, const Context<Cuda>& context) {
  const bool vectors =
      rows_are_vectors(arguments.columns, arguments.x, arguments.weight, arguments.bias) &&
      (!Writes || is_vector_aligned(arguments.y));
  constexpr int held = norm_held_runs;
  const auto enqueue = [&](auto* kernel) {
    launch(name, kernel, ceil_divide(arguments.rows, Index{norm_warps}), norm_warps * 32, 0,
           context, arguments, amax_bits);
  };
  if (!vectors) {
    enqueue(layer_norm_kernel<false, 0, Writes, T>);
  } else if (arguments.columns <= held * warp_columns) {
    enqueue(layer_norm_kernel<true, held, Writes, T>);
  } else {
    enqueue(layer_norm_kernel<true, 0, Writes, T>);
  }
}

// ---- backward -----------------------------------------------------------------------------------

/// Rows of sums of the parameters' gradients that layer_norm_backward makes at most: two blocks for
/// each multiprocessor.
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

/// inverse · (g − mean_g − n · mean_gn), added to `gradient`, with n the normalised x.
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

/// Sums over the block's warps of `own`, each lane's run, to a row of sums. All threads must call
/// it.
template <int Warps>
__device__ void store_warp_sums(const Floats& own, float* target, Index first_column,
                                Index columns) {
  __shared__ float of_warps[Warps][warp_columns];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
#pragma unroll
  for (int i = 0; i < run_size; ++i) of_warps[warp][lane * run_size + i] = own.values[i];
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < warp_columns; i += Warps * 32) {
    float total = 0;
    for (int w = 0; w < Warps; ++w) total += of_warps[w][i];
    if (first_column + i < columns) target[first_column + i] = total;
  }
  __syncthreads();
}

/// Warps of a block that holds so many runs a lane.
template <int Held>
inline constexpr int backward_warps = Held > 4 ? 4 : 8;

/// For rows that a warp's registers hold, with the sums of the parameters' gradients.
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
    // Beyond the row all gradients and weights are zero, so nothing there counts.
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

/// For any rows: a row a block, with the sums in shared memory, where each thread has columns of
/// its own.
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

}  // namespace detail

/// See layer_norm_forward. Where the copies do not wait for the values' amax, the values are not
/// written: the rows are read for their statistics, and again, from L2 if they fit there, to be
/// cast.
template <LinearPrecision P, OperandKind Kind, class T>
void layer_norm_forward_body(TensorView<const T, 2, Cuda> x, TensorView<const T, 1, Cuda> weight,
                             TensorView<const T, 1, Cuda> bias, float epsilon,
                             const Operand<P, Kind, Cuda>& y, TensorView<float, 1, Cuda> statistics,
                             const Context<Cuda>& context) {
  constexpr const char* name = "layer_norm_forward";
  detail::require_operand_size<P>(name, x.extent(0), x.extent(1));
  const detail::LayerNormArguments<T> arguments{x.data(),          weight.data(),   bias.data(),
                                                statistics.data(), y.values.data(), x.extent(0),
                                                x.extent(1),       epsilon};
  const auto normalise = [&](std::uint32_t* amax_bits) {
    detail::enqueue_layer_norm<true>(name, arguments, amax_bits, context);
  };
  if constexpr (!QuantizedPrecision<P>) {
    normalise(nullptr);
  } else {
    detail::check_storage<P>();
    if constexpr (detail::is_tensorwise<typename PrecisionTraits<P>::ScalingType>) {
      if (detail::must_find_scale(y)) {
        return detail::cast_by_current_scale(name, y, normalise, context);
      }
    }
    detail::enqueue_layer_norm<false>(name, arguments, nullptr, context);
    const detail::LayerNormSource source{x.data(),          weight.data(), bias.data(),
                                         statistics.data(), x.extent(0),   x.extent(1)};
    detail::enqueue_cast<false>(name, source, y, context);
  }
}

/// See layer_norm_backward. Uses the context's workspace for sums of the parameters' gradients.
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
  detail::require_columns(name, columns, detail::most_layer_norm_columns);
  const Index fitting = static_cast<Index>(detail::kernel_workspace_bytes / sizeof(float)) /
                        std::max(Index{1}, 2 * columns);
  const Index pieces = std::min(rows, std::clamp(fitting, Index{1}, detail::layer_norm_pieces));
  auto* sums = detail::workspace_elements<float>(2 * pieces * columns, name, context);
  const detail::LayerNormBackwardArguments<T> arguments{
      y_gradient.data(),       x.data(), weight.data(), statistics.data(), x_gradient.data(), sums,
      sums + pieces * columns, rows,     columns};
  const bool vectors = detail::rows_are_vectors(columns, y_gradient.data(), x.data(), weight.data(),
                                                x_gradient.data());
  const auto held = [&](auto* kernel, int warps) {
    detail::launch(name, kernel, pieces, warps * 32, 0, context, arguments);
  };
  if (vectors && columns <= 3 * detail::warp_columns) {
    held(detail::layer_norm_backward_held_kernel<3, T>, detail::backward_warps<3>);
  } else if (vectors && columns <= 4 * detail::warp_columns) {
    held(detail::layer_norm_backward_held_kernel<4, T>, detail::backward_warps<4>);
  } else if (vectors && sizeof(T) == 2 && columns <= 7 * detail::warp_columns) {
    held(detail::layer_norm_backward_held_kernel<7, T>, detail::backward_warps<7>);
  } else {
    detail::launch(name,
                   vectors ? detail::layer_norm_backward_kernel<true, T>
                           : detail::layer_norm_backward_kernel<false, T>,
                   pieces, detail::row_threads(columns),
                   static_cast<std::size_t>(2 * columns) * sizeof(float), context, arguments);
  }
  detail::add_rows(name, sums, pieces, columns, weight_gradient.data(), context);
  detail::add_rows(name, sums + pieces * columns, pieces, columns, bias_gradient.data(), context);
}

}  // namespace octavo
