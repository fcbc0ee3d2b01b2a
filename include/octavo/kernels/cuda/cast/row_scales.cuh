/// @file
/// Scales per row of each copy. A row of the transposed copy is a column of the matrix, and
/// both are longer than a tile, so a first pass over the source's values computes the amaxes of
/// rows and columns, from which the cast computes scales. The values are computed twice instead of
/// stored, which moves fewer bytes, or the same number if the source reads two matrices.
#pragma once

#include <octavo/kernels/cuda/cast/block_scale.cuh>
#include <octavo/kernels/cuda/cast/tile.cuh>

namespace octavo OCTAVO_ABI::detail {

// ---- the first pass -----------------------------------------------------------------------------

/// The magnitudes of one tile, in shared memory.
template <int Parts>
struct TileMagnitudes {
  /// The maximum that a thread found in a row, over all parts, as BF16 bits.
  std::uint16_t row_maxima[tile_side][tile_runs];
  /// The maximum that a thread found in each column of its run.
  uint4 column_maxima[Parts][column_size][tile_runs];

  /// Returns the FP32 bits of the maximum of a row.
  [[nodiscard]] __device__ std::uint32_t row(int row) const {
    static_assert(tile_runs == 16);
    const auto* vectors = reinterpret_cast<const uint4*>(row_maxima[row]);
    const auto largest = [](uint4 of) {
      return __vmaxu2(__vmaxu2(of.x, of.y), __vmaxu2(of.z, of.w));
    };
    return magnitude_bits(__vmaxu2(largest(vectors[0]), largest(vectors[1])));
  }
  /// Returns the maximum of two adjacent columns, as BF16 bits.
  [[nodiscard]] __device__ std::uint32_t column_pair(int part, int pair) const {
    std::uint32_t largest = 0;
#pragma unroll
    for (int i = 0; i < column_size; ++i) {
      const auto* pairs = reinterpret_cast<const std::uint32_t*>(column_maxima[part][i]);
      largest = __vmaxu2(largest, pairs[pair]);
    }
    return largest;
  }
};

/// Computes the magnitudes of the source's values in a tile. The block must synchronise before they
/// are read.
template <Fit F, class Format, class Granularity, class Source>
__device__ void find_tile_magnitudes(const CastArguments<Format, Granularity>& arguments,
                                     const Source& source, TilePlace place,
                                     TileMagnitudes<Source::parts>& magnitudes) {
  const RowPosition position;
  std::uint32_t columns[Source::parts][Run<Bf16>::words_per_run] = {};
  for_each_round<F>(
      source, place, arguments.rows, arguments.part_columns, [] { return 0; },
      [&](int round, int, const Produced<Bf16, Source::parts>& produced, int) {
        std::uint32_t row_maximum = 0;
#pragma unroll
        for (int part = 0; part < Source::parts; ++part) {
#pragma unroll
          for (int i = 0; i < Run<Bf16>::words_per_run; ++i) {
            const std::uint32_t word = produced.parts[part].words[i];
            row_maximum = larger_magnitudes(row_maximum, word);
            columns[part][i] = larger_magnitudes(columns[part][i], word);
          }
        }
        magnitudes.row_maxima[position.row + round * column_size][position.run] =
            static_cast<std::uint16_t>(magnitude_bits(row_maximum) >> 16);
      });
#pragma unroll
  for (int part = 0; part < Source::parts; ++part) {
    magnitudes.column_maxima[part][position.row][position.run] =
        make_uint4(columns[part][0], columns[part][1], columns[part][2], columns[part][3]);
  }
}

/// Raises the amaxes of a tile's rows and columns, if they are needed.
template <Fit F, class Format, class Granularity, class Source>
__device__ void raise_row_amaxes(const CastArguments<Format, Granularity>& arguments,
                                 const Source& source, TilePlace place) {
  __shared__ alignas(16) TileMagnitudes<Source::parts> magnitudes;
  find_tile_magnitudes<F>(arguments, source, place, magnitudes);
  __syncthreads();
  const int thread = static_cast<int>(threadIdx.x);
  const RowAmaxes& amaxes = arguments.amaxes;
  if (thread < tile_side) {
    const Index row = place.row + thread;
    if (amaxes.row_major != nullptr && row < arguments.rows) {
      atomicMax(amaxes.row_major + row, magnitudes.row(thread));
    }
    return;
  }
  if (amaxes.transposed == nullptr) return;
  constexpr int pairs = tile_side / 2;
  for (int i = thread - tile_side; i < Source::parts * pairs; i += quantize_threads - tile_side) {
    const Index column = place.column + i % pairs * 2;
    std::uint32_t* target = amaxes.transposed + i / pairs * arguments.part_columns + column;
    const std::uint32_t pair = magnitudes.column_pair(i / pairs, i % pairs);
    if (column < arguments.part_columns) atomicMax(target, pair << 16);
    if (column + 1 < arguments.part_columns) atomicMax(target + 1, pair & 0xffff0000u);
  }
}

/// Runs the first pass instead of a cast. It begins with the first tile, because the cast begins
/// with the last.
template <Fit F, class Format, class Granularity>
struct TileAmaxes {
  static constexpr Fit fit = F;
  static constexpr bool last_tile_first = false;
  static constexpr std::size_t shared_bytes = 0;

