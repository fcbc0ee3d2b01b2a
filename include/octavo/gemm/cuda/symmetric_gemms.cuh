/// @file
/// Symmetric GEMMs of several matrices on Hopper, of which only the tiles on and below the
/// diagonal are multiplied: persistent blocks, in which one warp copies tiles with the tensor
/// memory accelerator while two warpgroups multiply.
#pragma once

#include <octavo/gemm/cuda/expert_multiply.cuh>
#include <octavo/gemm/cuda/matmul.cuh>
#include <octavo/gemm/symmetric_gemms.hpp>
#include <octavo/kernels/cuda/tensor_copies.cuh>

#include <algorithm>
#include <cstdint>

namespace octavo OCTAVO_ABI::detail {

/// y = alpha · X · Xᵀ + beta · addend for a matrix X of `side` rows, or alpha · Xᵀ · X for `side`
/// columns. The addend is symmetric.
struct SymmetricTask {
  CUtensorMap boxes;  ///< of X
  Index side, depth;
  const Bf16* addend;  ///< [side, side]; null: none
  Bf16* y;             ///< [side, side]
  float alpha, beta;
  int first_tile;
  bool by_columns;  ///< whether `side` is the number of columns
};

/// The sizes of the pipeline. A block multiplies 128 × 256 results.
struct SymmetricPipeline {
  static constexpr int threads = 3 * warpgroup_threads;  ///< one warpgroup only copies
  static constexpr int stages = 4;
  static constexpr int half_bytes = 128 * panel_row_bytes;  ///< 128 rows or columns of X
  static constexpr int stage_bytes = 3 * half_bytes;
  static constexpr int shared_bytes = stages * stage_bytes + tile_alignment + 16 * stages;
};

inline constexpr int max_symmetric_tasks = 16;

/// GEMMs that one kernel computes.
struct SymmetricTasks {
  SymmetricTask list[max_symmetric_tasks];
  int tiles = 0;
  int count = 0;
};

/// Returns the number of tiles of 128 × 256 on and below the diagonal.
inline int symmetric_tiles(Index side) {
  const auto rows = static_cast<int>(ceil_divide(side, Index{128}));
  const int pairs = rows / 2;
  return pairs * (pairs + 1) + rows % 2 * (pairs + 1);
}

/// A tile, and the GEMM that it belongs to.
struct SymmetricTile {
  int gemm, row, column;
};
__device__ inline SymmetricTile locate_symmetric_tile(const SymmetricTasks& tasks, int number) {
  int i = tasks.count - 1;
  while (tasks.list[i].first_tile > number) --i;
  int tile = number - tasks.list[i].first_tile;
  // Rows 2p and 2p + 1 have p + 1 tiles each.
  int pair = 0;
  while (tile >= 2 * (pair + 1)) tile -= 2 * ++pair;
  return {i, (2 * pair + tile / (pair + 1)) * 128, tile % (pair + 1) * 256};
}

/// Transposes a matrix of 8 × 8 values of 2 bytes, of which lane l has values 2(l % 4) and
/// 2(l % 4) + 1 of row l / 4.
__device__ inline std::uint32_t transpose_in_warp(std::uint32_t pair) {
  std::uint32_t result;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(result) : "r"(pair));
  return result;
}

/// Stores the sums of 64 × 128 values per warpgroup, and those below the diagonal also above it.
/// @param row     first row of the warp's 16
/// @param column  first column of the 128
__device__ inline void store_symmetric(const float (&sums)[64], const SymmetricTask& gemm, int row,
                                       int column) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto pair_at = [&](auto* values, Index first_row, Index first_column) {
    using Word = std::conditional_t<std::is_const_v<std::remove_pointer_t<decltype(values)>>,
                                    const std::uint32_t, std::uint32_t>;
    return reinterpret_cast<Word*>(values + (first_row + lane / 4) * gemm.side + first_column +
                                   2 * (lane % 4));
  };
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int first_row = row + 8 * h;
#pragma unroll
    for (int j = 0; j < 16; ++j) {
      const int first_column = column + 8 * j;
      if (first_row >= gemm.side || first_column > first_row) continue;
      float2 values{gemm.alpha * sums[4 * j + 2 * h], gemm.alpha * sums[4 * j + 2 * h + 1]};
      if (gemm.addend != nullptr) {
        const std::uint32_t added = *pair_at(gemm.addend, first_row, first_column);
        values.x += gemm.beta * __uint_as_float(added << 16);
        values.y += gemm.beta * __uint_as_float(added & 0xffff0000u);
      }
      const __nv_bfloat162 rounded = __float22bfloat162_rn(values);
      const auto bits = *reinterpret_cast<const std::uint32_t*>(&rounded);
      *pair_at(gemm.y, first_row, first_column) = bits;
      if (first_column == first_row) continue;
      *pair_at(gemm.y, first_column, first_row) = transpose_in_warp(bits);
    }
  }
}

