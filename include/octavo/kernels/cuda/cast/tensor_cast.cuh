/// @file
/// Casts of a tile with the scale of its tensor.
#pragma once

#include <octavo/kernels/cuda/cast/tile.cuh>

namespace octavo OCTAVO_ABI::detail {

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

/// The scale of a tensor, and the values that it may saturate.
struct TensorScale {
  float scale;
  bool amax_saturates;  ///< whether the amax saturates, for a scale computed from it
  SafeMagnitudes safe;  ///< for a scale that was known before the values
};

/// Casts one tile with one scale, and transposes its bytes.
/// @tparam FindsScale  whether to compute the scale from `found_amax_bits` (current scaling)
template <Fit F, bool FindsScale, class Format, class Source>
__device__ void tensor_cast_tile(const CastArguments<Format, PerTensor>& arguments,
                                 const Source& source, TilePlace place) {
  __shared__ BlockTotals block_totals;
  auto* tiles = reinterpret_cast<ByteTile*>(tile_memory);
  const RowPosition position;
  OperandScale& scaling = *arguments.slot.scaling;
  const float in_slot = FindsScale ? float_from_bits(scaling.found_amax_bits) : scaling.scale;
  const auto prepare = [&] {
    // `in_slot` is requested before the values, but awaited only after they have been requested.
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
        may_saturate = !tensor.safe.contains(largest);
      }
      const Run<Format> cast = cast_run<Format>(produced.parts[part], tensor.scale, totals);
      if (may_saturate) count_saturated<Format>(produced.parts[part], tensor.scale, totals);
      tiles[part].run(round, position.row, position.run) = make_uint2(cast.words[0], cast.words[1]);
      if (arguments.row_major.empty()) continue;
      store_run<F != Fit::any>(
          rows_target + part * arguments.part_columns + round * column_size * stride, count, cast);
    }
  };
  finish(for_each_round<F>(source, place, arguments.rows, arguments.part_columns, prepare,
                           cast_round));
  totals.amax_bits = FindsScale ? float_bits(in_slot) : magnitude_bits(magnitudes);
  if (arguments.record) block_totals.put(totals);
  __syncthreads();
  if (arguments.record) add_to_slot(arguments, block_totals, place.is_first());
  if (FindsScale && place.is_first() && threadIdx.x == 0) {
    scaling.scale = prepare().scale;
    scaling.scale_inverse = __fdiv_rn(1.0f, scaling.scale);
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

}  // namespace octavo::detail
