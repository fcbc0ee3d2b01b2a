/// @file
/// The GEMMs of a mixture of experts on the `Cuda` device: a grid over all tiles of the worst case,
/// with tensor cores for BF16 and FP8, and a plain kernel for other operands.
#pragma once

#include <octavo/gemm/cuda/expert_tiles.cuh>
#include <octavo/gemm/cuda/limits.hpp>
#include <octavo/kernels/cuda/run.cuh>
#include <octavo/kernels/cuda/warp_cores.cuh>
#include <octavo/kernels/cuda/warpgroup_cores.cuh>

#include <type_traits>

namespace octavo OCTAVO_ABI::detail {

inline constexpr int expert_product_threads = 2 * warpgroup_threads;

/// 64 × 128 sums in the registers of a warpgroup.
using WideAccumulator = Accumulator<128>;

#define OCTAVO_WIDE_TEXT                                                                       \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, "     \
  "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, " \
  "%37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, " \
  "%55, %56, %57, %58, %59, %60, %61, %62, %63}, %64, %65, p, 1, 1"
#define OCTAVO_FOUR(v, i) "+f"(v[i]), "+f"(v[i + 1]), "+f"(v[i + 2]), "+f"(v[i + 3])
#define OCTAVO_SIXTEEN(v, i) \
  OCTAVO_FOUR(v, i), OCTAVO_FOUR(v, i + 4), OCTAVO_FOUR(v, i + 8), OCTAVO_FOUR(v, i + 12)
#define OCTAVO_WIDE_OPERANDS(v) \
  OCTAVO_SIXTEEN(v, 0), OCTAVO_SIXTEEN(v, 16), OCTAVO_SIXTEEN(v, 32), OCTAVO_SIXTEEN(v, 48)
#define OCTAVO_WIDE_FP8(a_type, b_type)                                                     \
  asm volatile(                                                                             \
      "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"                                          \
      "wgmma.mma_async.sync.aligned.m64n128k32.f32." a_type "." b_type " " OCTAVO_WIDE_TEXT \
      ";\n}\n"                                                                              \
      : OCTAVO_WIDE_OPERANDS(v)                                                             \
      : "l"(a), "l"(b), "r"(static_cast<int>(add)))

/// Starts sums (+)= a · bᵀ for 32 bytes of the reduced dimension.
/// @tparam A, B  formats of the operands
/// @tparam a_by_columns  the reduced dimension is the rows of a's tile; the same for b
template <class A, class B, bool a_by_columns, bool b_by_columns>
__device__ void multiply(WideAccumulator& sums, std::uint64_t a, std::uint64_t b, bool add) {
  float(&v)[64] = sums.values;
  if constexpr (std::is_same_v<A, Bf16>) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 " OCTAVO_WIDE_TEXT ", %67, %68;\n}\n"
        : OCTAVO_WIDE_OPERANDS(v)
        : "l"(a), "l"(b), "r"(static_cast<int>(add)), "n"(a_by_columns ? 1 : 0),
          "n"(b_by_columns ? 1 : 0));
  } else {
    static_assert(!a_by_columns && !b_by_columns, "FP8 is reduced along rows of memory");
    if constexpr (std::is_same_v<A, E4M3> && std::is_same_v<B, E4M3>) {
      OCTAVO_WIDE_FP8("e4m3", "e4m3");
    } else if constexpr (std::is_same_v<A, E5M2> && std::is_same_v<B, E4M3>) {
      OCTAVO_WIDE_FP8("e5m2", "e4m3");
    } else {
      static_assert(std::is_same_v<A, E4M3> && std::is_same_v<B, E5M2>,
                    "no GPU multiplies E5M2 by E5M2; choose Hybrid or E4M3Only");
      OCTAVO_WIDE_FP8("e4m3", "e5m2");
    }
  }
}

#undef OCTAVO_WIDE_FP8
#undef OCTAVO_WIDE_OPERANDS
#undef OCTAVO_SIXTEEN
#undef OCTAVO_FOUR
#undef OCTAVO_WIDE_TEXT

