/// @file
/// The 8-bit forward of the built-in attention, on Hopper's tensor cores.
#pragma once

#include <octavo/attention/cuda/own/eight_bit_cast.cuh>
#include <octavo/attention/cuda/own/eight_bit_softmax.cuh>
#include <octavo/kernels/cuda/copy_barrier.cuh>

#include <cmath>
#include <numbers>

namespace octavo OCTAVO_ABI::detail {

/// Shared memory of the 8-bit forward: the queries, stages of keys and values, and the output.
template <int columns>
struct EightBitForwardTiles {
  static constexpr int rows = eight_bit_tile_rows;
  /// Threads that multiply, followed by a warpgroup of which one thread copies.
  static constexpr int consumers = attention_threads(rows);
  static constexpr int threads = consumers + warpgroup_threads;
  static constexpr int stages = 5;
  using Rows = EightBitTile<rows, columns>;
  using Columns = EightBitTile<columns, rows>;
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

/// A tile of queries of one head, and the tiles of keys and values that it attends to.
template <int columns, bool bounded>
struct EightBitWork {
  static constexpr int rows = eight_bit_tile_rows;
  int head, sequence;
  int first;  ///< its first token
  int start;  ///< number of the first tile of keys
  int steps;  ///< number of tiles of keys
  Index query_tile, key_tile, value_tile;

  /// @param number  of the work item; those with the longest rows come first
  __device__ EightBitWork(const EightBitOperands<columns>& operands,
                          const AttentionGeometry& geometry, int number) {
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
__device__ void for_each_work(const EightBitOperands<columns>& operands,
                              const AttentionGeometry& geometry, const Body& body) {
  const int count = operands.per_head * geometry.heads * geometry.sequences;
  const int blocks = static_cast<int>(gridDim.x);
  const int block = static_cast<int>(blockIdx.x);
  for (int round = 0; round * blocks < count; ++round) {
    const int number = round * blocks + (round % 2 == 0 ? block : blocks - 1 - block);
    if (number < count) body(EightBitWork<columns, bounded>(operands, geometry, number));
  }
}

/// The barriers of a block. Stages are counted over all work items.
template <int columns>
struct EightBitForwardBarriers {
  static constexpr int stages = EightBitForwardTiles<columns>::stages;
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
    constexpr int warps = EightBitForwardTiles<columns>::consumers / 32;
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
__device__ void copy_eight_bit_works(const EightBitOperands<columns>& operands,
                                     const AttentionGeometry& geometry,
                                     EightBitForwardTiles<columns> tiles,
                                     EightBitForwardBarriers<columns> barriers) {
  using Tiles = EightBitForwardTiles<columns>;
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
__device__ __forceinline__ void multiply_eight_bit_works(
    const EightBitOperands<columns>& operands, Bf16* output, float* log_sum_exp,
    const AttentionGeometry& geometry, EightBitForwardTiles<columns> tiles,
    EightBitForwardBarriers<columns> barriers) {
  using Cores = WarpgroupCores;
  using Tiles = EightBitForwardTiles<columns>;
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
        bounded
            ? __shfl_sync(0xffffffffu, work.begin_of(geometry, place.group_row + mma_side - 1), 0)
            : 0;
    IntegerAccumulator<rows_per_tile> integers;
    Accumulator<rows_per_tile> scores;
    Accumulator<columns> products;
    Accumulator<> sums[columns / panel_columns];
    Fragment probabilities[rows_per_tile / eight_bit_mma_depth];
    EightBitSoftmaxRows rows;
    float factors[2];
    const float query_scale =
        rounded_score_factor(geometry.scale() * log2_e) * operands.factors[work.query_tile];
    float key_scale = query_scale * operands.factors[work.key_tile];
    float value_inverse = operands.factors[work.value_tile];

    const auto start_scores = [&](int step) {
#pragma unroll
      for (int k = 0; k < columns; k += eight_bit_mma_depth) {
        multiply_int8(integers, tiles.queries(), place.group_row, tiles.keys(total + step), k);
      }
      Cores::commit_mma();
    };
    const auto start_products = [&](int step) {
#pragma unroll
      for (int k = 0; k < rows_per_tile / eight_bit_mma_depth; ++k) {
        multiply_fp8(products, probabilities[k], tiles.values(total + step),
                     k * eight_bit_mma_depth, k > 0);
      }
      Cores::commit_mma();
    };
    const auto wait_for_copies = [&](int step) {
      barriers.full_barrier(total + step).wait((total + step) / Tiles::stages);
    };
    const auto softmax = [&](int step) {
      to_biased_floats(integers, scores);
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
      eight_bit_softmax_step<bounded>(scores, key_scale, rows, factors);
    };
    const auto round_probabilities = [&](const float(&by)[2]) {
      float sum[2] = {0.0f, 0.0f};
#pragma unroll
      for (int k = 0; k < rows_per_tile / eight_bit_mma_depth; ++k) {
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
    set_to_bias(integers);
    Cores::begin_mma(integers);
    start_scores(0);
    order.pass();
    Cores::template wait_for_mma<0>(integers);
    softmax(0);
    round_probabilities(factors);
    for (int step = 0; step + 1 < work.steps; ++step) {
      const float next_key_inverse = operands.factors[work.key_tile + step + 1];
      const float next_value_inverse = operands.factors[work.value_tile + step + 1];
      wait_for_copies(step + 1);
      order.await();
      set_to_bias(integers);
      Cores::begin_mma(probabilities, integers, products);
      start_scores(step + 1);
      start_products(step);
      order.pass();
      key_scale = query_scale * next_key_inverse;
      const float old_factors[2] = {factors[0], factors[1]};
      Cores::template wait_for_mma<1>(integers);
      softmax(step + 1);
      compute_before_wait(fminf(rows.sum[0], rows.sum[1]));
      Cores::template wait_for_mma<0>(products, probabilities);
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
    Cores::begin_mma(probabilities, products);
    start_products(work.steps - 1);
    Cores::template wait_for_mma<0>(products, probabilities);
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
OCTAVO_KERNEL __launch_bounds__(
    EightBitForwardTiles<columns>::threads,
    1) void eight_bit_attention_forward_kernel(EightBitOperands<columns> operands, Bf16* output,
                                               float* log_sum_exp, AttentionGeometry geometry) {
  if constexpr (WarpgroupCores::exist) {
    using Tiles = EightBitForwardTiles<columns>;
    using Barriers = EightBitForwardBarriers<columns>;
    __shared__ std::uint64_t barrier_memory[Barriers::count];
    const Barriers barriers{shared_address(barrier_memory)};
    const Tiles tiles;
    if (threadIdx.x == 0) barriers.initialize();
    __syncthreads();
    if (threadIdx.x < Tiles::consumers) {
      asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
      multiply_eight_bit_works<columns, bounded>(operands, output, log_sum_exp, geometry, tiles,
                                                 barriers);
    } else {
      asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
      if (threadIdx.x == Tiles::consumers) {
        copy_eight_bit_works<columns, bounded>(operands, geometry, tiles, barriers);
      }
    }
  } else {
    __trap();
  }
}

}  // namespace octavo::detail
