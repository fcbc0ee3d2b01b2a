/// @file
/// Hopper's tensor cores and asynchronous copies, as far as attention and the experts' GEMMs
/// need them: tiles of BF16 in shared memory, and products of 64 × 64 × 16 by four warps. Source:
/// PTX ISA 9.0, sections on wgmma.mma_async and cp.async.
#pragma once

#include <octavo/core/cuda/context.cuh>
#include <octavo/formats/bf16.hpp>
#include <octavo/kernels/cuda/exponential.cuh>
#include <octavo/kernels/cuda/launch.cuh>

#include <cuda_runtime.h>

#include <cstdint>

namespace octavo OCTAVO_ABI::detail {

/// Threads of a warpgroup: four warps that multiply together.
inline constexpr int warpgroup_threads = 128;
/// Rows and columns of one accumulator.
inline constexpr int product_side = 64;
/// The reduced dimension of one product.
inline constexpr int product_depth = 16;
/// Columns of a tile's panel: 128 bytes per row, the span of the tensor cores' swizzle.
inline constexpr int panel_columns = 64;
inline constexpr int panel_row_bytes = 128;
/// Alignment of tiles, at which the swizzle's pattern begins.
inline constexpr int tile_alignment = 1024;

/// `rows` × `columns` BF16 values in shared memory: consecutive panels of 64 columns. Within eight
/// rows, chunks of 16 bytes are permuted, so that a column of chunks covers all banks.
template <int rows, int columns>
struct SharedTile {
  static_assert(rows % 8 == 0 && columns % panel_columns == 0);
  static constexpr int panel_bytes = rows * panel_row_bytes;
  static constexpr int bytes = columns / panel_columns * panel_bytes;
  static constexpr int row_chunks = columns / 8;

  std::uint32_t address;  ///< in shared memory, at a multiple of tile_alignment

  /// Returns the address of the `chunk`-th eight values of a row.
  [[nodiscard]] __device__ std::uint32_t chunk(int row, int chunk) const {
    return address + static_cast<std::uint32_t>(chunk / 8 * panel_bytes + row * panel_row_bytes +
                                                ((chunk % 8) ^ (row % 8)) * 16);
  }

  /// Returns the tensor cores' descriptor of 64 columns, starting at `row`. The same words describe
  /// an operand whose reduced dimension is the columns and one where it is the rows: groups of
  /// eight rows are 1024 bytes apart, with the 128-byte swizzle.
  /// @param column  a multiple of 16
  [[nodiscard]] __device__ std::uint64_t descriptor(int row, int column) const {
    const std::uint32_t start =
        address + static_cast<std::uint32_t>(column / panel_columns * panel_bytes +
                                             row * panel_row_bytes + column % panel_columns * 2);
    constexpr std::uint64_t constant =
        (std::uint64_t{1} << 62) | (std::uint64_t{1024 / 16} << 32) | (std::uint64_t{1} << 16);
    return constant | ((start & 0x3ffffu) >> 4);
  }
};

/// 64 × 64 sums in the registers of a warpgroup. Lane l of warp w holds rows 16w + l/4 + 8h and
/// columns 8j + 2(l % 4) + b in values[4j + 2h + b].
struct Accumulator {
  float values[32];
};

/// 64 × 16 BF16 values in the registers of a warpgroup, two per word: the first operand of a
/// product.
struct Fragment {
  std::uint32_t words[4];
};

__device__ inline std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

/// Packs two values as BF16, rounded to nearest even; the first in the lower half.
__device__ inline std::uint32_t pack_bf16(float first, float second) {
  std::uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(second), "f"(first));
  return packed;
}

/// Converts columns 16k to 16k + 15 of an accumulator to a fragment.
__device__ inline Fragment to_fragment(const Accumulator& sums, int k) {
  const float* v = sums.values + 8 * k;
  return {
      {pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]), pack_bf16(v[4], v[5]), pack_bf16(v[6], v[7])}};
}

/// Reads the calling warp's 16 rows of columns 16k to 16k + 15.
/// @param row  the warp's first row in the tile
template <int rows, int columns>
__device__ Fragment load_fragment(SharedTile<rows, columns> tile, int row, int k) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  Fragment f;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(f.words[0]), "=r"(f.words[1]), "=r"(f.words[2]), "=r"(f.words[3])
               : "r"(tile.chunk(row + lane % 16, 2 * k + lane / 16))
               : "memory");
  return f;
}

/// Starts copying a tile to shared memory.
/// @param source      the tile's first value
/// @param stride      distance between rows, in values
/// @param valid_rows  later rows become zero
/// @param dim         a multiple of 8; later columns become zero
template <int threads, int rows, int columns>
__device__ void copy_tile(SharedTile<rows, columns> tile, const Bf16* source, Index stride,
                          Index valid_rows, int dim) {
  constexpr int row_chunks = SharedTile<rows, columns>::row_chunks;
  static_assert(rows * row_chunks % threads == 0);
#pragma unroll 2
  for (int i = 0; i < rows * row_chunks / threads; ++i) {
    const int number = static_cast<int>(threadIdx.x) + i * threads;
    const int row = number / row_chunks;
    const int chunk = number % row_chunks;
    const bool valid = row < valid_rows && chunk * 8 < dim;
    const Bf16* from = valid ? source + row * stride + chunk * 8 : source;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(tile.chunk(row, chunk)),
                 "l"(__cvta_generic_to_global(from)), "r"(valid ? 16 : 0)
                 : "memory");
  }
}

/// Ends a group of copies.
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

/// Waits until all of the block's copies, except each thread's last `pending` groups, are visible
/// to the tensor cores.
template <int pending>
__device__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
}