/// Pairs of bytes of the reduced dimension in one stage of the pipeline.
inline constexpr int expert_stage_depth = 64;
inline constexpr int expert_stage_bytes = 2 * 128 * panel_row_bytes;

/// A tile of an operand in shared memory: 128 rows or columns by 128 bytes or 64 rows of the
/// reduced dimension.
template <bool by_columns>
using ExpertSharedTile =
    std::conditional_t<by_columns, SharedTile<expert_stage_depth, 128>, SharedTile<128, 64>>;

/// Returns the tensor cores' descriptor of the rows or columns from `begin` on, and 32 bytes or 16
/// rows of the reduced dimension. In a tile by columns, panels of 64 columns are one after another.
template <bool by_columns>
__device__ std::uint64_t expert_descriptor(ExpertSharedTile<by_columns> tile, int begin, int step) {
  if constexpr (by_columns) {
    constexpr std::uint64_t one = std::uint64_t{1} << 16;
    constexpr std::uint64_t panel = std::uint64_t{tile.panel_bytes / 16} << 16;
    return (tile.descriptor(16 * step, begin) & ~one) | panel;
  } else {
    return tile.descriptor(begin, 16 * step);
  }
}

/// Starts sums (+)= a · bᵀ for 32 bytes of the reduced dimension.
/// @param row   the calling warpgroup's first row of 64 in `a`
/// @param step  number of the 32 bytes, or 16 rows, in the tiles
template <class A, class B, bool a_by_columns, bool b_by_columns>
__device__ void multiply_step(WarpgroupCores, WideAccumulator& sums,
                              ExpertSharedTile<a_by_columns> a, int row,
                              ExpertSharedTile<b_by_columns> b, int step, bool add) {
  multiply<A, B, a_by_columns, b_by_columns>(sums, expert_descriptor<a_by_columns>(a, row, step),
                                             expert_descriptor<b_by_columns>(b, 0, step), add);
}
template <class A, class B, bool a_by_columns, bool b_by_columns>
__device__ void multiply_step(WarpCores, WideAccumulator& sums, ExpertSharedTile<a_by_columns> a,
                              int row, ExpertSharedTile<b_by_columns> b, int step, bool add) {
  const int warp_row = row + WarpCores::warp_row();
  Fragment fragment;
  if constexpr (a_by_columns) {
    fragment = WarpCores::load_columns(a, step * product_depth, warp_row);
  } else {
    fragment = load_fragment(a, warp_row, step);
  }
  if (!add) WarpCores::set_zero(sums);
  if constexpr (b_by_columns) {
    WarpCores::multiply_rows(sums, fragment, b, step * product_depth, 0);
  } else {
    WarpCores::multiply_columns<A, B>(sums, fragment, b, 0, step * product_depth, true);
  }
}

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
    copy_tile<expert_product_threads>(tile, data + k * stride + first, stride, depth,
                                      static_cast<int>(min(left, Index{most})));
  } else {
    copy_tile<expert_product_threads>(tile, data + first * stride + k, stride, left,
                                      static_cast<int>(min(depth, Index{most})));
  }
}

/// Multiplies a tile of 128 × 128 with two warpgroups. Without block scales in FP8, the sums of a
/// stage are also added to separate sums, because the tensor cores keep fewer bits.
template <class Cores, ExpertPass pass, int stages, class A, class B, class Y>
__device__ __forceinline__ void expert_product_block(const ExpertProduct<A, B, Y>& product) {
  constexpr bool is_fp8 = A::is_fp8;
  constexpr bool a_by_columns = !is_fp8 && pass == ExpertPass::weight_gradient;
  constexpr bool b_by_columns = !is_fp8 && pass != ExpertPass::forward;
  constexpr int pair = is_fp8 ? 2 : 1;  // elements of two bytes
  const ExpertTile tile = locate_tile<pass, 128>(product);
  if (tile.expert < 0) return write_zeros<128, expert_product_threads>(product, tile);

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
      copy_stage<a_by_columns>(address, product.a.pairs(), product.a.stride / pair, tile.a_first,
                               tile.a_left, tile.a_k / pair + k, depth - k);
      copy_stage<b_by_columns>(address + expert_stage_bytes / 2, product.b.pairs(),
                               product.b.stride / pair, tile.b_first, tile.b_left,
                               tile.b_k / pair + k, depth - k);
    }
    commit_copies();
  };
