/// @file
/// Look-up of token embeddings on the `Cuda` device.
#pragma once

#include <octavo/kernels/cuda/run.cuh>
#include <octavo/kernels/embedding.hpp>

#include <cub/device/device_radix_sort.cuh>

#include <bit>

namespace octavo {
namespace detail {

/// Threads of a block that works on one row.
inline constexpr int embedding_threads = 256;
/// Runs of its row that a thread has in flight: a row of 4096 columns at once.
inline constexpr int runs_at_once = 2;
/// Rows of a frequent token's gradient that a thread has in flight.
inline constexpr int rows_at_once = 4;
inline constexpr Index embedding_stride = Index{embedding_threads} * run_size;

/// The runs of a row that the thread reads from `column` on, zeros beyond the row's end.
template <bool Vectors, class T>
__device__ void load_runs(Run<T> (&runs)[runs_at_once], const T* row, Index column, Index columns) {
#pragma unroll
  for (int i = 0; i < runs_at_once; ++i) {
    const Index at = column + i * embedding_stride;
    runs[i] = load_run<Vectors>(row + at, columns - at);
  }
}

/// Copies a row of the table a block.
template <bool Vectors, class T>
OCTAVO_KERNEL void __launch_bounds__(embedding_threads)
    embedding_forward_kernel(const std::int32_t* tokens, const T* table, Index columns, T* y) {
  const T* source = table + Index{tokens[blockIdx.x]} * columns;
  T* target = y + Index{blockIdx.x} * columns;
  for (Index column = Index{threadIdx.x} * run_size; column < columns;
       column += runs_at_once * embedding_stride) {
    Run<T> runs[runs_at_once];
    load_runs<Vectors>(runs, source, column, columns);
#pragma unroll
    for (int i = 0; i < runs_at_once; ++i) {
      const Index at = column + i * embedding_stride;
      store_run<Vectors>(target + at, columns - at, runs[i]);
    }
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

/// Sorts few tokens by comparing all with all. A warp counts for `ranks_a_warp` neighbouring tokens
/// how many others come before each.
inline constexpr int ranks_a_warp = 8;
inline constexpr Index most_ranked_tokens = 16384;

template <class Token>
OCTAVO_KERNEL void __launch_bounds__(elementwise_threads)
    rank_tokens_kernel(const Token* tokens, int count, Token* sorted, std::int32_t* positions) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int first = static_cast<int>(global_thread() / 32) * ranks_a_warp;
  if (first >= count) return;
  Token own[ranks_a_warp];
  int ranks[ranks_a_warp] = {};
#pragma unroll
  for (int i = 0; i < ranks_a_warp; ++i) own[i] = tokens[min(first + i, count - 1)];
#pragma unroll 4
  for (int other = lane; other < first; other += 32) {
    const Token token = tokens[other];
#pragma unroll
    for (int i = 0; i < ranks_a_warp; ++i) ranks[i] += token <= own[i] ? 1 : 0;
  }
#pragma unroll 4
  for (int other = first + lane; other < count; other += 32) {
    const Token token = tokens[other];
#pragma unroll
    for (int i = 0; i < ranks_a_warp; ++i) {
      const bool before = token < own[i] || (token == own[i] && other < first + i);
      ranks[i] += before ? 1 : 0;
    }
  }
#pragma unroll
  for (int i = 0; i < ranks_a_warp; ++i) {
    const int rank = warp_sum(ranks[i]);
    if (lane != i || first + i >= count) continue;
    sorted[rank] = own[i];
    positions[rank] = first + i;
  }
}

/// End of the run of equal tokens that begins at `first`.
__device__ inline Index end_of_token(const std::int32_t* sorted, Index first, Index count) {
  const std::int32_t token = sorted[first];
  Index step = 1;
  while (first + step < count && sorted[first + step] == token) step *= 2;
  Index inside = first + step / 2;
  Index outside = min(first + step, count);
  while (outside - inside > 1) {
    const Index middle = (inside + outside) / 2;
    if (sorted[middle] == token) {
      inside = middle;
    } else {
      outside = middle;
    }
  }
  return outside;
}

template <class T>
__device__ void add_runs(Floats (&sums)[runs_at_once], const Run<T> (&runs)[runs_at_once]) {
#pragma unroll
  for (int i = 0; i < runs_at_once; ++i) {
    const Floats terms = to_floats(runs[i]);
#pragma unroll
    for (int e = 0; e < run_size; ++e) sums[i].values[e] += terms.values[e];
  }
}

/// Adds the gradients of one token to its row: the block at the first of the token's sorted
/// occurrences works through all of them. What the first occurrence needs is loaded before anything
/// waits for the number of the others: most tokens have none.
template <bool Vectors, class T, class G>
OCTAVO_KERNEL void __launch_bounds__(embedding_threads, 3)
    embedding_backward_kernel(const SortedTokens sorted, Index count, const T* y_gradient,
                              Index columns, G* table_gradient) {
  const Index first = blockIdx.x;
  const std::int32_t token = sorted.tokens[first];
  const std::int32_t previous = sorted.tokens[max(first - 1, Index{0})];
  const std::int32_t position = sorted.positions[first];
  if (first > 0 && previous == token) return;
  G* target = table_gradient + Index{token} * columns;
  for (Index column = Index{threadIdx.x} * run_size; column < columns;
       column += runs_at_once * embedding_stride) {
    Run<T> gradients[runs_at_once];
    Run<G> before[runs_at_once];
    load_runs<Vectors>(gradients, y_gradient + Index{position} * columns, column, columns);
    load_runs<Vectors>(before, target, column, columns);
    const Index end = end_of_token(sorted.tokens, first, count);
    Floats sums[runs_at_once] = {};
    add_runs(sums, gradients);
    for (Index other = first + 1; other < end; other += rows_at_once) {
      Run<T> rows[rows_at_once][runs_at_once];
#pragma unroll
      for (int i = 0; i < rows_at_once; ++i) {
        if (other + i >= end) continue;
        const T* row = y_gradient + Index{sorted.positions[other + i]} * columns;
        load_runs<Vectors>(rows[i], row, column, columns);
      }
#pragma unroll
      for (int i = 0; i < rows_at_once; ++i) {
        if (other + i < end) add_runs(sums, rows[i]);
      }
    }
    add_runs(sums, before);
#pragma unroll
    for (int i = 0; i < runs_at_once; ++i) {
      const Index at = column + i * embedding_stride;
      store_floats<Vectors>(target + at, columns - at, sums[i]);
    }
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
  if (count <= most_ranked_tokens) {
    const Index warps = ceil_divide(count, ranks_a_warp);
    launch("embedding_backward", rank_tokens_kernel<std::int32_t>,
           ceil_divide(warps, elementwise_threads / 32), elementwise_threads, 0, context,
           tokens.data(), static_cast<int>(count), sorted, positions);
    return {sorted, positions};
  }
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
                 tokens.extent(0), detail::embedding_threads, 0, context, tokens.data(),
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
                 tokens.extent(0), detail::embedding_threads, 0, context, sorted, tokens.extent(0),
                 y_gradient.data(), columns, table_gradient.data());
}

}  // namespace octavo
