/// @file
/// GEMMs of the experts' tiles in shared memory on tensor cores.
#pragma once

#include <octavo/gemm/cuda/expert_tiles.cuh>
#include <octavo/kernels/cuda/warp_cores.cuh>
#include <octavo/kernels/cuda/warpgroup_cores.cuh>

#include <cstdint>
#include <type_traits>

namespace octavo OCTAVO_ABI::detail {

/// 64 × 128 sums in the registers of a warpgroup.
using WideAccumulator = Accumulator<128>;

// clang-format off
#define OCTAVO_SUMS_64                                                                         \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, "     \
  "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, " \
  "%37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, " \
  "%55, %56, %57, %58, %59, %60, %61, %62, %63"
#define OCTAVO_SUMS_128                                                                    \
  OCTAVO_SUMS_64 ", "                                                                      \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
  "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, " \
  "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
  "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define OCTAVO_FOUR(v, i) "+f"(v[i]), "+f"(v[i + 1]), "+f"(v[i + 2]), "+f"(v[i + 3])
#define OCTAVO_SIXTEEN(v, i) \
  OCTAVO_FOUR(v, i), OCTAVO_FOUR(v, i + 4), OCTAVO_FOUR(v, i + 8), OCTAVO_FOUR(v, i + 12)
#define OCTAVO_OPERANDS_64(v) \
  OCTAVO_SIXTEEN(v, 0), OCTAVO_SIXTEEN(v, 16), OCTAVO_SIXTEEN(v, 32), OCTAVO_SIXTEEN(v, 48)
#define OCTAVO_OPERANDS_128(v)                                                                \
  OCTAVO_OPERANDS_64(v), OCTAVO_SIXTEEN(v, 64), OCTAVO_SIXTEEN(v, 80), OCTAVO_SIXTEEN(v, 96), \
      OCTAVO_SIXTEEN(v, 112)
// In the assembly text, the numbers of the operands after the sums depend on the number of sums.
#define OCTAVO_START(shape, types, tail, ...)                             \
  if constexpr (columns == 128) {                                         \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"            \
                 "wgmma.mma_async.sync.aligned.m64n128" shape types " "   \
                 OCTAVO_SUMS_64 "}, %64, %65, p, 1, 1" tail(67, 68) ";\n}\n"       \
                 : OCTAVO_OPERANDS_64(v)                                  \
                 : "l"(a), "l"(b), "r"(static_cast<int>(add)) __VA_ARGS__); \
  } else {                                                                \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\n"           \
                 "wgmma.mma_async.sync.aligned.m64n256" shape types " "   \
                 OCTAVO_SUMS_128 "}, %128, %129, p, 1, 1" tail(131, 132) ";\n}\n"  \
                 : OCTAVO_OPERANDS_128(v)                                 \
                 : "l"(a), "l"(b), "r"(static_cast<int>(add)) __VA_ARGS__); \
  }
#define OCTAVO_ORDERS(a_order, b_order) ", %" #a_order ", %" #b_order
#define OCTAVO_NO_ORDERS(a_order, b_order)
// clang-format on

/// Starts sums (+)= a · bᵀ for 32 bytes of the reduced dimension.
/// @tparam A, B  formats of the operands
/// @tparam a_by_columns  the reduced dimension is the rows of a's tile; the same for b
template <class A, class B, bool a_by_columns, bool b_by_columns, int columns>
__device__ void multiply(Accumulator<columns>& sums, std::uint64_t a, std::uint64_t b, bool add) {
  static_assert(columns == 128 || columns == 256);
  auto& v = sums.values;
  if constexpr (std::is_same_v<A, Bf16>) {
    OCTAVO_START("k16", ".f32.bf16.bf16", OCTAVO_ORDERS, , "n"(a_by_columns ? 1 : 0),
                 "n"(b_by_columns ? 1 : 0))
  } else {
    static_assert(!a_by_columns && !b_by_columns,
                  "FP8 operands must be reduced along rows of memory");
    if constexpr (std::is_same_v<A, E4M3> && std::is_same_v<B, E4M3>) {
      OCTAVO_START("k32", ".f32.e4m3.e4m3", OCTAVO_NO_ORDERS)
    } else if constexpr (std::is_same_v<A, E5M2> && std::is_same_v<B, E4M3>) {
      OCTAVO_START("k32", ".f32.e5m2.e4m3", OCTAVO_NO_ORDERS)
    } else {
      static_assert(std::is_same_v<A, E4M3> && std::is_same_v<B, E5M2>,
                    "no GPU multiplies E5M2 by E5M2; choose Hybrid or E4M3Only");
      OCTAVO_START("k32", ".f32.e4m3.e5m2", OCTAVO_NO_ORDERS)
    }
  }
}

#undef OCTAVO_NO_ORDERS
#undef OCTAVO_ORDERS
#undef OCTAVO_START
#undef OCTAVO_OPERANDS_128
#undef OCTAVO_OPERANDS_64
#undef OCTAVO_SIXTEEN
#undef OCTAVO_FOUR
#undef OCTAVO_SUMS_128
#undef OCTAVO_SUMS_64

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
template <class A, class B, bool a_by_columns, bool b_by_columns, int columns>
__device__ void multiply_step(WarpgroupCores, Accumulator<columns>& sums,
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
    fragment = WarpCores::load_columns(a, step * mma_depth, warp_row);
  } else {
    fragment = load_fragment(a, warp_row, step);
  }
  if (!add) WarpCores::set_zero(sums);
  if constexpr (b_by_columns) {
    WarpCores::multiply_rows(sums, fragment, b, step * mma_depth, 0);
  } else {
    WarpCores::multiply_columns<A, B>(sums, fragment, b, 0, step * mma_depth, true);
  }
}

}  // namespace octavo::detail
