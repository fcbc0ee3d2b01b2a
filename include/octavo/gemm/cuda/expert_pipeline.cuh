/// @file
/// The GEMMs of a mixture of experts on Hopper: persistent clusters of two blocks, in each of which
/// one warp copies tiles with the tensor memory accelerator while two warpgroups multiply.
#pragma once

#include <octavo/gemm/cuda/expert_multiply.cuh>
#include <octavo/kernels/cuda/tensor_copies.cuh>

#include <algorithm>

namespace octavo OCTAVO_ABI::detail {

/// Two warpgroups that multiply, after one whose first warp copies.
inline constexpr int expert_pipeline_threads = 3 * warpgroup_threads;

/// The sizes of a pipeline. A block multiplies 128 × 256 results, each warpgroup 64 × 256.
struct ExpertPipeline {
  static constexpr int rows = 128;
  static constexpr int columns = 256;
  static constexpr int stages = 4;
  static constexpr int half_bytes = 128 * panel_row_bytes;  ///< 128 rows or columns of an operand
  static constexpr int stage_bytes = 3 * half_bytes;
  static constexpr int consumer_warps = 2 * warpgroup_threads / 32;
  static constexpr int shared_bytes = stages * stage_bytes + tile_alignment + 16 * stages;
};

/// Whether the sums of FP8 MMAs over a stage are added to sums in FP32, because the tensor
/// cores keep fewer bits: in the gradients, as GemmAccumulation::full requires, and for scales of
/// blocks.
template <ExpertPass pass, class A>
inline constexpr bool adds_stages = A::is_fp8 && (A::has_blocks || pass != ExpertPass::forward);

/// Starts copying 128 rows or columns of a stage of an operand.
/// @param to_both  whether to copy to both blocks of the cluster
template <bool by_columns>
__device__ void copy_half(std::uint32_t target, const CUtensorMap& map, Index first, Index k,
                          CopyBarrier barrier, bool to_both) {
  const auto copy = [&](std::uint32_t to, Index column, Index row) {
    if (to_both) {
      copy_box_to_both(to, map, column, row, barrier);
    } else {
      copy_box(to, map, column, row, barrier);
    }
  };
  if constexpr (by_columns) {
    constexpr std::uint32_t panel_bytes = expert_stage_depth * panel_row_bytes;
    copy(target, first, k);
    copy(target + panel_bytes, first + panel_columns, k);
  } else {
    copy(target, k, first);
  }
}

/// Describes the boxes that copy_half copies.
template <bool by_columns, class Operand>
CUtensorMap describe_operand(const char* name, const Operand& operand) {
  return describe_boxes(name, operand.data, sizeof(typename Operand::Element), operand.outer,
                        operand.stride, by_columns ? expert_stage_depth : 128);
}

/// The position in the stages of a block's shared memory, and the barriers of all stages.
struct ExpertStages {
  std::uint32_t base;
  int stage = 0;
  int round = 0;  ///< how often the stages were used

