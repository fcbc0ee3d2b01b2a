/// @file
/// Tiles: the part of a matrix that one block of threads casts and transposes, and its division
/// among the threads.
#pragma once

#include <octavo/kernels/cuda/cast/convert.cuh>
#include <octavo/kernels/cuda/cast/source.cuh>
#include <octavo/kernels/cuda/limits.hpp>
#include <octavo/kernels/quantize.hpp>

namespace octavo OCTAVO_ABI::detail {

/// Properties common to all tiles of a matrix.
enum class Fit {
  any,      ///< no property
  vectors,  ///< the elements within the matrix form whole runs and columns, aligned to 16 bytes
  whole     ///< in addition, all of the tile lies within the matrix
};
inline constexpr int tile_runs = tile_side / run_size;  // per row
/// Rows of one column of the transposed copy that one thread writes at once: 16 bytes of FP8.
inline constexpr int column_size = 16;
inline constexpr int columns_per_tile = tile_side / column_size;
/// All threads of a block together process `column_size` rows at once, a group in each round.
static_assert(tile_rounds == columns_per_tile && quantize_threads == column_size * tile_runs);

/// FP32 bits of the largest magnitudes of the copies' rows, for scales per row.
struct RowAmaxes {
  std::uint32_t* row_major = nullptr;   ///< [rows], or null if not needed
  std::uint32_t* transposed = nullptr;  ///< [columns], or null if not needed
};

/// Arguments of kernels that cast tiles.
template <class Format, class Granularity>
struct CastArguments {
  QuantizedView<Format, Granularity, Layout::row_major, Cuda> row_major;    ///< or empty
  QuantizedView<Format, Granularity, Layout::transposed, Cuda> transposed;  ///< or empty
  Index rows;
  Index columns;       ///< of all parts together
  Index part_columns;  ///< of one part
  ScalingSlot slot;
  bool record;
  bool power_of_two;  ///< rounding of the computed scale
  RowAmaxes amaxes{};
};

/// The first row and column of a tile; columns count within one part.
struct TilePlace {
  Index row;
  Index column;

  __device__ TilePlace(unsigned down, unsigned across)
      : row(Index{down} * tile_side), column(Index{across} * tile_side) {}
  [[nodiscard]] __device__ bool is_first() const { return row == 0 && column == 0; }
};

/// The position of a thread that works along the rows of a tile: it processes one run in one row of
/// each group.
struct RowPosition {
  int run = static_cast<int>(threadIdx.x) % tile_runs;
  int row = static_cast<int>(threadIdx.x) / tile_runs;
};

/// The position of a thread that works along the columns of a tile: it processes four columns of 16
/// rows. Eight adjacent threads work on the same four columns, so that a warp writes whole ranges
/// of 128 bytes.
struct ColumnPosition {
  int group = static_cast<int>(threadIdx.x) % columns_per_tile;
  int word = static_cast<int>(threadIdx.x) / columns_per_tile;
};

/// A tile of FP8 bytes in shared memory, in groups of `column_size` rows. Units of 16 bytes are
/// permuted within a row depending on its group, so that threads that read along 8 groups access 8
/// different sets of banks.
struct ByteTile {
  uint4 units[columns_per_tile][column_size][tile_side / 16];

  __device__ uint2& run(int group, int row, int run) {
    return reinterpret_cast<uint2*>(&units[group][row][(run / 2) ^ group])[run % 2];
  }
  /// Four columns of one row.
  __device__ std::uint32_t word(int group, int row, int word) const {
    return reinterpret_cast<const std::uint32_t*>(&units[group][row][(word / 4) ^ group])[word % 4];
  }
};

/// A tile of BF16 values in shared memory, with units permuted as in ByteTile.
struct ValueTile {
  uint4 units[columns_per_tile][column_size][tile_runs];

  __device__ uint4& run(int group, int row, int run) { return units[group][row][run ^ group]; }
  /// Four columns of one row.
  __device__ uint2 four(int group, int row, int word) const {
    return reinterpret_cast<const uint2*>(&units[group][row][(word / 2) ^ group])[word % 2];
  }
};

/// `column_size` vertically adjacent elements of one column of a tile.
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

/// Transposes bytes of four rows with four columns each to four columns of four rows.
__device__ inline uint4 transpose_bytes(uint4 rows) {
  const std::uint32_t low01 = __byte_perm(rows.x, rows.y, 0x5140);
  const std::uint32_t high01 = __byte_perm(rows.x, rows.y, 0x7362);
  const std::uint32_t low23 = __byte_perm(rows.z, rows.w, 0x5140);
  const std::uint32_t high23 = __byte_perm(rows.z, rows.w, 0x7362);
  return make_uint4(__byte_perm(low01, low23, 0x5410), __byte_perm(low01, low23, 0x7632),
                    __byte_perm(high01, high23, 0x5410), __byte_perm(high01, high23, 0x7632));
}

/// Returns the dynamic shared memory of kernels that cast tiles: a tile for each part.
extern __shared__ uint4 tile_memory[];

/// Returns how many of the `most` positions starting at `begin` lie before `end`: negative if
/// `begin` is beyond it, and always `most` if tiles are whole.
template <Fit F>
__device__ int count_inside(Index begin, Index end, int most) {
  return F == Fit::whole ? most : static_cast<int>(min(end - begin, Index{most}));
}

/// Calls `body(round, count, produced, prepared)` for the thread's run in every group of the tile's
/// rows: `count` of its elements lie within the matrix. Returns the source's runs, for `finish`.
/// @param prepare  computes `prepared`; called after the first reads have been issued
template <Fit F, class Source, class Prepare, class Body>
__device__ auto for_each_round(const Source& source, TilePlace place, Index rows,
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
      __syncwarp();  // otherwise the compiler may wait for prepared data before it issues the reads
      await(runs);
      prepared = prepare();
    }
#pragma unroll
    for (int i = 0; i < batch; ++i) {
      const int elements = count(begin + i);
      const auto produced = runs.make(row(begin + i), loaded[i]);
      body(begin + i, elements, inside<Source, vectors>(produced, elements), prepared);
    }
  }
  return runs;
}

/// Adds a block's totals to the slot, by one warp and without waiting for memory.
template <class Format, class Granularity>
__device__ void add_to_slot(const CastArguments<Format, Granularity>& arguments,
                            const BlockTotals& totals, bool first_tile) {
  if (threadIdx.x >= 32) return;
  const CastTotals block = totals.sum();
  if (threadIdx.x != 0) return;
  OperandStatistics& statistics = *arguments.slot.statistics;
  if (first_tile) {
    add_to_counter(statistics.elements,
                   static_cast<std::uint64_t>(arguments.rows * arguments.columns));
  }
  atomicMax(arguments.slot.amax_bits, block.amax_bits);
  if (arguments.row_major.empty() && arguments.transposed.empty()) return;
  add_to_counter(statistics.saturated, block.saturated);
  add_to_counter(statistics.flushed, block.flushed);
}

/// Returns the properties common to all tiles of the copies that a cast writes.
/// @param vectors  whether the source computes runs as vectors
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

/// Returns the grid of tiles: from left to right in one part (x), and from the first row to the
/// last (y).
template <class Format, class Granularity>
dim3 tile_grid(const CastArguments<Format, Granularity>& arguments) {
  const auto tiles = [](Index size) {
    return static_cast<unsigned>(std::max(Index{1}, ceil_divide(size, tile_side)));
  };
  return dim3(tiles(arguments.part_columns), tiles(arguments.rows));
}

}  // namespace octavo::detail
