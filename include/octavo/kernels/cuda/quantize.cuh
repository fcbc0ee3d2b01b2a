/// @file
/// Quantisation on the `Cuda` device: equal to the `Cpu` device's to the bit. Compile it without
/// --use_fast_math, which rounds divisions differently.
///
/// A *source* is what makes the values of an operand: the values themselves, read from memory
/// (MatrixSource), or a formula on a kernel's inputs, such as SwiGLU. All kernels that end in an
/// operand describe themselves as a source and call `produce`, which writes what the operand's
/// precision needs in as few passes as it allows: the values (dense), the values and then the
/// copies (tensorwise, whose scale is known last; blocks that span two parts), or the copies alone
/// (delayed and other block scales).
#pragma once

#include <octavo/kernels/cuda/run.cuh>
#include <octavo/kernels/quantize.hpp>

#include <cuda_fp8.h>

#include <cstddef>

namespace octavo {
namespace detail {

inline constexpr int quantize_threads = 256;
/// Blocks of tiles that a multiprocessor shall hold at once: it bounds the registers of a thread.
inline constexpr int tiles_at_once = 3;
/// Rows and columns that one block of threads casts and transposes; a multiple of every block size.
inline constexpr int tile_side = 128;
inline constexpr int tile_runs = tile_side / run_size;  // a row
inline constexpr int tile_rows_at_once = quantize_threads / tile_runs;
inline constexpr int tile_rounds = tile_side / tile_rows_at_once;
/// Rows of one column of the transposed copy that one thread writes at once: 16 bytes of FP8.
inline constexpr int column_size = 16;
inline constexpr int columns_a_tile = tile_side / column_size;
/// Rows that one thread works on at once where only values are written.
inline constexpr int value_rows = 4;
/// Loads of 16 bytes that one thread has in flight while it looks for the amax.
inline constexpr int amax_loads = 4;

/// What a source makes at once: a run in each of its parts. A source of two parts makes two
/// matrices of equal shape that stand beside each other, such as the gradients of gates and ups.
template <class T, int Parts>
struct Produced {
  Run<T> parts[Parts];
};

/// The source that reads the values from memory.
template <class T>
struct MatrixSource {
  static constexpr int parts = 1;
  static constexpr int rounds_in_flight = 8;  ///< calls of `run` to start before the first is used
  const T* values;                            ///< [rows, columns]
  Index columns;

  /// Whether `run` may be called with Vectors.
  [[nodiscard]] bool vectors() const { return rows_are_vectors(columns, values); }

