/// @file
/// Look-up of token embeddings on the `Cuda` device.
#pragma once

#include <octavo/kernels/cuda/for_each.cuh>
#include <octavo/kernels/cuda/run.cuh>
#include <octavo/kernels/embedding.hpp>

#include <cub/device/device_radix_sort.cuh>

#include <bit>

namespace octavo OCTAVO_ABI::detail {

/// Threads of a block that processes one row.
inline constexpr int embedding_threads = 256;
/// Number of runs of a row that a thread has in flight, so that a block loads a row of 4096 columns
/// at once.
inline constexpr int runs_at_once = 2;
/// Blocks that process a token with several occurrences, each some of its columns.
inline constexpr int token_blocks = 2;
/// Occurrences of such a token that a thread has in flight: 128 bytes.
template <class T>
inline constexpr int occurrences_at_once = 16 / static_cast<int>(sizeof(T));
inline constexpr Index embedding_stride = Index{embedding_threads} * run_size;

/// A token with at least this many occurrences is frequent, and its occurrences are divided among
/// threads. Padding can make almost all tokens the same.
inline constexpr int frequent_count = 128;
/// Number of blocks that process a frequent token; each processes slices of its columns.
inline constexpr int frequent_blocks = 64;
/// Number of adjacent threads that process a slice of the columns together. A block has
/// `slice_groups` such groups, among which it divides the occurrences.
inline constexpr int slice_runs = 8;
inline constexpr int slice_columns = slice_runs * run_size;
inline constexpr int slice_groups = embedding_threads / slice_runs;
static_assert(frequent_blocks <= frequent_count && frequent_blocks == 2 * 32);

/// Returns the number of blocks that process a token with this many occurrences: the blocks of its
/// first occurrences.
__device__ inline Index blocks_of_token(Index count) {
  return count < frequent_count ? token_blocks : frequent_blocks;
}

/// Returns the thread's runs of a row starting at `column`, with zeros beyond the row's end.
template <bool Vectors, class T>
__device__ void load_runs(Run<T> (&runs)[runs_at_once], const T* row, Index column, Index columns) {
#pragma unroll
  for (int i = 0; i < runs_at_once; ++i) {
    const Index at = column + i * embedding_stride;
    runs[i] = load_run<Vectors>(row + at, columns - at);
  }
}

template <class T>
__device__ void set_nan(Run<T> (&runs)[runs_at_once]) {
  for (Run<T>& run : runs) {
    for (std::uint32_t& word : run.words) word = 0x7fff7fffu;  // for FP32 and for two BF16 values
  }
}

/// Copies one row of the table per block: zeros for a negative token, NaN for one beyond the table.
template <bool Vectors, class T>
OCTAVO_KERNEL void __launch_bounds__(embedding_threads)
    embedding_forward_kernel(const std::int32_t* tokens, const T* table, Index rows, Index columns,
                             T* y) {
  const std::int32_t token = tokens[blockIdx.x];
  const T* source = table + Index{token} * columns;
  const Index end = token < 0 || token >= rows ? 0 : columns;
  T* target = y + Index{blockIdx.x} * columns;
  for (Index column = Index{threadIdx.x} * run_size; column < columns;
       column += runs_at_once * embedding_stride) {
    Run<T> runs[runs_at_once];
    load_runs<Vectors>(runs, source, column, end);
    if (token >= rows) set_nan(runs);
#pragma unroll
    for (int i = 0; i < runs_at_once; ++i) {
      const Index at = column + i * embedding_stride;
      store_run<Vectors>(target + at, columns - at, runs[i]);
    }
  }
}

/// Writes the inputs of a sort: tokens as keys, and their positions. All tokens outside the
/// vocabulary get the same key, after all others: the sort reads only some of a key's bits, which
/// are also those of another token.
struct SortInputs {
  const std::int32_t* tokens;
  Index vocabulary;
  std::int32_t* keys;
  std::int32_t* positions;
  __device__ void operator()(Index i) const {
    const std::int32_t token = tokens[i];
    keys[i] = token >= 0 && token < vocabulary ? token : static_cast<std::int32_t>(vocabulary);
    positions[i] = static_cast<std::int32_t>(i);
  }
};

/// The work of a block.
struct Occurrence {
  std::int32_t token;
  Index position;
};

/// All occurrences of a block's token, in ascending order.
template <class Position>
struct Occurrences {
  Index rank;                 ///< index of the block's own occurrence
  Index count;                ///< undefined if the block has no work
  const Position* positions;  ///< undefined if the block has no work, or the count is 1

