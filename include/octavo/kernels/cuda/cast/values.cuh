/// @file
/// The kernel that writes the values of a source.
#pragma once

#include <octavo/kernels/cuda/cast/amax.cuh>
#include <octavo/kernels/cuda/cast/source.cuh>

namespace octavo OCTAVO_ABI::detail {

/// Rows that one thread processes at once if only values are written.
inline constexpr int value_rows = 4;

/// Writes the values of the source. Each thread processes one run in several rows.
/// @param across     number of blocks from left to right in one part
/// @param amax_bits  null, or raised to the bits of max |values|
template <bool Vectors, class T, class Source>
OCTAVO_KERNEL void __launch_bounds__(elementwise_threads)
    values_kernel(const Source source, T* values, Index rows, Index part_columns, unsigned across,
                  std::uint32_t* amax_bits) {
  launch_dependent_grids();
  const Index column = (Index{blockIdx.x % across} * elementwise_threads + threadIdx.x) * run_size;
  const Index row0 = Index{blockIdx.x / across} * value_rows;
  const int columns_inside = static_cast<int>(min(part_columns - column, Index{run_size}));
  const auto count = [&](int i) { return row0 + i < rows ? columns_inside : 0; };
  auto runs = source.template runs<Vectors>(row0, column);
  decltype(runs.load(0, 0)) loaded[value_rows];
#pragma unroll
  for (int i = 0; i < value_rows; ++i) loaded[i] = runs.load(i, count(i));
  await(runs);
  std::uint32_t magnitudes = 0;
#pragma unroll
  for (int i = 0; i < value_rows; ++i) {
    const auto produced = inside<Source, Vectors>(runs.make(i, loaded[i]), count(i));
    T* row = values + (row0 + i) * Source::parts * part_columns;
#pragma unroll
    for (int part = 0; part < Source::parts; ++part) {
      const Run<T>& run = produced.parts[part];
      store_run<Vectors>(row + part * part_columns + column, count(i), run);
      if constexpr (std::is_same_v<T, Bf16>) magnitudes = larger_magnitudes(magnitudes, run);
    }
  }
  finish(runs);
  if (amax_bits != nullptr) raise_to_block_amax(magnitudes, amax_bits);
}

/// Enqueues values_kernel.
template <class Source, class T>
void enqueue_values(const char* name, const Source& source, TensorView<T, 2, Cuda> values,
                    std::uint32_t* amax_bits, const Context<Cuda>& context) {
  const Index part_columns = values.extent(1) / Source::parts;
  const Index across =
      std::max(Index{1}, ceil_divide(part_columns, Index{elementwise_threads} * run_size));
  const Index down = ceil_divide(values.extent(0), value_rows);
  const bool vectors = source.vectors() && rows_are_vectors(part_columns, values.data());
  launch(name, vectors ? values_kernel<true, T, Source> : values_kernel<false, T, Source>,
         across * down, elementwise_threads, 0, context, source, values.data(), values.extent(0),
         part_columns, static_cast<unsigned>(across), amax_bits);
}

}  // namespace octavo::detail
