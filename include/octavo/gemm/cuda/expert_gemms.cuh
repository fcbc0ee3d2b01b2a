/// @file
/// The GEMMs of a mixture of experts on the `Cuda` device, over all tiles of the worst case:
/// pipelined blocks on Hopper (expert_pipeline.cuh), a block per tile on other tensor cores or if a
/// reduced dimension is not a multiple of a stage, and a plain kernel for other operands.
#pragma once

#include <octavo/gemm/cuda/expert_multiply.cuh>
#include <octavo/gemm/cuda/expert_pipeline.cuh>
#include <octavo/gemm/cuda/limits.hpp>
#include <octavo/kernels/cuda/run.cuh>
#include <octavo/precision/gpu_precisions.hpp>

#include <type_traits>

namespace octavo OCTAVO_ABI::detail {

inline constexpr int expert_gemm_threads = 2 * warpgroup_threads;

/// Starts copying a stage of an operand.
/// @param first  first row or column of the tile
/// @param left   number of rows or columns from `first` to the end
/// @param k      position in the reduced dimension, in pairs of bytes
/// @param depth  remaining length of the reduced dimension, from `k` on
template <bool by_columns>
__device__ void copy_stage(std::uint32_t address, const Bf16* data, Index stride, Index first,
                           Index left, Index k, Index depth) {
  const ExpertSharedTile<by_columns> tile{address};
  constexpr int most = 1 << 20;
  if constexpr (by_columns) {
    copy_tile<expert_gemm_threads>(tile, data + k * stride + first, stride, depth,
                                   static_cast<int>(min(left, Index{most})));
  } else {
    copy_tile<expert_gemm_threads>(tile, data + first * stride + k, stride, left,
                                   static_cast<int>(min(depth, Index{most})));
  }
}

/// Multiplies a tile of 128 × 128 with two warpgroups. Without block scales in FP8, the sums of a
/// stage are also added to separate sums, because the tensor cores keep fewer bits.
template <class Cores, ExpertPass pass, int stages, class A, class B, class Y>
__device__ __forceinline__ void expert_gemm_block(const ExpertGemm<A, B, Y>& gemm) {
  constexpr bool is_fp8 = A::is_fp8;
  constexpr bool a_by_columns = !is_fp8 && pass == ExpertPass::weight_gradient;
  constexpr bool b_by_columns = !is_fp8 && pass != ExpertPass::forward;
  constexpr int pair = is_fp8 ? 2 : 1;  // elements of two bytes
  const int thread = static_cast<int>(threadIdx.x);
  const ExpertTile tile = locate_tile<pass, 128, 128>(gemm, blockIdx.x);
  if (tile.expert < 0) {
    return write_zeros<128, 128, expert_gemm_threads>(gemm, tile, thread);
  }

  extern __shared__ std::uint8_t expert_stages[];
  const std::uint32_t base =
      (shared_address(expert_stages) + tile_alignment - 1) / tile_alignment * tile_alignment;
  const Index depth = tile.depth / pair;
  const int iterations = static_cast<int>(ceil_divide(depth, expert_stage_depth));
  const auto copy = [&](int i) {
    if (i < iterations) {
      const std::uint32_t address =
          base + static_cast<std::uint32_t>(i % stages * expert_stage_bytes);
      const Index k = Index{i} * expert_stage_depth;
      copy_stage<a_by_columns>(address, gemm.a.pairs(), gemm.a.stride / pair, tile.a_first,
                               tile.a_left, tile.a_k / pair + k, depth - k);
      copy_stage<b_by_columns>(address + expert_stage_bytes / 2, gemm.b.pairs(),
                               gemm.b.stride / pair, tile.b_first, tile.b_left, tile.b_k / pair + k,
                               depth - k);
    }
    commit_copies();
  };
#pragma unroll
  for (int i = 0; i < stages - 2; ++i) copy(i);

  const int warpgroup = thread / warpgroup_threads;
  WideAccumulator sums{};
  ExpertSums<is_fp8> totals;
  const ExpertPlace place = place_of_thread(thread);
  for (int i = 0; i < iterations; ++i) {
    Cores::template wait_for_copies<stages - 3>();
    const std::uint32_t address =
        base + static_cast<std::uint32_t>(i % stages * expert_stage_bytes);
    const ExpertSharedTile<a_by_columns> a{address};
    const ExpertSharedTile<b_by_columns> b{address + expert_stage_bytes / 2};
    Cores::begin_mma(sums);
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      multiply_step<typename A::Element, typename B::Element, a_by_columns, b_by_columns>(
          Cores(), sums, a, 64 * warpgroup, b, step, step > 0 || (!is_fp8 && i > 0));
    }
    Cores::commit_mma();
    copy(i + stages - 2);  // reuses the stage of i - 2, which all warps have finished
    Cores::template wait_for_mma<is_fp8 ? 0 : 1>(sums);
    if constexpr (is_fp8) totals.add(sums.values, gemm, tile, place, Index{i} * 128);
  }
  Cores::template wait_for_mma<0>(sums);
  if constexpr (is_fp8) {
    store_sums(totals.values, gemm, tile, place);
  } else {
    store_sums(sums.values, gemm, tile, place);
  }
}

