/// @file
/// Causal attention in BF16 on Hopper's tensor cores, with nothing but the CUDA Toolkit: forward,
/// and a backward without atomics, so that equal inputs give equal bits.
#pragma once

#include <octavo/attention/attention.hpp>
#include <octavo/attention/cuda/tensor_core.cuh>
#include <octavo/attention/cuda/workspace.hpp>

#include <algorithm>
#include <cmath>

namespace octavo {
namespace detail {

inline constexpr int attention_threads = attention_rows / product_side * warpgroup_threads;
/// Keys that the forward works on at once.
inline constexpr int forward_keys = 128;
/// Rows of the other side that the backward works on at once.
inline constexpr int backward_rows = 64;

/// What the kernels know of the tensors.
struct AttentionGeometry {
  int sequences, tokens, heads, kv_heads, head_dim;
  const std::int32_t* positions;  ///< of `Documents`; null where each sequence is one
  const std::int32_t* followers;  ///< of `Documents`; null where each sequence is one

  AttentionGeometry(const AttentionShape& shape, const Documents<Cuda>& documents)
      : sequences(static_cast<int>(shape.sequences)),
        tokens(static_cast<int>(shape.tokens)),
        heads(static_cast<int>(shape.heads.heads)),
        kv_heads(static_cast<int>(shape.heads.kv_heads)),
        head_dim(static_cast<int>(shape.heads.head_dim)),
        positions(documents.positions.data()),
        followers(documents.followers.data()) {}

  [[nodiscard]] __host__ __device__ int group() const { return heads / kv_heads; }
  /// Values from one row of the fused queries, keys and values to the next.
  [[nodiscard]] __device__ Index stride() const { return Index{heads + 2 * kv_heads} * head_dim; }
  /// Values from one row of the output to the next.
  [[nodiscard]] __device__ Index output_stride() const { return Index{heads} * head_dim; }
  /// Places in fused rows.
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
  /// Place of a query's log-sum-exp or delta. With documents it is where cuDNN has it, too.
  template <bool documents>
  [[nodiscard]] __device__ Index statistic(int sequence, int token, int head) const {
    return documents ? (Index{sequence} * tokens + token) * heads + head
                     : (Index{sequence} * heads + head) * tokens + token;
  }
  /// The first token that a token sees.
  template <bool documents>
  [[nodiscard]] __device__ int begin(int sequence, int token) const {
    return documents ? token - positions[Index{sequence} * tokens + token] : 0;
  }
  /// The token after the last that sees a token.
  template <bool documents>
  [[nodiscard]] __device__ int end(int sequence, int token) const {
    return documents ? token + 1 + followers[Index{sequence} * tokens + token] : tokens;
  }
  // The same for kernels that learn as they run whether there are documents.
  [[nodiscard]] __device__ Index statistic(int sequence, int token, int head) const {
    return has_documents() ? statistic<true>(sequence, token, head)
                           : statistic<false>(sequence, token, head);
  }
  [[nodiscard]] __device__ int begin(int sequence, int token) const {
    return has_documents() ? begin<true>(sequence, token) : 0;
  }
  [[nodiscard]] __device__ int end(int sequence, int token) const {
    return has_documents() ? end<true>(sequence, token) : tokens;
  }
  [[nodiscard]] __device__ float scale() const { return rsqrtf(static_cast<float>(head_dim)); }
};

/// Where a thread stands in its block, and which rows of accumulators it holds.
struct ThreadPlace {
  int warp_row = static_cast<int>(threadIdx.x) / 32 * 16;  ///< the warp's first row in the tile
  int row = warp_row + static_cast<int>(threadIdx.x) % 32 / 4;  ///< the first of two, 8 apart
  int column = static_cast<int>(threadIdx.x) % 4 * 2;           ///< the first of each pair
  /// The warpgroup's first row; read from one lane, so that the compiler knows it is uniform.
  int group_row =
      __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / warpgroup_threads, 0) * product_side;
};

/// The block's dynamic shared memory from its first aligned place on.
__device__ inline std::uint32_t shared_tiles() {
  extern __shared__ unsigned char octavo_attention_memory[];
  return (shared_address(octavo_attention_memory) + tile_alignment - 1) / tile_alignment *
         tile_alignment;
}

/// Starts scores = a · bᵀ over all columns of b's rows `row` to `row + 63`.
template <int rows, int columns>
__device__ void start_scores(Accumulator& scores, const Fragment (&a)[columns / product_depth],
                             SharedTile<rows, columns> b, int row) {
#pragma unroll
  for (int k = 0; k < columns / product_depth; ++k) {
    multiply<false>(scores, a[k], b.descriptor(row, k * product_depth), k > 0);
  }
}

/// Starts sums += a · b, where a's columns are b's rows from `row` on.
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
  for (Accumulator& one : sums) {
#pragma unroll
    for (float& value : one.values) value = 0.0f;
  }
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

/// Sets scores of keys before the documents of the thread's two rows to −∞.
/// @param before  keys before each row's document, from the thread's first column on
__device__ inline void hide_earlier_keys(Accumulator& scores, const int (&before)[2]) {
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    if (i / 4 * 8 + i % 2 < before[i / 2 % 2]) scores.values[i] = -INFINITY;
  }
}

