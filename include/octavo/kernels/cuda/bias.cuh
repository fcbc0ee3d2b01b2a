/// @file
/// Column sums on the `Cuda` device, fused with kernels that compute or cast the values: bias
/// gradients.
///
/// Sums are computed in pieces of `column_sum_rows` rows, one block of threads for each piece and
/// strip of columns, and then added in a fixed order.
#pragma once

#include <octavo/kernels/bias.hpp>
#include <octavo/kernels/cuda/quantize.cuh>

namespace octavo OCTAVO_ABI::detail {

// ---- of values that are read or written --------------------------------------------------------

/// Warps per block; each processes a row at a time.
inline constexpr int sum_warps = 8;
/// Rows that a warp has in flight.
inline constexpr int sum_rows_in_flight = 4;
/// Columns per block.
inline constexpr int strip_columns = 32 * run_size;
static_assert(column_sum_rows % (sum_warps * sum_rows_in_flight) == 0);
static_assert(sum_warps * 32 == strip_columns);

/// Sums the columns of a source's values.
/// @tparam Writes    whether to write the values as well
/// @param sums       [pieces, columns]
/// @param amax_bits  null, or raised to the bits of max |values|
template <bool Vectors, bool Writes, class T, class Source>
OCTAVO_KERNEL void __launch_bounds__(sum_warps * 32)
    column_sums_kernel(const Source source, T* values, Index rows, Index columns, float* sums,
                       std::uint32_t* amax_bits) {
  static_assert(Source::makes_zeros, "values beyond the matrix would be summed");
  __shared__ float warp_sums[sum_warps][strip_columns];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const Index row0 = Index{blockIdx.y} * column_sum_rows;
  const Index column0 = Index{blockIdx.x} * strip_columns;
  const Index column = column0 + lane * run_size;
  const int columns_inside = static_cast<int>(min(columns - column, Index{run_size}));
  const auto count = [&](int row) { return row0 + row < rows ? columns_inside : 0; };
  auto runs = source.template runs<Vectors>(row0, column);
  await(runs);
  Floats own{};
  std::uint32_t magnitudes = 0;
#pragma unroll 1
  for (int begin = warp; begin < column_sum_rows; begin += sum_warps * sum_rows_in_flight) {
    decltype(runs.load(0, 0)) loaded[sum_rows_in_flight];
#pragma unroll
    for (int i = 0; i < sum_rows_in_flight; ++i) {
      const int row = begin + i * sum_warps;
      loaded[i] = runs.load(row, count(row));
    }
#pragma unroll
    for (int i = 0; i < sum_rows_in_flight; ++i) {
      const int row = begin + i * sum_warps;
      const Run<T> run = runs.make(row, loaded[i]).parts[0];
      if constexpr (Writes) {
        store_run<Vectors>(values + (row0 + row) * columns + column, count(row), run);
      }
      if constexpr (std::is_same_v<T, Bf16>) magnitudes = larger_magnitudes(magnitudes, run);
      const Floats made = to_floats(run);
#pragma unroll
      for (int j = 0; j < run_size; ++j) own.values[j] += made.values[j];
    }
  }
#pragma unroll
  for (int j = 0; j < run_size; ++j) warp_sums[warp][lane * run_size + j] = own.values[j];
  __syncthreads();
  float total = 0;
  for (int i = 0; i < sum_warps; ++i) total += warp_sums[i][threadIdx.x];
  if (column0 + threadIdx.x < columns) {
    sums[Index{blockIdx.y} * columns + column0 + threadIdx.x] = total;
  }
  finish(runs);
  if (amax_bits != nullptr) raise_to_block_amax(magnitudes, amax_bits);
}

// ---- of values that are cast -------------------------------------------------------------------

/// A source that also sums the columns computed by its threads, each in separate shared memory. All
/// threads of the block must call `store` when the tile is finished.
template <class Source>
struct SummingSource {
  static_assert(Source::parts == 1 && Source::makes_zeros,
                "values beyond the matrix would be summed");
  static constexpr int parts = 1;
  static constexpr bool makes_zeros = true;
  static constexpr int rounds_in_flight = Source::rounds_in_flight;
  /// Threads per row of sums, padded so that threads of `store` access different banks.
  static constexpr int stride = quantize_threads + 4;
  Source source;

  template <bool Vectors>
  struct Runs {
    typename Source::template Runs<Vectors> runs;

    __device__ auto load(int i, int count) const { return runs.load(i, count); }
    __device__ void await() {
      detail::await(runs);
#pragma unroll
      for (int j = 0; j < run_size; ++j) sums()[j * stride + threadIdx.x] = 0;
    }
    template <class Loaded>
    __device__ Produced<Bf16, 1> make(int i, const Loaded& loaded) {
      const Produced<Bf16, 1> produced = runs.make(i, loaded);
      const Floats made = to_floats(produced.parts[0]);
#pragma unroll
      for (int j = 0; j < run_size; ++j) sums()[j * stride + threadIdx.x] += made.values[j];
      return produced;
    }
    __device__ void finish() const { detail::finish(runs); }
  };

  [[nodiscard]] bool vectors() const { return source.vectors(); }