#pragma unroll
  for (int i = 0; i < stages - 2; ++i) copy(i);

  const int warpgroup = static_cast<int>(threadIdx.x) / warpgroup_threads;
  WideAccumulator sums{};
  ExpertSums<is_fp8> totals;
  const ExpertPlace place = place_of_thread();
  for (int i = 0; i < iterations; ++i) {
    Cores::template wait_for_copies<stages - 3>();
    const std::uint32_t address =
        base + static_cast<std::uint32_t>(i % stages * expert_stage_bytes);
    const ExpertSharedTile<a_by_columns> a{address};
    const ExpertSharedTile<b_by_columns> b{address + expert_stage_bytes / 2};
    Cores::begin_products(sums);
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      multiply_step<typename A::Element, typename B::Element, a_by_columns, b_by_columns>(
          Cores(), sums, a, 64 * warpgroup, b, step, step > 0 || (!is_fp8 && i > 0));
    }
    Cores::commit_products();
    copy(i + stages - 2);  // reuses the stage of i - 2, which all warps have finished
    Cores::template wait_for_products<is_fp8 ? 0 : 1>(sums);
    if constexpr (is_fp8) totals.add(sums.values, product, tile, place, Index{i} * 128);
  }
  Cores::template wait_for_products<0>(sums);
  if constexpr (is_fp8) {
    store_sums(totals.values, product, tile, place);
  } else {
    store_sums(sums.values, product, tile, place);
  }
}

/// Runs expert_product_block on GPUs that have the tensor cores.
template <class Cores, ExpertPass pass, int stages, class A, class B, class Y>
OCTAVO_KERNEL void __launch_bounds__(expert_product_threads, A::is_fp8 ? 1 : 2)
    expert_product_kernel(const ExpertProduct<A, B, Y> product) {
  if constexpr (A::is_fp8 ? Cores::have_fp8 : Cores::exist) {
    expert_product_block<Cores, pass, stages>(product);
  } else {
    __trap();
  }
}

/// Multiplies a tile of 64 × 64 without tensor cores, for operands of any format and alignment.
template <ExpertPass pass, class A, class B, class Y>
OCTAVO_KERNEL void __launch_bounds__(256)
    plain_expert_product_kernel(const ExpertProduct<A, B, Y> product) {
  constexpr int side = 64;
  constexpr int depth = 16;
  constexpr bool a_by_columns = pass == ExpertPass::weight_gradient;
  constexpr bool b_by_columns = pass != ExpertPass::forward;
  const ExpertTile tile = locate_tile<pass, side>(product);
  if (tile.expert < 0) return write_zeros<side, 256>(product, tile);
  __shared__ float a_values[depth][side + 4];
  __shared__ float b_values[depth][side + 4];
  const int thread = static_cast<int>(threadIdx.x);
  const int row = thread / 16 * 4;
  const int column = thread % 16 * 4;
  float sums[4][4]{};
  for (Index k0 = 0; k0 < tile.depth; k0 += depth) {
    __syncthreads();
    for (int i = thread; i < depth * side; i += 256) {
      const int k = i / side;
      const int at = i % side;
      const bool inside = k0 + k < tile.depth;
      a_values[k][at] = inside && at < tile.a_left ? product.a.template at<a_by_columns>(
                                                         tile.a_first + at, tile.a_k + k0 + k)
                                                   : 0.0f;
      b_values[k][at] = inside && at < tile.b_left ? product.b.template at<b_by_columns>(
                                                         tile.b_first + at, tile.b_k + k0 + k)
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
      Y& target = product.result[(tile.y_row + row + i) * product.n + tile.y_column + column + j];
      const float before = product.accumulate ? static_cast<float>(target) : 0.0f;
      target = Y(sums[i][j] + before);
    }
  }
}

