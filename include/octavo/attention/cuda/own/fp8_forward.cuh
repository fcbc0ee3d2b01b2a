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
  /// Threads that multiply, followed by a warpgroup of which one thread copies.
  static constexpr int consumers = attention_threads(rows);
  static constexpr int threads = consumers + warpgroup_threads;
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

/// Returns the sum over the four threads that share rows.
__device__ inline float quad_sum(float value) {
  value += __shfl_xor_sync(0xffffffffu, value, 1);
  return value + __shfl_xor_sync(0xffffffffu, value, 2);
}

/// Running state of the thread's two rows. Sums cover the thread's own columns.
struct Fp8SoftmaxRows {
  float base[2] = {-INFINITY, -INFINITY};  ///< binary logarithm that exponentials are relative to
  float sum[2] = {0.0f, 0.0f};             ///< times 2^fp8_probability_exponent
  float rounded_sum[2] = {0.0f, 0.0f};     ///< of the same probabilities, rounded to E4M3
};

/// Converts scores to 2^(scale · score − base + 8), where base is the integer at or above the
/// largest exponent so far. Because it is an integer, rounding to E4M3 does not depend on when the
/// largest score is seen, except for probabilities that become subnormal.
/// @tparam may_mask_all  a row may not have seen a key yet; its exponentials are then 0
/// @param factors        written: powers of two, the factors for the sums so far
template <bool may_mask_all, int n>
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
    const float base = may_mask_all && next == -INFINITY ? 0.0f : next;
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

/// A tile of queries of one head, and the tiles of keys and values that it attends to.
template <int columns, bool bounded>
struct Fp8Work {
  static constexpr int rows = fp8_tile_rows;
  int head, sequence;
  int first;  ///< its first token
  int start;  ///< number of the first tile of keys
  int steps;  ///< number of tiles of keys
  Index query_tile, key_tile, value_tile;

  /// @param number  of the work item; those with the longest rows come first
  __device__ Fp8Work(const Fp8Operands<columns>& operands, const AttentionGeometry& geometry,
                     int number) {
    const int all = geometry.heads * geometry.sequences;
    const int tile = operands.per_head - 1 - number / all;
    head = number % all % geometry.heads;
    sequence = number % all / geometry.heads;
    first = tile * rows;
    start = begin_of(geometry, 0) / rows;
    steps = tile + 1 - start;
    const int kv_head = geometry.heads + head / geometry.group();
    query_tile = operands.first(geometry, sequence, head) + tile;
    key_tile = operands.first(geometry, sequence, kv_head) + start;
    value_tile = operands.first(geometry, sequence, kv_head + geometry.kv_heads) + start;
  }
  /// Returns the first token that a row of the tile attends to.
  [[nodiscard]] __device__ int begin_of(const AttentionGeometry& geometry, int row) const {
    return geometry.begin<bounded>(sequence, min(first + row, geometry.tokens - 1));
  }
};

/// Calls `body` for each work item of the block. Blocks alternate in direction, so that the first
/// ones do not get the longest items of every round.
template <int columns, bool bounded, class Body>
__device__ void for_each_work(const Fp8Operands<columns>& operands,
                              const AttentionGeometry& geometry, const Body& body) {
  const int count = operands.per_head * geometry.heads * geometry.sequences;
  const int blocks = static_cast<int>(gridDim.x);
  const int block = static_cast<int>(blockIdx.x);
  for (int round = 0; round * blocks < count; ++round) {
    const int number = round * blocks + (round % 2 == 0 ? block : blocks - 1 - block);
    if (number < count) body(Fp8Work<columns, bounded>(operands, geometry, number));
  }
}

/// The barriers of a block. Stages are counted over all work items.
template <int columns>
struct Fp8ForwardBarriers {
  static constexpr int stages = Fp8ForwardTiles<columns>::stages;
  static constexpr int count = 2 * stages + 2;
  std::uint32_t address;

  [[nodiscard]] __device__ CopyBarrier barrier(int number) const {
    return {address + static_cast<std::uint32_t>(8 * number)};
  }
  [[nodiscard]] __device__ CopyBarrier full_barrier(int step) const {
    return barrier(step % stages);
  }
  [[nodiscard]] __device__ CopyBarrier empty_barrier(int step) const {
    return barrier(stages + step % stages);
  }
  [[nodiscard]] __device__ CopyBarrier queries_full_barrier() const { return barrier(2 * stages); }
  [[nodiscard]] __device__ CopyBarrier queries_empty_barrier() const {
    return barrier(2 * stages + 1);
  }
  __device__ void initialize() const {
    constexpr int warps = Fp8ForwardTiles<columns>::consumers / 32;
    for (int i = 0; i < stages; ++i) {
      full_barrier(i).initialize(1);
      empty_barrier(i).initialize(warps);
    }
    queries_full_barrier().initialize(1);
    queries_empty_barrier().initialize(warps);
    CopyBarrier::publish();
  }
};