  /// Whether this block processes the token.
  [[nodiscard]] __device__ bool has_work() const { return rank < blocks_of_token(count); }
};

/// Tokens in their original order, for small numbers of tokens. Each block reads all of them to
/// find the occurrences of its token, overlapped with loads of gradients, so no preceding kernel is
/// needed.
struct UnsortedTokens {
  static constexpr Index most = 16384;
  const std::int32_t* tokens;
  int count;

  /// Returns the positions of a frequent token.
  [[nodiscard]] std::size_t shared_bytes() const {
    return static_cast<std::size_t>(count) * sizeof(std::uint16_t);
  }
  [[nodiscard]] __device__ Occurrence own() const { return {tokens[blockIdx.x], blockIdx.x}; }

  /// All threads of the block must call it. Each warp searches a piece.
  [[nodiscard]] __device__ Occurrences<std::uint16_t> occurrences(std::int32_t token) const {
    constexpr int warps = embedding_threads / 32;
    __shared__ std::uint32_t warp_equal_counts[warps];
    __shared__ std::uint32_t warp_earlier_counts[warps];
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const int piece = (count + warps - 1) / warps;
    const int begin = warp * piece;
    const int end = min(begin + piece, count);
    std::uint32_t equal = 0;
    std::uint32_t earlier = 0;
#pragma unroll 4
    for (int i = begin + lane; i < end; i += 32) {
      if (tokens[i] != token) continue;
      ++equal;
      earlier += i < static_cast<int>(blockIdx.x) ? 1 : 0;
    }
    equal = __reduce_add_sync(0xffffffffu, equal);
    earlier = __reduce_add_sync(0xffffffffu, earlier);
    if (lane == 0) {
      warp_equal_counts[warp] = equal;
      warp_earlier_counts[warp] = earlier;
    }
    __syncthreads();
    std::uint32_t first = 0;  // number of occurrences that earlier warps found
    std::uint32_t total = 0;
    std::uint32_t rank = 0;
    for (int i = 0; i < warps; ++i) {
      if (i == warp) first = total;
      total += warp_equal_counts[i];
      rank += warp_earlier_counts[i];
    }
    if (total == 1 || rank >= blocks_of_token(total)) return {rank, total, nullptr};
    return {rank, total, list(token, begin, end, first)};
  }

 private:
  /// Writes the token's positions from `begin` to `end` to the list, starting at `first`.
  [[nodiscard]] __device__ const std::uint16_t* list(std::int32_t token, int begin, int end,
                                                     std::uint32_t first) const {
    extern __shared__ std::uint16_t token_positions[];
    const std::uint32_t lane = threadIdx.x % 32;
#pragma unroll 4
    for (int i = begin + static_cast<int>(lane); i - static_cast<int>(lane) < end; i += 32) {
      const bool equal = i < end && tokens[i] == token;
      const std::uint32_t lanes = __ballot_sync(0xffffffffu, equal);
      const int before = __popc(lanes & ((1u << lane) - 1));
      if (equal) token_positions[first + before] = static_cast<std::uint16_t>(i);
      first += __popc(lanes);
    }
    __syncthreads();
    return token_positions;
  }
};

/// Returns the end of the range of equal tokens that begins at `first`.
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

/// Many tokens, in ascending order, with their original positions; equal tokens keep their order.
struct SortedTokens {
  const std::int32_t* tokens;
  const std::int32_t* positions;
  Index count;

  [[nodiscard]] std::size_t shared_bytes() const { return 0; }
  [[nodiscard]] __device__ Occurrence own() const {
    return {tokens[blockIdx.x], positions[blockIdx.x]};
  }
  /// All threads of the block must call it.
  [[nodiscard]] __device__ Occurrences<std::int32_t> occurrences(std::int32_t token) const {
    const Index rank = count_equal_before(token);
    const Index first = blockIdx.x - rank;
    const Index frequent_last = first + frequent_count - 1;
    const bool is_frequent = frequent_last < count && tokens[frequent_last] == token;
    if (rank >= (is_frequent ? frequent_blocks : token_blocks)) return {rank, 0, nullptr};
    return {rank, end_of_token(tokens, first, count) - first, positions + first};
  }