  /// The values of `row` from `column` on, then zeros; `count` of them, or a run if that is larger.
  template <bool Vectors>
  __device__ Produced<T, 1> run(Index row, Index column, Index count) const {
    return {{load_run<Vectors>(values + row * columns + column, count)}};
  }
};

// ---- counting -----------------------------------------------------------------------------------

/// What one thread, one warp or one block of threads counted.
struct CastTotals {
  std::uint32_t amax_bits;  ///< bits of max |x|
  std::uint32_t saturated;
  std::uint32_t flushed;
};

/// The larger of each pair of BF16 magnitudes.
__device__ inline std::uint32_t larger_magnitudes(std::uint32_t largest, std::uint32_t pair) {
  return __vmaxu2(largest, pair & 0x7fff7fffu);
}

__device__ inline std::uint32_t larger_magnitudes(std::uint32_t largest, const Run<Bf16>& run) {
#pragma unroll
  for (const std::uint32_t word : run.words) largest = larger_magnitudes(largest, word);
  return largest;
}

/// FP32 bits of the larger of two BF16 magnitudes.
__device__ inline std::uint32_t magnitude_bits(std::uint32_t pair) {
  return max(pair << 16, pair & 0xffff0000u);
}

/// Adds a warp's totals to its block's. All threads of the warp must call it.
__device__ inline void add_to_block(const CastTotals& totals, CastTotals& block) {
  const std::uint32_t amax = __reduce_max_sync(0xffffffffu, totals.amax_bits);
  const std::uint32_t saturated = __reduce_add_sync(0xffffffffu, totals.saturated);
  const std::uint32_t flushed = __reduce_add_sync(0xffffffffu, totals.flushed);
  if (threadIdx.x % 32 != 0) return;
  atomicMax(&block.amax_bits, amax);
  atomicAdd(&block.saturated, saturated);
  atomicAdd(&block.flushed, flushed);
}

__device__ inline void add_to_counter(std::uint64_t& counter, std::uint32_t count) {
  if (count != 0) atomicAdd(reinterpret_cast<unsigned long long*>(&counter), count);
}

/// Raises `target` to `bits`. Most blocks find it high enough, and need no atomic.
__device__ inline void raise_amax(std::uint32_t* target, std::uint32_t bits) {
  if (bits > __ldcg(target)) atomicMax(target, bits);
}

/// Raises `target` to the bits of the largest of the block's magnitudes. All threads must call it.
__device__ inline void raise_to_block_amax(std::uint32_t magnitudes, std::uint32_t* target) {
  __shared__ std::uint32_t block;
  if (threadIdx.x == 0) block = 0;
  __syncthreads();
  const std::uint32_t warp = __reduce_max_sync(0xffffffffu, magnitude_bits(magnitudes));
  if (threadIdx.x % 32 == 0) atomicMax(&block, warp);
  __syncthreads();
  if (threadIdx.x == 0) raise_amax(target, block);
}

// ---- casting ------------------------------------------------------------------------------------

template <class Format>
inline constexpr __nv_fp8_interpretation_t cuda_fp8_kind = __NV_E4M3;
template <>
inline constexpr __nv_fp8_interpretation_t cuda_fp8_kind<E5M2> = __NV_E5M2;

/// Two values by the scale they are cast with.
__device__ inline float2 scaled_pair(float2 values, float scale) {
  return make_float2(__fmul_rn(values.x, scale), __fmul_rn(values.y, scale));
}

/// Casts two values to two bytes.
template <class Format>
__device__ std::uint32_t cast_pair(float2 values, float scale) {
  return __nv_cvt_float2_to_fp8x2(scaled_pair(values, scale), __NV_SATFINITE,
                                  cuda_fp8_kind<Format>);
}

/// Counts what was saturated of two scaled values.
template <class Format>
__device__ void count_saturated(float2 scaled, CastTotals& totals) {
  totals.saturated += !(fabsf(scaled.x) <= FormatTraits<Format>::max) ? 1u : 0u;
  totals.saturated += !(fabsf(scaled.y) <= FormatTraits<Format>::max) ? 1u : 0u;
}

/// Counts in two values that were cast to the two low bytes of `cast`.
template <class Format>
__device__ void count_pair(float2 values, float scale, std::uint32_t cast, CastTotals& totals) {
  count_saturated<Format>(scaled_pair(values, scale), totals);
  totals.flushed += (cast & 0x7fu) == 0 && values.x != 0.0f ? 1u : 0u;
  totals.flushed += (cast & 0x7f00u) == 0 && values.y != 0.0f ? 1u : 0u;
}

/// Bit 7 of each byte of a flag word stands for one of four bytes or BF16 values.
inline constexpr std::uint32_t byte_flags = 0x80808080u;

/// Flags bytes of FP8 that are not zero; other bits are undefined.
__device__ inline std::uint32_t flag_not_zero(std::uint32_t bytes) {
  return (bytes & ~byte_flags) + ~byte_flags;
}

/// Flags BF16 values, two in each word, that are not zero; other bits are undefined.
__device__ inline std::uint32_t flag_not_zero(std::uint32_t first, std::uint32_t second) {
  constexpr std::uint32_t magnitudes = 0x7fff7fffu;
  return __byte_perm((first & magnitudes) + magnitudes, (second & magnitudes) + magnitudes, 0x7531);
}

/// Flags bytes of FP8 that are the format's largest value, Inf or NaN; other bits are undefined.
template <class Format>
__device__ std::uint32_t flag_largest(std::uint32_t bytes) {
  constexpr std::uint32_t largest = Format(FormatTraits<Format>::max).bits;
  return (bytes & ~byte_flags) + (0x80u - largest) * 0x01010101u;
}

/// Counts in a run and what it was cast to. Most runs need no more than the first tests: what was
/// flushed became zero, and what was saturated the format's largest value or NaN.
template <class Format>
__device__ void count_run(const Run<Bf16>& run, float scale, const Run<Format>& cast,
                          CastTotals& totals) {
  const std::uint32_t kept[2] = {flag_not_zero(cast.words[0]), flag_not_zero(cast.words[1])};
  const std::uint32_t largest =
      flag_largest<Format>(cast.words[0]) | flag_largest<Format>(cast.words[1]);
  if ((kept[0] & kept[1] & ~largest & byte_flags) == byte_flags) return;
  const std::uint32_t flushed[2] = {
      flag_not_zero(run.words[0], run.words[1]) & ~kept[0] & byte_flags,
      flag_not_zero(run.words[2], run.words[3]) & ~kept[1] & byte_flags};
  totals.flushed += static_cast<std::uint32_t>(__popc(flushed[0] | flushed[1] >> 1));
  if ((largest & byte_flags) == 0) return;
#pragma unroll
  for (const std::uint32_t word : run.words) {
    count_saturated<Format>(scaled_pair(bf16_pair(word), scale), totals);
  }
}

/// Casts a run and counts in it.
template <class Format>
__device__ Run<Format> cast_run(const Run<Bf16>& run, float scale, CastTotals& totals) {
  Run<Format> result{};
#pragma unroll
  for (int i = 0; i < Run<Bf16>::words_a_run; ++i) {
    result.words[i / 2] |= cast_pair<Format>(bf16_pair(run.words[i]), scale) << (i % 2 * 16);
  }
  count_run<Format>(run, scale, result, totals);
  return result;
}

/// Takes back the counts of elements beyond the matrix, of `elements` that one thread cast of which
/// `count` lie within: a NaN scale, that of an MX block which holds a NaN, makes NaN of their zeros
/// too. Other scales count nothing there.
__device__ inline void discount_beyond(Index count, int elements, float scale, CastTotals& totals) {
  if (!isnan(scale)) return;
  const Index within = min(max(count, Index{0}), Index{elements});
  totals.saturated -= static_cast<std::uint32_t>(elements - within);
}

/// `column_size` elements of one column of a tile, one below the other.
struct Column {
  std::uint32_t words[column_size / 4];
};

/// Writes the first `count` elements to `target`; all of them if `count` is larger.
/// @tparam Vectors  `target` is aligned to 16 bytes and `count` is a multiple of `column_size`
template <bool Vectors, class Format>
__device__ void store_column(Format* target, Index count, const Column& column) {
  if constexpr (Vectors) {
    if (count > 0) {
      *reinterpret_cast<uint4*>(target) =
          make_uint4(column.words[0], column.words[1], column.words[2], column.words[3]);
    }
  } else {
#pragma unroll
    for (int i = 0; i < column_size; ++i) {
      if (i < count) target[i].bits = static_cast<std::uint8_t>(column.words[i / 4] >> (i % 4 * 8));
    }
  }
}

/// Bytes of four rows, four columns each, to four columns of four rows.
__device__ inline uint4 transpose_bytes(uint4 rows) {
  const std::uint32_t low01 = __byte_perm(rows.x, rows.y, 0x5140);
  const std::uint32_t high01 = __byte_perm(rows.x, rows.y, 0x7362);
  const std::uint32_t low23 = __byte_perm(rows.z, rows.w, 0x5140);
  const std::uint32_t high23 = __byte_perm(rows.z, rows.w, 0x7362);
  return make_uint4(__byte_perm(low01, low23, 0x5410), __byte_perm(low01, low23, 0x7632),
                    __byte_perm(high01, high23, 0x5410), __byte_perm(high01, high23, 0x7632));
}

// ---- tiles --------------------------------------------------------------------------------------

/// What the kernels of this file write.
template <class Format, class Granularity>
struct CastArguments {
  QuantizedView<Format, Granularity, Layout::row_major, Cuda> row_major;    ///< or empty
  QuantizedView<Format, Granularity, Layout::transposed, Cuda> transposed;  ///< or empty
  Index rows;
  Index columns;       ///< of all parts together
  Index part_columns;  ///< of one part
  ScalingSlot* slot;
  bool record;
  bool finds_scale;   ///< by current scaling, from the amax that the slot holds: see write_scale
  bool power_of_two;  ///< rounding of the scale that is found
};

/// The first row and column of a block's tile; columns count within one part. The last tile comes
/// first: what wrote or read the values just before ended there, so that they may still be in L2.
struct TilePlace {
  Index row;
  Index column;

