/// @file
/// FP8 copies of queries, keys and values, in the order in which the FP8 forward of attention reads
/// them.
#pragma once

#include <octavo/attention/cuda/own/block.cuh>
#include <octavo/attention/cuda/own/fp8_tiles.cuh>
#include <octavo/kernels/cuda/cast/convert.cuh>

#include <cuda_fp8.h>

#include <cstdint>

namespace octavo OCTAVO_ABI::detail {

/// Threads of a block that casts a tile.
inline constexpr int fp8_cast_threads = 256;

/// The FP8 copies of queries, keys and values in memory: tiles of 128 tokens, for each sequence and
/// each head, and the inverse of each tile's scale. A tile of values is transposed.
template <int columns>
struct Fp8Operands {
  static constexpr int tile_bytes = fp8_tile_rows * columns;
  std::uint8_t* tiles;
  float* inverses;
  int per_head;  ///< tiles of a head

  /// Returns the number of the first tile of one of the heads + 2 · kv_heads fused heads.
  [[nodiscard]] __device__ Index first(const AttentionGeometry& geometry, int sequence,
                                       int fused_head) const {
    const Index all_heads = geometry.heads + 2 * geometry.kv_heads;
    return (Index{sequence} * all_heads + fused_head) * per_head;
  }
  [[nodiscard]] __device__ std::uint8_t* tile(Index number) const {
    return tiles + number * tile_bytes;
  }
};

/// Raises `largest` to the magnitudes of two BF16 values, as bits.
__device__ inline void raise_magnitude(std::uint32_t& largest, std::uint32_t pair) {
  largest = max(largest, max(pair << 16 & 0x7fff0000u, pair & 0x7fff0000u));
}

/// Returns the largest of all threads' `bits`.
__device__ inline std::uint32_t block_maximum(std::uint32_t bits) {
  __shared__ std::uint32_t warps[fp8_cast_threads / 32];
  const std::uint32_t warp = __reduce_max_sync(0xffffffffu, bits);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = warp;
  __syncthreads();
  std::uint32_t result = 0;
#pragma unroll
  for (const std::uint32_t one : warps) result = max(result, one);
  return result;
}

/// Returns two E4M3 values times the power of two `inverse`, which BF16 represents exactly.
__device__ inline std::uint32_t rounded_pair(std::uint32_t fp8_pair, float inverse) {
  const auto pair = static_cast<__nv_fp8x2_storage_t>(fp8_pair);
  const float2 values = __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(pair, __NV_E4M3)));
  return __float_as_uint(values.y * inverse) & 0xffff0000u |
         __float_as_uint(values.x * inverse) >> 16;
}

/// Casts a tile of queries or keys, and rounds them in place; each thread casts 16 columns of a
/// row.
template <int columns>
__device__ float cast_rows(Bf16* source, Index stride, int valid_rows, int dim,
                           std::uint8_t* target) {
  using Tile = Fp8Tile<fp8_tile_rows, columns>;
  constexpr int row_chunks = columns / 16;
  constexpr int each = fp8_tile_rows * row_chunks / fp8_cast_threads;
  uint4 values[each][2];
  std::uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < each; ++i) {
    const int unit = static_cast<int>(threadIdx.x) + i * fp8_cast_threads;
    const int row = unit / row_chunks;
    const int column = unit % row_chunks * 16;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int from = column + 8 * half;
      values[i][half] = row < valid_rows && from < dim
                            ? *reinterpret_cast<const uint4*>(source + row * stride + from)
                            : uint4{};
      raise_magnitude(largest, values[i][half].x);
      raise_magnitude(largest, values[i][half].y);
      raise_magnitude(largest, values[i][half].z);
      raise_magnitude(largest, values[i][half].w);
    }
  }
  const float scale = fp8_attention_scale(float_from_bits(block_maximum(largest)));
  const float inverse = power_of_two_inverse(scale);
  const auto four = [&](std::uint32_t& low, std::uint32_t& high) {
    const std::uint32_t pairs[] = {cast_pair<E4M3>(bf16_pair(low), scale),
                                   cast_pair<E4M3>(bf16_pair(high), scale)};
    low = rounded_pair(pairs[0], inverse);
    high = rounded_pair(pairs[1], inverse);
    return pairs[0] | pairs[1] << 16;
  };