 private:
  /// Returns the number of equal tokens right before the block's own, at most `frequent_blocks`.
  /// Each warp checks all of them.
  [[nodiscard]] __device__ int count_equal_before(std::int32_t token) const {
    const Index place = Index{blockIdx.x} - 1 - threadIdx.x % 32;
    const auto is_equal = [&](Index at) { return at >= 0 && tokens[at] == token; };
    const std::uint32_t others[2] = {__ballot_sync(0xffffffffu, !is_equal(place)),
                                     __ballot_sync(0xffffffffu, !is_equal(place - 32))};
    if (others[0] != 0) return __ffs(static_cast<int>(others[0])) - 1;
    return others[1] != 0 ? 32 + __ffs(static_cast<int>(others[1])) - 1 : frequent_blocks;
  }
};

template <class T>
__device__ void add_run(Floats& sum, const Run<T>& run) {
  const Floats terms = to_floats(run);
#pragma unroll
  for (int e = 0; e < run_size; ++e) sum.values[e] += terms.values[e];
}

/// Adds the run at `column` of some occurrences, starting at `first`, in order.
template <bool Vectors, class Position, class T>
__device__ void add_some(Floats& sum, const Occurrences<Position>& all, Index first,
                         const T* y_gradient, Index column, Index columns) {
  Run<T> runs[occurrences_at_once<T>];
#pragma unroll
  for (int i = 0; i < occurrences_at_once<T>; ++i) {
    if (first + i >= all.count) continue;
    const T* row = y_gradient + Index{all.positions[first + i]} * columns;
    runs[i] = load_run<Vectors>(row + column, columns - column);
  }
#pragma unroll
  for (int i = 0; i < occurrences_at_once<T>; ++i) {
    if (first + i < all.count) add_run(sum, runs[i]);
  }
}

/// Adds the gradients of a token with several occurrences to its row, with `token_blocks` blocks.
template <bool Vectors, class Position, class T, class G>
__device__ void add_occurrences(const Occurrences<Position>& all, const T* y_gradient,
                                Index columns, G* target) {
  for (Index column = all.rank * embedding_stride + Index{threadIdx.x} * run_size; column < columns;
       column += token_blocks * embedding_stride) {
    const Run<G> before = load_run<Vectors>(target + column, columns - column);
    Floats sum{};
#pragma unroll 1
    for (Index first = 0; first < all.count; first += occurrences_at_once<T>) {
      add_some<Vectors>(sum, all, first, y_gradient, column, columns);
    }
    add_run(sum, before);
    store_floats<Vectors>(target + column, columns - column, sum);
  }
}

/// Adds the gradients of a frequent token to its row, with `frequent_blocks` blocks. Occurrences
/// are assigned to the groups of threads in turn, `occurrences_at_once` each; each group adds its
/// own in order, and the groups' sums are added in the order of the groups.
template <bool Vectors, class Position, class T, class G>
__device__ void add_frequent(const Occurrences<Position>& all, const T* y_gradient, Index columns,
                             G* target) {
  __shared__ alignas(16) float sums[slice_groups][slice_columns];
  const int run = static_cast<int>(threadIdx.x) % slice_runs;
  const int group = static_cast<int>(threadIdx.x) / slice_runs;
  for (Index slice = all.rank * slice_columns; slice < columns;
       slice += frequent_blocks * slice_columns) {
    Floats sum{};
#pragma unroll 1
    for (Index first = group * occurrences_at_once<T>; first < all.count;
         first += slice_groups * occurrences_at_once<T>) {
      add_some<Vectors>(sum, all, first, y_gradient, slice + run * run_size, columns);
    }
    store_floats<true>(&sums[group][run * run_size], run_size, sum);
    __syncthreads();
    const Index column = slice + threadIdx.x;
    if (threadIdx.x < slice_columns && column < columns) {
      float total = 0;
      for (const auto& group_sums : sums) total += group_sums[threadIdx.x];
      target[column] = G(total + static_cast<float>(target[column]));
    }
    __syncthreads();
  }
}

/// Adds the gradients of one token to its row, with the blocks of its first occurrences. Most
/// tokens occur once: their data is loaded before the number of occurrences is known.
template <bool Vectors, class Tokens, class T, class G>
OCTAVO_KERNEL void __launch_bounds__(embedding_threads, 3)
    embedding_backward_kernel(const Tokens tokens, const T* y_gradient, Index rows, Index columns,
                              G* table_gradient) {
  const Occurrence own = tokens.own();
  if (own.token < 0 || own.token >= rows) return;
  G* target = table_gradient + Index{own.token} * columns;
  const T* source = y_gradient + own.position * columns;
  Index column = Index{threadIdx.x} * run_size;
  Run<T> gradients[runs_at_once];
  Run<G> before[runs_at_once];
  load_runs<Vectors>(gradients, source, column, columns);
  load_runs<Vectors>(before, target, column, columns);
  const auto all = tokens.occurrences(own.token);
  if (!all.has_work()) return;
  if (all.count >= frequent_count) return add_frequent<Vectors>(all, y_gradient, columns, target);
  if (all.count > 1) return add_occurrences<Vectors>(all, y_gradient, columns, target);
  while (column < columns) {
#pragma unroll
    for (int i = 0; i < runs_at_once; ++i) {
      const Index at = column + i * embedding_stride;
      Floats sum{};
      add_run(sum, gradients[i]);
      add_run(sum, before[i]);
      store_floats<Vectors>(target + at, columns - at, sum);
    }
    column += runs_at_once * embedding_stride;
    load_runs<Vectors>(gradients, source, column, columns);
    load_runs<Vectors>(before, target, column, columns);
  }
}

/// Number of arrays of 32-bit numbers, one per token, of a sort.
inline constexpr Index sort_arrays = 4;

/// Enqueues the sort of the tokens in the context's workspace. Tokens outside the vocabulary come
/// last, as `vocabulary`.
/// @param vocabulary  below 2^31
inline SortedTokens sort_tokens(TensorView<const std::int32_t, 1, Cuda> tokens, Index vocabulary,
                                const Context<Cuda>& context) {
  const Index count = tokens.extent(0);
  const Index padded = round_up(count, 64);  // arrays begin at multiples of 256 bytes
  constexpr const char* name = "embedding_backward";
  const auto arrays = static_cast<std::size_t>(sort_arrays * padded) * sizeof(std::int32_t);
  auto* memory = workspace_of<std::int32_t>(context, arrays, name);
  cub::DoubleBuffer<std::int32_t> keys(memory, memory + padded);
  cub::DoubleBuffer<std::int32_t> positions(memory + 2 * padded, memory + 3 * padded);
  for_each_index(name, count, context,
                 SortInputs{tokens.data(), vocabulary, keys.Current(), positions.Current()});
  const int bits = std::bit_width(static_cast<std::uint64_t>(vocabulary));
  const auto sort = [&](void* scratch, std::size_t& bytes) {
    check(cub::DeviceRadixSort::SortPairs(scratch, bytes, keys, positions, static_cast<int>(count),
                                          0, bits, context.stream()),
          "cub::DeviceRadixSort::SortPairs");
  };
  std::size_t bytes = 0;
  sort(nullptr, bytes);
  sort(workspace_of<std::byte>(context, arrays + bytes, name) + arrays, bytes);
  return {keys.Current(), positions.Current(), count};
}

/// See embedding_forward.
template <class T>
void embedding_forward_body(TensorView<const std::int32_t, 1, Cuda> tokens,
                            TensorView<const T, 2, Cuda> table, TensorView<T, 2, Cuda> y,
                            const Context<Cuda>& context) {
  const Index columns = table.extent(1);
  const bool vectors = rows_are_vectors(columns, table.data(), y.data());
  launch("embedding_forward",
         vectors ? embedding_forward_kernel<true, T> : embedding_forward_kernel<false, T>,
         tokens.extent(0), embedding_threads, 0, context, tokens.data(), table.data(),
         table.extent(0), columns, y.data());
}

/// See embedding_backward. The gradients of each row are summed in the order of the tokens, except
/// for a frequent token, for which the order depends only on its number of occurrences.
template <class T, class G>
void embedding_backward_body(TensorView<const std::int32_t, 1, Cuda> tokens,
                             TensorView<const T, 2, Cuda> y_gradient,
                             TensorView<G, 2, Cuda> table_gradient, const Context<Cuda>& context) {
  const Index columns = table_gradient.extent(1);
  const Index count = tokens.extent(0);
  if (count == 0) return;
  const bool vectors = rows_are_vectors(columns, y_gradient.data(), table_gradient.data());
  const auto enqueue = [&](const auto& all) {
    using Tokens = std::remove_cvref_t<decltype(all)>;
    launch("embedding_backward",
           vectors ? embedding_backward_kernel<true, Tokens, T, G>
                   : embedding_backward_kernel<false, Tokens, T, G>,
           count, embedding_threads, all.shared_bytes(), context, all, y_gradient.data(),
           table_gradient.extent(0), columns, table_gradient.data());
  };
  if (count <= UnsortedTokens::most) {
    enqueue(UnsortedTokens{tokens.data(), static_cast<int>(count)});
  } else {
    enqueue(sort_tokens(tokens, table_gradient.extent(0), context));
  }
}

}  // namespace octavo::detail
