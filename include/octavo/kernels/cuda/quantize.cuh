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

#include <octavo/kernels/cuda/limits.hpp>
#include <octavo/kernels/cuda/run.cuh>
#include <octavo/kernels/quantize.hpp>

#include <cuda_fp8.h>

#include <cstddef>

namespace octavo {
namespace detail {

inline constexpr int quantize_threads = 256;
/// What is known of all tiles of a matrix.
enum class Fit {
  any,      ///< nothing
  vectors,  ///< what lies within the matrix is whole runs and columns, aligned to 16 bytes
  whole     ///< and all of it lies within the matrix
};
/// Blocks of tiles that a multiprocessor shall hold at once: it bounds the registers of a thread.
template <Fit F>
inline constexpr int tiles_at_once = F == Fit::whole ? 4 : 3;
inline constexpr int tile_runs = tile_side / run_size;  // a row
/// Rows of one column of the transposed copy that one thread writes at once: 16 bytes of FP8.
inline constexpr int column_size = 16;
inline constexpr int columns_a_tile = tile_side / column_size;
/// All threads of a block together work along this many rows at once: a group in each round.
inline constexpr int tile_rounds = columns_a_tile;
static_assert(quantize_threads == column_size * tile_runs);
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
///
/// What every source has: `runs<Vectors>(row, column)` gives a thread what it needs to work down
/// the rows from there, always in the same columns. `load(i, count)` reads for the run in the i-th
/// of these rows, of which `count` elements lie within the matrix (0 or less: nothing is read), and
/// `make(i, loaded)` makes the run, with zeros beyond: so a thread has many reads under way before
/// it needs the first. Between them, all threads of the block call `await` once, which may wait for
/// what other blocks find. Offsets within a tile are of 32 bits: see require_operand_size.
template <class T>
struct MatrixSource {
  static constexpr int parts = 1;
  static constexpr int rounds_in_flight = 8;  ///< loads that a thread starts before it makes a run
  const T* values;                            ///< [rows, columns]
  Index columns;

  template <bool Vectors>
  struct Runs {
    const T* first;
    int stride;

    __device__ Run<T> load(int i, int count) const {
      return load_run<Vectors>(first + i * stride, count);
    }
    __device__ void await() const {}
    __device__ Produced<T, 1> make(int, const Run<T>& loaded) const { return {{loaded}}; }
  };

  /// Whether `runs` may be called with Vectors.
  [[nodiscard]] bool vectors() const { return rows_are_vectors(columns, values); }