/// Copies the operands of all work items of the block. One thread calls it.
template <int columns, bool bounded>
__device__ void copy_fp8_works(const Fp8Operands<columns>& operands,
                               const AttentionGeometry& geometry, Fp8ForwardTiles<columns> tiles,
                               Fp8ForwardBarriers<columns> barriers) {
  using Tiles = Fp8ForwardTiles<columns>;
  int works = 0;
  int total = 0;  // steps of earlier work items
  for_each_work<columns, bounded>(operands, geometry, [&](const auto& work) {
    const CopyBarrier queries = barriers.queries_full_barrier();
    barriers.queries_empty_barrier().wait(works + 1);
    queries.arrive_and_expect(Tiles::Rows::bytes);
    queries.copy(tiles.queries().address, operands.tile(work.query_tile), Tiles::Rows::bytes);
    for (int step = 0; step < work.steps; ++step, ++total) {
      const CopyBarrier full_barrier = barriers.full_barrier(total);
      barriers.empty_barrier(total).wait(total / Tiles::stages + 1);
      full_barrier.arrive_and_expect(Tiles::stage_bytes);
      full_barrier.copy(tiles.keys(total).address, operands.tile(work.key_tile + step),
                        Tiles::Rows::bytes);
      full_barrier.copy(tiles.values(total).address, operands.tile(work.value_tile + step),
                        Tiles::Columns::bytes);
    }
    ++works;
  });
}

/// Two warpgroups alternate in starting products, so that the softmax of one overlaps the products
/// of the other.
struct WarpgroupOrder {
  static constexpr int barrier = 8;  ///< the first of two; lower ones are of single warpgroups
  int group;

  __device__ void await() const {
    asm volatile("bar.sync %0, 256;" ::"r"(barrier + group) : "memory");
  }
  __device__ void pass() const {
    asm volatile("bar.arrive %0, 256;" ::"r"(barrier + 1 - group) : "memory");
  }
  __device__ void begin() const {
    if (group == 1) pass();
  }
  __device__ void end() const {
    if (group == 0) await();  // leaves no arrival behind
  }
};