  __device__ explicit TilePlace(unsigned tiles_across) {
    const unsigned tile = gridDim.x - 1 - blockIdx.x;
    row = Index{tile / tiles_across} * tile_side;
    column = Index{tile % tiles_across} * tile_side;
  }
};

/// Where a thread stands in its tile while it works along rows: a run, in every 16th row.
struct RowPosition {
  int run = static_cast<int>(threadIdx.x) % tile_runs;
  int row = static_cast<int>(threadIdx.x) / tile_runs;
};

/// Where a thread stands in its tile while it works down columns: four columns of 16 rows. Eight
/// neighbouring threads work on the same four columns, so that a warp writes whole runs of 128
/// bytes.
struct ColumnPosition {
  int group = static_cast<int>(threadIdx.x) % columns_a_tile;
  int word = static_cast<int>(threadIdx.x) / columns_a_tile;
};

/// A tile of FP8 bytes in shared memory. Units of 16 bytes are swapped within a row by the row's
/// position, so that threads that read down 8 groups of rows meet 8 different sets of banks.
struct ByteTile {
  uint4 units[tile_side][tile_side / 16];

  __device__ uint2& run(int row, int run) {
    return reinterpret_cast<uint2*>(&units[row][(run / 2) ^ (row / column_size)])[run % 2];
  }
  /// Four columns of one row.
  __device__ std::uint32_t word(int row, int word) const {
    return reinterpret_cast<const std::uint32_t*>(
        &units[row][(word / 4) ^ (row / column_size)])[word % 4];
  }
};

/// A tile of BF16 values in shared memory, with units swapped as in ByteTile.
struct ValueTile {
  uint4 units[tile_side][tile_runs];