  template <bool Vectors>
  __device__ Runs<Vectors> runs(Index row, Index column) const {
    return {opaque(values + row * columns + column), static_cast<int>(columns)};
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

/// The totals of a warp, to all its threads, which must all call it.
__device__ inline CastTotals warp_totals(const CastTotals& totals) {
  return {__reduce_max_sync(0xffffffffu, totals.amax_bits),
          __reduce_add_sync(0xffffffffu, totals.saturated),
          __reduce_add_sync(0xffffffffu, totals.flushed)};
}

/// What the warps of a block counted, in shared memory.
struct BlockTotals {
  CastTotals warps[quantize_threads / 32];

  /// Takes in a warp's totals. All threads must call it; before `sum`, the block must synchronise.
  __device__ void put(const CastTotals& totals) {
    const CastTotals warp = warp_totals(totals);
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = warp;
  }
  /// The totals of the block, to all threads of one warp, which must all call it.
  [[nodiscard]] __device__ CastTotals sum() const {
    const unsigned lane = threadIdx.x % 32;
    return warp_totals(lane < quantize_threads / 32 ? warps[lane] : CastTotals{});
  }
};

__device__ inline void add_to_counter(std::uint64_t& counter, std::uint64_t count) {
  if (count != 0) atomicAdd(reinterpret_cast<unsigned long long*>(&counter), count);
}

/// Raises `target` to the bits of the largest of the block's magnitudes. All threads must call it.
__device__ inline void raise_to_block_amax(std::uint32_t magnitudes, std::uint32_t* target) {
  __shared__ std::uint32_t block;
  if (threadIdx.x == 0) block = 0;
  __syncthreads();
  const std::uint32_t warp = __reduce_max_sync(0xffffffffu, magnitude_bits(magnitudes));
  if (threadIdx.x % 32 == 0) atomicMax(&block, warp);
  __syncthreads();
  if (threadIdx.x == 0) atomicMax(target, block);
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
  totals.saturated += !(fabsf(scaled.x) <= largest_unsaturated<Format>) ? 1u : 0u;
  totals.saturated += !(fabsf(scaled.y) <= largest_unsaturated<Format>) ? 1u : 0u;
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
  constexpr std::uint32_t signs = 0x80008000u;
  constexpr std::uint32_t ones = 0x00010001u;
  return __byte_perm((first | signs) - ones, (second | signs) - ones, 0x7531);
}

/// Counts what was saturated of a run.
template <class Format>
__device__ void count_saturated(const Run<Bf16>& run, float scale, CastTotals& totals) {
#pragma unroll
  for (const std::uint32_t word : run.words) {
    count_saturated<Format>(scaled_pair(bf16_pair(word), scale), totals);
  }
}

/// Counts what was flushed of a run. Most runs need no more than the first test.
template <class Format>
__device__ void count_flushed(const Run<Bf16>& run, const Run<Format>& cast, CastTotals& totals) {
  const std::uint32_t kept[2] = {flag_not_zero(cast.words[0]), flag_not_zero(cast.words[1])};
  if ((kept[0] & kept[1] & byte_flags) != byte_flags) {
    const std::uint32_t flushed[2] = {
        flag_not_zero(run.words[0], run.words[1]) & ~kept[0] & byte_flags,
        flag_not_zero(run.words[2], run.words[3]) & ~kept[1] & byte_flags};
    totals.flushed += static_cast<std::uint32_t>(__popc(flushed[0] | flushed[1] >> 1));
  }
}

/// Casts a run and counts what was flushed.
template <class Format>
__device__ Run<Format> cast_run(const Run<Bf16>& run, float scale, CastTotals& totals) {
  Run<Format> result{};
#pragma unroll
  for (int i = 0; i < Run<Bf16>::words_a_run; ++i) {
    result.words[i / 2] |= cast_pair<Format>(bf16_pair(run.words[i]), scale) << (i % 2 * 16);
  }
  count_flushed<Format>(run, result, totals);
  return result;
}

/// Whether a value of this magnitude is saturated. If it is not, no smaller one is.
template <class Format>
__device__ bool saturates(float magnitude, float scale) {
  return !(__fmul_rn(magnitude, scale) <= largest_unsaturated<Format>);
}

/// The magnitudes that a scale surely does not saturate.
class SafeMagnitudes {
 public:
  SafeMagnitudes() = default;

  /// @param scale  finite and above 0
  template <class Format>
  __device__ static SafeMagnitudes of(float scale) {
    // Rounded down to BF16, and by one value more where the quotient itself was rounded up.
    const float quotient = fminf(__fdividef(largest_unsaturated<Format>, scale), largest_bf16);
    const std::uint32_t bits = float_bits(quotient) >> 16;
    const bool too_large = bits > 0 && saturates<Format>(float_from_bits(bits << 16), scale);
    return SafeMagnitudes((bits - (too_large ? 1u : 0u)) * 0x10001u);
  }

  /// @param magnitudes  the larger of each pair: see larger_magnitudes
  [[nodiscard]] __device__ bool hold(std::uint32_t magnitudes) const {
    return __vmaxu2(magnitudes, most_) == most_;
  }

 private:
  static constexpr float largest_bf16 = FormatTraits<Bf16>::max;
  __device__ explicit SafeMagnitudes(std::uint32_t most) : most_(most) {}

  std::uint32_t most_ = 0;  ///< the largest of them, in both halves of the word
};

/// Takes back the counts of elements beyond the matrix, of `elements` that one thread cast of which
/// `count` lie within: a NaN scale, that of an MX block which holds a NaN, makes NaN of their zeros
/// too. Other scales count nothing there.
__device__ inline void discount_beyond(int count, int elements, float scale, CastTotals& totals) {
  if (!isnan(scale)) return;
  const int within = min(max(count, 0), elements);
  totals.saturated -= static_cast<std::uint32_t>(elements - within);
}

/// `column_size` elements of one column of a tile, one below the other.
struct Column {
  std::uint32_t words[column_size / 4];
};

/// Writes the first `count` elements to `target`; all of them if `count` is larger.
/// @tparam Vectors  `target` is aligned to 16 bytes and `count` is a multiple of `column_size`
template <bool Vectors, class Format>
__device__ void store_column(Format* target, int count, const Column& column) {
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
  bool power_of_two;  ///< rounding of the scale that is found
};

/// The first row and column of a tile; columns count within one part.
struct TilePlace {
  Index row;
  Index column;

  __device__ TilePlace(unsigned down, unsigned across)
      : row(Index{down} * tile_side), column(Index{across} * tile_side) {}
  [[nodiscard]] __device__ bool is_first() const { return row == 0 && column == 0; }
};

/// Where a thread stands in its tile while it works along rows: a run, in one row of each group.
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

/// A tile of FP8 bytes in shared memory, in groups of `column_size` rows. Units of 16 bytes are
/// swapped within a row by its group, so that threads that read down 8 groups meet 8 different sets
/// of banks.
struct ByteTile {
  uint4 units[columns_a_tile][column_size][tile_side / 16];

  __device__ uint2& run(int group, int row, int run) {
    return reinterpret_cast<uint2*>(&units[group][row][(run / 2) ^ group])[run % 2];
  }
  /// Four columns of one row.
  __device__ std::uint32_t word(int group, int row, int word) const {
    return reinterpret_cast<const std::uint32_t*>(&units[group][row][(word / 4) ^ group])[word % 4];
  }
};

/// A tile of BF16 values in shared memory, with units swapped as in ByteTile.
struct ValueTile {
  uint4 units[columns_a_tile][column_size][tile_runs];

  __device__ uint4& run(int group, int row, int run) { return units[group][row][run ^ group]; }
  /// Four columns of one row.
  __device__ uint2 four(int group, int row, int word) const {
    return reinterpret_cast<const uint2*>(&units[group][row][(word / 2) ^ group])[word % 2];
  }
};

/// Dynamic shared memory of the kernels below: a tile for each part.
extern __shared__ uint4 tile_memory[];

/// How many of the `most` positions from `begin` on lie before `end`: below zero where `begin` is
/// beyond it, and always `most` where tiles are whole.
template <Fit F>
__device__ int count_inside(Index begin, Index end, int most) {
  return F == Fit::whole ? most : static_cast<int>(min(end - begin, Index{most}));
}

/// Calls `body(round, count, produced, prepared)` for the thread's run in every group of the tile's
/// rows: `count` of its elements lie within the matrix.
/// @param prepare  makes `prepared`; called when the first reads are under way
template <Fit F, class Source, class Prepare, class Body>
__device__ void for_each_round(const Source& source, TilePlace place, Index rows,
                               Index part_columns, const Prepare& prepare, const Body& body) {
  constexpr bool vectors = F != Fit::any;
  constexpr int batch = vectors ? Source::rounds_in_flight : 2;
  const RowPosition position;
  const Index column = place.column + position.run * run_size;
  const int columns_inside = count_inside<F>(column, part_columns, run_size);
  const int rows_inside = columns_inside > 0 ? count_inside<F>(place.row, rows, tile_side) : 0;
  const auto row = [&](int round) { return position.row + round * column_size; };
  const auto count = [&](int round) {
    return F == Fit::whole || row(round) < rows_inside ? columns_inside : 0;
  };
  auto runs = source.template runs<vectors>(place.row, column);
  decltype(prepare()) prepared;
#pragma unroll 1
  for (int begin = 0; begin < tile_rounds; begin += batch) {
    decltype(runs.load(0, 0)) loaded[batch];
#pragma unroll
    for (int i = 0; i < batch; ++i) {
      loaded[i] = runs.load(row(begin + i), count(begin + i));
    }
    if (begin == 0) {
      __syncwarp();  // or the compiler may wait for what is prepared before it starts the reads
      runs.await();
      prepared = prepare();
    }
#pragma unroll
    for (int i = 0; i < batch; ++i) {
      body(begin + i, count(begin + i), runs.make(row(begin + i), loaded[i]), prepared);
    }
  }
}

/// Adds a block's totals to the slot, by one warp and without waiting for memory.
template <class Format, class Granularity>
__device__ void add_to_slot(const CastArguments<Format, Granularity>& arguments,
                            const BlockTotals& totals, bool first_tile) {
  if (threadIdx.x >= 32) return;
  const CastTotals block = totals.sum();
  if (threadIdx.x != 0) return;
  ScalingSlot& slot = *arguments.slot;
  if (first_tile) {
    add_to_counter(slot.elements, static_cast<std::uint64_t>(arguments.rows * arguments.columns));
  }
  atomicMax(&slot.amax_bits, block.amax_bits);
  if (arguments.row_major.empty() && arguments.transposed.empty()) return;
  add_to_counter(slot.saturated, block.saturated);
  add_to_counter(slot.flushed, block.flushed);
}

// ---- one scale a tensor -------------------------------------------------------------------------

/// Writes the thread's rows and columns of a tile of bytes to the transposed copy.
/// @param first_row   the tile's first row in the copied matrix
/// @param column      the first of the thread's columns in the copied matrix
/// @param end_column  first column that is not written
template <Fit F, class Format>
__device__ void store_tile_columns(const CastArguments<Format, PerTensor>& arguments,
                                   const ByteTile& tile, ColumnPosition position, Index first_row,
                                   Index column, Index end_column) {
  Column columns[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const auto word = [&](int row) {
      return tile.word(position.group, 4 * i + row, position.word);
    };
    const uint4 turned = transpose_bytes(make_uint4(word(0), word(1), word(2), word(3)));
    columns[0].words[i] = turned.x;
    columns[1].words[i] = turned.y;
    columns[2].words[i] = turned.z;
    columns[3].words[i] = turned.w;
  }
  const Index row = first_row + position.group * column_size;
  const int rows = count_inside<F>(row, arguments.rows, column_size);
  const int columns_inside = count_inside<F>(column, end_column, 4);
  Format* target = opaque(arguments.transposed.data() + column * arguments.rows + row);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (i < columns_inside) store_column<F != Fit::any>(target, rows, columns[i]);
    target += arguments.rows;
  }
}

/// The one scale of a tensor, and what it may saturate.
struct TensorScale {
  float scale;
  bool amax_saturates;  ///< known of a scale that was found from the amax
  SafeMagnitudes safe;  ///< known of a scale that was there before the values
};

/// Casts one tile by one scale, and transposes its bytes.
/// @tparam FindsScale  by current scaling, from the amax that the slot's `found_amax_bits` hold
template <Fit F, bool FindsScale, class Format, class Source>
__device__ void tensor_cast_tile(const CastArguments<Format, PerTensor>& arguments,
                                 const Source& source, TilePlace place) {
  __shared__ BlockTotals block_totals;
  auto* tiles = reinterpret_cast<ByteTile*>(tile_memory);
  const RowPosition position;
  ScalingSlot& slot = *arguments.slot;
  const float in_slot = FindsScale ? float_from_bits(slot.found_amax_bits) : slot.scale;
  const auto prepare = [&] {
    // `in_slot` is read before the values, but nothing waits for it before they are on their way.
    if constexpr (FindsScale) {
      const float amax = opaque(in_slot);
      const float scale = current_scale(FormatTraits<Format>::max, amax, arguments.power_of_two);
      return TensorScale{scale, saturates<Format>(amax, scale), {}};
    } else {
      const float scale = opaque(in_slot);
      return TensorScale{scale, false, SafeMagnitudes::of<Format>(scale)};
    }
  };
  Format* rows_target =
      opaque(arguments.row_major.data() + (place.row + position.row) * arguments.columns +
             place.column + position.run * run_size);
  const int stride = static_cast<int>(arguments.columns);
  CastTotals totals{};
  std::uint32_t magnitudes = 0;
  const auto cast_round = [&](int round, int count, const Produced<Bf16, Source::parts>& produced,
                              const TensorScale& tensor) {
#pragma unroll
    for (int part = 0; part < Source::parts; ++part) {
      bool may_saturate = tensor.amax_saturates;
      if constexpr (!FindsScale) {
        const std::uint32_t largest = larger_magnitudes(0, produced.parts[part]);
        magnitudes = __vmaxu2(magnitudes, largest);
        may_saturate = !tensor.safe.hold(largest);
      }
      const Run<Format> cast = cast_run<Format>(produced.parts[part], tensor.scale, totals);
      if (may_saturate) count_saturated<Format>(produced.parts[part], tensor.scale, totals);
      tiles[part].run(round, position.row, position.run) = make_uint2(cast.words[0], cast.words[1]);
      if (arguments.row_major.empty()) continue;
      store_run<F != Fit::any>(
          rows_target + part * arguments.part_columns + round * column_size * stride, count, cast);
    }
  };
  for_each_round<F>(source, place, arguments.rows, arguments.part_columns, prepare, cast_round);
  totals.amax_bits = FindsScale ? float_bits(in_slot) : magnitude_bits(magnitudes);
  if (arguments.record) block_totals.put(totals);
  __syncthreads();
  if (arguments.record) add_to_slot(arguments, block_totals, place.is_first());
  if (FindsScale && place.is_first() && threadIdx.x == 0) {
    slot.scale = prepare().scale;
    slot.scale_inverse = __fdiv_rn(1.0f, slot.scale);
  }
  if (arguments.transposed.empty()) return;
  const ColumnPosition column;
#pragma unroll
  for (int part = 0; part < Source::parts; ++part) {
    const Index first_column = part * arguments.part_columns;
    store_tile_columns<F>(arguments, tiles[part], column, place.row,
                          first_column + place.column + column.word * 4,
                          first_column + arguments.part_columns);
  }
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
    constexpr bool power_of_two = rounding_of<S> == ScaleRounding::power_of_two;
    const float scale = current_scale(largest, amax, power_of_two);
    scale_inverse = power_of_two ? power_of_two_inverse(scale) : __fdiv_rn(1.0f, scale);
    return scale;
  }
}

/// Finds the largest pairs of magnitudes of `Lanes` neighbouring threads. Each thread goes on with
/// half of the pairs, as long as there are several, and ends with one, in `pairs[0]`: the first
/// threads with the first pair, and so on.
template <int Lanes, int Pairs>
__device__ void share_magnitudes(std::uint32_t (&pairs)[Pairs]) {
  static_assert(Lanes >= Pairs);
  int count = Pairs;
#pragma unroll
  for (int distance = Lanes / 2; distance > 0; distance /= 2) {
    const bool is_upper = (threadIdx.x & static_cast<unsigned>(distance)) != 0;
    const int half = count / 2;
    if (half == 0) {
      pairs[0] = __vmaxu2(pairs[0], __shfl_xor_sync(0xffffffffu, pairs[0], distance));
    }
#pragma unroll
    for (int i = 0; i < half; ++i) {
      const std::uint32_t kept = is_upper ? pairs[i + half] : pairs[i];
      const std::uint32_t given = is_upper ? pairs[i] : pairs[i + half];
      pairs[i] = __vmaxu2(kept, __shfl_xor_sync(0xffffffffu, given, distance));
    }
    count = half == 0 ? 1 : half;
  }
}

/// Finds the scales of `Count` blocks that `Lanes` neighbouring threads share: each thread finds
/// one or two, and hears the others. Returns whether some block of the warp may saturate; all
/// threads of the warp must call it.
/// @param pairs   the thread's magnitudes in blocks 0 and 1, 2 and 3, and so on; overwritten
/// @param totals  takes in the amaxes
/// @param store   `store(i, scale_inverse)` is called by one thread for scale `i`
template <class S, class Format, class Scale, int Lanes, int Count, class Store>
__device__ bool find_block_scales(std::uint32_t (&pairs)[Count / 2], float (&scales)[Count],
                                  CastTotals& totals, const Store& store) {
  constexpr bool finds_pair = Lanes < Count;
  constexpr int found = finds_pair ? 2 : 1;
  constexpr int same = Lanes * found / Count;  // threads that find the same
  static_assert(same > 0);
  share_magnitudes<Lanes>(pairs);
  const int lane = static_cast<int>(threadIdx.x) % Lanes;
  bool may_saturate = false;
  float own[found];
#pragma unroll
  for (int i = 0; i < found; ++i) {
    const int block = lane / same * found + i;
    const std::uint32_t amax_bits = block % 2 == 0 ? pairs[0] << 16 : pairs[0] & 0xffff0000u;
    Scale inverse;
    own[i] = find_block_scale<S, Format>(amax_bits, inverse);
    may_saturate |= saturates<Format>(float_from_bits(amax_bits), own[i]);
    totals.amax_bits = max(totals.amax_bits, amax_bits);
    if (lane % same == 0) store(block, inverse);
  }
#pragma unroll
  for (int i = 0; i < Count; ++i) {
    scales[i] = __shfl_sync(0xffffffffu, own[i % found], i / found * same, Lanes);
  }
  return __any_sync(0xffffffffu, may_saturate) != 0;
}

/// A factor to cast with.
struct CastScale {
  float scale;
  bool may_saturate;  ///< false: nothing that is cast by it is out of the format's range
};

/// The scale of a block of 128 × 128, one for both copies. All threads of the block must call it.
template <class S, class Format, class Granularity>
__device__ CastScale square_scale(const CastArguments<Format, Granularity>& arguments,
                                  TilePlace place, std::uint32_t magnitudes) {
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
  return {scale, saturates<Format>(float_from_bits(amax_bits), scale)};
}

/// Casts the thread's runs of a tile to the row-major copy.
/// @param run         `run(round)` is the thread's run of a group
/// @param tile_scale  of the tile; not used where blocks lie within a row
template <class S, Fit F, class Format, class Granularity, class MakeRun>
__device__ void cast_tile_rows(const CastArguments<Format, Granularity>& arguments, TilePlace place,
                               Index first_column, const MakeRun& run, CastScale tile_scale,
                               CastTotals& totals) {
  using Scale = typename Granularity::Scale;
  constexpr int lanes = Granularity::block_columns / run_size;  // threads that share a block
  const auto& copy = arguments.row_major;
  const RowPosition position;
  const Index part_column = place.column + position.run * run_size;
  const Index column = first_column + part_column;
  const auto tile_row = [&](int round) { return position.row + round * column_size; };
  const int columns_inside = count_inside<F>(part_column, arguments.part_columns, run_size);
  const int rows_inside = count_inside<F>(place.row, arguments.rows, tile_side);
  const auto has_row = [&](int round) { return F == Fit::whole || tile_row(round) < rows_inside; };
  const auto count = [&](int round) { return has_row(round) ? columns_inside : 0; };
  float scales[tile_rounds];
  bool may_saturate = tile_scale.may_saturate;
  if constexpr (Granularity::block_rows == 1) {
    std::uint32_t pairs[tile_rounds / 2];
#pragma unroll
    for (int i = 0; i < tile_rounds / 2; ++i) {
      const std::uint32_t first = larger_magnitudes(0, run(2 * i));
      const std::uint32_t second = larger_magnitudes(0, run(2 * i + 1));
      // The larger half of each, beside each other.
      pairs[i] = __vmaxu2(__byte_perm(first, second, 0x5410), __byte_perm(first, second, 0x7632));
    }
    // A thread beyond the matrix may find the scale of a block that begins within it.
    const Index block_column = part_column - position.run % lanes * run_size;
    const auto store = [&](int round, Scale inverse) {
      if (!has_row(round)) return;
      if (F != Fit::whole && block_column >= arguments.part_columns) return;
      const Index row = place.row + tile_row(round);
      copy.scale_inverses()[scale_index<Granularity>(row, column, copy.outer(), copy.inner())] =
          inverse;
    };
    may_saturate = find_block_scales<S, Format, Scale, lanes>(pairs, scales, totals, store);
  }
  Format* target = opaque(copy.data() + (place.row + position.row) * arguments.columns + column);
  const int stride = static_cast<int>(arguments.columns);
  const auto scale = [&](int round) {
    if constexpr (Granularity::block_rows == 1) {
      return scales[round];
    } else {
      return tile_scale.scale;
    }
  };
#pragma unroll
  for (int i = 0; i < tile_rounds; ++i) {
    store_run<F != Fit::any>(target + i * column_size * stride, count(i),
                             cast_run<Format>(run(i), scale(i), totals));
    if (!may_saturate) continue;
    count_saturated<Format>(run(i), scale(i), totals);
    discount_beyond(count(i), run_size, scale(i), totals);
  }
}

/// Casts a tile to the transposed copy.
/// @tparam Counts     whether to count, too
/// @param tile_scale  of the tile; not used where blocks lie within a column
template <class S, Fit F, bool Counts, class Format, class Granularity>
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
  const int rows_inside = count_inside<F>(row, arguments.rows, column_size);
  const auto inside = [&](int c, Index first_row) {
    return F == Fit::whole ||
           (part_column + c < arguments.part_columns && first_row < arguments.rows);
  };
  uint2 values[column_size];
  std::uint32_t pairs[2] = {0, 0};
#pragma unroll
  for (int i = 0; i < column_size; ++i) {
    values[i] = tile.four(position.group, i, position.word);
    pairs[0] = larger_magnitudes(pairs[0], values[i].x);
    pairs[1] = larger_magnitudes(pairs[1], values[i].y);
  }
  float scales[4];
  if constexpr (Granularity::block_rows == 1) {
    const Index block_row = row - position.group % lanes * column_size;
    const auto store = [&](int c, Scale inverse) {
      if (!inside(c, block_row)) return;
      copy.scale_inverses()[scale_index<Granularity>(column + c, row, copy.outer(), copy.inner())] =
          inverse;
    };
    find_block_scales<S, Format, Scale, lanes>(pairs, scales, totals, store);
  }
  Format* target = opaque(copy.data() + column * arguments.rows + row);
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
    if constexpr (Counts) discount_beyond(rows_inside, column_size, scale, totals);
    if (inside(c, row)) store_column<F != Fit::any>(target, rows_inside, result);
    target += arguments.rows;
  }
}

