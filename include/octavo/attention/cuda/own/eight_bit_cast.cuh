/// @file
/// INT8 copies of rotated queries and keys and E4M3 copies of values, in the order in which the
/// 8-bit forward of attention reads them.
#pragma once

#include <octavo/attention/cuda/own/block.cuh>
#include <octavo/attention/cuda/own/eight_bit_tiles.cuh>
#include <octavo/kernels/cuda/cast/convert.cuh>

#include <cuda_fp8.h>

#include <cstdint>

namespace octavo OCTAVO_ABI::detail {

/// Threads of a block that casts a tile.
inline constexpr int eight_bit_cast_threads = 256;

/// The 8-bit copies of queries, keys and values in memory: tiles of 128 tokens, for each sequence
/// and each head, and the factor by which each tile's codes are multiplied: the inverse of its
/// scale, for queries divided by rotation_size. A tile of values is transposed.
template <int columns>
struct EightBitOperands {
  static constexpr int tile_bytes = eight_bit_tile_rows * columns;
  std::uint8_t* tiles;
  float* factors;
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
  __shared__ std::uint32_t warps[eight_bit_cast_threads / 32];
  const std::uint32_t warp = __reduce_max_sync(0xffffffffu, bits);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = warp;
  __syncthreads();
  std::uint32_t result = 0;
#pragma unroll
  for (const std::uint32_t one : warps) result = max(result, one);
  return result;
}

/// Returns two E4M3 values times `inverse`, which is a power of two, so that BF16 represents the
/// products exactly, or NaN.
__device__ inline std::uint32_t rounded_pair(std::uint32_t e4m3_pair, float inverse) {
  const auto pair = static_cast<__nv_fp8x2_storage_t>(e4m3_pair);
  const float2 values = __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(pair, __NV_E4M3)));
  return __float_as_uint(values.y * inverse) & 0xffff0000u |
         __float_as_uint(values.x * inverse) >> 16;
}

/// Returns the block's memory for a RotationTile.
__device__ inline uint4* rotation_memory() {
  extern __shared__ uint4 attention_rotation_memory[];
  return attention_rotation_memory;
}

/// Replaces values that are `distance` apart by their sum and their difference.
template <int distance, int count>
__device__ void add_and_subtract(float (&values)[count]) {
#pragma unroll
  for (int i = 0; i < count; ++i) {
    if ((i & distance) != 0) continue;
    const float a = values[i];
    const float b = values[i + distance];
    values[i] = a + b;
    values[i + distance] = a - b;
  }
}

/// 128 rows of a head in shared memory, in BF16, and their INT8 codes. Two neighbouring threads
/// compute with the halves of a row.
template <int columns>
struct RotationTile {
  static constexpr int chunks = columns / 8;  ///< of 16 bytes in a row
  static constexpr int rows_bytes = eight_bit_tile_rows * columns * 2;
  static constexpr int bytes = rows_bytes + eight_bit_tile_rows * columns;
  static constexpr int count = columns / 2;  ///< values of half a row
  static_assert(count == 32 || count == 64);

  uint4* memory;

  /// Returns the place of a chunk of a row. The order of chunks avoids conflicts of banks when
  /// eight threads access a chunk of their halves.
  [[nodiscard]] __device__ uint4& chunk(int row, int number) const {
    const int half = number / (chunks / 2);
    const int key = columns == 128 ? row % 4 * 2 + half : row % 4;
    return memory[row * chunks + (number ^ key)];
  }
  [[nodiscard]] __device__ uint4* codes() const { return memory + rows_bytes / 16; }

  /// Calls `body(row, chunk)` for each chunk of the rows, in the order of addresses.
  template <class Body>
  static __device__ void for_each_chunk(int valid_rows, int dim, const Body& body) {
#pragma unroll
    for (int i = 0; i < eight_bit_tile_rows * chunks / eight_bit_cast_threads; ++i) {
      const int unit = static_cast<int>(threadIdx.x) + i * eight_bit_cast_threads;
      const int row = unit / chunks;
      body(row, unit % chunks, row < valid_rows && unit % chunks * 8 < dim);
    }
  }
  /// Copies rows to the tile. Rows and columns that do not exist become 0.
  __device__ void load(const Bf16* source, Index stride, int valid_rows, int dim) const {
    for_each_chunk(valid_rows, dim, [&](int row, int number, bool exists) {
      chunk(row, number) =
          exists ? *reinterpret_cast<const uint4*>(source + row * stride + number * 8) : uint4{};
    });
    __syncthreads();
  }
  /// Copies the rows back.
  __device__ void store(Bf16* target, Index stride, int valid_rows, int dim) const {
    __syncthreads();
    for_each_chunk(valid_rows, dim, [&](int row, int number, bool exists) {
      if (exists) {
        *reinterpret_cast<uint4*>(target + row * stride + number * 8) = chunk(row, number);
      }
    });
  }

