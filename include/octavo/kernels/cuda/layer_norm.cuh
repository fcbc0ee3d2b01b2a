/// @file
/// The forward of layer normalisation on the `Cuda` device: one row per warp.
#pragma once

#include <octavo/kernels/cuda/quantize.cuh>
#include <octavo/kernels/layer_norm.hpp>

namespace octavo OCTAVO_ABI::detail {

// ---- forward ------------------------------------------------------------------------------------

/// Warps per block, each with a separate row.
inline constexpr int norm_warps = 8;
/// Columns of a row for each run that a lane keeps.
inline constexpr int warp_columns = 32 * run_size;
/// Runs that a lane keeps in registers in the forward; those of longer rows are read again in each
/// pass.
inline constexpr int norm_held_runs = 4;

/// The lane's runs of a row.
/// @tparam Held  number of runs in registers; 0: each pass reads them
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

/// Mean and inverse standard deviation of a row.
struct RowStatistics {
  float mean;
  float inverse;
};

/// Returns those of the warp's row, to all lanes.
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

/// Returns (x − mean) · inverse · weight + bias.
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
  T* y;               ///< [rows, columns]; unused unless it is written
  Index rows;
  Index columns;
  float epsilon;
};

/// Computes the statistics of one row per warp and, if it `Writes`, normalises the row.
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
        // Values beyond the row must not count in the maximum.
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

/// The source of normalised rows with known statistics.
struct LayerNormSource {
  static constexpr int parts = 1;
  static constexpr int rounds_in_flight = 4;
  static constexpr bool makes_zeros = true;
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
      // A bias would change the zeros beyond the matrix.
      if (i >= rows_inside || columns_inside <= 0) return {};
      const Floats values =
          layer_normalised(to_floats(loaded), of_tile()[i], to_floats(weights), to_floats(biases));
      if constexpr (Vectors) {
        return {{to_run<Bf16>(values)}};
      } else {
        return {{first_elements(to_run<Bf16>(values), columns_inside)}};
      }
    }
    /// Returns the statistics of the tile's rows, in shared memory.
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

/// See layer_norm_forward. If the copies do not depend on the values' amax, the values are not
/// written: the rows are read for their statistics, and again, from L2 if they fit, for the cast.
template <LinearPrecision P, OperandKind Kind, class T>
void layer_norm_forward_body(TensorView<const T, 2, Cuda> x, TensorView<const T, 1, Cuda> weight,
                             TensorView<const T, 1, Cuda> bias, float epsilon,
                             const Operand<P, Kind, Cuda>& y, TensorView<float, 1, Cuda> statistics,
                             const Context<Cuda>& context) {
  constexpr const char* name = "layer_norm_forward";
  require_operand_size<P>(name, x.extent(0), x.extent(1));
  const LayerNormArguments<T> arguments{x.data(),          weight.data(),   bias.data(),
                                        statistics.data(), y.values.data(), x.extent(0),
                                        x.extent(1),       epsilon};
  const auto normalise = [&](std::uint32_t* amax_bits) {
    enqueue_layer_norm<true>(name, arguments, amax_bits, context);
  };
  const auto cast = [&] {
    if constexpr (QuantizedPrecision<P>) {
      enqueue_layer_norm<false>(name, arguments, nullptr, context);
      const LayerNormSource source{x.data(),          weight.data(), bias.data(),
                                   statistics.data(), x.extent(0),   x.extent(1)};
      enqueue_cast<false>(name, source, y, context);
    }
  };
  kernels::write_operand(name, y, normalise, cast, context);
}

}  // namespace octavo::detail