/// What the forward knows of the thread's two rows so far; sums are over the thread's own columns.
struct SoftmaxRows {
  float largest[2] = {-INFINITY, -INFINITY};
  float sum[2] = {0.0f, 0.0f};
};

/// From scores to exp(scale · (score − largest)).
/// @tparam may_hide_all  a row may have seen no key yet; then its exponentials are 0
/// @param scale          includes log2(e)
/// @param factors        what sums so far have to be multiplied with
template <bool may_hide_all, int count>
__device__ void softmax_step(Accumulator (&scores)[count], float scale, SoftmaxRows& rows,
                             float (&factors)[2]) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float largest = rows.largest[h];
#pragma unroll
    for (int i = 0; i < 32 * count; ++i) {
      if (i / 2 % 2 == h) largest = fmaxf(largest, scores[i / 32].values[i % 32]);
    }
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
    const float base = may_hide_all && largest == -INFINITY ? 0.0f : largest;
    factors[h] = fast_exp2((rows.largest[h] - base) * scale);
    rows.largest[h] = largest;
    const float shift = base * scale;
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 32 * count; ++i) {
      if (i / 2 % 2 != h) continue;
      float& value = scores[i / 32].values[i % 32];
      value = fast_exp2(fmaf(value, scale, -shift));
      sum += value;
    }
    rows.sum[h] = rows.sum[h] * factors[h] + sum;
  }
}

/// Rounds probabilities to the first operand of the next product.
template <int count>
__device__ void to_fragments(const Accumulator (&sums)[count], Fragment (&fragments)[4 * count]) {
#pragma unroll
  for (int k = 0; k < 4 * count; ++k) fragments[k] = to_fragment(sums[k / 4], k % 4);
}

/// Shared memory of the forward: the queries, and two stages of keys and values.
template <int columns>
struct ForwardTiles {
  using Queries = SharedTile<attention_rows, columns>;
  using Keys = SharedTile<forward_keys, columns>;
  static constexpr int bytes = Queries::bytes + 4 * Keys::bytes + tile_alignment;

  std::uint32_t base = shared_tiles();

  [[nodiscard]] __device__ Queries queries() const { return {base}; }
  [[nodiscard]] __device__ Keys keys(int stage) const {
    return {base + static_cast<std::uint32_t>(Queries::bytes + stage * Keys::bytes)};
  }
  [[nodiscard]] __device__ Keys values(int stage) const { return keys(2 + stage); }
};

