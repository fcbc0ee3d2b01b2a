/// @file
/// The forward of the built-in attention.
#pragma once

#include <octavo/attention/cuda/own/block.cuh>

namespace octavo OCTAVO_ABI::detail {

/// Running state of the thread's two rows; sums cover the thread's own columns.
struct SoftmaxRows {
  float largest[2] = {-INFINITY, -INFINITY};
  float sum[2] = {0.0f, 0.0f};
};

/// Converts scores to exp(scale · (score − maximum)).
/// @tparam may_mask_all  a row may not have seen a key yet; its exponentials are then 0
/// @param scale          includes log2(e)
/// @param factors        written: factors for the sums so far
template <bool may_mask_all, int n, int count>
__device__ void softmax_step(Accumulator<n> (&scores)[count], float scale, SoftmaxRows& rows,
                             float (&factors)[2]) {
  constexpr int half = n / 2;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float largest = rows.largest[h];
#pragma unroll
    for (int i = 0; i < half * count; ++i) {
      if (i / 2 % 2 == h) largest = fmaxf(largest, scores[i / half].values[i % half]);
    }
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
    const float base = may_mask_all && largest == -INFINITY ? 0.0f : largest;
    factors[h] = fast_exp2((rows.largest[h] - base) * scale);
    rows.largest[h] = largest;
    const float shift = base * scale;
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < half * count; ++i) {
      if (i / 2 % 2 != h) continue;
      float& value = scores[i / half].values[i % half];
      value = fast_exp2(fmaf(value, scale, -shift));
      sum += value;
    }
    rows.sum[h] = rows.sum[h] * factors[h] + sum;
  }
}

/// Shared memory of the forward: the queries, and two stages of keys and values.
template <class Cores, int columns>
struct ForwardTiles {
  using Sizes = AttentionSizes<Cores, columns>;
  static constexpr int rows = Sizes::forward_rows;
  static constexpr int threads = attention_threads(rows);
  using Queries = SharedTile<rows, columns>;
  using Keys = SharedTile<Sizes::forward_keys, columns>;
  static constexpr int bytes = Queries::bytes + 4 * Keys::bytes + tile_alignment;

  std::uint32_t base = shared_tiles();

  [[nodiscard]] __device__ Queries queries() const { return {base}; }
  [[nodiscard]] __device__ Keys keys(int stage) const {
    return {base + static_cast<std::uint32_t>(Queries::bytes + stage * Keys::bytes)};
  }
  [[nodiscard]] __device__ Keys values(int stage) const { return keys(2 + stage); }
};

