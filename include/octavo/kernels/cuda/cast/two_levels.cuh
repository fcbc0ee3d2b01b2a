/// @file
/// Casts to E2M1 with two levels of scales, an E4M3 scale per block and an FP32 scale of the
/// tensor: NVFP4. Two elements share a byte. The scale of a copy's tensor depends on all of its
/// values, so copies are cast from values in memory.
#pragma once

#include <octavo/core/random.hpp>
#include <octavo/kernels/cuda/cast/counts.cuh>
#include <octavo/kernels/cuda/for_each.cuh>
#include <octavo/kernels/cuda/limits.hpp>
#include <octavo/kernels/hadamard.hpp>
#include <octavo/kernels/quantize.hpp>

namespace octavo OCTAVO_ABI::detail {

/// Elements of a block of scales along the reduced dimension.
inline constexpr int two_level_block = 16;
static_assert(two_level_block == hadamard_length);

/// Two adjacent values as E2M1, the first in the lower four bits.
__device__ inline std::uint32_t e2m1_pair(float first, float second) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000 && \
    (defined(__CUDA_ARCH_SPECIFIC__) || defined(__CUDA_ARCH_FAMILY_SPECIFIC__))
  std::uint16_t pair;
  asm("{\n.reg .b8 both;\ncvt.rn.satfinite.e2m1x2.f32 both, %2, %1;\n"
      "mov.b16 %0, {both, 0};\n}\n"
      : "=h"(pair)
      : "f"(first), "f"(second));
  return pair;
#else
  return std::uint32_t{E2M1(first).bits} | std::uint32_t{E2M1(second).bits} << 4;
#endif
}

/// The scale of a tensor and its inverse, from the amax of its values.
struct UpperScale {
  float scale, inverse;

  __device__ static UpperScale of(std::uint32_t amax_bits) {
    const float scale = two_level_scale(FormatTraits<E2M1>::max, float_from_bits(amax_bits));
    return {scale, __fdiv_rn(1.0f, scale)};
  }

  /// Returns the factor that a block is multiplied by before it is rounded, and writes its scale to
  /// `block`.
  __device__ float factor(float amax, E4M3& block) const {
    block = two_level_scale_inverse(FormatTraits<E2M1>::max, amax, scale);
    return two_level_factor(block, inverse);
  }
};

/// Returns the bits of the largest magnitude of a block.
__device__ inline std::uint32_t block_magnitude(const float (&values)[two_level_block]) {
  std::uint32_t largest = 0;
#pragma unroll
  for (const float value : values) largest = max(largest, float_bits(value) & 0x7fffffffu);
  return largest;
}

/// Casts 16 values with one factor, and counts them.
/// @param place  number of the first element in the copy, which selects its random numbers
template <ValueRounding Rounding>
__device__ uint2 cast_block(const float (&values)[two_level_block], float factor,
                            RandomStream random, Index place, CastTotals& totals) {
  std::uint32_t words[2] = {0, 0};
  Array<std::uint32_t, 4> drawn{};
#pragma unroll
  for (int i = 0; i < two_level_block; i += 2) {
    const float2 scaled = scaled_pair(make_float2(values[i], values[i + 1]), factor);
    std::uint32_t pair;
    if constexpr (Rounding == ValueRounding::stochastic) {
      if (i % run_size == 0) drawn = philox(random, static_cast<std::uint64_t>((place + i) / 8));
      const std::uint32_t bits = drawn[static_cast<std::size_t>(i % run_size / 2)];
      pair = std::uint32_t{E2M1::rounded_stochastically(scaled.x, bits).bits} |
             std::uint32_t{E2M1::rounded_stochastically(scaled.y, bits >> 16).bits} << 4;
    } else {
      pair = e2m1_pair(scaled.x, scaled.y);
    }
    words[i / run_size] |= pair << (i % run_size * 4);
    count_saturated<E2M1>(scaled, totals);
    totals.flushed += (pair & 0x07u) == 0 && values[i] != 0.0f ? 1u : 0u;
    totals.flushed += (pair & 0x70u) == 0 && values[i + 1] != 0.0f ? 1u : 0u;
  }
  return make_uint2(words[0], words[1]);
}

/// Arguments of the kernels that cast one matrix with two levels of scales.
template <class Granularity>
struct TwoLevelArguments {
  const Bf16* values;  ///< [rows, columns]
  Index rows;
  Index columns;
  QuantizedView<E2M1, Granularity, Layout::row_major, Cuda> row_major;    ///< or empty
  QuantizedView<E2M1, Granularity, Layout::transposed, Cuda> transposed;  ///< or empty
  ScalingSlot slot;        ///< `found_amax_bits` is the amax of the values to cast
  std::uint64_t number;    ///< see `Operand`
  std::uint32_t recorded;  ///< 1: the slot's count of casts already includes this one
  bool counts;             ///< whether to update the counters

