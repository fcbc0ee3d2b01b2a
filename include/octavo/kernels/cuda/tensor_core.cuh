/// @file
/// Tiles of BF16 in shared memory, asynchronous copies to them, and the operands and sums of tensor
/// cores in registers, for attention and the experts' GEMMs. The MMAs are in
/// warpgroup_cores.cuh and warp_cores.cuh. Source: PTX ISA 9.0, sections on cp.async and ldmatrix.
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
/// Rows that four warps multiply together; also the columns of a usual accumulator.
inline constexpr int mma_side = 64;
/// The reduced dimension of one MMA.
inline constexpr int mma_depth = 16;
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

/// 64 × `columns` sums in the registers of four warps. Lane l of warp w holds rows 16w + l/4 + 8h
/// and columns 8j + 2(l % 4) + b in values[4j + 2h + b].
template <int columns = mma_side>
struct Accumulator {
  static constexpr int size = columns / 2;
  float values[size];
};

/// 64 × 16 BF16 values in the registers of a warpgroup, two per word: the first operand of a
/// MMA.
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
template <int columns>
__device__ Fragment to_fragment(const Accumulator<columns>& sums, int k) {
  const float* v = sums.values + 8 * k;
  return {
      {pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]), pack_bf16(v[4], v[5]), pack_bf16(v[6], v[7])}};
}

/// Reads four matrices of 8 × 8 values; each lane passes the address of a row of matrix lane / 8.
/// @tparam transposes  lane l receives column l/4 of each matrix instead of row l/4
template <bool transposes = false>
__device__ Fragment load_matrices(std::uint32_t address) {
  Fragment f;
  if constexpr (transposes) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(f.words[0]), "=r"(f.words[1]), "=r"(f.words[2]), "=r"(f.words[3])
                 : "r"(address)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(f.words[0]), "=r"(f.words[1]), "=r"(f.words[2]), "=r"(f.words[3])
                 : "r"(address)
                 : "memory");
  }
  return f;
}

/// Reads the calling warp's 16 rows of columns 16k to 16k + 15.
/// @param row  the warp's first row in the tile
template <int rows, int columns>
__device__ Fragment load_fragment(SharedTile<rows, columns> tile, int row, int k) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  return load_matrices(tile.chunk(row + lane % 16, 2 * k + lane / 16));
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

/// Synchronises the warps of the calling thread's warpgroup only.
__device__ inline void synchronize_warpgroup() {
  const auto barrier = 1 + threadIdx.x / 128;  // 0 is used by __syncthreads
  asm volatile("bar.sync %0, 128;" ::"r"(barrier) : "memory");
}

/// Writes a warpgroup's sums, multiplied by `factors[h]` in rows 8h + … of each warp, to memory as
/// BF16, through each warp's own 16 rows of a tile. The tile may be an operand of MMAs that the
/// warpgroup has waited for. All warps of the warpgroup must call it.
/// @param row         the warp's first row in the tile
/// @param target      the tile's first value
/// @param valid_rows  rows of the tile that exist in memory
template <int rows, int columns>
__device__ void store_tile(const Accumulator<> (&sums)[columns / panel_columns],
                           const float (&factors)[2], SharedTile<rows, columns> tile, int row,
                           Bf16* target, Index stride, Index valid_rows, int dim) {
  constexpr int row_chunks = SharedTile<rows, columns>::row_chunks;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  synchronize_warpgroup();  // MMAs of other warps may still read the tile
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