  static __device__ int row() { return static_cast<int>(threadIdx.x) / 2; }
  /// Returns the first chunk of the calling thread's half of its row.
  static __device__ int first_chunk() { return static_cast<int>(threadIdx.x) % 2 * (chunks / 2); }
  __device__ void read_half(float (&values)[count]) const {
#pragma unroll
    for (int i = 0; i < count / 8; ++i) {
      const uint4 words = chunk(row(), first_chunk() + i);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float2 pair = bf16_pair((&words.x)[j]);
        values[8 * i + 2 * j] = pair.x;
        values[8 * i + 2 * j + 1] = pair.y;
      }
    }
  }
  /// Writes the values times `factor`.
  __device__ void write_half(const float (&values)[count], float factor) const {
#pragma unroll
    for (int i = 0; i < count / 8; ++i) {
      uint4 words;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        (&words.x)[j] =
            pack_bf16(values[8 * i + 2 * j] * factor, values[8 * i + 2 * j + 1] * factor);
      }
      chunk(row(), first_chunk() + i) = words;
    }
  }
};

/// Multiplies groups of `size` columns by a Hadamard matrix of ±1; two neighbouring threads hold
/// the halves of a row. The order of the sums is that of the `Cpu` device.
/// @param size  a power of two: at most `count`, or 2 · count
template <int count>
__device__ void rotate_half(float (&values)[count], int size) {
  if (size > 1) add_and_subtract<1>(values);
  if (size > 2) add_and_subtract<2>(values);
  if (size > 4) add_and_subtract<4>(values);
  if (size > 8) add_and_subtract<8>(values);
  if (size > 16) add_and_subtract<16>(values);
  if constexpr (count > 32) {
    if (size > 32) add_and_subtract<32>(values);
  }
  if (size <= count) return;
#pragma unroll
  for (float& value : values) {
    const float other = __shfl_xor_sync(0xffffffffu, value, 1);
    value = threadIdx.x % 2 == 0 ? value + other : other - value;
  }
}

/// Rotates a tile of queries or keys, casts it to INT8, and replaces it by the rounded values.
/// Returns the factor of the codes: the inverse of the scale, divided by `divisor`, a power of two.
template <int columns>
__device__ float cast_rows(Bf16* source, Index stride, int valid_rows, int dim, float divisor,
                           std::uint8_t* target) {
  using Codes = EightBitTile<eight_bit_tile_rows, columns>;
  static_assert(eight_bit_cast_threads == 2 * eight_bit_tile_rows);
  const RotationTile<columns> tile{rotation_memory()};
  tile.load(source, stride, valid_rows, dim);
  float values[columns / 2];
  tile.read_half(values);
  rotate_half(values, rotation_size(dim));
  std::uint32_t largest = 0;
#pragma unroll
  for (const float value : values) largest = max(largest, __float_as_uint(value) & 0x7fffffffu);
  const EightBitScale scale(int8_code_max, float_from_bits(block_maximum(largest)));
#pragma unroll
  for (int i = 0; i < columns / 2; i += 16) {
    uint4 words{};
#pragma unroll
    for (int j = 0; j < 16; ++j) {
      float& value = values[i + j];
      value = fminf(fmaxf(rintf(value * scale.scale), -int8_code_max), int8_code_max);
      const auto code = static_cast<std::uint32_t>(static_cast<int>(value)) & 0xffu;
      (&words.x)[j / 4] |= code << (j % 4 * 8);
    }
    const int chunk = tile.first_chunk() / 2 + i / 16;
    tile.codes()[Codes::offset(tile.row(), chunk) / 16] = words;
  }
  const float factor = scale.inverse / divisor;
  tile.write_half(values, factor);
  tile.store(source, stride, valid_rows, dim);
  for (int i = static_cast<int>(threadIdx.x); i < Codes::bytes / 16; i += eight_bit_cast_threads) {
    reinterpret_cast<uint4*>(target)[i] = tile.codes()[i];
  }
  return factor;
}