  [[nodiscard]] __device__ RandomStream random(std::uint64_t copy) const {
    return {number, 2 * std::uint64_t{slot.scaling->position - recorded} + copy};
  }
};

/// Stores the upper scale of a copy, once.
template <class View>
__device__ void store_upper_scale(const View& copy, const UpperScale& scale) {
  const bool is_first = blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0;
  if (is_first && !copy.empty()) {
    *reinterpret_cast<float*>(copy.scale_inverses()) = scale.inverse;
  }
}

/// Stores 16 elements of a copy from element `place` on, a multiple of 16.
template <class View>
__device__ void store_block(const View& copy, Index place, uint2 block) {
  reinterpret_cast<uint2*>(copy.data())[place / two_level_block] = block;
}

/// Adds the totals of a block to the slot's counters. All threads must call it.
template <class Granularity>
__device__ void add_counts(const TwoLevelArguments<Granularity>& arguments,
                           const CastTotals& totals) {
  if (!arguments.counts) return;
  __shared__ BlockTotals block_totals;
  block_totals.put(totals);
  __syncthreads();
  if (threadIdx.x >= 32) return;
  const CastTotals block = block_totals.sum();
  if (threadIdx.x != 0) return;
  add_to_counter(arguments.slot.statistics->saturated, block.saturated);
  add_to_counter(arguments.slot.statistics->flushed, block.flushed);
}

/// Casts the row-major copy, one block of scales per thread.
template <ValueRounding Rounding, class Granularity>
OCTAVO_KERNEL void __launch_bounds__(quantize_threads)
    two_level_rows_kernel(const TwoLevelArguments<Granularity> arguments) {
  static_assert(Granularity::block_rows == 1);
  const auto upper = UpperScale::of(arguments.slot.scaling->found_amax_bits);
  const auto& copy = arguments.row_major;
  store_upper_scale(copy, upper);
  CastTotals totals{};
  const Index place = global_thread() * two_level_block;
  if (place < arguments.rows * arguments.columns) {
    float values[two_level_block];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const Floats floats = load_floats<true>(arguments.values + place + half * run_size, run_size);
#pragma unroll
      for (int i = 0; i < run_size; ++i) values[half * run_size + i] = floats.values[i];
    }
    E4M3 scale;
    const float factor = upper.factor(float_from_bits(block_magnitude(values)), scale);
    copy.scale_inverses()[scale_index<Granularity>(
        place / arguments.columns, place % arguments.columns, copy.outer(), copy.inner())] = scale;
    store_block(copy, place,
                cast_block<Rounding>(values, factor, arguments.random(0), place, totals));
  }
  add_counts(arguments, totals);
}

/// A tile of kernels that work along columns: a warp processes 16 rows, and a thread two columns.
inline constexpr int two_level_warps = quantize_threads / 32;
inline constexpr int two_level_tile_rows = two_level_warps * two_level_block;
inline constexpr int two_level_tile_columns = 64;

/// The two columns of 16 rows of a thread.
struct ColumnPair {
  int warp = static_cast<int>(threadIdx.x) / 32;  ///< also the index of its 16 rows in the tile
  int lane = static_cast<int>(threadIdx.x) % 32;
  Index row, column;  ///< first of them
  bool inside;
  std::uint32_t words[two_level_block] = {};

  __device__ ColumnPair(const Bf16* values, Index rows, Index columns)
      : row(Index{blockIdx.y} * two_level_tile_rows + warp * two_level_block),
        column(Index{blockIdx.x} * two_level_tile_columns + 2 * lane),
        inside(row < rows && column < columns) {
    if (!inside) return;
    const auto* first = reinterpret_cast<const std::uint32_t*>(values + row * columns + column);
#pragma unroll
    for (int i = 0; i < two_level_block; ++i) words[i] = first[i * columns / 2];
  }

  /// Returns the values of one of the columns.
  __device__ void read(int which, float (&values)[two_level_block]) const {
#pragma unroll
    for (int i = 0; i < two_level_block; ++i) {
      const float2 pair = bf16_pair(words[i]);
      values[i] = which == 0 ? pair.x : pair.y;
    }
  }
};