/// Each block of threads makes the outputs of 128 queries of one head, the longest rows first. The
/// scores of the next keys are multiplied while the probabilities of these keys meet the values.
/// @tparam documents  whether sequences are divided: keys before the first query's document are
///                    not looked at
/// Source: Shah et al. 2024, arXiv 2407.08608.
template <int columns, bool documents>
OCTAVO_KERNEL __launch_bounds__(attention_threads,
                                1) void attention_forward_kernel(const Bf16* qkv, Bf16* output,
                                                                 float* log_sum_exp,
                                                                 AttentionGeometry geometry) {
  constexpr int key_products = forward_keys / product_side;
  const int tokens = geometry.tokens;
  const int heads = geometry.heads;
  const int dim = geometry.head_dim;
  const ForwardTiles<columns> tiles;
  const ThreadPlace place;
  const int head = static_cast<int>(blockIdx.x) % heads;
  const int sequence = static_cast<int>(blockIdx.x) / heads;
  const int kv_head = head / geometry.group();
  const int first = static_cast<int>(gridDim.y - 1 - blockIdx.y) * attention_rows;
  const int steps = (min(first + attention_rows, tokens) + forward_keys - 1) / forward_keys;
  const Index stride = geometry.stride();
  const auto begin_of = [&](int row) {
    return geometry.begin<documents>(sequence, min(first + row, tokens - 1));
  };
  const int start = begin_of(0) / forward_keys;  // the first step
  const int begins[2] = {begin_of(place.row), begin_of(place.row + 8)};
  // Of the warpgroup's rows; read from one lane, so that the compiler knows it is uniform.
  const int latest_begin =
      documents ? __shfl_sync(0xffffffffu, begin_of(place.group_row + product_side - 1), 0) : 0;

  const auto copy_keys = [&](int step) {
    if (step < steps) {
      copy_tile<attention_threads>(tiles.keys(step % 2),
                                   qkv + geometry.key(sequence, step * forward_keys, kv_head),
                                   stride, tokens - step * forward_keys, dim);
    }
  };
  const auto copy_values = [&](int step) {
    if (step < steps) {
      copy_tile<attention_threads>(tiles.values(step % 2),
                                   qkv + geometry.value(sequence, step * forward_keys, kv_head),
                                   stride, tokens - step * forward_keys, dim);
    }
  };
  copy_tile<attention_threads>(tiles.queries(), qkv + geometry.query(sequence, first, head), stride,
                               tokens - first, dim);
  copy_keys(start);
  commit_copies();
  copy_keys(start + 1);
  copy_values(start);
  commit_copies();
  wait_for_copies<1>();

  Fragment queries[columns / product_depth];
#pragma unroll
  for (int k = 0; k < columns / product_depth; ++k) {
    queries[k] = load_fragment(tiles.queries(), place.warp_row, k);
  }
  Accumulator scores[key_products];
  Accumulator sums[columns / panel_columns];
  Fragment probabilities[4 * key_products];
  SoftmaxRows rows;
  float factors[2];
  const float scale = geometry.scale() * log2_e;
  const auto start_step = [&](int step) {
#pragma unroll
    for (int n = 0; n < key_products; ++n) {
      start_scores(scores[n], queries, tiles.keys(step % 2), n * product_side);
    }
    commit_products();
  };
  const auto softmax = [&](int step) {
    const int distance = first + place.row - step * forward_keys - place.column;
    if ((step + 1) * forward_keys > first + place.group_row) {
#pragma unroll
      for (int n = 0; n < key_products; ++n) {
        hide_later_keys(scores[n], distance - n * product_side);
      }
    }
    if constexpr (documents) {
      if (step * forward_keys < latest_begin) {
#pragma unroll
        for (int n = 0; n < key_products; ++n) {
          const int column = step * forward_keys + n * product_side + place.column;
          hide_earlier_keys(scores[n], {begins[0] - column, begins[1] - column});
        }
      }
    }
    softmax_step<documents>(scores, scale, rows, factors);
  };

  set_zero(sums);
  begin_products(queries, scores);
  start_step(start);
  wait_for_products<0>(scores);
  softmax(start);
  to_fragments(scores, probabilities);
  for (int step = start; step + 1 < steps; ++step) {
    wait_for_copies<0>();
    copy_keys(step + 2);
    copy_values(step + 1);
    commit_copies();
    begin_products(queries, scores, probabilities, sums);
    start_step(step + 1);
    start_sums(sums, probabilities, tiles.values(step % 2), 0);
    commit_products();
    wait_for_products<1>(scores);
    softmax(step + 1);
    wait_for_products<0>(sums, probabilities);
#pragma unroll
    for (Accumulator& one : sums) {
#pragma unroll
      for (int i = 0; i < 32; ++i) one.values[i] *= factors[i / 2 % 2];
    }
    to_fragments(scores, probabilities);
  }
  wait_for_copies<0>();
  begin_products(probabilities, sums);
  start_sums(sums, probabilities, tiles.values((steps - 1) % 2), 0);
  commit_products();
  wait_for_products<0>(sums, probabilities);

  float inverse[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float sum = rows.sum[h];
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    inverse[h] = 1.0f / sum;
    const int token = first + place.row + 8 * h;
    if (place.column == 0 && token < tokens) {
      log_sum_exp[geometry.statistic<documents>(sequence, token, head)] =
          rows.largest[h] * geometry.scale() + logf(sum);
    }
  }
  store_tile(sums, inverse, tiles.queries(), place.warp_row,
             output + geometry.output(sequence, first, head), geometry.output_stride(),
             tokens - first, dim);
}