/// Casts and transposes one tile. The two copies have scales of their own, so both are cast from
/// the values.
template <class S, Fit F, class Format, class Granularity, class Source>
__device__ void block_cast_tile(const CastArguments<Format, Granularity>& arguments,
                                const Source& source, TilePlace place) {
  constexpr bool is_square = Granularity::block_rows > 1;
  static_assert(!is_square || Source::parts == 1);
  // A thread casts along rows what it made itself: from registers, if it made all of that at once.
  constexpr bool holds_rows =
      F != Fit::any && Source::parts == 1 && Source::rounds_in_flight == tile_rounds;
  __shared__ BlockTotals block_totals;
  auto* tiles = reinterpret_cast<ValueTile*>(tile_memory);
  const RowPosition position;
  Run<Bf16> held[holds_rows ? tile_rounds : 1];
  std::uint32_t magnitudes = 0;
  for_each_round<F>(
      source, place, arguments.rows, arguments.part_columns, [] { return 0; },
      [&](int round, int, const Produced<Bf16, Source::parts>& produced, int) {
#pragma unroll
        for (int part = 0; part < Source::parts; ++part) {
          const Run<Bf16>& values = produced.parts[part];
          if constexpr (is_square) magnitudes = larger_magnitudes(magnitudes, values);
          tiles[part].run(round, position.row, position.run) =
              make_uint4(values.words[0], values.words[1], values.words[2], values.words[3]);
          if constexpr (holds_rows) held[round] = values;
        }
      });
  if constexpr (!holds_rows) __syncthreads();
  CastScale scale{};
  CastTotals totals{};
  if constexpr (is_square) {
    scale = square_scale<S>(arguments, place, magnitudes);
    totals.amax_bits = magnitude_bits(magnitudes);
  }
  const bool has_rows = !arguments.row_major.empty();
#pragma unroll
  for (int part = 0; part < Source::parts; ++part) {
    const auto run = [&](int round) {
      if constexpr (holds_rows) {
        return held[round];
      } else {
        const uint4 words = tiles[part].run(round, position.row, position.run);
        return Run<Bf16>{{words.x, words.y, words.z, words.w}};
      }
    };
    const Index first_column = part * arguments.part_columns;
    if (has_rows) {
      cast_tile_rows<S, F>(arguments, place, first_column, run, scale, totals);
    } else if (arguments.transposed.empty()) {  // the amax is all that is wanted
#pragma unroll
      for (int i = 0; i < tile_rounds; ++i) {
        totals.amax_bits = max(totals.amax_bits, magnitude_bits(larger_magnitudes(0, run(i))));
      }
    }
  }
  if constexpr (holds_rows) __syncthreads();
  if (!arguments.transposed.empty()) {
#pragma unroll
    for (int part = 0; part < Source::parts; ++part) {
      const Index first_column = part * arguments.part_columns;
      if (has_rows) {
        cast_tile_columns<S, F, false>(arguments, place, first_column, tiles[part], scale.scale,
                                       totals);
      } else {
        cast_tile_columns<S, F, true>(arguments, place, first_column, tiles[part], scale.scale,
                                      totals);
      }
    }
  }
  if (!arguments.record) return;
  block_totals.put(totals);
  __syncthreads();
  add_to_slot(arguments, block_totals, place.is_first());
}