/// Runs expert_gemm_block on GPUs that have the tensor cores.
template <class Cores, ExpertPass pass, int stages, class A, class B, class Y>
OCTAVO_KERNEL void __launch_bounds__(expert_gemm_threads, A::is_fp8 ? 1 : 2)
    expert_gemm_kernel(const ExpertGemm<A, B, Y> gemm) {
  if constexpr (A::is_fp8 ? Cores::have_fp8 : Cores::exist) {
    expert_gemm_block<Cores, pass, stages>(gemm);
  } else {
    __trap();
  }
}

/// Multiplies a tile of 64 × 64 without tensor cores, for operands of any format and alignment.
template <ExpertPass pass, class A, class B, class Y>
OCTAVO_KERNEL void __launch_bounds__(256) plain_expert_gemm_kernel(const ExpertGemm<A, B, Y> gemm) {
  constexpr int side = 64;
  constexpr int depth = 16;
  constexpr bool a_by_columns = pass == ExpertPass::weight_gradient;
  constexpr bool b_by_columns = pass != ExpertPass::forward;
  const int thread = static_cast<int>(threadIdx.x);
  const ExpertTile tile = locate_tile<pass, side, side>(gemm, blockIdx.x);
  if (tile.expert < 0) return write_zeros<side, side, 256>(gemm, tile, thread);
  __shared__ float a_values[depth][side + 4];
  __shared__ float b_values[depth][side + 4];
  const int row = thread / 16 * 4;
  const int column = thread % 16 * 4;
  float sums[4][4]{};
  for (Index k0 = 0; k0 < tile.depth; k0 += depth) {
    __syncthreads();
    for (int i = thread; i < depth * side; i += 256) {
      const int k = i / side;
      const int at = i % side;
      const bool inside = k0 + k < tile.depth;
      a_values[k][at] = inside && at < tile.a_left
                            ? gemm.a.template at<a_by_columns>(tile.a_first + at, tile.a_k + k0 + k)
                            : 0.0f;
      b_values[k][at] = inside && at < tile.b_left
                            ? gemm.b.template at<b_by_columns>(tile.b_first + at, tile.b_k + k0 + k)
                            : 0.0f;
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < depth; ++k) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) sums[i][j] += a_values[k][row + i] * b_values[k][column + j];
      }
    }
  }
  for (int i = 0; i < 4; ++i) {
    for (int j = 0; j < 4; ++j) {
      if (row + i >= tile.a_left || column + j >= tile.b_left) continue;
      Y& target = gemm.result[(tile.y_row + row + i) * gemm.n + tile.y_column + column + j];
      const float before = gemm.accumulate ? static_cast<float>(target) : 0.0f;
      target = Y(sums[i][j] + before);
    }
  }
}

