/// @file
/// Common parts of the built-in attention kernels: thread indices and products of tiles.
#pragma once

#include <octavo/attention/attention.hpp>
#include <octavo/attention/cuda/workspace.hpp>
#include <octavo/kernels/cuda/tensor_core.cuh>

#include <cmath>

namespace octavo OCTAVO_ABI::detail {

inline constexpr int attention_threads = attention_rows / product_side * warpgroup_threads;
/// Columns of the widest tiles whose queries and sums fit in registers together.
inline constexpr int narrow_columns = 128;
/// Keys that the forward processes at once.
template <int columns>
inline constexpr int forward_keys = columns <= narrow_columns ? 128 : 64;
/// Rows of the other side that the backward processes at once.
inline constexpr int backward_rows = 64;

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
/// @tparam rows  of the tile: 128, or 64 if both warpgroups process the same rows
template <int rows = attention_rows>
struct ThreadPlace {
  /// The warp's first row in the tile.
  int warp_row = static_cast<int>(threadIdx.x) / 32 * 16 % rows;
  int row = warp_row + static_cast<int>(threadIdx.x) % 32 / 4;  ///< the first of two, 8 apart
  int column = static_cast<int>(threadIdx.x) % 4 * 2;           ///< the first of each pair
  /// The number of the warpgroup; read from one lane, so that the compiler knows that it is
  /// uniform.
  int group = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / warpgroup_threads, 0);
  int group_row = group * product_side % rows;  ///< the warpgroup's first row
};

/// Returns the first aligned address of the block's dynamic shared memory.
__device__ inline std::uint32_t shared_tiles() {
  extern __shared__ unsigned char octavo_attention_memory[];
  return (shared_address(octavo_attention_memory) + tile_alignment - 1) / tile_alignment *
         tile_alignment;
}

/// Starts scores = a · bᵀ over all columns of rows `a_row` to `a_row + 63` of a and `row` to
/// `row + 63` of b.
template <int a_rows, int rows, int columns>
__device__ void start_scores(Accumulator& scores, SharedTile<a_rows, columns> a, int a_row,
                             SharedTile<rows, columns> b, int row) {
#pragma unroll
  for (int k = 0; k < columns; k += product_depth) {
    multiply(scores, a.descriptor(a_row, k), b.descriptor(row, k), k > 0);
  }
}
/// Starts scores = a · bᵀ over all columns of rows `row` to `row + 63` of b.
template <int rows, int columns>
__device__ void start_scores(Accumulator& scores, const Fragment (&a)[columns / product_depth],
                             SharedTile<rows, columns> b, int row) {
#pragma unroll
  for (int k = 0; k < columns / product_depth; ++k) {
    multiply<false>(scores, a[k], b.descriptor(row, k * product_depth), k > 0);
  }
}

/// Starts sums += a · b, where a's columns correspond to b's rows from `row` on.
template <int depth, int rows, int columns>
__device__ void start_sums(Accumulator (&sums)[columns / panel_columns], const Fragment (&a)[depth],
                           SharedTile<rows, columns> b, int row) {
#pragma unroll
  for (int k = 0; k < depth; ++k) {
#pragma unroll
    for (int panel = 0; panel < columns / panel_columns; ++panel) {
      multiply<true>(sums[panel], a[k],
                     b.descriptor(row + k * product_depth, panel * panel_columns), true);
    }
  }
}

template <int count>
__device__ void set_zero(Accumulator (&sums)[count]) {
#pragma unroll
  for (int i = 0; i < 32 * count; ++i) sums[i / 32].values[i % 32] = 0.0f;
}

/// Sets scores of keys after their query to −∞. Rows are queries.
/// @param distance  the thread's first query minus its first key
__device__ inline void hide_later_keys(Accumulator& scores, int distance) {
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    const int column = i / 4 * 8 + i % 2;
    const int row = i / 2 % 2 * 8;
    if (column > distance + row) scores.values[i] = -INFINITY;
  }
}

/// Sets scores of keys before the documents or windows of the thread's two rows to −∞.
/// @param before  number of hidden keys at the start of each row, from the thread's first column on
__device__ inline void hide_earlier_keys(Accumulator& scores, const int (&before)[2]) {
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    if (i / 4 * 8 + i % 2 < before[i / 2 % 2]) scores.values[i] = -INFINITY;
  }
}

/// Rounds probabilities for use as the first operand of the next product.
template <int count>
__device__ void to_fragments(const Accumulator (&sums)[count], Fragment (&fragments)[4 * count]) {
#pragma unroll
  for (int k = 0; k < 4 * count; ++k) fragments[k] = to_fragment(sums[k / 4], k % 4);
}

}  // namespace octavo::detail
