/// @file
/// Common parts of the built-in attention kernels: thread indices and products of tiles.
#pragma once

#include <octavo/attention/attention.hpp>
#include <octavo/attention/cuda/workspace.hpp>
#include <octavo/kernels/cuda/warp_cores.cuh>
#include <octavo/kernels/cuda/warpgroup_cores.cuh>

#include <cmath>

namespace octavo OCTAVO_ABI::detail {

/// Maximum columns of tiles whose queries and sums both fit in registers.
inline constexpr int narrow_columns = 128;

/// Sizes of the tiles of attention on tensor cores of a kind, for heads of up to `columns`.
template <class Cores, int columns>
struct AttentionSizes;
template <int columns>
struct AttentionSizes<WarpgroupCores, columns> {
  static constexpr bool is_narrow = columns <= narrow_columns;
  /// Queries of a block of the forward, and keys that it processes at once.
  static constexpr int forward_rows = attention_rows;
  static constexpr int forward_keys = is_narrow ? 128 : 64;
  /// Rows of the streamed tensors that the backward processes at once.
  static constexpr int backward_rows = 64;
  /// Whether the key gradient's kernel keeps keys and values in registers, and below, the number of
  /// queries in one of its products.
  static constexpr bool keys_in_registers = false;
  static constexpr int backward_queries = backward_rows;
  /// Whether, in the backward of wide tiles, one warpgroup computes the scores and the other the
  /// gradients of probabilities, which they exchange, instead of each computing both.
  static constexpr bool splits_products = false;
  /// Blocks that share a multiprocessor.
  static constexpr int blocks = 1;
};
/// Tiles that fit in 99 KiB of shared memory, the smallest limit of all GPUs of compute capability
/// 8.0 or later.
template <int columns>
struct AttentionSizes<WarpCores, columns> {
  static constexpr bool is_narrow = columns <= narrow_columns;
  static constexpr int forward_rows = is_narrow ? attention_rows : attention_rows / 2;
  static constexpr int forward_keys = is_narrow ? 64 : 32;
  static constexpr int backward_rows = 32;
  static constexpr bool keys_in_registers = columns > 64 && is_narrow;
  static constexpr int backward_queries = keys_in_registers ? 16 : backward_rows;
  static constexpr bool splits_products = !is_narrow;
  static constexpr int blocks = columns <= 64 ? 2 : 1;
};

/// Threads of a block whose warps process 16 of `rows` rows each.
constexpr int attention_threads(int rows) { return rows / mma_side * warpgroup_threads; }

/// Geometry of the tensors.
struct AttentionGeometry {
  int sequences, tokens, heads, kv_heads, head_dim;
  const std::int32_t* positions;  ///< of `Documents`; null if each sequence is one document
  const std::int32_t* followers;  ///< of `Documents`; null if each sequence is one document
  int window;                     ///< of `AttentionOptions`; `tokens` if there is no limit
  float given_scale;              ///< of `AttentionOptions`

  AttentionGeometry(const AttentionShape& shape, const Documents<Cuda>& documents)
      : sequences(static_cast<int>(shape.sequences)),
        tokens(static_cast<int>(shape.tokens)),
        heads(static_cast<int>(shape.heads.heads)),
        kv_heads(static_cast<int>(shape.heads.kv_heads)),
        head_dim(static_cast<int>(shape.heads.head_dim)),
        positions(documents.positions.data()),
        followers(documents.followers.data()),
        window(static_cast<int>(shape.window() == 0 ? shape.tokens : shape.window())),
        given_scale(shape.options.scale) {}