  template <class Source>
  __device__ static void run(const CastArguments<Format, Granularity>& arguments,
                             const Source& source, TilePlace place) {
    raise_row_amaxes<F>(arguments, source, place);
  }
};

// ---- the cast -----------------------------------------------------------------------------------

/// The factors that a tile's values are multiplied by before they are rounded.
template <int Parts>
struct TileScales {
  float rows[tile_side];
  float columns[Parts][tile_side];

  /// The block's factors, in shared memory.
  __device__ static TileScales& of_block() {
    __shared__ TileScales scales;
    return scales;
  }
};

/// Computes the scales of a tile's rows and columns, one or two per thread; the first tiles of a
/// row and of a column write their inverses. The block must synchronise before they are read.
/// @param totals  updated with the amaxes
/// @return whether a row or a column of this thread may saturate
template <class S, int Parts, class Format>
__device__ bool find_tile_scales(const CastArguments<Format, PerRow>& arguments, TilePlace place,
                                 CastTotals& totals) {
  auto& scales = TileScales<Parts>::of_block();
  bool may_saturate = false;
  const auto find = [&](const auto& copy, const std::uint32_t* amaxes, Index row, bool writes) {
    const std::uint32_t amax_bits = amaxes[row];
    float inverse;
    const float scale = find_block_scale<S, Format>(amax_bits, inverse);
    if (writes) copy.scale_inverses()[row] = inverse;
    totals.amax_bits = max(totals.amax_bits, amax_bits);
    may_saturate |= saturates<Format>(float_from_bits(amax_bits), scale);
    return scale;
  };
  const int i = static_cast<int>(threadIdx.x) % tile_side;
  if (threadIdx.x < tile_side) {
    const Index row = place.row + i;
    const bool exists = !arguments.row_major.empty() && row < arguments.rows;
    scales.rows[i] =
        exists ? find(arguments.row_major, arguments.amaxes.row_major, row, place.column == 0)
               : 1.0f;
    return may_saturate;
  }
#pragma unroll
  for (int part = 0; part < Parts; ++part) {
    const Index column = place.column + i;
    const bool exists = !arguments.transposed.empty() && column < arguments.part_columns;
    scales.columns[part][i] = exists ? find(arguments.transposed, arguments.amaxes.transposed,
                                            part * arguments.part_columns + column, place.row == 0)
                                     : 1.0f;
  }
  return may_saturate;
}

// ---- the host -----------------------------------------------------------------------------------

/// Returns memory for the amaxes of the rows of the copies that are written, set to 0, in the
/// context's workspace.
/// @param bytes_used  bytes at the beginning of the workspace that are in use
template <class Format, class Granularity>
RowAmaxes clear_row_amaxes(const char* name, const CastArguments<Format, Granularity>& arguments,
                           std::size_t bytes_used, const Context<Cuda>& context) {
  const auto begin = static_cast<std::size_t>(round_up(static_cast<Index>(bytes_used), 256));
  const std::size_t bytes = row_amaxes_workspace(arguments.rows, arguments.columns);
  auto* amaxes = reinterpret_cast<std::uint32_t*>(
      workspace_of<std::byte>(context, begin + bytes, name) + begin);
  fill_zero(amaxes, bytes, context);
  RowAmaxes result;
  if (!arguments.row_major.empty()) result.row_major = amaxes;
  if (!arguments.transposed.empty()) result.transposed = amaxes + arguments.rows;
  return result;
}

}  // namespace octavo::detail