/// Enqueues a GEMM.
template <ExpertPass pass, class A, class B, class Y>
GemmRun enqueue_expert_gemm(const char* name, const ExpertGemm<A, B, Y>& gemm,
                            const Context<Cuda>& context) {
  using Element = typename A::Element;
  const auto grid = [&](Index side) {
    return ceil_divide(gemm.m, side) * ceil_divide(gemm.n, side) *
           (pass == ExpertPass::weight_gradient ? gemm.rows.experts() : 1);
  };
  const GemmRun run{FormatTraits<Element>::name, FormatTraits<typename B::Element>::name,
                    own_expert_implementation};
  if constexpr (A::is_fp8) require_fp8_gemms(context.limits());
  if (gemm.m == 0) return run;
  constexpr bool has_tensor_cores = !std::is_same_v<Element, float>;
  if constexpr (has_tensor_cores) {
    const auto launch_tiles = [&](auto cores, auto stage_count) {
      constexpr int stages = decltype(stage_count)::value;
      constexpr int bytes = stages * expert_stage_bytes + tile_alignment;
      launch(name, expert_gemm_kernel<decltype(cores), pass, stages, A, B, Y>, grid(128),
             expert_gemm_threads, bytes, context, gemm);
    };
    if (gemm.is_aligned()) {
      if (context.limits().gpu.warpgroup_mma && fits_pipeline(gemm)) {
        enqueue_expert_pipeline<pass>(name, gemm, context);
        return run;
      }
      if (context.limits().gpu.warpgroup_mma) {
        launch_tiles(WarpgroupCores(), std::integral_constant<int, A::is_fp8 ? 4 : 3>());
      } else {
        launch_tiles(WarpCores(), std::integral_constant<int, 3>());  // within 99 KiB
      }
      return run;
    }
  }
  if constexpr (A::is_fp8) {
    require<ShapeError>(false, name,
                        ": FP8 operands must be aligned to 16 bytes, and the lengths of "
                        "their rows multiples of 16; take their memory from an arena");
  } else {
    launch(name, plain_expert_gemm_kernel<pass, A, B, Y>, grid(64), 256, 0, context, gemm);
  }
  return run;
}

/// See experts_forward.
template <class X, class W, class T>
GemmRun experts_forward_body(X x, W w, const ExpertRows<Cuda>& rows, TensorView<T, 2, Cuda> y,
                             const Context<Cuda>& context) {
  const ExpertGemm gemm{expert_operand(x), expert_operand(w), rows,          y.data(),
                        y.extent(0),       y.extent(1),       columns_of(x), false};
  return enqueue_expert_gemm<ExpertPass::forward>("experts_forward", gemm, context);
}

/// See experts_input_gradient.
template <class Dy, class W, class T>
GemmRun experts_input_gradient_body(Dy y_gradient, W w, const ExpertRows<Cuda>& rows,
                                    TensorView<T, 2, Cuda> x_gradient,
                                    const Context<Cuda>& context) {
  const ExpertGemm gemm{expert_operand(y_gradient),
                        expert_operand(w),
                        rows,
                        x_gradient.data(),
                        x_gradient.extent(0),
                        x_gradient.extent(1),
                        columns_of(y_gradient),
                        false};
  return enqueue_expert_gemm<ExpertPass::input_gradient>("experts_input_gradient", gemm, context);
}

/// See experts_weight_gradient.
template <class Dy, class X, class G>
GemmRun experts_weight_gradient_body(Dy y_gradient, X x, const ExpertRows<Cuda>& rows,
                                     TensorView<G, 2, Cuda> w_gradient, bool accumulate,
                                     const Context<Cuda>& context) {
  const ExpertGemm gemm{expert_operand(y_gradient),
                        expert_operand(x),
                        rows,
                        w_gradient.data(),
                        w_gradient.extent(0) / rows.experts(),
                        w_gradient.extent(1),
                        Index{0},
                        accumulate};
  return enqueue_expert_gemm<ExpertPass::weight_gradient>("experts_weight_gradient", gemm, context);
}

}  // namespace octavo::detail