  /// Whether documents or a window hide some of the earlier tokens.
  [[nodiscard]] bool bounded() const { return positions != nullptr || window < tokens; }
  [[nodiscard]] __host__ __device__ int group() const { return heads / kv_heads; }
  /// Returns the distance between fused rows of queries, keys and values, in elements.
  [[nodiscard]] __device__ Index stride() const { return Index{heads + 2 * kv_heads} * head_dim; }
  /// Returns the distance between rows of the output, in elements.
  [[nodiscard]] __device__ Index output_stride() const { return Index{heads} * head_dim; }
  /// Offsets in fused rows.
  [[nodiscard]] __device__ Index query(int sequence, int token, int head) const {
    return (Index{sequence} * tokens + token) * stride() + Index{head} * head_dim;
  }
  [[nodiscard]] __device__ Index key(int sequence, int token, int kv_head) const {
    return query(sequence, token, heads + kv_head);
  }
  [[nodiscard]] __device__ Index value(int sequence, int token, int kv_head) const {
    return query(sequence, token, heads + kv_heads + kv_head);
  }
  [[nodiscard]] __device__ Index output(int sequence, int token, int head) const {
    return (Index{sequence} * tokens + token) * output_stride() + Index{head} * head_dim;
  }
  [[nodiscard]] __device__ bool has_documents() const { return positions != nullptr; }
  /// Returns the index of a query's log-sum-exp or delta. With documents, the layout is that of
  /// cuDNN.
  /// @tparam bounded  false if the geometry is known not to be `bounded`
  template <bool bounded>
  [[nodiscard]] __device__ Index statistic(int sequence, int token, int head) const {
    return bounded && has_documents() ? (Index{sequence} * tokens + token) * heads + head
                                      : (Index{sequence} * heads + head) * tokens + token;
  }
  /// Returns the first token that a token attends to.
  template <bool bounded>
  [[nodiscard]] __device__ int begin(int sequence, int token) const {
    if constexpr (bounded) {
      const Index row = Index{sequence} * tokens + token;
      return max(has_documents() ? token - positions[row] : 0, token - window + 1);
    } else {
      return 0;
    }
  }
  /// Returns the end of the tokens that attend to a token.
  template <bool bounded>
  [[nodiscard]] __device__ int end(int sequence, int token) const {
    if constexpr (bounded) {
      const Index row = Index{sequence} * tokens + token;
      return min(has_documents() ? token + 1 + followers[row] : tokens, token + window);
    } else {
      return tokens;
    }
  }
  [[nodiscard]] __device__ float scale() const {
    return given_scale > 0.0f ? given_scale : rsqrtf(static_cast<float>(head_dim));
  }
};

/// The place of a thread in its block, and the accumulator rows that it holds.
/// @tparam rows  of the tile; warps beyond them process the same rows
template <int rows>
struct ThreadPlace {
  /// The warp's first row in the tile.
  int warp_row = static_cast<int>(threadIdx.x) / 32 * 16 % rows;
  int row = warp_row + static_cast<int>(threadIdx.x) % 32 / 4;  ///< the first of two, 8 apart
  int column = static_cast<int>(threadIdx.x) % 4 * 2;           ///< the first of each pair
  /// The number of the warpgroup; read from one lane, so that the compiler knows that it is
  /// uniform.
  int group = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / warpgroup_threads, 0);
  int group_row = group * mma_side % rows;  ///< the warpgroup's first row
};

/// Returns the first aligned address of the block's dynamic shared memory.
__device__ inline std::uint32_t shared_tiles() {
  extern __shared__ unsigned char octavo_attention_memory[];
  return (shared_address(octavo_attention_memory) + tile_alignment - 1) / tile_alignment *
         tile_alignment;
}

/// Starts scores = a · bᵀ over all columns of rows `a_row` to `a_row + 63` of a, and of b's rows
/// from `row` on.
template <class Cores, int n, int a_rows, int rows, int columns>
__device__ void start_scores(Accumulator<n>& scores, SharedTile<a_rows, columns> a, int a_row,
                             SharedTile<rows, columns> b, int row) {
#pragma unroll
  for (int k = 0; k < columns; k += mma_depth) {
    Cores::multiply(scores, a, a_row, b, row, k, k > 0);
  }
}
/// Starts scores = a · bᵀ over all columns of b's rows from `row` on.
template <class Cores, int n, int rows, int columns>
__device__ void start_scores(Accumulator<n>& scores, const Fragment (&a)[columns / mma_depth],
                             SharedTile<rows, columns> b, int row) {
#pragma unroll
  for (int k = 0; k < columns / mma_depth; ++k) {
    Cores::multiply(scores, a[k], b, row, k * mma_depth, k > 0);
  }
}

/// Starts sums += a · b, where a's columns correspond to b's rows from `row` on.
template <class Cores, int depth, int rows, int columns>
__device__ void start_sums(Accumulator<> (&sums)[columns / panel_columns],
                           const Fragment (&a)[depth], SharedTile<rows, columns> b, int row) {
#pragma unroll
  for (int k = 0; k < depth; ++k) {
#pragma unroll
    for (int panel = 0; panel < columns / panel_columns; ++panel) {
      Cores::multiply_rows(sums[panel], a[k], b, row + k * mma_depth, panel * panel_columns);
    }
  }
}

template <int count>
__device__ void set_zero(Accumulator<> (&sums)[count]) {
#pragma unroll
  for (int i = 0; i < 32 * count; ++i) sums[i / 32].values[i % 32] = 0.0f;
}

/// Sets scores of keys after their query to −∞. Rows are queries.
/// @param distance  the thread's first query minus its first key
template <int n>
__device__ void mask_later_keys(Accumulator<n>& scores, int distance) {
#pragma unroll
  for (int i = 0; i < n / 2; ++i) {
    const int column = i / 4 * 8 + i % 2;
    const int row = i / 2 % 2 * 8;
    if (column > distance + row) scores.values[i] = -INFINITY;
  }
}

/// Sets scores of keys before the documents or windows of the thread's two rows to −∞.
/// @param before  number of hidden keys at the start of each row, from the thread's first column on
template <int n>
__device__ void mask_earlier_keys(Accumulator<n>& scores, const int (&before)[2]) {
#pragma unroll
  for (int i = 0; i < n / 2; ++i) {
    if (i / 4 * 8 + i % 2 < before[i / 2 % 2]) scores.values[i] = -INFINITY;
  }
}

/// Rounds probabilities for use as the first operand of the next product.
template <int n, int count>
__device__ void to_fragments(const Accumulator<n> (&sums)[count],
                             Fragment (&fragments)[n / mma_depth * count]) {
  constexpr int each = n / mma_depth;
#pragma unroll
  for (int k = 0; k < each * count; ++k) fragments[k] = to_fragment(sums[k / each], k % each);
}

}  // namespace octavo::detail