  [[nodiscard]] __device__ std::uint32_t address() const {
    return base + static_cast<std::uint32_t>(stage * ExpertPipeline::stage_bytes);
  }
  [[nodiscard]] __device__ CopyBarrier barrier(int number) const {
    constexpr int all = ExpertPipeline::stages * ExpertPipeline::stage_bytes;
    return {base + static_cast<std::uint32_t>(all + 8 * number)};
  }
  /// The barrier of the copies to a stage of this block.
  [[nodiscard]] __device__ CopyBarrier full_barrier(int of) const { return barrier(2 * of); }
  /// The barrier of the warps of both blocks that have multiplied a stage.
  [[nodiscard]] __device__ CopyBarrier empty_barrier(int of) const { return barrier(2 * of + 1); }
  __device__ void initialize() const {
    for (int i = 0; i < ExpertPipeline::stages; ++i) {
      full_barrier(i).initialize(1);
      empty_barrier(i).initialize(2 * ExpertPipeline::consumer_warps);
    }
    CopyBarrier::publish();
  }
  __device__ void advance() {
    if (++stage == ExpertPipeline::stages) {
      stage = 0;
      ++round;
    }
  }
  /// Lets both blocks copy to a stage again, as far as the calling warp is concerned.
  __device__ void release(int finished) const {
    if (threadIdx.x % 32 < 2) empty_barrier(finished).arrive_at(static_cast<int>(threadIdx.x % 32));
  }
};

/// Copies all stages of the block's tiles. Each block copies half of `b` to both, unless they
/// multiply different experts. One thread calls it.
template <ExpertPass pass, class A, class B, class Y>
__device__ void copy_expert_tiles(const CUtensorMap& a_map, const CUtensorMap& b_map,
                                  const ExpertGemm<A, B, Y>& gemm, Index pairs, int block,
                                  ExpertStages stages) {
  constexpr bool a_by_columns = !A::is_fp8 && pass == ExpertPass::weight_gradient;
  constexpr bool b_by_columns = !A::is_fp8 && pass != ExpertPass::forward;
  constexpr int depth = A::is_fp8 ? 128 : 64;
  constexpr std::uint32_t half_bytes = ExpertPipeline::half_bytes;
  for (Index number = blockIdx.x / 2; number < pairs; number += gridDim.x / 2) {
    const auto [tile, is_used, is_shared] =
        locate_paired_tile<pass, ExpertPipeline::columns>(gemm, number, block);
    if (tile.expert < 0) continue;
    for (Index k = 0; k < tile.depth; k += depth) {
      const CopyBarrier full_barrier = stages.full_barrier(stages.stage);
      stages.empty_barrier(stages.stage).wait(stages.round + 1);
      full_barrier.arrive_and_expect(ExpertPipeline::stage_bytes);
      const std::uint32_t target = stages.address();
      copy_half<a_by_columns>(target, a_map, tile.a_first, tile.a_k + k, full_barrier, false);
      for (int half = 0; half < 2; ++half) {
        if (is_shared && half != block) continue;
        copy_half<b_by_columns>(target + static_cast<std::uint32_t>(1 + half) * half_bytes, b_map,
                                tile.b_first + 128 * half, tile.b_k + k, full_barrier, is_shared);
      }
      stages.advance();
    }
  }
}

/// Multiplies the stages of a tile, and writes the results.
template <ExpertPass pass, class A, class B, class Y>
__device__ void multiply_expert_tile(const ExpertGemm<A, B, Y>& gemm,
                                     const PairedExpertTile& paired, int thread,
                                     ExpertStages& stages) {
  using Cores = WarpgroupCores;
  constexpr bool a_by_columns = !A::is_fp8 && pass == ExpertPass::weight_gradient;
  constexpr bool b_by_columns = !A::is_fp8 && pass != ExpertPass::forward;
  constexpr int depth = A::is_fp8 ? 128 : 64;
  const ExpertTile& tile = paired.tile;
  const int row = thread / warpgroup_threads * 64;
  const ExpertPlace place = place_of_thread(thread);
  const auto start = [&](auto& sums, std::uint32_t b_address, bool add) {
    const ExpertSharedTile<a_by_columns> a{stages.address()};
    const ExpertSharedTile<b_by_columns> b{b_address};
    Cores::begin_mma(sums);
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      multiply_step<typename A::Element, typename B::Element, a_by_columns, b_by_columns>(
          Cores(), sums, a, row, b, step, add || step > 0);
    }
    Cores::commit_mma();
  };
  const auto store = [&](const auto& sums, int column) {
    if (paired.is_used) store_sums(sums, gemm, tile, {place.row, place.column + column});
  };
  if constexpr (adds_stages<pass, A>) {
    ExpertSums<true> totals[2];
    for (Index k = 0; k < tile.depth; k += depth) {
      stages.full_barrier(stages.stage).wait(stages.round);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        WideAccumulator sums;
        start(sums,
              stages.address() + static_cast<std::uint32_t>(1 + half) * ExpertPipeline::half_bytes,
              false);
        Cores::template wait_for_mma<0>(sums);
        if (half == 1) stages.release(stages.stage);
        totals[half].add(sums.values, gemm, tile, {place.row, place.column + 128 * half}, k);
      }
      stages.advance();
    }
    store(totals[0].values, 0);
    store(totals[1].values, 128);
  } else {
    Accumulator<ExpertPipeline::columns> sums{};
    int last = -1;  // the stage whose MMAs may still run
    for (Index k = 0; k < tile.depth; k += depth) {
      stages.full_barrier(stages.stage).wait(stages.round);
      start(sums, stages.address() + ExpertPipeline::half_bytes, k > 0);
      Cores::template wait_for_mma<1>(sums);
      if (last >= 0) stages.release(last);
      last = stages.stage;
      stages.advance();
    }
    Cores::template wait_for_mma<0>(sums);
    if (last >= 0) stages.release(last);
    store(sums.values, 0);
  }
}