/// delta = Σ output · output_gradient of each query and head, eight columns a thread.
/// @tparam threads  of each head: a power of two
template <int threads>
OCTAVO_KERNEL void attention_delta_kernel(const Bf16* output, const Bf16* output_gradient,
                                          float* delta, AttentionGeometry geometry) {
  const Index thread = Index{blockIdx.x} * blockDim.x + threadIdx.x;
  const Index row = thread / threads / geometry.heads;
  const int head = static_cast<int>(thread / threads % geometry.heads);
  const int chunk = static_cast<int>(thread % threads);
  const bool exists = row < Index{geometry.sequences} * geometry.tokens;
  float sum = 0.0f;
  if (exists && chunk * 8 < geometry.head_dim) {
    const Index place =
        row * geometry.output_stride() + Index{head} * geometry.head_dim + chunk * 8;
    const uint4 a = *reinterpret_cast<const uint4*>(output + place);
    const uint4 b = *reinterpret_cast<const uint4*>(output_gradient + place);
    const std::uint32_t as[] = {a.x, a.y, a.z, a.w};
    const std::uint32_t bs[] = {b.x, b.y, b.z, b.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      sum = fmaf(__uint_as_float(as[i] << 16), __uint_as_float(bs[i] << 16), sum);
      sum = fmaf(__uint_as_float(as[i] & 0xffff0000u), __uint_as_float(bs[i] & 0xffff0000u), sum);
    }
  }
#pragma unroll
  for (int distance = threads / 2; distance > 0; distance /= 2) {
    sum += __shfl_xor_sync(0xffffffffu, sum, distance);
  }
  if (exists && chunk == 0) {
    const int sequence = static_cast<int>(row / geometry.tokens);
    delta[geometry.statistic(sequence, static_cast<int>(row % geometry.tokens), head)] = sum;
  }
}

/// Tensors of the backward.
struct AttentionBackwardArguments {
  const Bf16* qkv;
  const Bf16* output_gradient;
  const float* log_sum_exp;
  const float* delta;
  Bf16* qkv_gradient;
};

/// Shared memory of the backward's two kernels: two tiles that stay, two stages of two tiles that
/// pass by, and two stages of the log-sum-exps and deltas of queries that pass by.
template <int columns>
struct BackwardTiles {
  using Own = SharedTile<attention_rows, columns>;
  using Passing = SharedTile<backward_rows, columns>;
  static constexpr int statistics = 2 * Own::bytes + 4 * Passing::bytes;
  static constexpr int bytes =
      statistics + 4 * backward_rows * static_cast<int>(sizeof(float)) + tile_alignment;

  std::uint32_t base = shared_tiles();

  [[nodiscard]] __device__ Own own(int which) const {
    return {base + static_cast<std::uint32_t>(which * Own::bytes)};
  }
  [[nodiscard]] __device__ Passing passing(int which, int stage) const {
    return {base +
            static_cast<std::uint32_t>(2 * Own::bytes + (2 * stage + which) * Passing::bytes)};
  }
  /// Address of a passing query's statistic.
  [[nodiscard]] __device__ std::uint32_t statistic(int which, int stage, int query) const {
    return base + static_cast<std::uint32_t>(statistics +
                                             ((2 * stage + which) * backward_rows + query) * 4);
  }
};

