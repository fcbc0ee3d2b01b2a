/// @file
/// Maximum matrix sizes of kernels on the `Cuda` device, checked before any launch. Needs no CUDA.
#pragma once

#include <octavo/core/context.hpp>
#include <octavo/precision/policy.hpp>

namespace octavo OCTAVO_ABI::detail {

/// Rows and columns that one block of threads casts and transposes; a multiple of every block size.
inline constexpr int tile_side = 128;
/// Maximum columns: with them, offsets within the rows of a tile fit in 31 bits, even if a second
/// part is next to the first.
inline constexpr Index max_columns = Index{1} << 24;
/// Maximum rows of a cast: a grid has at most 65535 tiles from the first row to the last.
inline constexpr Index max_cast_rows = Index{65535} * tile_side;

/// Returns the shared memory of a block that remains after kernels' fixed-size arrays.
inline Index max_shared_bytes(const DeviceLimits<Cuda>& limits) {
  constexpr Index fixed = 1024;
  return limits.gpu.shared_bytes - fixed;
}
/// Maximum columns that RMSNorm's forward sums in one step, with 128 bytes of shared memory for
/// each.
inline constexpr int segment_columns = 512;
inline Index max_norm_columns(const DeviceLimits<Cuda>& limits) {
  return max_shared_bytes(limits) / 128 * segment_columns;
}
/// RMSNorm's backward keeps one FP32 sum for each column.
inline Index max_norm_backward_columns(const DeviceLimits<Cuda>& limits) {
  return max_shared_bytes(limits) / 4;
}
/// LayerNorm's backward keeps two.
inline Index max_layer_norm_columns(const DeviceLimits<Cuda>& limits) {
  return max_shared_bytes(limits) / 8;
}

/// Throws ShapeError for rows that are too long for a kernel.
inline void require_columns(const char* operation, Index columns, Index most = max_columns) {
  require<ShapeError>(columns <= most, operation, ": rows must have at most ", most,
                      " columns on Cuda, but have ", columns, "; split the rows");
}

/// Throws ShapeError for a matrix that is too large to be written as an operand of precision `P`.
template <LinearPrecision P>
void require_operand_size(const char* operation, Index rows, Index columns) {
  require_columns(operation, columns);
  if constexpr (QuantizedPrecision<P>) {
    require<ShapeError>(rows <= max_cast_rows, operation, ": at most ", max_cast_rows,
                        " rows can be cast at once on Cuda, but there are ", rows,
                        "; process fewer tokens at once");
  }
}

}  // namespace octavo::detail