__device__ __forceinline__ void symmetric_block(const SymmetricTasks& tasks) {
  using Sizes = SymmetricPipeline;
  constexpr int stages = Sizes::stages;
  constexpr int depth = expert_stage_depth;
  extern __shared__ std::uint8_t symmetric_memory[];
  const std::uint32_t base =
      (shared_address(symmetric_memory) + tile_alignment - 1) / tile_alignment * tile_alignment;
  const std::uint32_t barriers = base + stages * Sizes::stage_bytes;
  const auto full_barrier = [&](int stage) {
    return CopyBarrier{barriers + static_cast<std::uint32_t>(16 * stage)};
  };
  const auto empty_barrier = [&](int stage) {
    return CopyBarrier{barriers + static_cast<std::uint32_t>(16 * stage + 8)};
  };
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < stages; ++stage) {
      full_barrier(stage).initialize(1);
      empty_barrier(stage).initialize(2 * warpgroup_threads / 32);
    }
    CopyBarrier::publish();
  }
  __syncthreads();

  int stage = 0;
  int parity = 0;
  const auto advance = [&] {
    if (++stage == stages) {
      stage = 0;
      parity ^= 1;
    }
  };
  if (threadIdx.x < warpgroup_threads) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (threadIdx.x != 0) return;
    for (int number = static_cast<int>(blockIdx.x); number < tasks.tiles;
         number += static_cast<int>(gridDim.x)) {
      const SymmetricTile tile = locate_symmetric_tile(tasks, number);
      const SymmetricTask& gemm = tasks.list[tile.gemm];
      for (Index k = 0; k < gemm.depth; k += depth) {
        empty_barrier(stage).wait(parity ^ 1);
        full_barrier(stage).arrive_and_expect(Sizes::stage_bytes);
        const std::uint32_t target = base + static_cast<std::uint32_t>(stage * Sizes::stage_bytes);
        const auto copy = [&](int place, int first) {
          const std::uint32_t to = target + static_cast<std::uint32_t>(place * Sizes::half_bytes);
          if (gemm.by_columns) {
            constexpr std::uint32_t panel_bytes = expert_stage_depth * panel_row_bytes;
            copy_box(to, gemm.boxes, first, k, full_barrier(stage));
            copy_box(to + panel_bytes, gemm.boxes, first + panel_columns, k, full_barrier(stage));
          } else {
            copy_box(to, gemm.boxes, k, first, full_barrier(stage));
          }
        };
        copy(0, tile.row);
        copy(1, tile.column);
        copy(2, tile.column + 128);
        advance();
      }
    }
    return;
  }

  asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
  const int thread = static_cast<int>(threadIdx.x) - warpgroup_threads;
  const int row = thread / warpgroup_threads * 64;
  const auto release = [&](int finished) {
    if (thread % 32 == 0) empty_barrier(finished).arrive();
  };
  for (int number = static_cast<int>(blockIdx.x); number < tasks.tiles;
       number += static_cast<int>(gridDim.x)) {
    const SymmetricTile tile = locate_symmetric_tile(tasks, number);
    const SymmetricTask& gemm = tasks.list[tile.gemm];
    WideAccumulator sums[2]{};
    int last = -1;  // the stage whose MMAs may still run
    const auto multiply_all = [&]<bool by_columns>() {
      for (Index k = 0; k < gemm.depth; k += depth) {
        full_barrier(stage).wait(parity);
        const std::uint32_t address = base + static_cast<std::uint32_t>(stage * Sizes::stage_bytes);
        const ExpertSharedTile<by_columns> a{address};
        WarpgroupCores::begin_mma(sums);
#pragma unroll
        for (int step = 0; step < 4; ++step) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const ExpertSharedTile<by_columns> b{
                address + static_cast<std::uint32_t>((1 + half) * Sizes::half_bytes)};
            multiply_step<Bf16, Bf16, by_columns, by_columns>(WarpgroupCores(), sums[half], a, row,
                                                              b, step, step > 0 || k > 0);
          }
        }
        WarpgroupCores::commit_mma();
        WarpgroupCores::template wait_for_mma<1>(sums);
        if (last >= 0) release(last);
        last = stage;
        advance();
      }
    };
    if (gemm.by_columns) {
      multiply_all.template operator()<true>();
    } else {
      multiply_all.template operator()<false>();
    }
    WarpgroupCores::template wait_for_mma<0>(sums);
    release(last);
    const int first_row = tile.row + thread / 32 * 16;
    store_symmetric(sums[0].values, gemm, first_row, tile.column);
    store_symmetric(sums[1].values, gemm, first_row, tile.column + 128);
  }
}