__device__ inline float2 load_shared_pair(std::uint32_t address) {
  float2 pair;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
               : "=f"(pair.x), "=f"(pair.y)
               : "r"(address)
               : "memory");
  return pair;
}
__device__ inline void store_shared(std::uint32_t address, float value) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(value) : "memory");
}

/// Each block of threads makes the gradients of 128 keys and values of one KV head, from all
/// queries of the group's heads in a fixed order. Products are transposed: rows are keys.
/// @tparam documents  whether sequences are divided: queries after the last key's document are not
///                    looked at
template <int columns, bool documents>
OCTAVO_KERNEL __launch_bounds__(attention_threads, 1) void attention_key_gradient_kernel(
    AttentionBackwardArguments arguments, AttentionGeometry geometry) {
  const int tokens = geometry.tokens;
  const int kv_heads = geometry.kv_heads;
  const int dim = geometry.head_dim;
  const BackwardTiles<columns> tiles;
  const ThreadPlace place;
  const int kv_head = static_cast<int>(blockIdx.x) % kv_heads;
  const int sequence = static_cast<int>(blockIdx.x) / kv_heads;
  const int first = static_cast<int>(blockIdx.y) * attention_rows;
  const auto end_of = [&](int row) {
    return geometry.end<documents>(sequence, min(first + row, tokens - 1));
  };
  const int end = end_of(attention_rows - 1);  // of the queries that see one of the keys
  const int ends[2] = {end_of(place.row), end_of(place.row + 8)};
  const int steps_a_head = (end - first + backward_rows - 1) / backward_rows;
  const int steps = steps_a_head * geometry.group();
  const Index stride = geometry.stride();

  const auto head_of = [&](int step) { return kv_head * geometry.group() + step / steps_a_head; };
  const auto query_of = [&](int step) { return first + step % steps_a_head * backward_rows; };
  const auto copy_step = [&](int step) {
    if (step < steps) {
      const int head = head_of(step);
      const int query = query_of(step);
      copy_tile<attention_threads>(tiles.passing(0, step % 2),
                                   arguments.qkv + geometry.query(sequence, query, head), stride,
                                   tokens - query, dim);
      copy_tile<attention_threads>(
          tiles.passing(1, step % 2),
          arguments.output_gradient + geometry.output(sequence, query, head),
          geometry.output_stride(), tokens - query, dim);
    }
    commit_copies();
  };
  // The first 64 threads fetch log-sum-exps, the next 64 deltas. A query beyond the sequence has
  // probability 0 everywhere.
  const int fetched = static_cast<int>(threadIdx.x) / backward_rows;
  const int fetched_query = static_cast<int>(threadIdx.x) % backward_rows;
  const auto fetch_statistic = [&](int step) {
    if (fetched > 1 || step >= steps) return 0.0f;
    const int query = query_of(step) + fetched_query;
    if (query >= tokens) return fetched == 0 ? INFINITY : 0.0f;
    const Index from = geometry.statistic<documents>(sequence, query, head_of(step));
    return fetched == 0 ? arguments.log_sum_exp[from] * log2_e : arguments.delta[from];
  };
  const auto keep_statistic = [&](int step, float value) {
    if (fetched <= 1) store_shared(tiles.statistic(fetched, step % 2, fetched_query), value);
  };

  copy_tile<attention_threads>(tiles.own(0), arguments.qkv + geometry.key(sequence, first, kv_head),
                               stride, tokens - first, dim);
  copy_tile<attention_threads>(tiles.own(1),
                               arguments.qkv + geometry.value(sequence, first, kv_head), stride,
                               tokens - first, dim);
  copy_step(0);
  keep_statistic(0, fetch_statistic(0));

  Accumulator key_sums[columns / panel_columns];
  Accumulator value_sums[columns / panel_columns];
  set_zero(key_sums);
  set_zero(value_sums);
  const float scale = geometry.scale() * log2_e;
  for (int step = 0; step < steps; ++step) {
    const int stage = step % 2;
    wait_for_copies<0>();
    copy_step(step + 1);
    const float statistic = fetch_statistic(step + 1);
    const auto queries = tiles.passing(0, stage);
    const auto output_gradients = tiles.passing(1, stage);

    Accumulator scores[1];
    Accumulator probability_gradients[1];
    begin_products(scores, probability_gradients);
#pragma unroll
    for (int k = 0; k < columns; k += product_depth) {
      multiply(scores[0], tiles.own(0).descriptor(place.group_row, k), queries.descriptor(0, k),
               k > 0);
    }
    commit_products();
#pragma unroll
    for (int k = 0; k < columns; k += product_depth) {
      multiply(probability_gradients[0], tiles.own(1).descriptor(place.group_row, k),
               output_gradients.descriptor(0, k), k > 0);
    }
    commit_products();
    wait_for_products<1>(scores);

    // Query minus key, where that is a matter of the place in the tile.
    const int distance = query_of(step) + place.column - first - place.row;
    const bool hides = query_of(step) < first + place.group_row + product_side;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float2 sums = load_shared_pair(tiles.statistic(0, stage, 8 * j + place.column));
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& value = scores[0].values[4 * j + i];
        value = fast_exp2(fmaf(value, scale, -(i % 2 == 0 ? sums.x : sums.y)));
        if (hides && distance + 8 * j + i % 2 < i / 2 * 8) value = 0.0f;
        if (documents && query_of(step) + place.column + 8 * j + i % 2 >= ends[i / 2]) value = 0.0f;
      }
    }
    Fragment probabilities[4];
    to_fragments(scores, probabilities);
    begin_products(probabilities, value_sums);
    start_sums(value_sums, probabilities, output_gradients, 0);
    commit_products();
    wait_for_products<1>(probability_gradients);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float2 deltas = load_shared_pair(tiles.statistic(1, stage, 8 * j + place.column));
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& value = probability_gradients[0].values[4 * j + i];
        value = scores[0].values[4 * j + i] * (value - (i % 2 == 0 ? deltas.x : deltas.y));
      }
    }
    Fragment score_gradients[4];
    to_fragments(probability_gradients, score_gradients);
    begin_products(score_gradients, key_sums);
    start_sums(key_sums, score_gradients, queries, 0);
    commit_products();
    keep_statistic(step + 1, statistic);
    wait_for_products<0>(value_sums, key_sums, probabilities, score_gradients);
  }

  const float factors[2] = {geometry.scale(), geometry.scale()};
  const float ones[2] = {1.0f, 1.0f};
  store_tile(key_sums, factors, tiles.own(0), place.warp_row,
             arguments.qkv_gradient + geometry.key(sequence, first, kv_head), stride,
             tokens - first, dim);
  store_tile(value_sums, ones, tiles.own(1), place.warp_row,
             arguments.qkv_gradient + geometry.value(sequence, first, kv_head), stride,
             tokens - first, dim);
}

