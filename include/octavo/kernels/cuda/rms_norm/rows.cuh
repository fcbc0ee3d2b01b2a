/// @file
/// Root mean squares of rows, always summed in the same order, and the kernel that writes
/// normalised rows.
#pragma once

#include <octavo/kernels/cuda/cast/amax.cuh>
#include <octavo/kernels/cuda/limits.hpp>

namespace octavo OCTAVO_ABI::detail {

/// The part of a row that one warp squares and sums at once: two runs per lane, `segment_stride`
/// runs apart. Every kernel here sums a row in the same order, first a lane's two runs, then all
/// segments, then the 32 lanes, so that a row's inverse root mean square always has the same bits.
template <class T>
struct Segment {
  Run<T> runs[2];
};
inline constexpr int segment_stride = 32;
static_assert(segment_columns == 2 * segment_stride * run_size);

/// Returns where a lane's run of a segment begins, relative to the segment's first column.
__device__ inline int column_in_segment(int run) {
  return (static_cast<int>(threadIdx.x) % 32 + run * segment_stride) * run_size;
}

/// Reads the segment that starts at `column`; columns beyond the row are zero.
template <bool Vectors, class T>
__device__ Segment<T> load_segment(const T* row, int column, int columns) {
  Segment<T> segment;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int begin = column + column_in_segment(i);
    segment.runs[i] = load_run<Vectors>(row + begin, columns - begin);
  }
  return segment;
}

/// Returns Σ of the squares of the lane's part of the segment.
template <class T>
__device__ float sum_of_squares(const Segment<T>& segment) {
  float squares = 0;
#pragma unroll
  for (const Run<T>& run : segment.runs) {
    const Floats values = to_floats(run);
#pragma unroll
    for (const float value : values.values) squares = __fmaf_rn(value, value, squares);
  }
  return squares;
}

/// Returns 1 / root mean square of a row.
/// @param squares  Σ over the row
__device__ inline float inverse_root(float squares, Index columns, float epsilon) {
  return 1.0f / sqrtf(squares / static_cast<float>(columns) + epsilon);
}

/// Returns x · inverse · weight.
template <class T>
__device__ Run<T> normalised(const Run<T>& x, float inverse, const Floats& weights) {
  Floats values = to_floats(x);
#pragma unroll
  for (int i = 0; i < run_size; ++i) {
    values.values[i] = values.values[i] * inverse * weights.values[i];
  }
  return to_run<T>(values);
}

/// Returns weights plus a constant: see NormWeight.
template <class T>
__device__ Floats offset_weights(const Run<T>& weights, float offset) {
  Floats values = to_floats(weights);
#pragma unroll
  for (float& value : values.values) value += offset;
  return values;
}

/// Segments of a row that a warp keeps in registers; those of very long rows are read twice.
inline constexpr int held_segments = 2;
/// Maximum number of warps of a block that processes a row.
inline constexpr Index max_row_warps = 8;

/// Normalises a row with all threads of a block.
/// @param offset   of the weight: see NormWeight
/// @param squares  [segments, 32], in shared memory
/// @param write    called for each run of the row: (column, elements of it, run)
/// @return         the row's inverse root mean square
template <bool Vectors, class T, class Write>
__device__ float normalise_row(const T* x, const T* weight, float offset, int columns,
                               float epsilon, float* squares, const Write& write) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int warps = static_cast<int>(blockDim.x) / 32;
  const int segments = (columns + segment_columns - 1) / segment_columns;
  const auto load = [&](int segment) {
    return load_segment<Vectors>(x, segment * segment_columns, columns);
  };
  const auto square = [&](int segment, const Segment<T>& values) {
    if (segment < segments) squares[segment * 32 + lane] = sum_of_squares(values);
  };
  Segment<T> held[held_segments];
#pragma unroll
  for (int i = 0; i < held_segments; ++i) held[i] = load(warp + i * warps);
#pragma unroll
  for (int i = 0; i < held_segments; ++i) square(warp + i * warps, held[i]);
  const int first_not_held = warp + held_segments * warps;
  for (int segment = first_not_held; segment < segments; segment += warps) {
    square(segment, load(segment));
  }
  __syncthreads();
  float sum = 0;
  for (int segment = 0; segment < segments; ++segment) sum += squares[segment * 32 + lane];
  const float inverse = inverse_root(warp_sum(sum), columns, epsilon);
  const auto write_segment = [&](int segment, const Segment<T>& values) {
    const auto weights = load_segment<Vectors>(weight, segment * segment_columns, columns);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int column = segment * segment_columns + column_in_segment(i);
      const int count = columns - column;
      write(column, count,
            normalised(values.runs[i], inverse, offset_weights(weights.runs[i], offset)));
    }
  };
#pragma unroll
  for (int i = 0; i < held_segments; ++i) write_segment(warp + i * warps, held[i]);
  for (int segment = first_not_held; segment < segments; segment += warps) {
    write_segment(segment, load(segment));
  }
  return inverse;
}

/// Returns the bytes of shared memory that `normalise_row` needs.
inline std::size_t normalise_row_bytes(Index columns) {
  return static_cast<std::size_t>(ceil_divide(columns, segment_columns)) * 32 * sizeof(float);
}

/// Computes the inverse root mean square of one row per block. Five blocks of the largest size must
/// fit on a multiprocessor, which limits the registers of a thread: rows in flight hide latency.
/// @param y          the normalised rows
/// @param amax_bits  null, or raised to the bits of max |y|
template <bool Vectors, class T>
OCTAVO_KERNEL void __launch_bounds__(max_row_warps * 32, sizeof(T) == 2 ? 5 : 2)
    rms_norm_kernel(const T* x, const T* weight, float offset, int columns, float epsilon,
                    float* inverse_rms, T* y, std::uint32_t* amax_bits) {
  extern __shared__ float segment_squares[];  // [segments, 32]
  launch_dependent_grids();
  x += Index{blockIdx.x} * columns;
  y += Index{blockIdx.x} * columns;
  std::uint32_t magnitudes = 0;
  const auto write = [&](int column, int count, const Run<T>& run) {
    store_run<Vectors>(y + column, count, run);
    if constexpr (std::is_same_v<T, Bf16>) {
      if (count > 0) magnitudes = larger_magnitudes(magnitudes, run);
    }
  };
  const float inverse =
      normalise_row<Vectors>(x, weight, offset, columns, epsilon, segment_squares, write);
  if (threadIdx.x == 0) inverse_rms[blockIdx.x] = inverse;
  if (amax_bits != nullptr) raise_to_block_amax(magnitudes, amax_bits);
}

}  // namespace octavo::detail
