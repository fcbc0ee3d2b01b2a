/// @file
/// The FP8 forward of the built-in attention, on Hopper's tensor cores.
#pragma once

#include <octavo/attention/cuda/own/fp8_cast.cuh>
#include <octavo/kernels/cuda/copy_barrier.cuh>

#include <cmath>
#include <numbers>

namespace octavo OCTAVO_ABI::detail {

/// Shared memory of the FP8 forward: the queries, stages of keys and values, and the output.
template <int columns>
struct Fp8ForwardTiles {
  static constexpr int rows = fp8_tile_rows;
  static constexpr int threads = attention_threads(rows);
  static constexpr int stages = 5;
  using Rows = Fp8Tile<rows, columns>;
  using Columns = Fp8Tile<columns, rows>;
  using Output = SharedTile<rows, columns>;
  static constexpr int stage_bytes = Rows::bytes + Columns::bytes;
  static constexpr int bytes = Rows::bytes + stages * stage_bytes + Output::bytes + tile_alignment;

  std::uint32_t base = shared_tiles();

  [[nodiscard]] __device__ Output output() const { return {base}; }
  [[nodiscard]] __device__ Rows queries() const {
    return {base + static_cast<std::uint32_t>(Output::bytes)};
  }
  [[nodiscard]] __device__ Rows keys(int step) const {
    return {queries().address +
            static_cast<std::uint32_t>(Rows::bytes + step % stages * stage_bytes)};
  }
  [[nodiscard]] __device__ Columns values(int step) const {
    return {keys(step).address + static_cast<std::uint32_t>(Rows::bytes)};
  }
};

/// Running state of the thread's two rows. Sums cover the thread's own columns.
struct Fp8SoftmaxRows {
  float base[2] = {-INFINITY, -INFINITY};  ///< binary logarithm that exponentials are relative to
  float sum[2] = {0.0f, 0.0f};             ///< times 2^fp8_probability_exponent
};

/// Converts scores to 2^(scale · score − base + 8), where base is the integer at or above the
/// largest exponent so far. Because it is an integer, rounding to E4M3 does not depend on when the
/// largest score is seen, except for probabilities that become subnormal.
/// @tparam may_hide_all  a row may not have seen a key yet; its exponentials are then 0
/// @param factors        written: powers of two, the factors for the sums so far
template <bool may_hide_all, int n>
__device__ void fp8_softmax_step(Accumulator<n>& scores, float scale, Fp8SoftmaxRows& rows,
                                 float (&factors)[2]) {
  constexpr int half = n / 2;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float largest = -INFINITY;
#pragma unroll
    for (int i = 0; i < half; ++i) {
      if (i / 2 % 2 == h) largest = fmaxf(largest, scores.values[i]);
    }
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
    const float next = fmaxf(rows.base[h], ceilf(largest * scale));
    const float base = may_hide_all && next == -INFINITY ? 0.0f : next;
    factors[h] = fast_exp2(rows.base[h] - base);
    rows.base[h] = next;
    const float shift = static_cast<float>(fp8_probability_exponent) - base;
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < half; ++i) {
      if (i / 2 % 2 != h) continue;
      float& value = scores.values[i];
      value = fast_exp2(fmaf(value, scale, shift));
      sum += value;
    }
    rows.sum[h] = rows.sum[h] * factors[h] + sum;
  }
}