/// Each block of threads makes the gradients of 128 queries of one head, the longest rows first.
/// @tparam documents  see attention_forward_kernel
template <int columns, bool documents>
OCTAVO_KERNEL __launch_bounds__(attention_threads, 1) void attention_query_gradient_kernel(
    AttentionBackwardArguments arguments, AttentionGeometry geometry) {
  const int tokens = geometry.tokens;
  const int heads = geometry.heads;
  const int dim = geometry.head_dim;
  const BackwardTiles<columns> tiles;
  const ThreadPlace place;
  const int head = static_cast<int>(blockIdx.x) % heads;
  const int sequence = static_cast<int>(blockIdx.x) / heads;
  const int kv_head = head / geometry.group();
  const int first = static_cast<int>(gridDim.y - 1 - blockIdx.y) * attention_rows;
  const int steps = (min(first + attention_rows, tokens) + backward_rows - 1) / backward_rows;
  const Index stride = geometry.stride();
  const auto begin_of = [&](int row) {
    return geometry.begin<documents>(sequence, min(first + row, tokens - 1));
  };
  const int start = begin_of(0) / backward_rows;  // the first step
  const int begins[2] = {begin_of(place.row), begin_of(place.row + 8)};

  const auto copy_step = [&](int step) {
    if (step < steps) {
      const int key = step * backward_rows;
      copy_tile<attention_threads>(tiles.passing(0, step % 2),
                                   arguments.qkv + geometry.key(sequence, key, kv_head), stride,
                                   tokens - key, dim);
      copy_tile<attention_threads>(tiles.passing(1, step % 2),
                                   arguments.qkv + geometry.value(sequence, key, kv_head), stride,
                                   tokens - key, dim);
    }
    commit_copies();
  };
  copy_tile<attention_threads>(tiles.own(0), arguments.qkv + geometry.query(sequence, first, head),
                               stride, tokens - first, dim);
  copy_tile<attention_threads>(tiles.own(1),
                               arguments.output_gradient + geometry.output(sequence, first, head),
                               geometry.output_stride(), tokens - first, dim);
  copy_step(start);
  copy_step(start + 1);
  wait_for_copies<1>();

  Fragment queries[columns / product_depth];
  Fragment output_gradients[columns / product_depth];
#pragma unroll
  for (int k = 0; k < columns / product_depth; ++k) {
    queries[k] = load_fragment(tiles.own(0), place.warp_row, k);
    output_gradients[k] = load_fragment(tiles.own(1), place.warp_row, k);
  }
  float shift[2];  // of the scores, so that they become probabilities
  float delta[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int token = min(first + place.row + 8 * h, tokens - 1);
    const Index from = geometry.statistic<documents>(sequence, token, head);
    shift[h] = arguments.log_sum_exp[from] * log2_e;
    delta[h] = arguments.delta[from];
  }
  Accumulator query_sums[columns / panel_columns];
  set_zero(query_sums);
  const float scale = geometry.scale() * log2_e;
  // Only the last steps have keys to hide, with documents all; a branch between the start of a
  // product and its end would let the compiler move the registers that it writes.
  const auto advance = [&](int step, auto hides) {
    const auto keys = tiles.passing(0, step % 2);
    const auto values = tiles.passing(1, step % 2);
    Accumulator scores[1];
    Accumulator probability_gradients[1];
    begin_products(scores, probability_gradients, queries, output_gradients);
    start_scores(scores[0], queries, keys, 0);
    commit_products();
    start_scores(probability_gradients[0], output_gradients, values, 0);
    commit_products();
    wait_for_products<1>(scores);
    if constexpr (decltype(hides)::value) {
      hide_later_keys(scores[0], first + place.row - step * backward_rows - place.column);
      if constexpr (documents) {
        const int column = step * backward_rows + place.column;
        hide_earlier_keys(scores[0], {begins[0] - column, begins[1] - column});
      }
    }
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      float& value = scores[0].values[i];
      value = fast_exp2(fmaf(value, scale, -shift[i / 2 % 2]));
    }
    wait_for_products<0>(probability_gradients);
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      float& value = probability_gradients[0].values[i];
      value = scores[0].values[i] * (value - delta[i / 2 % 2]);
    }
    Fragment score_gradients[4];
    to_fragments(probability_gradients, score_gradients);
    begin_products(score_gradients, query_sums);
    start_sums(query_sums, score_gradients, keys, 0);
    commit_products();
    wait_for_products<0>(query_sums, score_gradients);
    __syncthreads();
    copy_step(step + 2);
    wait_for_copies<1>();
  };
  const int first_hiding = documents ? start : first / backward_rows;
  if constexpr (!documents) {
    for (int step = 0; step < first_hiding; ++step) advance(step, std::false_type());
  }
  for (int step = first_hiding; step < steps; ++step) advance(step, std::true_type());
  const float factors[2] = {geometry.scale(), geometry.scale()};
  store_tile(query_sums, factors, tiles.own(0), place.warp_row,
             arguments.qkv_gradient + geometry.query(sequence, first, head), stride, tokens - first,
             dim);
}