  template <bool Vectors>
  __device__ Runs<Vectors> runs(Index row, Index column) const {
    return {source.template runs<Vectors>(row, column)};
  }

  /// Writes the tile's sums to its row of [tiles from the first row to the last, columns].
  __device__ static void store(float* target, TilePlace place, Index columns) {
    __syncthreads();
    const int column = static_cast<int>(threadIdx.x);
    if (column >= tile_side || place.column + column >= columns) return;
    float total = 0;
#pragma unroll
    for (int row = 0; row < column_size; ++row) {
      total += sums()[column % run_size * stride + row * tile_runs + column / run_size];
    }
    target[place.row / tile_side * columns + place.column + column] = total;
  }

 private:
  /// [run_size, stride]: one thread's sums in a column, as placed by `RowPosition`.
  __device__ static float* sums() {
    __shared__ float values[run_size * stride];
    return values;
  }
};
static_assert(tile_side == column_sum_rows);

/// Does the same as cast_kernel, and sums the columns.
template <class Cast, class Format, class Granularity, class Source>
OCTAVO_KERNEL void __launch_bounds__(quantize_threads, tiles_at_once<Cast::fit>)
    summing_cast_kernel(const CastArguments<Format, Granularity> arguments,
                        const SummingSource<Source> source, float* sums) {
  const TilePlace place = tile_of_block<Cast>();
  Cast::run(arguments, source, place);
  SummingSource<Source>::store(sums, place, arguments.columns);
}

/// Launches summing_cast_kernel.
struct SummingLaunch {
  float* sums;                  ///< [tiles from the first row to the last, columns]
  std::size_t workspace_bytes;  ///< size of the sums in bytes

  template <class Cast, class Format, class Granularity, class Source>
  void launch_cast(const char* name, const CastArguments<Format, Granularity>& arguments,
                   const Source& source, dim3 tiles, std::size_t shared_bytes,
                   const Context<Cuda>& context) const {
    launch(name, summing_cast_kernel<Cast, Format, Granularity, Source>, tiles, quantize_threads,
           shared_bytes, context, arguments, SummingSource<Source>{source}, sums);
  }
};

// ---- launches ----------------------------------------------------------------------------------

/// Enqueues the kernels that write an operand from a source, like `produce`, and adds the column
/// sums of its values to `target`. Uses `column_sums_workspace` bytes of the context's workspace.
/// @tparam Writes  whether to write the values if the precision needs them; otherwise the source
///                 reads them from there
template <bool Writes, LinearPrecision P, OperandKind Kind, class Source, class G>
void produce_and_sum(const char* name, const Source& source, const Operand<P, Kind, Cuda>& operand,
                     TensorView<G, 1, Cuda> target, const Context<Cuda>& context) {
  using T = typename PrecisionTraits<P>::Storage;
  const Index rows = operand.values.extent(0);
  const Index columns = operand.values.extent(1);
  const Index pieces = ceil_divide(rows, column_sum_rows);
  const std::size_t bytes = column_sums_workspace(rows, columns);
  auto* sums = workspace_of<float>(context, bytes, name);
  const auto sum_values = [&](std::uint32_t* amax_bits) {
    if (rows == 0) return;
    const bool vectors = source.vectors() && rows_are_vectors(columns, operand.values.data());
    const dim3 blocks(static_cast<unsigned>(ceil_divide(columns, Index{strip_columns})),
                      static_cast<unsigned>(pieces));
    launch(name,
           vectors ? column_sums_kernel<true, Writes, T, Source>
                   : column_sums_kernel<false, Writes, T, Source>,
           blocks, sum_warps * 32, 0, context, source, operand.values.data(), rows, columns, sums,
           amax_bits);
  };
  const auto sum_while_casting = [&] {
    if constexpr (QuantizedPrecision<P>) {
      enqueue_cast<false>(name, source, operand, context, SummingLaunch{sums, bytes});
    }
  };
  write_operand(name, operand, sum_values, sum_while_casting, context);
  add_rows(name, sums, pieces, columns, target.data(), context);
}

/// Throws ShapeError if a matrix has too many rows for its columns to be summed.
inline void require_summed_rows(const char* operation, Index rows) {
  require<ShapeError>(rows <= max_cast_rows, operation, ": columns of at most ", max_cast_rows,
                      " rows can be summed at once on Cuda, but these have ", rows,
                      "; process fewer tokens at once");
}

/// See bias_backward.
template <LinearPrecision P, class G>
void bias_backward_body(const Operand<P, OperandKind::output_gradient, Cuda>& y_gradient,
                        TensorView<G, 1, Cuda> bias_gradient, const Context<Cuda>& context) {
  using T = typename PrecisionTraits<P>::Storage;
  const Index columns = y_gradient.values.extent(1);
  require_operand_size<P>("bias_backward", y_gradient.values.extent(0), columns);
  require_summed_rows("bias_backward", y_gradient.values.extent(0));
  const MatrixSource<T> source{y_gradient.values.data(), columns};
  produce_and_sum<false>("bias_backward", source, y_gradient, bias_gradient, context);
}

}  // namespace octavo::detail