#pragma unroll
  for (int i = 0; i < each; ++i) {
    const int unit = static_cast<int>(threadIdx.x) + i * fp8_cast_threads;
    const int row = unit / row_chunks;
    const int column = unit % row_chunks * 16;
    uint4& a = values[i][0];
    uint4& b = values[i][1];
    *reinterpret_cast<uint4*>(target + Tile::offset(row, unit % row_chunks)) =
        uint4{four(a.x, a.y), four(a.z, a.w), four(b.x, b.y), four(b.z, b.w)};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int from = column + 8 * half;
      if (row < valid_rows && from < dim)
        *reinterpret_cast<uint4*>(source + row * stride + from) = values[i][half];
    }
  }
  return inverse;
}

/// Casts and transposes a tile of values, and rounds them in place; each thread casts two columns
/// of 16 rows.
template <int columns>
__device__ float cast_columns(Bf16* source, Index stride, int valid_rows, int dim,
                              std::uint8_t* target) {
  using Tile = Fp8Tile<columns, fp8_tile_rows>;
  constexpr int pairs = columns / 2;
  constexpr int each = fp8_tile_rows / 16 * pairs / fp8_cast_threads;
  std::uint32_t values[each][16];
  std::uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < each; ++i) {
    const int unit = static_cast<int>(threadIdx.x) + i * fp8_cast_threads;
    const int column = unit % pairs * 2;
#pragma unroll
    for (int position = 0; position < 16; ++position) {
      const int row = unit / pairs * 16 + fp8_token_at(position);
      values[i][position] =
          row < valid_rows && column < dim
              ? *reinterpret_cast<const std::uint32_t*>(source + row * stride + column)
              : 0;
      raise_magnitude(largest, values[i][position]);
    }
  }
  const float scale = fp8_attention_scale(float_from_bits(block_maximum(largest)));
  const float inverse = power_of_two_inverse(scale);
#pragma unroll
  for (int i = 0; i < each; ++i) {
    const int unit = static_cast<int>(threadIdx.x) + i * fp8_cast_threads;
    const int column = unit % pairs * 2;
    std::uint32_t words[2][4] = {};
#pragma unroll
    for (int position = 0; position < 16; ++position) {
      const std::uint32_t pair = cast_pair<E4M3>(bf16_pair(values[i][position]), scale);
      words[0][position / 4] |= (pair & 0xffu) << (position % 4 * 8);
      words[1][position / 4] |= (pair >> 8) << (position % 4 * 8);
      const int row = unit / pairs * 16 + fp8_token_at(position);
      if (row < valid_rows && column < dim) {
        *reinterpret_cast<std::uint32_t*>(source + row * stride + column) =
            rounded_pair(pair, inverse);
      }
    }
#pragma unroll
    for (int side = 0; side < 2; ++side) {
      *reinterpret_cast<uint4*>(target + Tile::offset(column + side, unit / pairs)) =
          uint4{words[side][0], words[side][1], words[side][2], words[side][3]};
    }
  }
  return inverse;
}

/// Casts one tile of 128 tokens of a head in each block, and rounds it in place. Rows after the
/// sequence are zero.
template <int columns>
OCTAVO_KERNEL void __launch_bounds__(fp8_cast_threads)
    attention_cast_kernel(Bf16* qkv, Fp8Operands<columns> operands, AttentionGeometry geometry) {
  const int all_heads = geometry.heads + 2 * geometry.kv_heads;
  const int head = static_cast<int>(blockIdx.x) % all_heads;
  const int sequence = static_cast<int>(blockIdx.x) / all_heads;
  const int row = static_cast<int>(blockIdx.y) * fp8_tile_rows;
  Bf16* source = qkv + geometry.query(sequence, row, head);
  const Index number = operands.first(geometry, sequence, head) + blockIdx.y;
  std::uint8_t* target = operands.tile(number);
  const int valid_rows = geometry.tokens - row;
  const bool transposes = head >= geometry.heads + geometry.kv_heads;
  const float inverse =
      transposes
          ? cast_columns<columns>(source, geometry.stride(), valid_rows, geometry.head_dim, target)
          : cast_rows<columns>(source, geometry.stride(), valid_rows, geometry.head_dim, target);
  if (threadIdx.x == 0) operands.inverses[number] = inverse;
}

}  // namespace octavo::detail