/// Runs symmetric_block on GPUs that have the instructions.
template <int = 0>
OCTAVO_KERNEL void __launch_bounds__(SymmetricPipeline::threads, 1)
    symmetric_gemms_kernel(const __grid_constant__ SymmetricTasks tasks) {
  if constexpr (WarpgroupCores::exist) {
    symmetric_block(tasks);
  } else {
    __trap();
  }
}

/// Returns whether copies of boxes and stores of whole pairs can address a GEMM's matrices.
inline bool is_aligned(const SymmetricGemm<Bf16, Cuda>& gemm) {
  const auto is_good = [](const auto& matrix) {
    return matrix.extent(0) % 8 == 0 && matrix.extent(1) % 8 == 0 &&
           reinterpret_cast<std::uintptr_t>(matrix.data()) % 16 == 0;
  };
  return is_good(gemm.x) && is_good(gemm.y.result) && is_good(gemm.y.addend);
}

inline SymmetricTask task_of(const SymmetricGemm<Bf16, Cuda>& gemm) {
  const Index rows = gemm.x.extent(0);
  const Index columns = gemm.x.extent(1);
  const bool by_columns = gemm.of_columns;
  return {describe_boxes("matmul_symmetric", gemm.x.data(), sizeof(Bf16), rows, columns,
                         by_columns ? expert_stage_depth : 128),
          by_columns ? columns : rows,
          by_columns ? rows : columns,
          gemm.y.addend.data(),
          gemm.y.result.data(),
          gemm.factors.product,
          gemm.factors.addend,
          0,
          by_columns};
}

/// Enqueues one kernel, which begins with the tiles that take longest.
inline void enqueue_symmetric(SymmetricTasks& tasks, const Context<Cuda>& context) {
  if (tasks.count == 0) return;
  // Not std::stable_sort: up to g++ 14, its buffer does not have the 64-byte alignment of
  // CUtensorMap.
  std::sort(
      tasks.list, tasks.list + tasks.count,
      [](const SymmetricTask& one, const SymmetricTask& other) { return one.depth > other.depth; });
  for (int i = 0; i < tasks.count; ++i) {
    tasks.list[i].first_tile = tasks.tiles;
    tasks.tiles += symmetric_tiles(tasks.list[i].side);
  }
  launch("matmul_symmetric", symmetric_gemms_kernel<0>,
         Index{std::min(tasks.tiles, context.multiprocessors())}, SymmetricPipeline::threads,
         SymmetricPipeline::shared_bytes, context, tasks);
  tasks = {};
}

/// See matmul_symmetric.
inline void matmul_symmetric_body(std::span<const SymmetricGemm<Bf16, Cuda>> gemms,
                                  const Context<Cuda>& context) {
  SymmetricTasks tasks;
  for (const SymmetricGemm<Bf16, Cuda>& gemm : gemms) {
    if (!context.limits().gpu.warpgroup_mma || !is_aligned(gemm)) {
      multiply_all(gemm, context);
      continue;
    }
    if (tasks.count == max_symmetric_tasks) enqueue_symmetric(tasks, context);
    tasks.list[tasks.count++] = task_of(gemm);
  }
  enqueue_symmetric(tasks, context);
}

}  // namespace octavo::detail