  __device__ uint4& run(int row, int run) { return units[row][run ^ (row / column_size)]; }
  /// Four columns of one row.
  __device__ uint2 four(int row, int word) const {
    return reinterpret_cast<const uint2*>(&units[row][(word / 2) ^ (row / column_size)])[word % 2];
  }
};

/// Dynamic shared memory of the kernels below: a tile for each part.
extern __shared__ uint4 tile_memory[];

/// Calls `body(tile row, count, produced)` for the thread's run in every round of the tile: `count`
/// of its elements lie within the matrix.
template <bool Vectors, class Source, class Body>
__device__ void for_each_round(const Source& source, TilePlace place, Index rows,
                               Index part_columns, const Body& body) {
  constexpr int batch = Vectors ? Source::rounds_in_flight : 2;
  const RowPosition position;
  const Index column = place.column + position.run * run_size;
  // In 32 bits, to save registers for what is in flight.
  const int rows_inside = static_cast<int>(min(rows - place.row, Index{tile_side}));
  const int columns_inside = static_cast<int>(min(part_columns - column, Index{run_size}));
  const auto count = [&](int tile_row) { return tile_row < rows_inside ? columns_inside : 0; };
#pragma unroll 1
  for (int begin = 0; begin < tile_rounds; begin += batch) {
    decltype(source.template run<Vectors>(0, 0, 0)) produced[batch];
#pragma unroll
    for (int i = 0; i < batch; ++i) {
      const int tile_row = position.row + (begin + i) * tile_rows_at_once;
      produced[i] = source.template run<Vectors>(place.row + tile_row, column, count(tile_row));
    }
#pragma unroll
    for (int i = 0; i < batch; ++i) {
      const int tile_row = position.row + (begin + i) * tile_rows_at_once;
      body(tile_row, count(tile_row), produced[i]);
    }
  }
}

/// Adds a block's totals to the slot. All threads must call it.
template <class Format, class Granularity>
__device__ void add_to_slot(const CastArguments<Format, Granularity>& arguments,
                            const CastTotals& totals) {
  __shared__ CastTotals block;
  if (threadIdx.x == 0) block = {};
  __syncthreads();
  add_to_block(totals, block);
  __syncthreads();
  if (threadIdx.x != 0) return;
  ScalingSlot& slot = *arguments.slot;
  if (blockIdx.x == 0) {
    slot.elements += static_cast<std::uint64_t>(arguments.rows * arguments.columns);
  }
  if (!arguments.finds_scale) {
    raise_amax(&slot.amax_bits, block.amax_bits);
    raise_amax(&slot.last_amax_bits, block.amax_bits);
  }
  if (arguments.row_major.empty() && arguments.transposed.empty()) return;
  add_to_counter(slot.saturated, block.saturated);
  add_to_counter(slot.flushed, block.flushed);
}

// ---- one scale a tensor -------------------------------------------------------------------------

/// Writes 16 rows of four columns of a tile of bytes to the transposed copy.
/// @param tile_row     the first row in the tile; a multiple of `column_size`
/// @param word         the columns' word in the tile
/// @param first_row    the tile's first row in the copied matrix
/// @param column       the first of the columns in the copied matrix
/// @param end_column   first column that is not written
template <bool Vectors, class Format, class Tile>
__device__ void store_tile_columns(const CastArguments<Format, PerTensor>& arguments, Tile& tile,
                                   int tile_row, int word, Index first_row, Index column,
                                   Index end_column) {
  Column columns[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = tile_row + i * 4;
    const uint4 turned =
        transpose_bytes(make_uint4(tile.word(row, word), tile.word(row + 1, word),
                                   tile.word(row + 2, word), tile.word(row + 3, word)));
    columns[0].words[i] = turned.x;
    columns[1].words[i] = turned.y;
    columns[2].words[i] = turned.z;
    columns[3].words[i] = turned.w;
  }
  const Index row = first_row + tile_row;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (column + i >= end_column) continue;
    store_column<Vectors>(arguments.transposed.data() + (column + i) * arguments.rows + row,
                          arguments.rows - row, columns[i]);
  }
}

/// Writes the scale of current scaling to the slot, once no block needs the amax any more, which
/// stands where the scale's inverse will be: until then the place of the scale counts the blocks
/// that are done. All threads of the block must have read the amax.
template <class Format>
__device__ void write_scale(const CastArguments<Format, PerTensor>& arguments) {
  if (threadIdx.x != 0) return;
  ScalingSlot& slot = *arguments.slot;
  __threadfence();
  const unsigned done = atomicAdd(reinterpret_cast<unsigned*>(&slot.scale), 1u);
  if (done + 1 != gridDim.x) return;
  const float amax = slot.scale_inverse;
  slot.scale = current_scale(FormatTraits<Format>::max, amax, arguments.power_of_two);
  slot.scale_inverse = __fdiv_rn(1.0f, slot.scale);
  if (!arguments.record) return;
  slot.amax_bits = max(slot.amax_bits, float_bits(amax));
  slot.last_amax_bits = float_bits(amax);
}

/// Casts one tile a block by one scale, and transposes its bytes.
/// @tparam FindsScale    by current scaling, from the amax that the slot holds: see write_scale
/// @param tiles_across  tiles from left to right in one part
template <bool Vectors, bool FindsScale, class Format, class Source>
OCTAVO_KERNEL void __launch_bounds__(quantize_threads, tiles_at_once)
    cast_kernel(const CastArguments<Format, PerTensor> arguments, const Source source,
                unsigned tiles_across) {
  auto* tiles = reinterpret_cast<ByteTile*>(tile_memory);
  const TilePlace place(tiles_across);
  const int run = RowPosition().run;
  const float scale_or_amax = FindsScale ? arguments.slot->scale_inverse : arguments.slot->scale;
  CastTotals totals{};
  std::uint32_t magnitudes = 0;
  for_each_round<Vectors>(
      source, place, arguments.rows, arguments.part_columns,
      [&](int tile_row, int count, const Produced<Bf16, Source::parts>& produced) {
        // Found here, so that what is read first does not wait for the amax.
        const float scale = FindsScale ? current_scale(FormatTraits<Format>::max, scale_or_amax,
                                                       arguments.power_of_two)
                                       : scale_or_amax;
#pragma unroll
        for (int part = 0; part < Source::parts; ++part) {
          magnitudes = larger_magnitudes(magnitudes, produced.parts[part]);
          const Run<Format> cast = cast_run<Format>(produced.parts[part], scale, totals);
          tiles[part].run(tile_row, run) = make_uint2(cast.words[0], cast.words[1]);
          if (arguments.row_major.empty()) continue;
          const Index column = part * arguments.part_columns + place.column + run * run_size;
          store_run<Vectors>(
              arguments.row_major.data() + (place.row + tile_row) * arguments.columns + column,
              count, cast);
        }
      });
  __syncthreads();
  if (!arguments.transposed.empty()) {
    const ColumnPosition position;
#pragma unroll
    for (int part = 0; part < Source::parts; ++part) {
      const Index first_column = part * arguments.part_columns;
      store_tile_columns<Vectors>(
          arguments, tiles[part], position.group * column_size, position.word, place.row,
          first_column + place.column + position.word * 4, first_column + arguments.part_columns);
    }
  }
  if constexpr (FindsScale) write_scale(arguments);
  if (!arguments.record) return;
  totals.amax_bits = magnitude_bits(magnitudes);
  add_to_slot(arguments, totals);
}

// ---- a scale a block ----------------------------------------------------------------------------

/// The factor to cast a block with; its inverse goes to `scale_inverse`.
template <class S, class Format, class Scale>
__device__ float find_block_scale(std::uint32_t amax_bits, Scale& scale_inverse) {
  constexpr float largest = FormatTraits<Format>::max;
  const float amax = __uint_as_float(amax_bits);
  if constexpr (std::is_same_v<Scale, E8M0>) {
    scale_inverse = mx_scale_inverse(largest, amax);
    return mx_scale(scale_inverse);
  } else {
    const float scale = current_scale(largest, amax, S::rounding == ScaleRounding::power_of_two);
    scale_inverse = __fdiv_rn(1.0f, scale);
    return scale;
  }
}

/// The largest pair of magnitudes of `Lanes` neighbouring threads.
template <int Lanes>
__device__ std::uint32_t lanes_magnitudes(std::uint32_t magnitudes) {
#pragma unroll
  for (int distance = Lanes / 2; distance > 0; distance /= 2) {
    magnitudes = __vmaxu2(magnitudes, __shfl_xor_sync(0xffffffffu, magnitudes, distance));
  }
  return magnitudes;
}

/// Finds the scales of `Count` blocks, whose amaxes `Lanes` neighbouring threads all know: each
/// thread finds a part of them, and hears the others.
/// @param store  `store(i, scale_inverse)` is called by the one thread that found scale `i`
template <class S, class Format, class Scale, int Lanes, int Count, class Store>
__device__ void find_block_scales(const std::uint32_t (&amax_bits)[Count], float (&scales)[Count],
                                  const Store& store) {
  const int lane = static_cast<int>(threadIdx.x) % Lanes;
#pragma unroll
  for (int first = 0; first < Count; first += Lanes) {
    std::uint32_t own = 0;
#pragma unroll
    for (int i = first; i < Count && i < first + Lanes; ++i) {
      if (i == first + lane) own = amax_bits[i];
    }
    Scale inverse;
    const float scale = find_block_scale<S, Format>(own, inverse);
    if (first + lane < Count) store(first + lane, inverse);
#pragma unroll
    for (int i = first; i < Count && i < first + Lanes; ++i) {
      scales[i] = __shfl_sync(0xffffffffu, scale, i - first, Lanes);
    }
  }
}

/// The scale of a block of 128 × 128, one for both copies. All threads of the block must call it.
template <class S, class Format, class Granularity>
__device__ float square_scale(const CastArguments<Format, Granularity>& arguments, TilePlace place,
                              std::uint32_t magnitudes) {
  static_assert(Granularity::block_rows == tile_side && Granularity::block_columns == tile_side);
  __shared__ std::uint32_t amax_bits;
  if (threadIdx.x == 0) amax_bits = 0;
  __syncthreads();
  const std::uint32_t warp = __reduce_max_sync(0xffffffffu, magnitude_bits(magnitudes));
  if (threadIdx.x % 32 == 0) atomicMax(&amax_bits, warp);
  __syncthreads();
  float inverse;
  const float scale = find_block_scale<S, Format>(amax_bits, inverse);
  if (threadIdx.x == 0) {
    const auto store = [&](const auto& copy, Index row, Index column) {
      if (copy.empty()) return;
      const Index index = scale_index<Granularity>(row, column, copy.outer(), copy.inner());
      copy.scale_inverses()[index] = inverse;
    };
    store(arguments.row_major, place.row, place.column);
    store(arguments.transposed, place.column, place.row);
  }
  return scale;
}

/// Casts a tile to the row-major copy.
/// @param tile_scale  of the tile; not used where blocks lie within a row
template <class S, bool Vectors, class Format, class Granularity>
__device__ void cast_tile_rows(const CastArguments<Format, Granularity>& arguments, TilePlace place,
                               Index first_column, ValueTile& tile, float tile_scale,
                               CastTotals& totals) {
  using Scale = typename Granularity::Scale;
  constexpr int lanes = Granularity::block_columns / run_size;  // threads that share a block
  const auto& copy = arguments.row_major;
  const RowPosition position;
  const Index part_column = place.column + position.run * run_size;
  const Index column = first_column + part_column;
  const auto tile_row = [&](int round) { return position.row + round * tile_rows_at_once; };
  const auto count = [&](int round) {
    return place.row + tile_row(round) < arguments.rows ? arguments.part_columns - part_column : 0;
  };
  const auto run = [&](int round) {
    const uint4 words = tile.run(tile_row(round), position.run);
    return Run<Bf16>{{words.x, words.y, words.z, words.w}};
  };
  float scales[tile_rounds];
  if constexpr (Granularity::block_rows == 1) {
    std::uint32_t amax_bits[tile_rounds];
#pragma unroll
    for (int i = 0; i < tile_rounds; ++i) {
      amax_bits[i] = magnitude_bits(lanes_magnitudes<lanes>(larger_magnitudes(0, run(i))));
    }
    // A thread beyond the matrix may find the scale of a block that begins within it.
    const Index block_column = part_column - position.run % lanes * run_size;
    find_block_scales<S, Format, Scale, lanes>(amax_bits, scales, [&](int round, Scale inverse) {
      if (place.row + tile_row(round) >= arguments.rows || block_column >= arguments.part_columns) {
        return;
      }
      const Index row = place.row + tile_row(round);
      copy.scale_inverses()[scale_index<Granularity>(row, column, copy.outer(), copy.inner())] =
          inverse;
    });
  }
#pragma unroll
  for (int i = 0; i < tile_rounds; ++i) {
    const float scale = Granularity::block_rows == 1 ? scales[i] : tile_scale;
    store_run<Vectors>(copy.data() + (place.row + tile_row(i)) * arguments.columns + column,
                       count(i), cast_run<Format>(run(i), scale, totals));
    discount_beyond(count(i), run_size, scale, totals);
  }
}

/// Casts a tile to the transposed copy.
/// @tparam Counts     whether to count, too
/// @param tile_scale  of the tile; not used where blocks lie within a column
template <class S, bool Vectors, bool Counts, class Format, class Granularity>
__device__ void cast_tile_columns(const CastArguments<Format, Granularity>& arguments,
                                  TilePlace place, Index first_column, const ValueTile& tile,
                                  float tile_scale, CastTotals& totals) {
  using Scale = typename Granularity::Scale;
  constexpr int lanes = Granularity::block_columns / column_size;  // threads that share a block
  const auto& copy = arguments.transposed;
  const ColumnPosition position;
  const Index row = place.row + position.group * column_size;
  const Index part_column = place.column + position.word * 4;
  const Index column = first_column + part_column;
  const auto inside = [&](int c) {
    return part_column + c < arguments.part_columns && row < arguments.rows;
  };
  uint2 values[column_size];
  uint2 magnitudes{};
#pragma unroll
  for (int i = 0; i < column_size; ++i) {
    values[i] = tile.four(position.group * column_size + i, position.word);
    magnitudes.x = larger_magnitudes(magnitudes.x, values[i].x);
    magnitudes.y = larger_magnitudes(magnitudes.y, values[i].y);
  }
  float scales[4];
  if constexpr (Granularity::block_rows == 1) {
    magnitudes.x = lanes_magnitudes<lanes>(magnitudes.x);
    magnitudes.y = lanes_magnitudes<lanes>(magnitudes.y);
    const std::uint32_t amax_bits[4] = {magnitudes.x << 16, magnitudes.x & 0xffff0000u,
                                        magnitudes.y << 16, magnitudes.y & 0xffff0000u};
    const Index block_row = row - position.group % lanes * column_size;
    find_block_scales<S, Format, Scale, lanes>(amax_bits, scales, [&](int c, Scale inverse) {
      if (part_column + c >= arguments.part_columns || block_row >= arguments.rows) return;
      copy.scale_inverses()[scale_index<Granularity>(column + c, row, copy.outer(), copy.inner())] =
          inverse;
    });
  }
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    const float scale = Granularity::block_rows == 1 ? scales[c] : tile_scale;
    const auto value = [&](int i) {
      const std::uint32_t word = c < 2 ? values[i].x : values[i].y;
      return __uint_as_float(c % 2 == 0 ? word << 16 : word & 0xffff0000u);
    };
    Column result{};
#pragma unroll
    for (int i = 0; i < column_size; i += 2) {
      const float2 pair = make_float2(value(i), value(i + 1));
      const std::uint32_t cast = cast_pair<Format>(pair, scale);
      result.words[i / 4] |= cast << (i % 4 * 8);
      if constexpr (Counts) count_pair<Format>(pair, scale, cast, totals);
    }
    if constexpr (Counts) discount_beyond(arguments.rows - row, column_size, scale, totals);
    if (inside(c)) {
      store_column<Vectors>(copy.data() + (column + c) * arguments.rows + row, arguments.rows - row,
                            result);
    }
  }
}

