/// @file
/// MMAs by the tensor cores of every GPU of compute capability 8.0 or later, each by a single
/// warp: mma.sync. Source: PTX ISA 9.0, section on mma.sync with .m16n8k16 and .m16n8k32.
#pragma once

#include <octavo/formats/fp8.hpp>
#include <octavo/kernels/cuda/tensor_core.cuh>

#include <type_traits>

namespace octavo OCTAVO_ABI::detail {

/// Adds the product of a warp's 16 rows of 32 bytes of `a` and eight rows of `b` to four of its
/// sums.
/// @tparam A, B  formats of the operands
template <class A, class B>
__device__ void multiply_warp(float* sums, const Fragment& a, std::uint32_t b0, std::uint32_t b1) {
#define OCTAVO_MULTIPLY(shape, types)                                        \
  asm("mma.sync.aligned." shape ".row.col.f32." types                        \
      ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])           \
      : "r"(a.words[0]), "r"(a.words[1]), "r"(a.words[2]), "r"(a.words[3]), "r"(b0), "r"(b1))
  if constexpr (std::is_same_v<A, Bf16>) {
    OCTAVO_MULTIPLY("m16n8k16", "bf16.bf16");
  } else {
    static_assert(std::is_same_v<A, E4M3> || std::is_same_v<B, E4M3>,
                  "no GPU multiplies E5M2 by E5M2; choose Hybrid or E4M3Only");
    if constexpr (std::is_same_v<A, B>) {
      OCTAVO_MULTIPLY("m16n8k32", "e4m3.e4m3");
    } else if constexpr (std::is_same_v<A, E5M2>) {
      OCTAVO_MULTIPLY("m16n8k32", "e5m2.e4m3");
    } else {
      OCTAVO_MULTIPLY("m16n8k32", "e4m3.e5m2");
    }
  }
#undef OCTAVO_MULTIPLY
}

/// MMAs that each warp computes alone. The first operand is in registers, or is loaded from
/// shared memory. `WarpgroupCores` has the same members.
struct WarpCores {
  static constexpr bool exist = true;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  static constexpr bool have_fp8 = true;
#else
  static constexpr bool have_fp8 = false;
#endif

  /// Waits until all of the block's copies, except each thread's last `pending` groups, are visible
  /// to the block.
  template <int pending>
  static __device__ void wait_for_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
    __syncthreads();
  }
  /// MMAs are ordinary instructions and need no calls before or after them.
  template <class... Registers>
  static __device__ void begin_mma(Registers&...) {}
  static __device__ void commit_mma() {}
  template <int pending, class... Registers>
  static __device__ void wait_for_mma(Registers&...) {}

  /// Computes sums (+)= a · bᵀ over 16 columns of both tiles.
  /// @param a_row  first of 64 rows in `a`, of which each warp multiplies 16
  template <int n, int a_rows, int a_columns, int rows, int columns>
  static __device__ void multiply(Accumulator<n>& sums, SharedTile<a_rows, a_columns> a, int a_row,
                                  SharedTile<rows, columns> b, int b_row, int column, bool add) {
    multiply(sums, load_fragment(a, a_row + warp_row(), column / mma_depth), b, b_row, column, add);
  }
  /// Computes sums (+)= a · bᵀ over 16 columns of n rows of b.
  template <int n, int rows, int columns>
  static __device__ void multiply(Accumulator<n>& sums, const Fragment& a,
                                  SharedTile<rows, columns> b, int row, int column, bool add) {
    multiply_columns<Bf16, Bf16>(sums, a, b, row, column, add);
  }
  /// Computes sums (+)= a · bᵀ over 32 bytes of n rows of b, from column `column` on in pairs of
  /// bytes.
  /// @tparam A, B  formats of the operands
  template <class A, class B, int n, int rows, int columns>
  static __device__ void multiply_columns(Accumulator<n>& sums, const Fragment& a,
                                          SharedTile<rows, columns> b, int row, int column,
                                          bool add) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const std::uint32_t start = b.chunk(lane % 8 + lane / 16 * 8, lane / 8 % 2);
    if (!add) set_zero(sums);
#pragma unroll
    for (int j = 0; j < n / 16; ++j) {
      const Fragment f = load_matrices(offset(b, start, row + 16 * j, column));
      multiply_warp<A, B>(sums.values + 8 * j, a, f.words[0], f.words[1]);
      multiply_warp<A, B>(sums.values + 8 * j + 4, a, f.words[2], f.words[3]);
    }
  }
  /// Computes sums += a · b over 16 rows of n columns of b.
  template <int n, int rows, int columns>
  static __device__ void multiply_rows(Accumulator<n>& sums, const Fragment& a,
                                       SharedTile<rows, columns> b, int row, int column) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const std::uint32_t start = b.chunk(lane % 16, lane / 16);
#pragma unroll
    for (int j = 0; j < n / 16; ++j) {
      const Fragment f = load_matrices<true>(offset(b, start, row, column + 16 * j));
      multiply_warp<Bf16, Bf16>(sums.values + 8 * j, a, f.words[0], f.words[1]);
      multiply_warp<Bf16, Bf16>(sums.values + 8 * j + 4, a, f.words[2], f.words[3]);
    }
  }
  /// Reads the calling warp's 16 columns of 16 rows, transposed.
  /// @param column  the warp's first column in the tile
  template <int rows, int columns>
  static __device__ Fragment load_columns(SharedTile<rows, columns> tile, int row, int column) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    return load_matrices<true>(
        tile.chunk(row + lane % 8 + lane / 16 * 8, column / 8 + lane / 8 % 2));
  }
  /// Returns the first of the calling warp's rows among 64.
  static __device__ int warp_row() { return static_cast<int>(threadIdx.x) / 32 % 4 * 16; }

  template <int n>
  static __device__ void set_zero(Accumulator<n>& sums) {
#pragma unroll
    for (float& value : sums.values) value = 0.0f;
  }

 private:
  /// Returns `start`, an address in the first 16 rows and columns of a tile, moved by rows and
  /// columns. The swizzle permutes chunks by the row within eight, which stays the same.
  /// @param row     a multiple of 8
  /// @param column  a multiple of 16
  template <int rows, int columns>
  static __device__ std::uint32_t offset(SharedTile<rows, columns>, std::uint32_t start, int row,
                                         int column) {
    return (start ^ static_cast<std::uint32_t>(column % panel_columns * 2)) +
           static_cast<std::uint32_t>(column / panel_columns *
                                          SharedTile<rows, columns>::panel_bytes +
                                      row * panel_row_bytes);
  }
};

}  // namespace octavo::detail