/// Prevents the compiler from moving uses of these registers across this point.
__device__ inline void pin(Accumulator& sums) {
#pragma unroll
  for (float& value : sums.values) asm volatile("" : "+f"(value)::"memory");
}
__device__ inline void pin(Fragment& fragment) {
#pragma unroll
  for (std::uint32_t& word : fragment.words) asm volatile("" : "+r"(word)::"memory");
}
template <class Registers, int count>
__device__ void pin(Registers (&registers)[count]) {
#pragma unroll
  for (int i = 0; i < count; ++i) pin(registers[i]);
}

/// Call it before products that use registers written by other instructions.
template <class... Registers>
__device__ void begin_products(Registers&... registers) {
  (pin(registers), ...);
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

/// Ends a group of products.
__device__ inline void commit_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/// Waits for all groups of products except the last `pending`; their registers may then be used.
template <int pending, class... Registers>
__device__ void wait_for_products(Registers&... registers) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
  (pin(registers), ...);
}

#define OCTAVO_ACCUMULATOR_TEXT                                                            \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, " \
  "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
#define OCTAVO_ACCUMULATOR_OPERANDS(v)                                                            \
  "+f"(v[0]), "+f"(v[1]), "+f"(v[2]), "+f"(v[3]), "+f"(v[4]), "+f"(v[5]), "+f"(v[6]), "+f"(v[7]), \
      "+f"(v[8]), "+f"(v[9]), "+f"(v[10]), "+f"(v[11]), "+f"(v[12]), "+f"(v[13]), "+f"(v[14]),    \
      "+f"(v[15]), "+f"(v[16]), "+f"(v[17]), "+f"(v[18]), "+f"(v[19]), "+f"(v[20]), "+f"(v[21]),  \
      "+f"(v[22]), "+f"(v[23]), "+f"(v[24]), "+f"(v[25]), "+f"(v[26]), "+f"(v[27]), "+f"(v[28]),  \
      "+f"(v[29]), "+f"(v[30]), "+f"(v[31])

/// Starts sums (+)= a · bᵀ, with the columns of both tiles as the reduced dimension.
/// @param a, b  descriptors of 64 rows and 16 columns each
__device__ inline void multiply(Accumulator& sums, std::uint64_t a, std::uint64_t b, bool add) {
  float(&v)[32] = sums.values;
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " OCTAVO_ACCUMULATOR_TEXT
      "%32, %33, p, 1, 1, 0, 0;\n}\n"
      : OCTAVO_ACCUMULATOR_OPERANDS(v)
      : "l"(a), "l"(b), "r"(static_cast<int>(add)));
}

/// Starts sums (+)= a · bᵀ, or a · b if the rows of b's tile are the reduced dimension.
/// @param b  descriptor of 64 rows and 16 columns, or of 16 rows and 64 columns
template <bool reduces_rows>
__device__ void multiply(Accumulator& sums, const Fragment& a, std::uint64_t b, bool add) {
  float(&v)[32] = sums.values;
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " OCTAVO_ACCUMULATOR_TEXT
      "{%32, %33, %34, %35}, %36, p, 1, 1, %38;\n}\n"
      : OCTAVO_ACCUMULATOR_OPERANDS(v)
      : "r"(a.words[0]), "r"(a.words[1]), "r"(a.words[2]), "r"(a.words[3]), "l"(b),
        "r"(static_cast<int>(add)), "n"(reduces_rows ? 1 : 0));
}

#undef OCTAVO_ACCUMULATOR_TEXT
#undef OCTAVO_ACCUMULATOR_OPERANDS

/// Synchronises the warps of the calling thread's warpgroup only.
__device__ inline void synchronize_warpgroup() {
  const auto barrier = 1 + threadIdx.x / 128;  // 0 is used by __syncthreads
  asm volatile("bar.sync %0, 128;" ::"r"(barrier) : "memory");
}

/// Writes a warpgroup's sums, multiplied by `factors[h]` in rows 8h + … of each warp, to memory as
/// BF16, through each warp's own 16 rows of a tile. The tile may be an operand of products that the
/// warpgroup has waited for. All warps of the warpgroup must call it.
/// @param row         the warp's first row in the tile
/// @param target      the tile's first value
/// @param valid_rows  rows of the tile that exist in memory
template <int rows, int columns>
__device__ void store_tile(const Accumulator (&sums)[columns / panel_columns],
                           const float (&factors)[2], SharedTile<rows, columns> tile, int row,
                           Bf16* target, Index stride, Index valid_rows, int dim) {
  constexpr int row_chunks = SharedTile<rows, columns>::row_chunks;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  synchronize_warpgroup();  // products of other warps may still read the tile
#pragma unroll
  for (int chunk = 0; chunk < row_chunks; ++chunk) {
    const float* v = sums[chunk / 8].values + chunk % 8 * 4;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const std::uint32_t address =
          tile.chunk(row + lane / 4 + 8 * h, chunk) + static_cast<std::uint32_t>(lane % 4 * 4);
      const std::uint32_t pair = pack_bf16(v[2 * h] * factors[h], v[2 * h + 1] * factors[h]);
      asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(pair) : "memory");
    }
  }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < 16 * row_chunks / 32; ++i) {
    const int tile_row = row + (lane + 32 * i) / row_chunks;
    const int chunk = (lane + 32 * i) % row_chunks;
    uint4 values;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(values.x), "=r"(values.y), "=r"(values.z), "=r"(values.w)
                 : "r"(tile.chunk(tile_row, chunk))
                 : "memory");
    if (tile_row < valid_rows && chunk * 8 < dim) {
      *reinterpret_cast<uint4*>(target + tile_row * stride + chunk * 8) = values;
    }
  }
}

}  // namespace octavo::detail
