/// @file
/// The layout of block scales that Blackwell's tensor cores read.
/// Source: cuBLAS documentation, "1D block scaling factors layout".
#pragma once

#include <octavo/core/context.hpp>

namespace octavo OCTAVO_ABI {

/// Rows and columns of a tile of swizzled scales. A column is a block along the dimension that a
/// GEMM reduces.
inline constexpr Index scale_tile_rows = 128;
inline constexpr Index scale_tile_columns = 4;

/// Returns the number of swizzled scales of `rows` × `blocks` blocks, including the padding to
/// whole tiles. Padding must be zero.
OCTAVO_HOST_DEVICE constexpr Index swizzled_scale_count(Index rows, Index blocks) {
  return round_up(rows, scale_tile_rows) * round_up(blocks, scale_tile_columns);
}

/// Returns the index of the scale of block `block` of row `row`. Tiles are stored in row-major
/// order. Within a tile, rows r, r + 32, r + 64 and r + 96 are adjacent, so that the 16 scales of
/// four rows are one 16-byte vector.
/// @param blocks  number of blocks of a row, before padding
OCTAVO_HOST_DEVICE constexpr Index swizzled_scale_index(Index row, Index block, Index blocks) {
  constexpr Index adjacent = 32;  // rows of a tile with the same position in their vectors
  constexpr Index groups = scale_tile_rows / adjacent;
  const Index across = ceil_divide(blocks, scale_tile_columns);
  const Index tile = row / scale_tile_rows * across + block / scale_tile_columns;
  const Index in_tile = row % scale_tile_rows;
  return tile * (scale_tile_rows * scale_tile_columns) +
         in_tile % adjacent * (groups * scale_tile_columns) +
         in_tile / adjacent * scale_tile_columns + block % scale_tile_columns;
}

}  // namespace octavo