/// Enqueues a GEMM.
template <ExpertPass pass, class A, class B, class Y>
GemmRun enqueue_expert_product(const char* name, const ExpertProduct<A, B, Y>& product,
                               const Context<Cuda>& context) {
  using Element = typename A::Element;
  const auto grid = [&](Index side) {
    return dim3(
        static_cast<unsigned>(ceil_divide(product.m, side) * ceil_divide(product.n, side)),
        pass == ExpertPass::weight_gradient ? static_cast<unsigned>(product.rows.experts()) : 1u);
  };
  const GemmRun run{FormatTraits<Element>::name, FormatTraits<typename B::Element>::name,
                    own_expert_implementation};
  if (product.m == 0) return run;
  constexpr bool has_tensor_cores = !std::is_same_v<Element, float>;
  if constexpr (has_tensor_cores) {
    const auto launch_tiles = [&](auto cores, auto stage_count) {
      constexpr int stages = decltype(stage_count)::value;
      constexpr int bytes = stages * expert_stage_bytes + tile_alignment;
      launch(name, expert_product_kernel<decltype(cores), pass, stages, A, B, Y>, grid(128),
             expert_product_threads, bytes, context, product);
    };
    if (product.is_aligned()) {
      if (context.limits().gpu.warpgroup_products) {
        launch_tiles(WarpgroupCores(), std::integral_constant<int, A::is_fp8 ? 4 : 3>());
      } else {
        launch_tiles(WarpCores(), std::integral_constant<int, 3>());  // within 99 KiB
      }
      return run;
    }
  }
  if constexpr (A::is_fp8) {
    require<ShapeError>(false, name,
                        ": FP8 operands must be aligned to 16 bytes, with rows of a "
                        "multiple of 16; take their memory from an arena");
  } else {
    launch(name, plain_expert_product_kernel<pass, A, B, Y>, grid(64), 256, 0, context, product);
  }
  return run;
}

/// See experts_forward.
template <class X, class W, class T>
GemmRun experts_forward_body(X x, W w, const ExpertRows<Cuda>& rows, TensorView<T, 2, Cuda> y,
                             const Context<Cuda>& context) {
  const ExpertProduct product{expert_operand(x), expert_operand(w), rows,          y.data(),
                              y.extent(0),       y.extent(1),       columns_of(x), false};
  return enqueue_expert_product<ExpertPass::forward>("experts_forward", product, context);
}

/// See experts_input_gradient.
template <class Dy, class W, class T>
GemmRun experts_input_gradient_body(Dy y_gradient, W w, const ExpertRows<Cuda>& rows,
                                    TensorView<T, 2, Cuda> x_gradient,
                                    const Context<Cuda>& context) {
  const ExpertProduct product{expert_operand(y_gradient),
                              expert_operand(w),
                              rows,
                              x_gradient.data(),
                              x_gradient.extent(0),
                              x_gradient.extent(1),
                              columns_of(y_gradient),
                              false};
  return enqueue_expert_product<ExpertPass::input_gradient>("experts_input_gradient", product,
                                                            context);
}

/// See experts_weight_gradient.
template <class Dy, class X, class G>
GemmRun experts_weight_gradient_body(Dy y_gradient, X x, const ExpertRows<Cuda>& rows,
                                     TensorView<G, 2, Cuda> w_gradient, bool accumulate,
                                     const Context<Cuda>& context) {
  const ExpertProduct product{expert_operand(y_gradient),
                              expert_operand(x),
                              rows,
                              w_gradient.data(),
                              w_gradient.extent(0) / rows.experts(),
                              w_gradient.extent(1),
                              Index{0},
                              accumulate};
  return enqueue_expert_product<ExpertPass::weight_gradient>("experts_weight_gradient", product,
                                                             context);
}

}  // namespace octavo::detail