/// Blocks of the transposed copy of a tile, in shared memory, so that they are written in whole
/// ranges of 64 bytes.
struct TransposedTile {
  uint2 blocks[two_level_tile_columns][two_level_warps];

  /// Writes the tile. All threads must call it.
  template <class View>
  __device__ void store(const View& copy) const {
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int at = static_cast<int>(threadIdx.x) + i * quantize_threads;
      const Index column = Index{blockIdx.x} * two_level_tile_columns + at / two_level_warps;
      const Index row =
          Index{blockIdx.y} * two_level_tile_rows + at % two_level_warps * two_level_block;
      if (column < copy.outer() && row < copy.inner()) {
        store_block(copy, column * copy.inner() + row,
                    blocks[at / two_level_warps][at % two_level_warps]);
      }
    }
  }
};

/// Raises the slot's `found_amax_bits` to the largest magnitude of the rotated columns.
template <class Granularity>
OCTAVO_KERNEL void __launch_bounds__(quantize_threads)
    rotated_amax_kernel(const TwoLevelArguments<Granularity> arguments) {
  const ColumnPair pair(arguments.values, arguments.rows, arguments.columns);
  std::uint32_t largest = 0;
#pragma unroll
  for (int which = 0; which < 2; ++which) {
    float values[two_level_block];
    pair.read(which, values);
    rotate(values);
    largest = max(largest, block_magnitude(values));
  }
  largest = __reduce_max_sync(0xffffffffu, largest);
  if (pair.lane == 0) atomicMax(&arguments.slot.scaling->found_amax_bits, largest);
}

/// Casts the transposed copy of rotated columns.
template <ValueRounding Rounding, class Granularity>
OCTAVO_KERNEL void __launch_bounds__(quantize_threads)
    two_level_columns_kernel(const TwoLevelArguments<Granularity> arguments) {
  static_assert(Granularity::block_rows == 1);
  __shared__ TransposedTile transposed_tile;
  const auto upper = UpperScale::of(arguments.slot.scaling->found_amax_bits);
  const auto& copy = arguments.transposed;
  store_upper_scale(copy, upper);
  CastTotals totals{};
  const ColumnPair pair(arguments.values, arguments.rows, arguments.columns);
#pragma unroll
  for (int which = 0; which < 2; ++which) {
    float values[two_level_block];
    pair.read(which, values);
    rotate(values);
    E4M3 scale;
    const float factor = upper.factor(float_from_bits(block_magnitude(values)), scale);
    const Index column = pair.column + which;
    transposed_tile.blocks[2 * pair.lane + which][pair.warp] = cast_block<Rounding>(
        values, factor, arguments.random(1), column * arguments.rows + pair.row, totals);
    if (pair.inside) {
      copy.scale_inverses()[scale_index<Granularity>(column, pair.row, copy.outer(),
                                                     copy.inner())] = scale;
    }
  }
  transposed_tile.store(copy);
  add_counts(arguments, totals);
}

/// Casts both copies with a scale for each square of 16 × 16, so that both contain the same
/// numbers.
template <class Granularity>
OCTAVO_KERNEL void __launch_bounds__(quantize_threads)
    two_level_squares_kernel(const TwoLevelArguments<Granularity> arguments) {
  static_assert(Granularity::block_rows == two_level_block);
  constexpr int lanes = two_level_block / 2;  // that share a square
  __shared__ TransposedTile transposed_tile;
  const auto upper = UpperScale::of(arguments.slot.scaling->found_amax_bits);
  store_upper_scale(arguments.row_major, upper);
  store_upper_scale(arguments.transposed, upper);
  CastTotals totals{};
  const ColumnPair pair(arguments.values, arguments.rows, arguments.columns);
  std::uint32_t magnitudes = 0;
#pragma unroll
  for (const std::uint32_t word : pair.words) magnitudes = larger_magnitudes(magnitudes, word);
  std::uint32_t largest = magnitude_bits(magnitudes);
#pragma unroll
  for (int distance = lanes / 2; distance > 0; distance /= 2) {
    largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, distance));
  }
  E4M3 scale;
  const float factor = upper.factor(float_from_bits(largest), scale);
  uint2 blocks[2];