/// Computes the outputs of a block's queries of one head, longest rows first. The product for the
/// scores of the next keys overlaps that of the current probabilities with the values, whose sums
/// over 128 keys are added in FP32.
/// @tparam bounded  see attention_forward_block
/// Source: Shah et al. 2024, arXiv 2407.08608.
template <int columns, bool bounded>
__device__ __forceinline__ void fp8_attention_forward_block(Fp8Operands<columns> operands,
                                                            Bf16* output, float* log_sum_exp,
                                                            const AttentionGeometry& geometry) {
  using Cores = WarpgroupCores;
  using Tiles = Fp8ForwardTiles<columns>;
  constexpr int rows_a_tile = Tiles::rows;
  constexpr int warps = Tiles::threads / 32;
  __shared__ std::uint64_t barriers[2 * Tiles::stages + 1];
  const auto barrier = [&](int number) {
    return CopyBarrier{shared_address(barriers) + static_cast<std::uint32_t>(8 * number)};
  };
  const auto filled = [&](int step) { return barrier(step % Tiles::stages); };
  const auto emptied = [&](int step) { return barrier(Tiles::stages + step % Tiles::stages); };
  const CopyBarrier queries_filled = barrier(2 * Tiles::stages);
  const int tokens = geometry.tokens;
  const Tiles tiles;
  const ThreadPlace<rows_a_tile> place;
  const int head = static_cast<int>(blockIdx.x) % geometry.heads;
  const int sequence = static_cast<int>(blockIdx.x) / geometry.heads;
  const int kv_head = head / geometry.group();
  const int tile = static_cast<int>(gridDim.y - 1 - blockIdx.y);
  const int first = tile * rows_a_tile;
  const auto begin_of = [&](int row) {
    return geometry.begin<bounded>(sequence, min(first + row, tokens - 1));
  };
  const int start = begin_of(0) / rows_a_tile;  // the first tile of keys
  const int steps = tile + 1 - start;
  const int begins[2] = {begin_of(place.row), begin_of(place.row + 8)};
  const int latest_begin =
      bounded ? __shfl_sync(0xffffffffu, begin_of(place.group_row + product_side - 1), 0) : 0;
  const Index query_tile = operands.first(geometry, sequence, head) + tile;
  const Index key_tile = operands.first(geometry, sequence, geometry.heads + kv_head) + start;
  const Index value_tile =
      operands.first(geometry, sequence, geometry.heads + geometry.kv_heads + kv_head) + start;

  const bool copies = threadIdx.x == 0;
  // The copies of a step reuse the memory of an earlier step, which all warps have left.
  const auto copy_step = [&](int step) {
    if (step >= steps) return;
    if (!copies) return;
    if (step >= Tiles::stages) emptied(step).wait(step / Tiles::stages - 1);
    filled(step).arrive_and_expect(Tiles::stage_bytes);
    filled(step).copy(tiles.keys(step).address, operands.tile(key_tile + step), Tiles::Rows::bytes);
    filled(step).copy(tiles.values(step).address, operands.tile(value_tile + step),
                      Tiles::Columns::bytes);
  };
  const auto leave = [&](int step) {
    if (threadIdx.x % 32 == 0) emptied(step).arrive();
  };
  if (copies) {
    for (int i = 0; i < Tiles::stages; ++i) {
      filled(i).initialize(1);
      emptied(i).initialize(warps);
    }
    queries_filled.initialize(1);
    CopyBarrier::publish();
  }
  __syncthreads();
  if (copies) {
    queries_filled.arrive_and_expect(Tiles::Rows::bytes);
    queries_filled.copy(tiles.queries().address, operands.tile(query_tile), Tiles::Rows::bytes);
  }
  constexpr int ahead = Tiles::stages - 2;
  for (int step = 0; step < ahead; ++step) copy_step(step);

  Accumulator<rows_a_tile> scores;
  Accumulator<columns> products;
  Accumulator<> sums[columns / panel_columns];
  Fragment probabilities[rows_a_tile / fp8_product_depth];
  Fp8SoftmaxRows rows;
  float factors[2];
  const float query_scale = geometry.scale() * log2_e * operands.inverses[query_tile];
  float key_scale = query_scale * operands.inverses[key_tile];
  float value_inverse = operands.inverses[value_tile];

  const auto start_scores = [&](int step) {
#pragma unroll
    for (int k = 0; k < columns; k += fp8_product_depth) {
      multiply_fp8(scores, tiles.queries(), place.group_row, tiles.keys(step), k, k > 0);
    }
    Cores::commit_products();
  };
  const auto start_products = [&](int step) {
#pragma unroll
    for (int k = 0; k < rows_a_tile / fp8_product_depth; ++k) {
      multiply_fp8(products, probabilities[k], tiles.values(step), k * fp8_product_depth, k > 0);
    }
    Cores::commit_products();
  };
  const auto softmax = [&](int step) {
    const int key = (start + step) * rows_a_tile;
    if (key + rows_a_tile > first + place.group_row) {
      hide_later_keys(scores, first + place.row - key - place.column);
    }
    if constexpr (bounded) {
      if (key < latest_begin) {
        const int column = key + place.column;
        hide_earlier_keys(scores, {begins[0] - column, begins[1] - column});
      }
    }
    fp8_softmax_step<bounded>(scores, key_scale, rows, factors);
  };
  const auto round_probabilities = [&] {
#pragma unroll
    for (int k = 0; k < rows_a_tile / fp8_product_depth; ++k) {
      probabilities[k] = to_fp8_fragment(scores, k);
    }
  };
  const auto add_products = [&](const float(&by)[2]) {
#pragma unroll
    for (int panel = 0; panel < columns / panel_columns; ++panel) {
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        float& sum = sums[panel].values[i];
        sum = fmaf(sum, by[i / 2 % 2], products.values[panel * 32 + i]);
      }
    }
  };

  set_zero(sums);
  queries_filled.wait(0);
  filled(0).wait(0);
  Cores::begin_products(scores);
  start_scores(0);
  Cores::wait_for_products<0>(scores);
  softmax(0);
  round_probabilities();
  for (int step = 0; step + 1 < steps; ++step) {
    const float next_key_inverse = operands.inverses[key_tile + step + 1];
    const float next_value_inverse = operands.inverses[value_tile + step + 1];
    copy_step(step + ahead);
    filled(step + 1).wait((step + 1) / Tiles::stages);
    Cores::begin_products(probabilities, scores, products);
    start_scores(step + 1);
    start_products(step);
    key_scale = query_scale * next_key_inverse;
    const float old_factors[2] = {factors[0], factors[1]};
    Cores::wait_for_products<1>(scores);
    softmax(step + 1);
    Cores::wait_for_products<0>(products, probabilities);
    leave(step);
    add_products(old_factors);
    // Sums are in units of the values' scale, which may differ in the next tile.
    const float change = value_inverse / next_value_inverse;
    factors[0] *= change;
    factors[1] *= change;
    value_inverse = next_value_inverse;
    round_probabilities();
  }
  Cores::begin_products(probabilities, products);
  start_products(steps - 1);
  Cores::wait_for_products<0>(products, probabilities);
  add_products(factors);

  float outward[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float sum = rows.sum[h];
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    outward[h] = value_inverse / sum;
    const int token = first + place.row + 8 * h;
    if (place.column == 0 && token < tokens) {
      const float shift = rows.base[h] - static_cast<float>(fp8_probability_exponent);
      log_sum_exp[geometry.statistic<bounded>(sequence, token, head)] =
          shift * std::numbers::ln2_v<float> + logf(sum);
    }
  }
  store_tile(sums, outward, tiles.output(), place.warp_row,
             output + geometry.output(sequence, first, head), geometry.output_stride(),
             tokens - first, geometry.head_dim);
}

/// Runs fp8_attention_forward_block on GPUs that have the tensor cores.
template <int columns, bool bounded>
OCTAVO_KERNEL __launch_bounds__(Fp8ForwardTiles<columns>::threads,
                                1) void fp8_attention_forward_kernel(Fp8Operands<columns> operands,
                                                                     Bf16* output,
                                                                     float* log_sum_exp,
                                                                     AttentionGeometry geometry) {
  if constexpr (WarpgroupCores::exist) {
    fp8_attention_forward_block<columns, bounded>(operands, output, log_sum_exp, geometry);
  } else {
    __trap();
  }
}

}  // namespace octavo::detail
