/// @file
/// The GEMMs of a mixture of experts on Hopper: persistent blocks in which one warp copies tiles
/// with the tensor memory accelerator while two warpgroups multiply.
#pragma once

#include <octavo/gemm/cuda/expert_multiply.cuh>
#include <octavo/kernels/cuda/tensor_copies.cuh>

namespace octavo OCTAVO_ABI::detail {

/// Two warpgroups that multiply, after one whose first warp copies.
inline constexpr int expert_pipeline_threads = 3 * warpgroup_threads;

/// The sizes of a pipeline for an operand type. FP8 products need two sets of sums, so their tiles
/// have half the columns.
template <bool is_fp8>
struct ExpertPipeline {
  static constexpr int columns = is_fp8 ? 128 : 256;
  static constexpr int halves = columns / 128;
  static constexpr int stages = is_fp8 ? 6 : 4;
  static constexpr int tile_bytes = 128 * panel_row_bytes;
  static constexpr int stage_bytes = (1 + halves) * tile_bytes;
  static constexpr int shared_bytes = stages * stage_bytes + tile_alignment + 16 * stages;
};

/// Starts copying a stage of an operand, `halves` tiles of 128 rows or columns.
template <bool by_columns, int halves>
__device__ void copy_boxes(std::uint32_t target, const CUtensorMap& map, Index first, Index k,
                           CopyBarrier barrier) {
  if constexpr (by_columns) {
    constexpr int panel_bytes = expert_stage_depth * panel_row_bytes;
#pragma unroll
    for (int panel = 0; panel < 2 * halves; ++panel) {
      copy_box(target + static_cast<std::uint32_t>(panel * panel_bytes), map,
               first + panel * panel_columns, k, barrier);
    }
  } else {
    copy_box(target, map, k, first, barrier);
  }
}

/// Describes the boxes that copy_boxes copies.
template <bool by_columns, int halves, class Operand>
CUtensorMap describe_operand(const char* name, const Operand& operand) {
  return describe_boxes(name, operand.data, sizeof(typename Operand::Element), operand.outer,
                        operand.stride, by_columns ? expert_stage_depth : 128 * halves);
}

template <ExpertPass pass, class A, class B, class Y>
__device__ __forceinline__ void expert_pipeline_block(const CUtensorMap& a_map,
                                                      const CUtensorMap& b_map,
                                                      const ExpertProduct<A, B, Y>& product,
                                                      Index tiles) {
  constexpr bool is_fp8 = A::is_fp8;
  constexpr bool a_by_columns = !is_fp8 && pass == ExpertPass::weight_gradient;
  constexpr bool b_by_columns = !is_fp8 && pass != ExpertPass::forward;
  using Sizes = ExpertPipeline<is_fp8>;
  constexpr int stages = Sizes::stages;
  constexpr int depth = is_fp8 ? 128 : 64;  // elements in a stage

  extern __shared__ std::uint8_t expert_memory[];
  const std::uint32_t base =
      (shared_address(expert_memory) + tile_alignment - 1) / tile_alignment * tile_alignment;
  const std::uint32_t barriers = base + stages * Sizes::stage_bytes;
  const auto filled = [&](int stage) {
    return CopyBarrier{barriers + static_cast<std::uint32_t>(16 * stage)};
  };
  const auto emptied = [&](int stage) {
    return CopyBarrier{barriers + static_cast<std::uint32_t>(16 * stage + 8)};
  };
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < stages; ++stage) {
      filled(stage).initialize(1);
      emptied(stage).initialize(2 * warpgroup_threads / 32);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();

  int stage = 0;
  std::uint32_t parity = 0;
  const auto advance = [&] {
    if (++stage == stages) {
      stage = 0;
      parity ^= 1;
    }
  };
  if (threadIdx.x < warpgroup_threads) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (threadIdx.x != 0) return;
    for (Index number = blockIdx.x; number < tiles; number += gridDim.x) {
      const ExpertTile tile = locate_tile<pass, 128, Sizes::columns>(product, number);
      if (tile.expert < 0) continue;
      for (Index k = 0; k < tile.depth; k += depth) {
        emptied(stage).wait(parity ^ 1);
        filled(stage).arrive_and_expect(Sizes::stage_bytes);
        const std::uint32_t target = base + static_cast<std::uint32_t>(stage * Sizes::stage_bytes);
        copy_boxes<a_by_columns, 1>(target, a_map, tile.a_first, tile.a_k + k, filled(stage));
        copy_boxes<b_by_columns, Sizes::halves>(target + Sizes::tile_bytes, b_map, tile.b_first,
                                                tile.b_k + k, filled(stage));
        advance();
      }
    }
    return;
  }

  asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
  const int thread = static_cast<int>(threadIdx.x) - warpgroup_threads;
  const int row = thread / warpgroup_threads * 64;
  const ExpertPlace place = place_of_thread(thread);
  const auto release = [&](int finished) {
    if (thread % 32 == 0) emptied(finished).arrive();
  };
  for (Index number = blockIdx.x; number < tiles; number += gridDim.x) {
    const ExpertTile tile = locate_tile<pass, 128, Sizes::columns>(product, number);
    if (tile.expert < 0) {
      write_zeros<128, Sizes::columns, 2 * warpgroup_threads>(product, tile, thread);
      continue;
    }
    WideAccumulator sums[Sizes::halves]{};
    ExpertSums<is_fp8> totals;
    int last = -1;  // the stage whose products may still run
    for (Index k = 0; k < tile.depth; k += depth) {
      filled(stage).wait(parity);
      const std::uint32_t address = base + static_cast<std::uint32_t>(stage * Sizes::stage_bytes);
      const ExpertSharedTile<a_by_columns> a{address};
      WarpgroupCores::begin_products(sums);
#pragma unroll
      for (int step = 0; step < 4; ++step) {
#pragma unroll
        for (int half = 0; half < Sizes::halves; ++half) {
          const ExpertSharedTile<b_by_columns> b{
              address + static_cast<std::uint32_t>((1 + half) * Sizes::tile_bytes)};
          multiply_step<typename A::Element, typename B::Element, a_by_columns, b_by_columns>(
              WarpgroupCores(), sums[half], a, row, b, step, step > 0 || (!is_fp8 && k > 0));
        }
      }
      WarpgroupCores::commit_products();
      if constexpr (is_fp8) {
        WarpgroupCores::template wait_for_products<0>(sums);
        release(stage);
        totals.add(sums[0].values, product, tile, place, k);
      } else {
        WarpgroupCores::template wait_for_products<1>(sums);
        if (last >= 0) release(last);
        last = stage;
      }
      advance();
    }
    WarpgroupCores::template wait_for_products<0>(sums);
    if (last >= 0) release(last);
    if constexpr (is_fp8) {
      store_sums(totals.values, product, tile, place);
    } else {
#pragma unroll
      for (int half = 0; half < Sizes::halves; ++half) {
        store_sums(sums[half].values, product, tile, {place.row, place.column + 128 * half});
      }
    }
  }
}

/// Runs expert_pipeline_block on GPUs that have the instructions.
template <ExpertPass pass, class A, class B, class Y>
OCTAVO_KERNEL void __launch_bounds__(expert_pipeline_threads, 1)
    expert_pipeline_kernel(const __grid_constant__ CUtensorMap a_map,
                           const __grid_constant__ CUtensorMap b_map,
                           const __grid_constant__ ExpertProduct<A, B, Y> product, Index tiles) {
  if constexpr (WarpgroupCores::exist) {
    expert_pipeline_block<pass>(a_map, b_map, product, tiles);
  } else {
    __trap();
  }
}

/// Whether the reduced dimension of every tile consists of whole stages. Otherwise a stage would
/// read the next expert's weight.
template <class A, class B, class Y>
bool fits_pipeline(const ExpertProduct<A, B, Y>& product) {
  return product.k % (A::is_fp8 ? 128 : expert_stage_depth) == 0;
}

/// Enqueues a GEMM.
template <ExpertPass pass, class A, class B, class Y>
void enqueue_expert_pipeline(const char* name, const ExpertProduct<A, B, Y>& product,
                             const Context<Cuda>& context) {
  using Sizes = ExpertPipeline<A::is_fp8>;
  constexpr bool a_by_columns = !A::is_fp8 && pass == ExpertPass::weight_gradient;
  constexpr bool b_by_columns = !A::is_fp8 && pass != ExpertPass::forward;
  const Index experts = pass == ExpertPass::weight_gradient ? product.rows.experts() : 1;
  const Index tiles =
      ceil_divide(product.m, 128) * ceil_divide(product.n, Sizes::columns) * experts;
  int device = 0;
  int multiprocessors = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  check(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device),
        "cudaDeviceGetAttribute");
  launch(name, expert_pipeline_kernel<pass, A, B, Y>, std::min(tiles, Index{multiprocessors}),
         expert_pipeline_threads, Sizes::shared_bytes, context,
         describe_operand<a_by_columns, 1>(name, product.a),
         describe_operand<b_by_columns, Sizes::halves>(name, product.b), product, tiles);
}

}  // namespace octavo::detail
