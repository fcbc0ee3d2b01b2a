/// @file
/// Look-up of token embeddings on the `Cuda` device.
#pragma once

#include <octavo/kernels/cuda/run.cuh>
#include <octavo/kernels/embedding.hpp>

#include <cub/device/device_radix_sort.cuh>

#include <bit>

namespace octavo {
namespace detail {

/// Copies a row of the table a block.
template <bool Vectors, class T>
OCTAVO_KERNEL void __launch_bounds__(512)
    embedding_forward_kernel(const std::int32_t* tokens, const T* table, Index columns, T* y) {
  const T* source = table + Index{tokens[blockIdx.x]} * columns;
  T* target = y + Index{blockIdx.x} * columns;
  const Index stride = Index{blockDim.x} * run_size;
  for (Index column = Index{threadIdx.x} * run_size; column < columns; column += stride) {
    store_run<Vectors>(target + column, columns - column,
                       load_run<Vectors>(source + column, columns - column));
  }
}

/// Writes 0, 1, 2, …
template <class Integer>
OCTAVO_KERNEL void __launch_bounds__(elementwise_threads)
    count_up_kernel(Integer* values, Index count) {
  const Index i = global_thread();
  if (i < count) values[i] = static_cast<Integer>(i);
}

/// Tokens in ascending order, and where each stood; equal tokens keep their order.
struct SortedTokens {
  const std::int32_t* tokens;
  const std::int32_t* positions;
};

/// Adds the gradients of one token to its row: the block at the first of the token's sorted
/// occurrences works through all of them.
template <bool Vectors, class T, class G>
OCTAVO_KERNEL void __launch_bounds__(512)
    embedding_backward_kernel(const SortedTokens sorted, Index count, const T* y_gradient,
                              Index columns, G* table_gradient) {
  const Index first = blockIdx.x;
  const std::int32_t token = sorted.tokens[first];
  if (first > 0 && sorted.tokens[first - 1] == token) return;
  Index last = first + 1;
  while (last < count && sorted.tokens[last] == token) ++last;
  G* target = table_gradient + Index{token} * columns;
  const Index stride = Index{blockDim.x} * run_size;
  for (Index column = Index{threadIdx.x} * run_size; column < columns; column += stride) {
    const Index width = columns - column;
    Floats sums{};
#pragma unroll 4
    for (Index i = first; i < last; ++i) {
      const T* row = y_gradient + Index{sorted.positions[i]} * columns;
      const Floats gradient = load_floats<Vectors>(row + column, width);
#pragma unroll
      for (int e = 0; e < run_size; ++e) sums.values[e] += gradient.values[e];
    }
    Floats result = load_floats<Vectors>(target + column, width);
#pragma unroll
    for (int e = 0; e < run_size; ++e) result.values[e] += sums.values[e];
    store_floats<Vectors>(target + column, width, result);
  }
}

/// Enqueues the sort of the tokens in the context's workspace.
/// @param vocabulary  tokens lie below it
inline SortedTokens sort_tokens(TensorView<const std::int32_t, 1, Cuda> tokens, Index vocabulary,
                                const Context<Cuda>& context) {
  const Index count = tokens.extent(0);
  const Index padded = round_up(count, 64);  // arrays begin at multiples of 256 bytes
  auto* sorted = workspace_elements<std::int32_t>(3 * padded, "embedding_backward", context);
  std::int32_t* positions = sorted + padded;
  std::int32_t* sorted_positions = positions + padded;
  const auto arrays = static_cast<std::size_t>(3 * padded) * sizeof(std::int32_t);
  launch("embedding_backward", count_up_kernel<std::int32_t>,
         ceil_divide(count, elementwise_threads), elementwise_threads, 0, context, positions,
         count);
  const int bits = std::bit_width(static_cast<std::uint64_t>(vocabulary));
  const auto sort = [&](void* scratch, std::size_t& bytes) {
    check(cub::DeviceRadixSort::SortPairs(scratch, bytes, tokens.data(), sorted, positions,
                                          sorted_positions, static_cast<int>(count), 0, bits,
                                          context.stream()),
          "cub::DeviceRadixSort::SortPairs");
  };
  std::size_t bytes = 0;
  sort(nullptr, bytes);
  require<ConfigError>(arrays + bytes <= context.workspace().size(),
                       "embedding_backward needs a workspace of ", arrays + bytes, " bytes for ",
                       count, " tokens, but the context has ", context.workspace().size(),
                       "; bind one of embedding_workspace() bytes");
  sort(context.workspace().data() + arrays, bytes);
  return {sorted, sorted_positions};
}

}  // namespace detail

/// See embedding_forward.
template <class T>
void embedding_forward_body(TensorView<const std::int32_t, 1, Cuda> tokens,
                            TensorView<const T, 2, Cuda> table, TensorView<T, 2, Cuda> y,
                            const Context<Cuda>& context) {
  const Index columns = table.extent(1);
  const bool vectors = detail::rows_are_vectors(columns, table.data(), y.data());
  detail::launch("embedding_forward",
                 vectors ? detail::embedding_forward_kernel<true, T>
                         : detail::embedding_forward_kernel<false, T>,
                 tokens.extent(0), detail::row_threads(columns), 0, context, tokens.data(),
                 table.data(), columns, y.data());
}

/// See embedding_backward. Positions sorted by token make each row's sum one run; a stable sort
/// fixes its order.
template <class T, class G>
void embedding_backward_body(TensorView<const std::int32_t, 1, Cuda> tokens,
                             TensorView<const T, 2, Cuda> y_gradient,
                             TensorView<G, 2, Cuda> table_gradient, const Context<Cuda>& context) {
  const Index columns = table_gradient.extent(1);
  if (tokens.extent(0) == 0) return;
  const detail::SortedTokens sorted =
      detail::sort_tokens(tokens, table_gradient.extent(0), context);
  const bool vectors = detail::rows_are_vectors(columns, y_gradient.data(), table_gradient.data());
  detail::launch("embedding_backward",
                 vectors ? detail::embedding_backward_kernel<true, T, G>
                         : detail::embedding_backward_kernel<false, T, G>,
                 tokens.extent(0), detail::row_threads(columns), 0, context, sorted,
                 tokens.extent(0), y_gradient.data(), columns, table_gradient.data());
}

}  // namespace octavo
