/// @file
/// Token embeddings with learned positions on the `Cuda` device.
#pragma once

#include <octavo/kernels/cuda/run.cuh>
#include <octavo/kernels/positions.hpp>

namespace octavo OCTAVO_ABI::detail {

/// Adds a row of the table and a position, one row per block.
template <bool Vectors, class T>
OCTAVO_KERNEL void __launch_bounds__(elementwise_threads)
    position_embedding_kernel(const std::int32_t* tokens, const T* table, const T* positions,
                              RowPositions places, Index columns, T* y) {
  const T* token = table + Index{tokens[blockIdx.x]} * columns;
  const T* position = positions + places(Index{blockIdx.x}) * columns;
  T* target = y + Index{blockIdx.x} * columns;
  for (Index column = Index{threadIdx.x} * run_size; column < columns;
       column += Index{blockDim.x} * run_size) {
    const Index count = columns - column;
    Floats sum = load_floats<Vectors>(token + column, count);
    const Floats added = load_floats<Vectors>(position + column, count);
#pragma unroll
    for (int i = 0; i < run_size; ++i) sum.values[i] += added.values[i];
    store_floats<Vectors>(target + column, count, sum);
  }
}

/// Adds the gradients of a position's run over all sequences, one run per thread.
template <bool Vectors, class T, class G>
OCTAVO_KERNEL void __launch_bounds__(elementwise_threads)
    positions_backward_kernel(const T* y_gradient, Index rows, Index sequence, Index columns,
                              G* positions_gradient) {
  const Index runs = (columns + run_size - 1) / run_size;
  const Index thread = global_thread();
  if (thread >= sequence * runs) return;
  const Index position = thread / runs;
  const Index column = thread % runs * run_size;
  const Index count = columns - column;
  Floats sum{};
#pragma unroll 4
  for (Index row = position; row < rows; row += sequence) {
    const Floats gradient = load_floats<Vectors>(y_gradient + row * columns + column, count);
#pragma unroll
    for (int i = 0; i < run_size; ++i) sum.values[i] += gradient.values[i];
  }
  G* target = positions_gradient + position * columns + column;
  Floats result = load_floats<Vectors>(target, count);
#pragma unroll
  for (int i = 0; i < run_size; ++i) result.values[i] += sum.values[i];
  store_floats<Vectors>(target, count, result);
}

/// See position_embedding_forward.
template <class T>
void position_embedding_forward_body(TensorView<const std::int32_t, 1, Cuda> tokens,
                                     TensorView<const T, 2, Cuda> table,
                                     TensorView<const T, 2, Cuda> positions, RowPositions places,
                                     TensorView<T, 2, Cuda> y, const Context<Cuda>& context) {
  const Index columns = table.extent(1);
  const bool vectors = rows_are_vectors(columns, table.data(), positions.data(), y.data());
  const int threads = std::min(row_threads(columns), elementwise_threads);
  launch("position_embedding_forward",
         vectors ? position_embedding_kernel<true, T> : position_embedding_kernel<false, T>,
         tokens.extent(0), threads, 0, context, tokens.data(), table.data(), positions.data(),
         places, columns, y.data());
}

/// See positions_backward.
template <class T, class G>
void positions_backward_body(TensorView<const T, 2, Cuda> y_gradient, Index sequence,
                             TensorView<G, 2, Cuda> positions_gradient,
                             const Context<Cuda>& context) {
  const Index columns = y_gradient.extent(1);
  const bool vectors = rows_are_vectors(columns, y_gradient.data()) &&
                       rows_are_vectors(columns, positions_gradient.data());
  const Index threads = sequence * ceil_divide(columns, run_size);
  launch("positions_backward",
         vectors ? positions_backward_kernel<true, T, G> : positions_backward_kernel<false, T, G>,
         ceil_divide(threads, Index{elementwise_threads}), elementwise_threads, 0, context,
         y_gradient.data(), y_gradient.extent(0), sequence, columns, positions_gradient.data());
}

}  // namespace octavo::detail