/// Launches `x` · `y` blocks of threads.
template <class... Parameters, class... Arguments>
void launch_attention(void (*kernel)(Parameters...), int shared_bytes, Index x, Index y,
                      const Context<Cuda>& context, const Arguments&... arguments) {
  launch("attention", kernel, dim3(static_cast<unsigned>(x), static_cast<unsigned>(y)),
         attention_threads, static_cast<std::size_t>(shared_bytes), context, arguments...);
}

/// Calls `body` with the number of columns that tiles need for this head_dim, and with whether
/// there are documents, as types.
template <class Body>
void with_attention_variant(Index head_dim, bool documents, const Body& body) {
  const auto with_documents = [&](auto columns) {
    if (documents) {
      body(columns, std::true_type());
    } else {
      body(columns, std::false_type());
    }
  };
  if (head_dim <= 64) {
    with_documents(std::integral_constant<int, 64>());
  } else {
    with_documents(std::integral_constant<int, 128>());
  }
}

/// Where the backward keeps its deltas.
inline float* attention_deltas(const AttentionShape& shape, const Context<Cuda>& context) {
  return workspace_of<float>(context, own_attention_workspace(shape), "attention's backward");
}

/// See attention_forward.
inline void own_attention_forward(const AttentionShape& shape, TensorView<const Bf16, 2, Cuda> qkv,
                                  const Documents<Cuda>& documents,
                                  TensorView<Bf16, 2, Cuda> output,
                                  TensorView<float, 1, Cuda> log_sum_exp,
                                  const Context<Cuda>& context) {
  require_own_attention(shape, true);
  const auto launch = [&](auto tile_columns, auto divided) {
    constexpr int columns = decltype(tile_columns)::value;
    launch_attention(attention_forward_kernel<columns, decltype(divided)::value>,
                     ForwardTiles<columns>::bytes, shape.heads.heads * shape.sequences,
                     ceil_divide(shape.tokens, attention_rows), context, qkv.data(), output.data(),
                     log_sum_exp.data(), AttentionGeometry(shape, documents));
  };
  with_attention_variant(shape.heads.head_dim, !documents.empty(), launch);
}

