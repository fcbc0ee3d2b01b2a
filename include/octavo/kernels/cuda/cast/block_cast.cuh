/// @file
/// Casts of a tile with a scale per block, computed from the tile, or with known scales per row of
/// each copy.
#pragma once

#include <octavo/kernels/cuda/cast/row_scales.cuh>

namespace octavo OCTAVO_ABI::detail {

/// Computes the maximum of each pair of magnitudes over `Lanes` adjacent threads. In each round, a
/// thread keeps half of the pairs; at the end, each has one, in `pairs[0]`: the first threads have
/// the first pair, and so on.
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

/// Computes the scales of `Count` blocks that `Lanes` adjacent threads share: each thread computes
/// one or two, and receives the others. Returns whether some block of the warp may saturate; all
/// threads of the warp must call it.
/// @param pairs   the thread's magnitudes in blocks 0 and 1, 2 and 3, and so on; overwritten
/// @param totals  updated with the amaxes
/// @param store   `store(i, scale_inverse)` is called by one thread for scale `i`
template <class S, class Format, class Scale, int Lanes, int Count, class Store>
__device__ bool find_block_scales(std::uint32_t (&pairs)[Count / 2], float (&scales)[Count],
                                  CastTotals& totals, const Store& store) {
  constexpr bool finds_pair = Lanes < Count;
  constexpr int found = finds_pair ? 2 : 1;
  constexpr int same = Lanes * found / Count;  // threads that compute the same scale
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

/// Whether each row of a copy has one scale.
template <class Granularity>
inline constexpr bool is_row = std::is_same_v<Granularity, PerRow>;
/// Whether blocks of scales lie within a row, so that a tile's threads can compute them.
template <class Granularity>
inline constexpr bool scales_lie_in_rows = Granularity::block_rows == 1 && !is_row<Granularity>;

/// A cast factor.
struct CastScale {
  float scale;
  bool may_saturate;  ///< false: no value cast with it is out of the format's range
};

/// Computes the scale of a 128 × 128 block, shared by both copies. All threads of the block must
/// call it.
template <class S, class Format, class Granularity>
__device__ CastScale square_scale(const CastArguments<Format, Granularity>& arguments,
                                  TilePlace place, std::uint32_t magnitudes) {
  static_assert(Granularity::block_rows == tile_side && Granularity::block_columns == tile_side);
  const std::uint32_t amax_bits = block_amax(magnitudes);
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
/// @param tile_scale  of the tile; unused if blocks lie within a row
/// @param row_scales  of the tile's rows; used only for scales per row
template <class S, Fit F, class Format, class Granularity, class MakeRun>
__device__ void cast_tile_rows(const CastArguments<Format, Granularity>& arguments, TilePlace place,
                               Index first_column, const MakeRun& run, CastScale tile_scale,
                               const float* row_scales, CastTotals& totals) {
  using Scale = typename Granularity::Scale;
  constexpr bool finds_scales = scales_lie_in_rows<Granularity>;
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
  if constexpr (finds_scales) {
    std::uint32_t pairs[tile_rounds / 2];
#pragma unroll
    for (int i = 0; i < tile_rounds / 2; ++i) {
      const std::uint32_t first = larger_magnitudes(0, run(2 * i));
      const std::uint32_t second = larger_magnitudes(0, run(2 * i + 1));
      // The larger magnitude of each word's two, side by side.
      pairs[i] = __vmaxu2(__byte_perm(first, second, 0x5410), __byte_perm(first, second, 0x7632));
    }
    // A thread beyond the matrix may compute the scale of a block that begins within it.
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
    if constexpr (finds_scales) {
      return scales[round];
    } else if constexpr (is_row<Granularity>) {
      return row_scales[tile_row(round)];
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
/// @tparam Counts        whether to update the counters
/// @param tile_scale     of the tile; unused if blocks lie within a column
/// @param column_scales  of the tile's columns; used only for scales per row
template <class S, Fit F, bool Counts, class Format, class Granularity>
__device__ void cast_tile_columns(const CastArguments<Format, Granularity>& arguments,
                                  TilePlace place, Index first_column, const ValueTile& tile,
                                  float tile_scale, const float* column_scales,
                                  CastTotals& totals) {
  using Scale = typename Granularity::Scale;
  constexpr bool finds_scales = scales_lie_in_rows<Granularity>;
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
  if constexpr (finds_scales) {
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
    const float scale = finds_scales          ? scales[c]
                        : is_row<Granularity> ? column_scales[position.word * 4 + c]
                                              : tile_scale;
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

/// Casts and transposes one tile. The two copies have different scales, so both are cast from the
/// values.
template <class S, Fit F, class Format, class Granularity, class Source>
__device__ void block_cast_tile(const CastArguments<Format, Granularity>& arguments,
                                const Source& source, TilePlace place) {
  constexpr bool is_square = Granularity::block_rows > 1;
  static_assert(!is_square || Source::parts == 1);
  // A thread casts its own values along rows, from registers if it computed all of them at once.
  constexpr bool holds_rows =
      F != Fit::any && Source::parts == 1 && Source::rounds_in_flight == tile_rounds;
  __shared__ BlockTotals block_totals;
  auto* tiles = reinterpret_cast<ValueTile*>(tile_memory);
  const RowPosition position;
  Run<Bf16> held[holds_rows ? tile_rounds : 1];
  std::uint32_t magnitudes = 0;
  CastScale scale{};
  CastTotals totals{};
  const float* row_scales = nullptr;
  const auto prepare = [&] {
    if constexpr (is_row<Granularity>) {
      scale.may_saturate = find_tile_scales<S, Source::parts>(arguments, place, totals);
      row_scales = TileScales<Source::parts>::of_block().rows;
    }
    return 0;
  };
  const auto keep = [&](int round, int, const Produced<Bf16, Source::parts>& produced, int) {
#pragma unroll
    for (int part = 0; part < Source::parts; ++part) {
      const Run<Bf16>& values = produced.parts[part];
      if constexpr (is_square) magnitudes = larger_magnitudes(magnitudes, values);
      tiles[part].run(round, position.row, position.run) =
          make_uint4(values.words[0], values.words[1], values.words[2], values.words[3]);
      if constexpr (holds_rows) held[round] = values;
    }
  };
  finish(for_each_round<F>(source, place, arguments.rows, arguments.part_columns, prepare, keep));
  if constexpr (is_row<Granularity>) {
    scale.may_saturate = __syncthreads_or(scale.may_saturate ? 1 : 0) != 0;
  } else if constexpr (!holds_rows) {
    __syncthreads();
  }
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
      cast_tile_rows<S, F>(arguments, place, first_column, run, scale, row_scales, totals);
    } else if (arguments.transposed.empty()) {  // only the amax is needed
#pragma unroll
      for (int i = 0; i < tile_rounds; ++i) {
        totals.amax_bits = max(totals.amax_bits, magnitude_bits(larger_magnitudes(0, run(i))));
      }
    }
  }
  if constexpr (holds_rows && !is_row<Granularity>) __syncthreads();
  if (!arguments.transposed.empty()) {
#pragma unroll
    for (int part = 0; part < Source::parts; ++part) {
      const Index first_column = part * arguments.part_columns;
      const float* column_scales = nullptr;
      if constexpr (is_row<Granularity>) {
        column_scales = TileScales<Source::parts>::of_block().columns[part];
      }
      if (has_rows) {
        cast_tile_columns<S, F, false>(arguments, place, first_column, tiles[part], scale.scale,
                                       column_scales, totals);
      } else {
        cast_tile_columns<S, F, true>(arguments, place, first_column, tiles[part], scale.scale,
                                      column_scales, totals);
      }
    }
  }
  if (!arguments.record) return;
  block_totals.put(totals);
  __syncthreads();
  add_to_slot(arguments, block_totals, place.is_first());
}

}  // namespace octavo::detail