/// Casts and transposes one tile a block. The two copies have scales of their own, so both are cast
/// from the values.
/// @param tiles_across  tiles from left to right in one part
template <class S, bool Vectors, class Format, class Granularity, class Source>
OCTAVO_KERNEL void __launch_bounds__(quantize_threads, tiles_at_once)
    block_cast_kernel(const CastArguments<Format, Granularity> arguments, const Source source,
                      unsigned tiles_across) {
  static_assert(Granularity::block_rows == 1 || Source::parts == 1);
  auto* tiles = reinterpret_cast<ValueTile*>(tile_memory);
  const TilePlace place(tiles_across);
  const int run = RowPosition().run;
  std::uint32_t magnitudes = 0;
  for_each_round<Vectors>(source, place, arguments.rows, arguments.part_columns,
                          [&](int tile_row, int, const Produced<Bf16, Source::parts>& produced) {
#pragma unroll
                            for (int part = 0; part < Source::parts; ++part) {
                              const Run<Bf16>& values = produced.parts[part];
                              magnitudes = larger_magnitudes(magnitudes, values);
                              tiles[part].run(tile_row, run) =
                                  make_uint4(values.words[0], values.words[1], values.words[2],
                                             values.words[3]);
                            }
                          });
  __syncthreads();
  float scale = 1.0f;
  if constexpr (Granularity::block_rows > 1) {
    scale = square_scale<S>(arguments, place, magnitudes);
  }
  CastTotals totals{};
#pragma unroll
  for (int part = 0; part < Source::parts; ++part) {
    const Index first_column = part * arguments.part_columns;
    const bool has_rows = !arguments.row_major.empty();
    if (has_rows) {
      cast_tile_rows<S, Vectors>(arguments, place, first_column, tiles[part], scale, totals);
    }
    if (arguments.transposed.empty()) continue;
    if (has_rows) {
      cast_tile_columns<S, Vectors, false>(arguments, place, first_column, tiles[part], scale,
                                           totals);
    } else {
      cast_tile_columns<S, Vectors, true>(arguments, place, first_column, tiles[part], scale,
                                          totals);
    }
  }
  if (!arguments.record) return;
  totals.amax_bits = magnitude_bits(magnitudes);
  add_to_slot(arguments, totals);
}