/// Computes the outputs of a block's queries of one head, longest rows first. The scores of the
/// next keys are computed while the current probabilities are multiplied by the values.
/// @tparam bounded  whether documents or a window hide keys: those before the first query's are
///                  skipped
/// Source: Shah et al. 2024, arXiv 2407.08608.
template <class Cores, int columns, bool bounded>
__device__ __forceinline__ void attention_forward_block(const Bf16* qkv, Bf16* output,
                                                        float* log_sum_exp,
                                                        const AttentionGeometry& geometry) {
  using Tiles = ForwardTiles<Cores, columns>;
  constexpr int threads = Tiles::threads;
  constexpr int keys_per_step = Tiles::Sizes::forward_keys;
  constexpr int product_keys = keys_per_step < mma_side ? keys_per_step : mma_side;
  constexpr int key_products = keys_per_step / product_keys;
  constexpr bool queries_in_registers = Tiles::Sizes::is_narrow;
  const int tokens = geometry.tokens;
  const int heads = geometry.heads;
  const int dim = geometry.head_dim;
  const Tiles tiles;
  const ThreadPlace<Tiles::rows> place;
  const int head = static_cast<int>(blockIdx.x) % heads;
  const int sequence = static_cast<int>(blockIdx.x) / heads;
  const int kv_head = head / geometry.group();
  const int first = static_cast<int>(gridDim.y - 1 - blockIdx.y) * Tiles::rows;
  const int steps = (min(first + Tiles::rows, tokens) + keys_per_step - 1) / keys_per_step;
  const Index stride = geometry.stride();
  const auto begin_of = [&](int row) {
    return geometry.begin<bounded>(sequence, min(first + row, tokens - 1));
  };
  const int start = begin_of(0) / keys_per_step;  // the first step
  const int begins[2] = {begin_of(place.row), begin_of(place.row + 8)};
  // The first key of the warpgroup's last row, read from one lane, so that the compiler knows that
  // it is uniform.
  const int latest_begin =
      bounded ? __shfl_sync(0xffffffffu, begin_of(place.group_row + mma_side - 1), 0) : 0;

  const auto copy_keys = [&](int step) {
    if (step < steps) {
      copy_tile<threads>(tiles.keys(step % 2),
                         qkv + geometry.key(sequence, step * keys_per_step, kv_head), stride,
                         tokens - step * keys_per_step, dim);
    }
  };
  const auto copy_values = [&](int step) {
    if (step < steps) {
      copy_tile<threads>(tiles.values(step % 2),
                         qkv + geometry.value(sequence, step * keys_per_step, kv_head), stride,
                         tokens - step * keys_per_step, dim);
    }
  };
  copy_tile<threads>(tiles.queries(), qkv + geometry.query(sequence, first, head), stride,
                     tokens - first, dim);
  copy_keys(start);
  commit_copies();
  copy_keys(start + 1);
  copy_values(start);
  commit_copies();
  Cores::template wait_for_copies<1>();

  Fragment queries[queries_in_registers ? columns / mma_depth : 1] = {};
  if constexpr (queries_in_registers) {
#pragma unroll
    for (int k = 0; k < columns / mma_depth; ++k) {
      queries[k] = load_fragment(tiles.queries(), place.warp_row, k);
    }
  }
  Accumulator<product_keys> scores[key_products];
  Accumulator<> sums[columns / panel_columns];
  Fragment probabilities[keys_per_step / mma_depth];
  SoftmaxRows rows;
  float factors[2];
  const float scale = geometry.scale() * log2_e;
  const auto start_step = [&](int step) {
#pragma unroll
    for (int n = 0; n < key_products; ++n) {
      const auto keys = tiles.keys(step % 2);
      if constexpr (queries_in_registers) {
        start_scores<Cores>(scores[n], queries, keys, n * product_keys);
      } else {
        start_scores<Cores>(scores[n], tiles.queries(), place.group_row, keys, n * product_keys);
      }
    }
    Cores::commit_mma();
  };
  const auto softmax = [&](int step) {
    const int distance = first + place.row - step * keys_per_step - place.column;
    if ((step + 1) * keys_per_step > first + place.group_row) {
#pragma unroll
      for (int n = 0; n < key_products; ++n) {
        mask_later_keys(scores[n], distance - n * product_keys);
      }
    }
    if constexpr (bounded) {
      if (step * keys_per_step < latest_begin) {
#pragma unroll
        for (int n = 0; n < key_products; ++n) {
          const int column = step * keys_per_step + n * product_keys + place.column;
          mask_earlier_keys(scores[n], {begins[0] - column, begins[1] - column});
        }
      }
    }
    softmax_step<bounded>(scores, scale, rows, factors);
  };

  set_zero(sums);
  Cores::begin_mma(queries, scores);
  start_step(start);
  Cores::template wait_for_mma<0>(scores);
  softmax(start);
  to_fragments(scores, probabilities);
  for (int step = start; step + 1 < steps; ++step) {
    Cores::template wait_for_copies<0>();
    copy_keys(step + 2);
    copy_values(step + 1);
    commit_copies();
    Cores::begin_mma(queries, scores, probabilities, sums);
    start_step(step + 1);
    start_sums<Cores>(sums, probabilities, tiles.values(step % 2), 0);
    Cores::commit_mma();
    Cores::template wait_for_mma<1>(scores);
    softmax(step + 1);
    compute_before_wait(fminf(rows.sum[0], rows.sum[1]));
    Cores::template wait_for_mma<0>(sums, probabilities);
#pragma unroll
    for (Accumulator<>& one : sums) {
#pragma unroll
      for (int i = 0; i < 32; ++i) one.values[i] *= factors[i / 2 % 2];
    }
    to_fragments(scores, probabilities);
  }
  Cores::template wait_for_copies<0>();
  Cores::begin_mma(probabilities, sums);
  start_sums<Cores>(sums, probabilities, tiles.values((steps - 1) % 2), 0);
  Cores::commit_mma();
  Cores::template wait_for_mma<0>(sums, probabilities);

  float inverse[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float sum = rows.sum[h];
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    inverse[h] = 1.0f / sum;
    const int token = first + place.row + 8 * h;
    if (place.column == 0 && token < tokens) {
      log_sum_exp[geometry.statistic<bounded>(sequence, token, head)] =
          rows.largest[h] * geometry.scale() + logf(sum);
    }
  }
  store_tile(sums, inverse, tiles.queries(), place.warp_row,
             output + geometry.output(sequence, first, head), geometry.output_stride(),
             tokens - first, dim);
}

/// Runs attention_forward_block on GPUs that have the tensor cores.
template <class Cores, int columns, bool bounded>
OCTAVO_KERNEL __launch_bounds__(
    ForwardTiles<Cores, columns>::threads,
    AttentionSizes<Cores, columns>::blocks) void attention_forward_kernel(const Bf16* qkv,
                                                                          Bf16* output,
                                                                          float* log_sum_exp,
                                                                          AttentionGeometry
                                                                              geometry) {
  if constexpr (Cores::exist) {
    attention_forward_block<Cores, columns, bounded>(qkv, output, log_sum_exp, geometry);
  } else {
    __trap();
  }
}

}  // namespace octavo::detail