/// See attention_backward.
inline void own_attention_backward(const AttentionShape& shape, TensorView<const Bf16, 2, Cuda> qkv,
                                   const Documents<Cuda>& documents,
                                   TensorView<const Bf16, 2, Cuda> output,
                                   TensorView<const Bf16, 2, Cuda> output_gradient,
                                   TensorView<const float, 1, Cuda> log_sum_exp,
                                   TensorView<Bf16, 2, Cuda> qkv_gradient,
                                   const Context<Cuda>& context) {
  require_own_attention(shape, true);
  float* delta = attention_deltas(shape, context);
  const AttentionGeometry geometry(shape, documents);
  const AttentionBackwardArguments arguments{qkv.data(), output_gradient.data(), log_sum_exp.data(),
                                             delta, qkv_gradient.data()};
  const Index tiles = ceil_divide(shape.tokens, attention_rows);
  const auto launch = [&](auto tile_columns, auto divided) {
    constexpr int columns = decltype(tile_columns)::value;
    constexpr bool in_documents = decltype(divided)::value;
    constexpr int bytes = BackwardTiles<columns>::bytes;
    constexpr int delta_threads = columns / 8;
    launch_attention(
        attention_delta_kernel<delta_threads>, 0,
        ceil_divide(shape.rows() * shape.heads.heads * delta_threads, attention_threads), 1,
        context, output.data(), output_gradient.data(), delta, geometry);
    launch_attention(attention_key_gradient_kernel<columns, in_documents>, bytes,
                     shape.heads.kv_heads * shape.sequences, tiles, context, arguments, geometry);
    launch_attention(attention_query_gradient_kernel<columns, in_documents>, bytes,
                     shape.heads.heads * shape.sequences, tiles, context, arguments, geometry);
  };
  with_attention_variant(shape.heads.head_dim, !documents.empty(), launch);
}

}  // namespace detail
}  // namespace octavo