// ---- the amax and the values alone --------------------------------------------------------------

/// Raises `amax_bits` to the bits of max |values|.
/// @param vectors  runs of values to read at once; the rest is read one by one
template <class Storage>
OCTAVO_KERNEL void __launch_bounds__(quantize_threads)
    amax_kernel(const Storage* values, Index count, Index vectors, std::uint32_t* amax_bits) {
  const Index thread = global_thread();
  const Index stride = Index{gridDim.x} * quantize_threads;
  std::uint32_t magnitudes = 0;
  for (Index begin = thread; begin < vectors; begin += amax_loads * stride) {
    Run<Storage> runs[amax_loads];
#pragma unroll
    for (int i = 0; i < amax_loads; ++i) {
      const Index position = begin + i * stride;
      runs[i] = load_run<true>(values + position * run_size, (vectors - position) * run_size);
    }
#pragma unroll
    for (const Run<Storage>& run : runs) magnitudes = larger_magnitudes(magnitudes, run);
  }
  for (Index i = vectors * run_size + thread; i < count; i += stride) {
    magnitudes = larger_magnitudes(magnitudes, values[i].bits);
  }
  raise_to_block_amax(magnitudes, amax_bits);
}

/// Writes what the source makes. Each thread works on one run in several rows.
/// @param across     blocks from left to right in one part
/// @param amax_bits  null, or raised to the bits of max |values|
template <bool Vectors, class T, class Source>
OCTAVO_KERNEL void __launch_bounds__(elementwise_threads)
    values_kernel(const Source source, T* values, Index rows, Index part_columns, unsigned across,
                  std::uint32_t* amax_bits) {
  const Index column = (Index{blockIdx.x % across} * elementwise_threads + threadIdx.x) * run_size;
  const Index row0 = Index{blockIdx.x / across} * value_rows;
  Produced<T, Source::parts> produced[value_rows];
#pragma unroll
  for (int i = 0; i < value_rows; ++i) {
    const Index count = row0 + i < rows ? part_columns - column : 0;
    produced[i] = source.template run<Vectors>(row0 + i, column, count);
  }
  std::uint32_t magnitudes = 0;
#pragma unroll
  for (int i = 0; i < value_rows; ++i) {
    const Index count = row0 + i < rows ? part_columns - column : 0;
    T* row = values + (row0 + i) * Source::parts * part_columns;
#pragma unroll
    for (int part = 0; part < Source::parts; ++part) {
      const Run<T>& run = produced[i].parts[part];
      store_run<Vectors>(row + part * part_columns + column, count, run);
      if constexpr (std::is_same_v<T, Bf16>) magnitudes = larger_magnitudes(magnitudes, run);
    }
  }
  if (amax_bits != nullptr) raise_to_block_amax(magnitudes, amax_bits);
}