/// Computes the outputs of the block's work items. The scores of the next keys are computed while
/// the current probabilities are multiplied by the values; sums over 128 keys are added in FP32.
/// @tparam bounded  see attention_forward_block
/// Source: Shah et al. 2024, arXiv 2407.08608.
template <int columns, bool bounded>
__device__ __forceinline__ void multiply_fp8_works(const Fp8Operands<columns>& operands,
                                                   Bf16* output, float* log_sum_exp,
                                                   const AttentionGeometry& geometry,
                                                   Fp8ForwardTiles<columns> tiles,
                                                   Fp8ForwardBarriers<columns> barriers) {
  using Cores = WarpgroupCores;
  using Tiles = Fp8ForwardTiles<columns>;
  constexpr int rows_per_tile = Tiles::rows;
  const int tokens = geometry.tokens;
  const ThreadPlace<rows_per_tile> place;
  const WarpgroupOrder order{place.group};
  const auto arrive = [&](CopyBarrier barrier) {
    if (threadIdx.x % 32 == 0) barrier.arrive();
  };
  int works = 0;
  int total = 0;  // steps of earlier work items
  order.begin();
  for_each_work<columns, bounded>(operands, geometry, [&](const auto& work) {
    const int begins[2] = {work.begin_of(geometry, place.row),
                           work.begin_of(geometry, place.row + 8)};
    const int latest_begin =
        bounded ? __shfl_sync(0xffffffffu,
                              work.begin_of(geometry, place.group_row + product_side - 1), 0)
                : 0;
    Accumulator<rows_per_tile> scores;
    Accumulator<columns> products;
    Accumulator<> sums[columns / panel_columns];
    Fragment probabilities[rows_per_tile / fp8_product_depth];
    Fp8SoftmaxRows rows;
    float factors[2];
    const float query_scale = geometry.scale() * log2_e * operands.inverses[work.query_tile];
    float key_scale = query_scale * operands.inverses[work.key_tile];
    float value_inverse = operands.inverses[work.value_tile];

    const auto start_scores = [&](int step) {
#pragma unroll
      for (int k = 0; k < columns; k += fp8_product_depth) {
        multiply_fp8(scores, tiles.queries(), place.group_row, tiles.keys(total + step), k, k > 0);
      }
      Cores::commit_products();
    };
    const auto start_products = [&](int step) {
#pragma unroll
      for (int k = 0; k < rows_per_tile / fp8_product_depth; ++k) {
        multiply_fp8(products, probabilities[k], tiles.values(total + step), k * fp8_product_depth,
                     k > 0);
      }
      Cores::commit_products();
    };
    const auto wait_for_copies = [&](int step) {
      barriers.full_barrier(total + step).wait((total + step) / Tiles::stages);
    };
    const auto softmax = [&](int step) {
      const int key = (work.start + step) * rows_per_tile;
      if (key + rows_per_tile > work.first + place.group_row) {
        mask_later_keys(scores, work.first + place.row - key - place.column);
      }
      if constexpr (bounded) {
        if (key < latest_begin) {
          const int column = key + place.column;
          mask_earlier_keys(scores, {begins[0] - column, begins[1] - column});
        }
      }
      fp8_softmax_step<bounded>(scores, key_scale, rows, factors);
    };
    const auto round_probabilities = [&](const float(&by)[2]) {
      float sum[2] = {0.0f, 0.0f};
#pragma unroll
      for (int k = 0; k < rows_per_tile / fp8_product_depth; ++k) {
        probabilities[k] = to_fp8_fragment(scores, k);
        const auto& words = probabilities[k].words;
        sum[0] += sum_of_e4m3(words[0], words[2]);
        sum[1] += sum_of_e4m3(words[1], words[3]);
      }
#pragma unroll
      for (int h = 0; h < 2; ++h) rows.rounded_sum[h] = fmaf(rows.rounded_sum[h], by[h], sum[h]);
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
    barriers.queries_full_barrier().wait(works);
    wait_for_copies(0);
    order.await();
    Cores::begin_products(scores);
    start_scores(0);
    order.pass();
    Cores::template wait_for_products<0>(scores);
    softmax(0);
    round_probabilities(factors);
    for (int step = 0; step + 1 < work.steps; ++step) {
      const float next_key_inverse = operands.inverses[work.key_tile + step + 1];
      const float next_value_inverse = operands.inverses[work.value_tile + step + 1];
      wait_for_copies(step + 1);
      order.await();
      Cores::begin_products(probabilities, scores, products);
      start_scores(step + 1);
      start_products(step);
      order.pass();
      key_scale = query_scale * next_key_inverse;
      const float old_factors[2] = {factors[0], factors[1]};
      Cores::template wait_for_products<1>(scores);
      softmax(step + 1);
      compute_before_wait(fminf(rows.sum[0], rows.sum[1]));
      Cores::template wait_for_products<0>(products, probabilities);
      arrive(barriers.empty_barrier(total + step));
      add_products(old_factors);
      round_probabilities(factors);
      // Sums are in units of the values' scale, which may differ in the next tile.
      const float change = value_inverse / next_value_inverse;
      factors[0] *= change;
      factors[1] *= change;
      value_inverse = next_value_inverse;
    }
    arrive(barriers.queries_empty_barrier());
    Cores::begin_products(probabilities, products);
    start_products(work.steps - 1);
    Cores::template wait_for_products<0>(products, probabilities);
    total += work.steps;
    ++works;
    arrive(barriers.empty_barrier(total - 1));
    add_products(factors);

    float outward[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float sum = quad_sum(rows.sum[h]);
      outward[h] = value_inverse / quad_sum(rows.rounded_sum[h]);
      const int token = work.first + place.row + 8 * h;
      if (place.column == 0 && token < tokens) {
        const float shift = rows.base[h] - static_cast<float>(fp8_probability_exponent);
        log_sum_exp[geometry.statistic<bounded>(work.sequence, token, work.head)] =
            shift * std::numbers::ln2_v<float> + logf(sum);
      }
    }
    store_tile(sums, outward, tiles.output(), place.warp_row,
               output + geometry.output(work.sequence, work.first, work.head),
               geometry.output_stride(), tokens - work.first, geometry.head_dim);
  });
  order.end();
}

/// Computes the outputs of all queries, with persistent blocks, on GPUs that have the tensor cores.
template <int columns, bool bounded>
OCTAVO_KERNEL __launch_bounds__(Fp8ForwardTiles<columns>::threads,
                                1) void fp8_attention_forward_kernel(Fp8Operands<columns> operands,
                                                                     Bf16* output,
                                                                     float* log_sum_exp,
                                                                     AttentionGeometry geometry) {
  if constexpr (WarpgroupCores::exist) {
    using Tiles = Fp8ForwardTiles<columns>;
    using Barriers = Fp8ForwardBarriers<columns>;
    __shared__ std::uint64_t barrier_memory[Barriers::count];
    const Barriers barriers{shared_address(barrier_memory)};
    const Tiles tiles;
    if (threadIdx.x == 0) barriers.initialize();
    __syncthreads();
    if (threadIdx.x < Tiles::consumers) {
      asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
      multiply_fp8_works<columns, bounded>(operands, output, log_sum_exp, geometry, tiles,
                                           barriers);
    } else {
      asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
      if (threadIdx.x == Tiles::consumers) {
        copy_fp8_works<columns, bounded>(operands, geometry, tiles, barriers);
      }
    }
  } else {
    __trap();
  }
}

}  // namespace octavo::detail