template <ExpertPass pass, class A, class B, class Y>
__device__ __forceinline__ void expert_pipeline_block(const CUtensorMap& a_map,
                                                      const CUtensorMap& b_map,
                                                      const ExpertGemm<A, B, Y>& gemm,
                                                      Index pairs) {
  extern __shared__ std::uint8_t expert_memory[];
  ExpertStages stages{(shared_address(expert_memory) + tile_alignment - 1) / tile_alignment *
                      tile_alignment};
  const int block = static_cast<int>(blockIdx.x % 2);
  if (threadIdx.x == 0) stages.initialize();
  synchronize_cluster();
  if (threadIdx.x < warpgroup_threads) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (threadIdx.x == 0) {
      copy_expert_tiles<pass>(a_map, b_map, gemm, pairs, block, stages);
    }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    const int thread = static_cast<int>(threadIdx.x) - warpgroup_threads;
    for (Index number = blockIdx.x / 2; number < pairs; number += gridDim.x / 2) {
      const PairedExpertTile paired =
          locate_paired_tile<pass, ExpertPipeline::columns>(gemm, number, block);
      if (paired.tile.expert >= 0) multiply_expert_tile<pass>(gemm, paired, thread, stages);
      if (!paired.is_used) {
        write_zeros<ExpertPipeline::rows, ExpertPipeline::columns, 2 * warpgroup_threads>(
            gemm, paired.tile, thread);
      }
    }
  }
  synchronize_cluster();  // the other block may still copy to this one, or arrive at its barriers
}

// Compilers for GPUs without clusters reject the attribute; the kernel is not launched on those.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define OCTAVO_CLUSTER_OF_TWO __cluster_dims__(2, 1, 1)
#else
#define OCTAVO_CLUSTER_OF_TWO
#endif

/// Runs expert_pipeline_block on GPUs that have the instructions.
template <ExpertPass pass, class A, class B, class Y>
OCTAVO_KERNEL void OCTAVO_CLUSTER_OF_TWO __launch_bounds__(expert_pipeline_threads, 1)
    expert_pipeline_kernel(const __grid_constant__ CUtensorMap a_map,
                           const __grid_constant__ CUtensorMap b_map,
                           const __grid_constant__ ExpertGemm<A, B, Y> gemm, Index pairs) {
  if constexpr (WarpgroupCores::exist) {
    expert_pipeline_block<pass>(a_map, b_map, gemm, pairs);
  } else {
    __trap();
  }
}

#undef OCTAVO_CLUSTER_OF_TWO

/// Whether the reduced dimension of every tile consists of whole stages. Otherwise a stage would
/// read the next expert's weight.
template <class A, class B, class Y>
bool fits_pipeline(const ExpertGemm<A, B, Y>& gemm) {
  return gemm.k % (A::is_fp8 ? 128 : expert_stage_depth) == 0;
}

/// Enqueues a GEMM.
template <ExpertPass pass, class A, class B, class Y>
void enqueue_expert_pipeline(const char* name, const ExpertGemm<A, B, Y>& gemm,
                             const Context<Cuda>& context) {
  constexpr bool a_by_columns = !A::is_fp8 && pass == ExpertPass::weight_gradient;
  constexpr bool b_by_columns = !A::is_fp8 && pass != ExpertPass::forward;
  const Index experts = pass == ExpertPass::weight_gradient ? gemm.rows.experts() : 1;
  const Index pairs = ceil_divide(gemm.m, Index{2 * ExpertPipeline::rows}) *
                      ceil_divide(gemm.n, Index{ExpertPipeline::columns}) * experts;
  launch(name, expert_pipeline_kernel<pass, A, B, Y>,
         2 * std::min(pairs, Index{context.multiprocessors() / 2}), expert_pipeline_threads,
         ExpertPipeline::shared_bytes, context, describe_operand<a_by_columns>(name, gemm.a),
         describe_operand<b_by_columns>(name, gemm.b), gemm, pairs);
}

}  // namespace octavo::detail