// ---- launches -----------------------------------------------------------------------------------

/// Enqueues values_kernel.
template <class Source, class T>
void enqueue_values(const char* name, const Source& source, TensorView<T, 2, Cuda> values,
                    std::uint32_t* amax_bits, const Context<Cuda>& context) {
  const Index part_columns = values.extent(1) / Source::parts;
  const Index across =
      std::max(Index{1}, ceil_divide(part_columns, Index{elementwise_threads} * run_size));
  const Index down = ceil_divide(values.extent(0), value_rows);
  const bool vectors = source.vectors() && rows_are_vectors(part_columns, values.data());
  launch(name, vectors ? values_kernel<true, T, Source> : values_kernel<false, T, Source>,
         across * down, elementwise_threads, 0, context, source, values.data(), values.extent(0),
         part_columns, static_cast<unsigned>(across), amax_bits);
}

/// Enqueues amax_kernel.
template <class Storage>
void enqueue_amax(TensorView<Storage, 2, Cuda> values, std::uint32_t* amax_bits,
                  const Context<Cuda>& context) {
  constexpr Index most_blocks = 1024;  // enough to fill any GPU; more would only add atomics
  const Index runs = values.size() / run_size;
  const Index vectors = is_vector_aligned(values.data()) ? runs : 0;
  const Index blocks =
      std::clamp(ceil_divide(runs, Index{quantize_threads} * amax_loads), Index{1}, most_blocks);
  launch("quantize", amax_kernel<Storage>, blocks, quantize_threads, 0, context,
         static_cast<const Storage*>(values.data()), values.size(), vectors, amax_bits);
}

/// What kernels that write the operand's copies need.
template <QuantizedPrecision P, OperandKind Kind>
auto cast_arguments(const Operand<P, Kind, Cuda>& operand, int parts) {
  using S = typename PrecisionTraits<P>::ScalingType;
  const Index columns = operand.values.extent(1);
  return CastArguments<OperandFormat<P, Kind>, OperandGranularity<P, Kind>>{
      operand.row_major, operand.transposed, operand.values.extent(0),
      columns,           columns / parts,    operand.slot,
      operand.record,    is_tensorwise<S>,   S::rounding == ScaleRounding::power_of_two};
}

/// Enqueues what must happen before a cast that records the amax.
template <class Format, class Granularity>
void clear_last_amax(const CastArguments<Format, Granularity>& arguments,
                     const Context<Cuda>& context) {
  if (!arguments.record || arguments.finds_scale) return;
  fill_zero(&arguments.slot->last_amax_bits, sizeof(std::uint32_t), context);
}

/// True if both copies can be written in vectors.
template <class Format, class Granularity>
bool copies_are_vectors(const CastArguments<Format, Granularity>& arguments) {
  return rows_are_vectors(arguments.part_columns, arguments.row_major.data()) &&
         is_vector_aligned(arguments.transposed.data()) &&
         (arguments.transposed.empty() || arguments.rows % column_size == 0);
}

/// Enqueues the cast of what the source makes to the operand's copies.
template <class Source, QuantizedPrecision P, OperandKind Kind>
void enqueue_cast(const char* name, const Source& source, const Operand<P, Kind, Cuda>& operand,
                  const Context<Cuda>& context) {
  using S = typename PrecisionTraits<P>::ScalingType;
  using Format = OperandFormat<P, Kind>;
  using Granularity = OperandGranularity<P, Kind>;
  const auto arguments = cast_arguments(operand, Source::parts);
  clear_last_amax(arguments, context);
  const Index across = std::max(Index{1}, ceil_divide(arguments.part_columns, tile_side));
  const Index down = std::max(Index{1}, ceil_divide(arguments.rows, tile_side));
  const bool vectors = source.vectors() && copies_are_vectors(arguments);
  const auto enqueue = [&](auto* kernel, std::size_t tile_bytes) {
    launch(name, kernel, across * down, quantize_threads, Source::parts * tile_bytes, context,
           arguments, source, static_cast<unsigned>(across));
  };
  if constexpr (std::is_same_v<Granularity, PerTensor>) {
    enqueue(vectors ? cast_kernel<true, is_tensorwise<S>, Format, Source>
                    : cast_kernel<false, is_tensorwise<S>, Format, Source>,
            sizeof(ByteTile));
  } else {
    enqueue(vectors ? block_cast_kernel<S, true, Format, Granularity, Source>
                    : block_cast_kernel<S, false, Format, Granularity, Source>,
            sizeof(ValueTile));
  }
}

/// Enqueues what finds the scale of current scaling and casts the operand's values by it.
/// @param find_amax  `find_amax(amax_bits)` enqueues what raises `amax_bits`, 0 so far, to the
///                   bits of max |values|
template <QuantizedPrecision P, OperandKind Kind, class FindAmax>
void cast_by_current_scale(const char* name, const Operand<P, Kind, Cuda>& operand,
                           const FindAmax& find_amax, const Context<Cuda>& context) {
  // The inverse's own memory gathers the amax, and the scale's counts blocks: see write_scale.
  ScalingSlot& slot = *operand.slot;
  fill_zero(&slot.scale, offsetof(ScalingSlot, scale_inverse) + sizeof(float), context);
  find_amax(reinterpret_cast<std::uint32_t*>(&slot.scale_inverse));
  const MatrixSource<Bf16> source{operand.values.data(), operand.values.extent(1)};
  enqueue_cast(name, source, operand, context);
}