#pragma unroll
  for (int which = 0; which < 2; ++which) {
    float values[two_level_block];
    pair.read(which, values);
    blocks[which] = cast_block<ValueRounding::nearest_even>(values, factor, {}, pair.row, totals);
    transposed_tile.blocks[2 * pair.lane + which][pair.warp] = blocks[which];
  }
  const auto& rows = arguments.row_major;
  if (pair.inside && !rows.empty()) {
    auto* bytes = reinterpret_cast<std::uint8_t*>(rows.data());
#pragma unroll
    for (int i = 0; i < two_level_block; ++i) {
      const auto element = [&](const uint2& block) {
        return (i < run_size ? block.x : block.y) >> (i % run_size * 4) & 0xfu;
      };
      bytes[((pair.row + i) * arguments.columns + pair.column) / 2] =
          static_cast<std::uint8_t>(element(blocks[0]) | element(blocks[1]) << 4);
    }
  }
  const auto store_scale = [&](const auto& copy, Index row, Index column) {
    if (copy.empty() || !pair.inside || pair.lane % lanes != 0) return;
    copy.scale_inverses()[scale_index<Granularity>(row, column, copy.outer(), copy.inner())] =
        scale;
  };
  store_scale(rows, pair.row, pair.column);
  store_scale(arguments.transposed, pair.column, pair.row);
  if (!arguments.transposed.empty()) transposed_tile.store(arguments.transposed);
  add_counts(arguments, totals);
}

/// Records an operand whose amax is in `found_amax_bits`.
struct RecordTwoLevels {
  ScalingSlot slot;
  Index elements;
  bool counts_casts;

  __device__ void operator()(Index) const {
    *slot.amax_bits = max(*slot.amax_bits, slot.scaling->found_amax_bits);
    slot.statistics->elements += static_cast<std::uint64_t>(elements);
    if (counts_casts) ++slot.scaling->position;
  }
};

/// Enqueues the kernels that cast an operand with two levels of scales from its values.
/// @param write_values  see write_operand
/// @throws ShapeError if a copy's rows do not consist of whole blocks, or values are not aligned
template <QuantizedPrecision P, OperandKind Kind, class WriteValues>
void cast_by_two_levels(const char* name, const Operand<P, Kind, Cuda>& operand,
                        const WriteValues& write_values, const Context<Cuda>& context) {
  using S = typename PrecisionTraits<P>::ScalingType;
  using Granularity = OperandGranularity<P, Kind>;
  constexpr bool is_square = Granularity::block_rows > 1;
  constexpr ValueRounding rounding = value_rounding<S, Kind>;
  constexpr bool is_random = rounding == ValueRounding::stochastic;
  const Index rows = operand.values.extent(0);
  const Index columns = operand.values.extent(1);
  const bool turns = !operand.transposed.empty();
  require<ShapeError>(
      columns % two_level_block == 0 && (rows % two_level_block == 0 || !(turns || is_square)),
      name, ": rows and columns of an NVFP4 operand must be multiples of 16 on Cuda, but are ",
      rows, " and ", columns, "; change the number of tokens or the layer's sizes");
  require<ShapeError>(is_vector_aligned(operand.values.data()), name,
                      ": the values of an NVFP4 operand must be aligned to 16 bytes");
  std::uint32_t* amax_bits = &operand.slot.scaling->found_amax_bits;
  fill_zero(amax_bits, sizeof(*amax_bits), context);
  write_values(amax_bits);
  if (operand.record) {
    for_each_index(name, 1, context,
                   RecordTwoLevels{operand.slot, operand.values.size(), is_random});
  }
  if (operand.values.size() == 0) return;
  TwoLevelArguments<Granularity> arguments{
      operand.values.data(), rows,         columns,        operand.row_major,
      operand.transposed,    operand.slot, operand.number, is_random && operand.record ? 1u : 0u,
      operand.record};
  const auto enqueue = [&](auto* kernel, dim3 blocks) {
    launch(name, kernel, blocks, quantize_threads, 0, context, arguments);
  };
  const dim3 tiles(static_cast<unsigned>(ceil_divide(columns, Index{two_level_tile_columns})),
                   static_cast<unsigned>(ceil_divide(rows, Index{two_level_tile_rows})));
  if constexpr (is_square) {
    if (turns || !operand.row_major.empty()) {
      enqueue(two_level_squares_kernel<Granularity>, tiles);
    }
  } else {
    if (!operand.row_major.empty()) {
      const Index blocks = ceil_divide(rows * columns, Index{two_level_block * quantize_threads});
      enqueue(two_level_rows_kernel<rounding, Granularity>, dim3(static_cast<unsigned>(blocks)));
      arguments.counts = false;
    }
    if (turns) {
      fill_zero(amax_bits, sizeof(*amax_bits), context);
      enqueue(rotated_amax_kernel<Granularity>, tiles);
      enqueue(two_level_columns_kernel<rounding, Granularity>, tiles);
    }
  }
}

}  // namespace octavo::detail