// ---- any scales ---------------------------------------------------------------------------------

/// How a tile is cast, as a type that kernels are made for.
/// @tparam S           the recipe's scaling
/// @tparam FindsScale  see tensor_cast_tile
template <class S, Fit F, bool FindsScale, class Format, class Granularity>
struct TileCast {
  static constexpr Fit fit = F;
  static constexpr bool one_scale = std::is_same_v<Granularity, PerTensor>;
  static constexpr std::size_t shared_bytes = one_scale ? sizeof(ByteTile) : sizeof(ValueTile);

  template <class Source>
  __device__ static void run(const CastArguments<Format, Granularity>& arguments,
                             const Source& source, TilePlace place) {
    if constexpr (one_scale) {
      tensor_cast_tile<F, FindsScale>(arguments, source, place);
    } else {
      block_cast_tile<S, F>(arguments, source, place);
    }
  }
};

/// Casts one tile a block. The last tile comes first: what wrote or read the values just before
/// ended there, so that they may still be in L2.
template <class Cast, class Format, class Granularity, class Source>
OCTAVO_KERNEL void __launch_bounds__(quantize_threads, tiles_at_once<Cast::fit>)
    cast_kernel(const CastArguments<Format, Granularity> arguments, const Source source) {
  Cast::run(arguments, source, TilePlace(gridDim.y - 1 - blockIdx.y, gridDim.x - 1 - blockIdx.x));
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
  const int columns_inside = static_cast<int>(min(part_columns - column, Index{run_size}));
  const auto count = [&](int i) { return row0 + i < rows ? columns_inside : 0; };
  auto runs = source.template runs<Vectors>(row0, column);
  decltype(runs.load(0, 0)) loaded[value_rows];
#pragma unroll
  for (int i = 0; i < value_rows; ++i) loaded[i] = runs.load(i, count(i));
  runs.await();
  std::uint32_t magnitudes = 0;
#pragma unroll
  for (int i = 0; i < value_rows; ++i) {
    const Produced<T, Source::parts> produced = runs.make(i, loaded[i]);
    T* row = values + (row0 + i) * Source::parts * part_columns;
#pragma unroll
    for (int part = 0; part < Source::parts; ++part) {
      const Run<T>& run = produced.parts[part];
      store_run<Vectors>(row + part * part_columns + column, count(i), run);
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

/// Whether the operand is cast by current scaling, with a scale that is not known yet.
template <QuantizedPrecision P, OperandKind Kind>
bool must_find_scale(const Operand<P, Kind, Cuda>& operand) {
  return is_tensorwise<typename PrecisionTraits<P>::ScalingType> && !operand.scale_is_found;
}

/// Whether the scales of `S` are powers of two; those of blocks that share an exponent always are.
template <class S>
inline constexpr bool scales_are_powers_of_two = [] {
  return std::is_same_v<typename S::InputGranularity::Scale, E8M0> ||
         rounding_of<S> == ScaleRounding::power_of_two;
}();

/// What kernels that write the operand's copies need.
template <QuantizedPrecision P, OperandKind Kind>
auto cast_arguments(const Operand<P, Kind, Cuda>& operand, int parts) {
  using S = typename PrecisionTraits<P>::ScalingType;
  const Index columns = operand.values.extent(1);
  return CastArguments<OperandFormat<P, Kind>, OperandGranularity<P, Kind>>{
      operand.row_major, operand.transposed, operand.values.extent(0), columns,
      columns / parts,   operand.slot,       operand.record,           scales_are_powers_of_two<S>};
}

/// What is known of the tiles of copies that are written.
/// @param vectors  whether the source makes runs in vectors
template <class Format, class Granularity>
Fit find_fit(const CastArguments<Format, Granularity>& arguments, bool vectors) {
  const bool transposes = !arguments.transposed.empty();
  if (!vectors || !rows_are_vectors(arguments.part_columns, arguments.row_major.data()) ||
      !is_vector_aligned(arguments.transposed.data()) ||
      (transposes && arguments.rows % column_size != 0)) {
    return Fit::any;
  }
  const auto is_tiles = [](Index size) { return size > 0 && size % tile_side == 0; };
  return is_tiles(arguments.rows) && is_tiles(arguments.part_columns) ? Fit::whole : Fit::vectors;
}

/// Calls `body(cast)` with the TileCast for an operand of these arguments.
/// @param vectors  see find_fit
template <class S, bool FindsScale, class Format, class Granularity, class Body>
void with_tile_cast(const CastArguments<Format, Granularity>& arguments, bool vectors,
                    const Body& body) {
  switch (find_fit(arguments, vectors)) {
    case Fit::any:
      return body(TileCast<S, Fit::any, FindsScale, Format, Granularity>{});
    case Fit::vectors:
      return body(TileCast<S, Fit::vectors, FindsScale, Format, Granularity>{});
    case Fit::whole:
      return body(TileCast<S, Fit::whole, FindsScale, Format, Granularity>{});
  }
}

/// Tiles from left to right in one part (x), and from the first row to the last (y).
template <class Format, class Granularity>
dim3 tile_grid(const CastArguments<Format, Granularity>& arguments) {
  const auto tiles = [](Index size) {
    return static_cast<unsigned>(std::max(Index{1}, ceil_divide(size, tile_side)));
  };
  return dim3(tiles(arguments.part_columns), tiles(arguments.rows));
}

/// Enqueues the cast of what the source makes to the operand's copies.
/// @tparam FindsScale  see tensor_cast_tile
template <bool FindsScale, class Source, QuantizedPrecision P, OperandKind Kind>
void enqueue_cast(const char* name, const Source& source, const Operand<P, Kind, Cuda>& operand,
                  const Context<Cuda>& context) {
  using S = typename PrecisionTraits<P>::ScalingType;
  const auto arguments = cast_arguments(operand, Source::parts);
  with_tile_cast<S, FindsScale>(arguments, source.vectors(), [&]<class Cast>(Cast) {
    launch(name, cast_kernel<Cast, OperandFormat<P, Kind>, OperandGranularity<P, Kind>, Source>,
           tile_grid(arguments), quantize_threads, Source::parts * Cast::shared_bytes, context,
           arguments, source);
  });
}

/// Enqueues what finds the scale of current scaling and casts the operand's values by it.
/// @param find_amax  `find_amax(amax_bits)` enqueues what raises `amax_bits`, 0 so far, to the
///                   bits of max |values|
template <QuantizedPrecision P, OperandKind Kind, class FindAmax>
void cast_by_current_scale(const char* name, const Operand<P, Kind, Cuda>& operand,
                           const FindAmax& find_amax, const Context<Cuda>& context) {
  std::uint32_t* amax_bits = &operand.slot->found_amax_bits;
  fill_zero(amax_bits, sizeof(*amax_bits), context);
  find_amax(amax_bits);
  const MatrixSource<Bf16> source{operand.values.data(), operand.values.extent(1)};
  enqueue_cast<true>(name, source, operand, context);
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
      if (must_find_scale(operand)) {
        const auto find_amax = [&](std::uint32_t* amax_bits) {
          enqueue_values(name, source, operand.values, amax_bits, context);
        };
        return cast_by_current_scale(name, operand, find_amax, context);
      }
    }
    if (blocks_lie_in_parts<OperandGranularity<P, Kind>>(
            Source::parts, operand.values.extent(1) / Source::parts)) {
      enqueue_cast<false>(name, source, operand, context);
    } else {
      enqueue_values(name, source, operand.values, nullptr, context);
      const MatrixSource<Bf16> values{operand.values.data(), operand.values.extent(1)};
      enqueue_cast<false>(name, values, operand, context);
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
  slot.last_amax_bits = amax_bits;
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
  detail::require_operand_size<P>("quantize", operand.values.extent(0), operand.values.extent(1));
  if constexpr (detail::is_tensorwise<typename PrecisionTraits<P>::ScalingType>) {
    if (detail::must_find_scale(operand)) {
      const auto find_amax = [&](std::uint32_t* amax_bits) {
        detail::enqueue_amax(operand.values, amax_bits, context);
      };
      return detail::cast_by_current_scale("quantize", operand, find_amax, context);
    }
  }
  const detail::MatrixSource<Bf16> source{operand.values.data(), operand.values.extent(1)};
  detail::enqueue_cast<false>("quantize", source, operand, context);
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