/// Casts and transposes a tile of values, and rounds them in place; each thread casts two columns
/// of 16 rows.
template <int columns>
__device__ float cast_columns(Bf16* source, Index stride, int valid_rows, int dim,
                              std::uint8_t* target) {
  using Tile = EightBitTile<columns, eight_bit_tile_rows>;
  constexpr int pairs = columns / 2;
  constexpr int each = eight_bit_tile_rows / 16 * pairs / eight_bit_cast_threads;
  std::uint32_t values[each][16];
  std::uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < each; ++i) {
    const int unit = static_cast<int>(threadIdx.x) + i * eight_bit_cast_threads;
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
  const EightBitScale scale(FormatTraits<E4M3>::max, float_from_bits(block_maximum(largest)));
#pragma unroll
  for (int i = 0; i < each; ++i) {
    const int unit = static_cast<int>(threadIdx.x) + i * eight_bit_cast_threads;
    const int column = unit % pairs * 2;
    std::uint32_t words[2][4] = {};
#pragma unroll
    for (int position = 0; position < 16; ++position) {
      const std::uint32_t pair = cast_pair<E4M3>(bf16_pair(values[i][position]), scale.scale);
      words[0][position / 4] |= (pair & 0xffu) << (position % 4 * 8);
      words[1][position / 4] |= (pair >> 8) << (position % 4 * 8);
      const int row = unit / pairs * 16 + fp8_token_at(position);
      if (row < valid_rows && column < dim) {
        *reinterpret_cast<std::uint32_t*>(source + row * stride + column) =
            rounded_pair(pair, scale.inverse);
      }
    }
#pragma unroll
    for (int side = 0; side < 2; ++side) {
      *reinterpret_cast<uint4*>(target + Tile::offset(column + side, unit / pairs)) =
          uint4{words[side][0], words[side][1], words[side][2], words[side][3]};
    }
  }
  return scale.inverse;
}

/// Casts one tile of 128 tokens of a head in each block, and rounds it in place. Rows after the
/// sequence are zero.
template <int columns>
OCTAVO_KERNEL void __launch_bounds__(eight_bit_cast_threads, 2)
    attention_cast_kernel(Bf16* qkv, EightBitOperands<columns> operands,
                          AttentionGeometry geometry) {
  const int all_heads = geometry.heads + 2 * geometry.kv_heads;
  const int head = static_cast<int>(blockIdx.x) % all_heads;
  const int sequence = static_cast<int>(blockIdx.x) / all_heads;
  const int row = static_cast<int>(blockIdx.y) * eight_bit_tile_rows;
  Bf16* source = qkv + geometry.query(sequence, row, head);
  const Index number = operands.first(geometry, sequence, head) + blockIdx.y;
  std::uint8_t* target = operands.tile(number);
  const int valid_rows = geometry.tokens - row;
  const int dim = geometry.head_dim;
  float factor;
  if (head < geometry.heads + geometry.kv_heads) {
    const float divisor = head < geometry.heads ? static_cast<float>(rotation_size(dim)) : 1.0f;
    factor = cast_rows<columns>(source, geometry.stride(), valid_rows, dim, divisor, target);
  } else {
    factor = cast_columns<columns>(source, geometry.stride(), valid_rows, dim, target);
  }
  if (threadIdx.x == 0) operands.factors[number] = factor;
}

/// Converts gradients of rotated queries and keys to those of queries and keys, in place.
template <int columns>
OCTAVO_KERNEL void __launch_bounds__(eight_bit_cast_threads, 2)
    attention_rotate_gradients_kernel(Bf16* qkv_gradient, AttentionGeometry geometry) {
  const int rotated_heads = geometry.heads + geometry.kv_heads;
  const int head = static_cast<int>(blockIdx.x) % rotated_heads;
  const int sequence = static_cast<int>(blockIdx.x) / rotated_heads;
  const int row = static_cast<int>(blockIdx.y) * eight_bit_tile_rows;
  Bf16* const gradients = qkv_gradient + geometry.query(sequence, row, head);
  const int dim = geometry.head_dim;
  const int size = rotation_size(dim);
  const RotationTile<columns> tile{rotation_memory()};
  tile.load(gradients, geometry.stride(), geometry.tokens - row, dim);
  float values[columns / 2];
  tile.read_half(values);
  rotate_half(values, size);
  tile.write_half(values, head < geometry.heads ? 1.0f / static_cast<float>(size) : 1.0f);
  tile.store(gradients, geometry.stride(), geometry.tokens - row, dim);
}

}  // namespace octavo::detail