template <QuantizedPrecision P>
constexpr void check_storage() {
  static_assert(
      std::is_same_v<typename PrecisionTraits<P>::Storage, Bf16>,
      "quantize on Cuda: FP8 operands are cast from Bf16; make it the precision's Storage");
}

/// True if no block of scales spans two parts of this many columns, so that each part can be cast
/// apart from the others.
template <class Granularity>
bool blocks_lie_in_parts(int parts, Index part_columns) {
  if constexpr (Granularity::block_columns == 0) {
    return true;
  } else {
    return parts == 1 || part_columns % Granularity::block_columns == 0;
  }
}

/// Enqueues what writes an operand from a source. The values of a quantised operand are written
/// only where its scale is not known before them, or where a block of scales spans two parts.
/// @param name  the operation, for messages of errors
template <LinearPrecision P, OperandKind Kind, class Source>
void produce(const char* name, const Source& source, const Operand<P, Kind, Cuda>& operand,
             const Context<Cuda>& context) {
  if constexpr (!QuantizedPrecision<P>) {
    enqueue_values(name, source, operand.values, nullptr, context);
  } else {
    check_storage<P>();
    if constexpr (is_tensorwise<typename PrecisionTraits<P>::ScalingType>) {
      const auto find_amax = [&](std::uint32_t* amax_bits) {
        enqueue_values(name, source, operand.values, amax_bits, context);
      };
      cast_by_current_scale(name, operand, find_amax, context);
    } else if (blocks_lie_in_parts<OperandGranularity<P, Kind>>(
                   Source::parts, operand.values.extent(1) / Source::parts)) {
      enqueue_cast(name, source, operand, context);
    } else {
      enqueue_values(name, source, operand.values, nullptr, context);
      const MatrixSource<Bf16> values{operand.values.data(), operand.values.extent(1)};
      enqueue_cast(name, values, operand, context);
    }
  }
}

// ---- slots --------------------------------------------------------------------------------------

/// Threads of a block in kernels with one thread or one warp a slot.
inline constexpr int slot_threads = 32;

/// One warp a slot: `update_slot`, with the history's largest entry found by all lanes.
template <Device D>
OCTAVO_KERNEL void __launch_bounds__(slot_threads)
    update_slots_kernel(TensorView<ScalingSlot, 1, D> slots, const ScalingRule* rules,
                        float* history, Index longest, std::int32_t group) {
  const ScalingRule rule = rules[blockIdx.x];
  if (rule.group != group) return;
  ScalingSlot& slot = slots.data()[blockIdx.x];
  history += Index{blockIdx.x} * longest;
  const std::uint32_t amax_bits = slot.amax_bits;
  const auto length = static_cast<std::uint32_t>(rule.history_length);
  const bool takes_in = amax_bits != 0 && amax_bits < 0x7f800000u && length != 0;
  std::uint32_t used_bits = amax_bits;
  if (takes_in && rule.most_recent == 0) {
#pragma unroll 8
    for (std::uint32_t i = threadIdx.x; i < length; i += slot_threads) {
      // The new amax takes the place of the oldest.
      if (i != slot.position) used_bits = max(used_bits, float_bits(history[i]));
    }
  }
  used_bits = __reduce_max_sync(0xffffffffu, used_bits);
  if (threadIdx.x != 0) return;
  slot.amax_bits = 0;
  if (amax_bits >= 0x7f800000u) ++slot.nonfinite;
  if (!takes_in) return;
  history[slot.position] = float_from_bits(amax_bits);
  slot.position = (slot.position + 1) % length;
  slot.scale =
      delayed_scale(rule.target, float_from_bits(used_bits), slot.scale, rule.power_of_two != 0);
  slot.scale_inverse = __fdiv_rn(1.0f, slot.scale);
}

/// One thread a slot.
template <Device D>
OCTAVO_KERNEL void clear_statistics_kernel(TensorView<ScalingSlot, 1, D> slots) {
  const Index i = global_thread();
  if (i >= slots.extent(0)) return;
  ScalingSlot& slot = slots.data()[i];
  slot.elements = slot.saturated = slot.flushed = 0;
}

}  // namespace detail

/// See quantize. Tensorwise reads the values twice: for the amax, then for both copies.
template <QuantizedPrecision P, OperandKind Kind>
void quantize_body(const Operand<P, Kind, Cuda>& operand, const Context<Cuda>& context) {
  detail::check_storage<P>();
  if constexpr (detail::is_tensorwise<typename PrecisionTraits<P>::ScalingType>) {
    const auto find_amax = [&](std::uint32_t* amax_bits) {
      detail::enqueue_amax(operand.values, amax_bits, context);
    };
    detail::cast_by_current_scale("quantize", operand, find_amax, context);
  } else {
    const detail::MatrixSource<Bf16> source{operand.values.data(), operand.values.extent(1)};
    detail::enqueue_cast("quantize", source, operand, context);
  }
}

/// See update_delayed_scales.
inline void update_delayed_scales_body(TensorView<ScalingSlot, 1, Cuda> slots,
                                       TensorView<const ScalingRule, 1, Cuda> rules,
                                       TensorView<float, 2, Cuda> history, OperandKind group,
                                       const Context<Cuda>& context) {
  detail::launch("update_delayed_scales", detail::update_slots_kernel<Cuda>, slots.extent(0),
                 detail::slot_threads, 0, context, slots, rules.data(), history.data(),
                 history.extent(1), static_cast<std::int32_t>(group));
}

/// See clear_statistics.
inline void clear_statistics_body(TensorView<ScalingSlot, 1, Cuda> slots,
                                  const Context<Cuda>& context) {
  detail::launch("clear_statistics", detail::clear_statistics_kernel<Cuda>,
                 ceil_divide(slots.extent(0), detail::slot_threads), detail::slot_threads, 0,
                 context, slots);
}

}  // namespace octavo
