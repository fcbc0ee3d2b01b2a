/// @file
/// Root-mean-square normalisation on the `Cuda` device.
#pragma once

#include <octavo/kernels/cuda/quantize.cuh>
#include <octavo/kernels/rms_norm.hpp>

#include <cooperative_groups.h>
#include <cuda_pipeline_primitives.h>

#include <utility>

namespace octavo {
namespace detail {

// ---- forward ------------------------------------------------------------------------------------

/// The part of a row that one warp squares and sums at once: two runs a lane, `segment_stride` runs
/// apart. Every kernel here sums a row in the same order, two runs, 32 lanes, then all segments, so
/// that a row has one inverse root mean square, to the bit, whatever becomes of its values.
template <class T>
struct Segment {
  Run<T> runs[2];
};
inline constexpr int segment_stride = 32;
inline constexpr int segment_columns = 2 * segment_stride * run_size;

/// Where a lane's run of a segment begins, counted from the segment's first column.
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

/// Σ of the segment's squares, to all lanes.
template <class T>
__device__ float sum_of_squares(const Segment<T>& segment) {
  float squares = 0;
#pragma unroll
  for (const Run<T>& run : segment.runs) {
    const Floats values = to_floats(run);
#pragma unroll
    for (const float value : values.values) squares = __fmaf_rn(value, value, squares);
  }
  return warp_sum(squares);
}

/// 1 / root mean square of a row.
/// @param squares  Σ over all its segments
__device__ inline float inverse_root(float squares, Index columns, float epsilon) {
  return 1.0f / sqrtf(squares / static_cast<float>(columns) + epsilon);
}

/// x · inverse · weight.
template <class T>
__device__ Run<T> normalised(const Run<T>& x, float inverse, const Floats& weights) {
  Floats values = to_floats(x);
#pragma unroll
  for (int i = 0; i < run_size; ++i) {
    values.values[i] = values.values[i] * inverse * weights.values[i];
  }
  return to_run<T>(values);
}

/// Segments of a row that a warp holds in registers; those of very long rows are read twice.
inline constexpr int held_segments = 2;
/// Warps of a block that works on a row, at most.
inline constexpr Index most_row_warps = 8;

/// Finds the inverse root mean square of a row a block. Five blocks of the largest size shall fit a
/// multiprocessor, which bounds the registers of a thread: rows in flight hide the wait for others.
/// @param y          null, or the normalised rows are written to it
/// @param amax_bits  null, or raised to the bits of max |y|
template <bool Vectors, class T>
OCTAVO_KERNEL void __launch_bounds__(most_row_warps * 32, sizeof(T) == 2 ? 5 : 2)
    rms_norm_kernel(const T* x, const T* weight, int columns, float epsilon, float* inverse_rms,
                    T* y, std::uint32_t* amax_bits) {
  extern __shared__ float segment_squares[];
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int warps = static_cast<int>(blockDim.x) / 32;
  const int segments = (columns + segment_columns - 1) / segment_columns;
  x += Index{blockIdx.x} * columns;
  const auto load = [&](int segment) {
    return load_segment<Vectors>(x, segment * segment_columns, columns);
  };
  const auto square = [&](int segment, const Segment<T>& values) {
    const float squares = sum_of_squares(values);
    if (threadIdx.x % 32 == 0 && segment < segments) segment_squares[segment] = squares;
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
  float squares = 0;
  for (int segment = 0; segment < segments; ++segment) squares += segment_squares[segment];
  const float inverse = inverse_root(squares, columns, epsilon);
  if (threadIdx.x == 0) inverse_rms[blockIdx.x] = inverse;
  if (y == nullptr) return;
  y += Index{blockIdx.x} * columns;
  std::uint32_t magnitudes = 0;
  const auto write = [&](int segment, const Segment<T>& values) {
    const auto weights = load_segment<Vectors>(weight, segment * segment_columns, columns);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int column = segment * segment_columns + column_in_segment(i);
      const int count = columns - column;
      const Run<T> run = normalised(values.runs[i], inverse, to_floats(weights.runs[i]));
      store_run<Vectors>(y + column, count, run);
      if constexpr (std::is_same_v<T, Bf16>) {
        if (count > 0) magnitudes = larger_magnitudes(magnitudes, run);
      }
    }
  };
#pragma unroll
  for (int i = 0; i < held_segments; ++i) write(warp + i * warps, held[i]);
  for (int segment = first_not_held; segment < segments; segment += warps) {
    write(segment, load(segment));
  }
  if (amax_bits != nullptr) raise_to_block_amax(magnitudes, amax_bits);
}

// ---- forward, cast by a scale that is known -----------------------------------------------------

/// Rows that a cluster normalises and casts; each of its blocks works on one segment of them.
inline constexpr int cluster_rows = 64;
inline constexpr Index most_cluster_blocks = 8;
inline constexpr int cluster_threads = 256;
inline constexpr int cluster_warps = cluster_threads / 32;

/// A block's part of the rows in shared memory, 16 bytes for each run: its values, then in their
/// place its 8 bytes of FP8. Places are swapped by groups of 16 rows, and bytes of the later groups
/// take the second half of their place, so that threads which read down all four groups at once
/// meet different banks.
struct SegmentTile {
  uint4 units[cluster_rows][segment_columns / run_size];

  __device__ uint4& values(int row, int run) {
    return units[row][run ^ (row / column_size % 2 * 4)];
  }
  __device__ uint2& bytes(int row, int run) {
    return reinterpret_cast<uint2*>(&values(row, run))[row / column_size / 2];
  }
  /// Bytes of four columns of one row.
  __device__ std::uint32_t word(int row, int word) {
    return reinterpret_cast<const std::uint32_t*>(&bytes(row, word / 2))[word % 2];
  }
  __device__ Segment<Bf16> segment(int row) {
    Segment<Bf16> result;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint4 unit = values(row, column_in_segment(i) / run_size);
      result.runs[i] = {{unit.x, unit.y, unit.z, unit.w}};
    }
    return result;
  }
};
static_assert(cluster_rows == 4 * column_size, "SegmentTile swaps places for four groups of rows");

/// Finds the inverse root mean squares of a cluster's rows.
/// @param squares      in shared memory, of every block of the cluster: Σ over its segment
/// @param inverses     in shared memory
/// @param inverse_rms  written by the cluster's first block
__device__ inline void find_inverses(float* squares, int rows, Index columns, float epsilon,
                                     float* inverses, float* inverse_rms) {
  const auto cluster = cooperative_groups::this_cluster();
  const int row = static_cast<int>(threadIdx.x);
  if (row >= rows) return;
  float sum = 0;
  for (unsigned block = 0; block < cluster.num_blocks(); ++block) {
    sum += *cluster.map_shared_rank(&squares[row], static_cast<int>(block));
  }
  const float inverse = inverse_root(sum, columns, epsilon);
  inverses[row] = inverse;
  if (cluster.block_rank() == 0) inverse_rms[row] = inverse;
}

/// Normalises rows, casts them by the slot's scale and transposes their bytes, reading them once: a
/// cluster of blocks holds whole rows. Each thread works on the same two runs of every row of its
/// warp.
template <class Format>
OCTAVO_KERNEL void __launch_bounds__(cluster_threads, 3)
    rms_norm_cast_kernel(const CastArguments<Format, PerTensor> arguments, const Bf16* x,
                         const Bf16* weight, float epsilon, float* inverse_rms) {
  auto& tile = *reinterpret_cast<SegmentTile*>(tile_memory);
  __shared__ float squares[cluster_rows];
  __shared__ float inverses[cluster_rows];
  const auto cluster = cooperative_groups::this_cluster();
  const Index first_row = Index{blockIdx.x / cluster.num_blocks()} * cluster_rows;
  const Index first_column = Index{cluster.block_rank()} * segment_columns;
  const int thread = static_cast<int>(threadIdx.x);
  const int rows = static_cast<int>(min(arguments.rows - first_row, Index{cluster_rows}));
  const auto place = [&](int row, int run) {
    return (first_row + row) * arguments.columns + first_column + column_in_segment(run);
  };
  for (int row = thread / 32; row < rows; row += cluster_warps) {
    for (int i = 0; i < 2; ++i) {
      __pipeline_memcpy_async(&tile.values(row, column_in_segment(i) / run_size), x + place(row, i),
                              sizeof(uint4));
    }
  }
  __pipeline_commit();
  Floats weights[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    weights[i] = load_floats<true>(weight + first_column + column_in_segment(i), run_size);
  }
  const float scale = arguments.slot->scale;
  __pipeline_wait_prior(0);  // for the thread's own copies; it reads no others
#pragma unroll 4
  for (int row = thread / 32; row < rows; row += cluster_warps) {
    squares[row] = sum_of_squares(tile.segment(row));  // by all lanes alike
  }
  cluster.sync();
  find_inverses(squares, rows, arguments.columns, epsilon, inverses, inverse_rms + first_row);
  __syncthreads();
  auto arrival = cluster.barrier_arrive();  // this block has read the others' sums
  CastTotals totals{};
  std::uint32_t magnitudes = 0;
#pragma unroll 2
  for (int row = thread / 32; row < rows; row += cluster_warps) {
    const Segment<Bf16> segment = tile.segment(row);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const Run<Bf16> y = normalised(segment.runs[i], inverses[row], weights[i]);
      magnitudes = larger_magnitudes(magnitudes, y);
      const Run<Format> cast = cast_run<Format>(y, scale, totals);
      tile.bytes(row, column_in_segment(i) / run_size) = make_uint2(cast.words[0], cast.words[1]);
      if (arguments.row_major.empty()) continue;
      store_run<true>(arguments.row_major.data() + place(row, i), run_size, cast);
    }
  }
  __syncthreads();
  if (!arguments.transposed.empty()) {
    constexpr int groups = cluster_rows / column_size;
    for (int word = thread / groups; word < segment_columns / 4; word += cluster_threads / groups) {
      store_tile_columns<true>(arguments, tile, thread % groups * column_size, word, first_row,
                               first_column + word * 4, arguments.columns);
    }
  }
  if (arguments.record) {
    totals.amax_bits = magnitude_bits(magnitudes);
    add_to_slot(arguments, totals);
  }
  cluster.barrier_wait(std::move(arrival));  // the others have read this block's sums
}

/// The source of normalised rows whose inverse root mean squares are known.
template <class T>
struct RmsNormSource {
  static constexpr int parts = 1;
  static constexpr int rounds_in_flight = 4;
  const T* x;                ///< [rows, columns]
  const T* weight;           ///< [columns]
  const float* inverse_rms;  ///< [rows]
  Index columns;

  [[nodiscard]] bool vectors() const { return rows_are_vectors(columns, x, weight); }

  template <bool Vectors>
  __device__ Produced<T, 1> run(Index row, Index column, Index count) const {
    if (count <= 0) return {};
    const Floats weights = load_floats<Vectors>(weight + column, count);
    const Run<T> values = load_run<Vectors>(x + row * columns + column, count);
    return {{normalised(values, inverse_rms[row], weights)}};
  }
};

/// Whether rms_norm_cast_kernel can work on rows of this many columns.
template <class Format>
bool fits_clusters(const CastArguments<Format, PerTensor>& arguments, const Bf16* x,
                   const Bf16* weight) {
  return arguments.columns % segment_columns == 0 &&
         arguments.columns <= most_cluster_blocks * segment_columns &&
         rows_are_vectors(arguments.columns, x, weight) && copies_are_vectors(arguments);
}

// ---- backward -----------------------------------------------------------------------------------

/// Rows of sums of the weight's gradient that rms_norm_backward makes at most.
inline constexpr Index rms_norm_pieces = 264;

template <class T>
struct RmsNormBackwardArguments {
  const T* y_gradient;       ///< [rows, columns]
  const T* x;                ///< [rows, columns]
  const T* weight;           ///< [columns]
  const float* inverse_rms;  ///< [rows]
  T* x_gradient;             ///< [rows, columns], added to
  float* weight_sums;        ///< [blocks, columns]
  Index rows;
  Index columns;
};

/// Works through every `gridDim.x`-th row; sums of the weight's gradient stay in shared memory:
/// each thread's first four columns of a run, then its last four, so that neighbouring threads meet
/// different banks.
template <bool Vectors, class T>
OCTAVO_KERNEL void __launch_bounds__(512)
    rms_norm_backward_kernel(const RmsNormBackwardArguments<T> arguments) {
  extern __shared__ float4 column_sums[];
  const Index columns = arguments.columns;
  const Index runs = (columns + run_size - 1) / run_size;
  for (Index run = threadIdx.x; run < runs; run += blockDim.x) {
    column_sums[run] = column_sums[runs + run] = float4{};
  }
  for (Index row = blockIdx.x; row < arguments.rows; row += gridDim.x) {
    const T* dy = arguments.y_gradient + row * columns;
    const T* x = arguments.x + row * columns;
    T* dx = arguments.x_gradient + row * columns;
    const float inverse = arguments.inverse_rms[row];
    float dot = 0;
    for (Index run = threadIdx.x; run < runs; run += blockDim.x) {
      const Index column = run * run_size;
      const Index count = columns - column;
      const Floats gradient = load_floats<Vectors>(dy + column, count);
      const Floats value = load_floats<Vectors>(x + column, count);
      const Floats weight = load_floats<Vectors>(arguments.weight + column, count);
      float sums[run_size];
#pragma unroll
      for (int i = 0; i < run_size; ++i) {
        dot += gradient.values[i] * weight.values[i] * value.values[i];
        sums[i] = gradient.values[i] * value.values[i] * inverse;
      }
      float4& low = column_sums[run];
      float4& high = column_sums[runs + run];
      low = make_float4(low.x + sums[0], low.y + sums[1], low.z + sums[2], low.w + sums[3]);
      high = make_float4(high.x + sums[4], high.y + sums[5], high.z + sums[6], high.w + sums[7]);
    }
    const float mean = block_sum(dot) * inverse * inverse / static_cast<float>(columns);
    for (Index run = threadIdx.x; run < runs; run += blockDim.x) {
      const Index column = run * run_size;
      const Index count = columns - column;
      const Floats gradient = load_floats<Vectors>(dy + column, count);
      const Floats value = load_floats<Vectors>(x + column, count);
      const Floats weight = load_floats<Vectors>(arguments.weight + column, count);
      Floats result = load_floats<Vectors>(dx + column, count);
#pragma unroll
      for (int i = 0; i < run_size; ++i) {
        const float g = gradient.values[i] * weight.values[i];
        result.values[i] += inverse * (g - value.values[i] * mean);
      }
      store_floats<Vectors>(dx + column, count, result);
    }
  }
  float* sums = arguments.weight_sums + Index{blockIdx.x} * columns;
  for (Index run = threadIdx.x; run < runs; run += blockDim.x) {
    const float4 low = column_sums[run];
    const float4 high = column_sums[runs + run];
    const float values[run_size] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
    for (int i = 0; i < run_size; ++i) {
      if (run * run_size + i < columns) sums[run * run_size + i] = values[i];
    }
  }
}

/// Threads of a block of the kernel below, at most.
inline constexpr int held_threads = 512;
/// Columns of a row that such a block holds for each run of a thread.
inline constexpr Index held_columns = Index{held_threads} * run_size;

/// What one thread holds of a row.
/// @tparam Runs  runs of each array, `blockDim.x` runs apart
template <int Runs, class T>
struct HeldRow {
  Run<T> y_gradient[Runs];
  Run<T> x[Runs];
  Run<T> x_gradient[Runs];
  float inverse;

  __device__ HeldRow(const RmsNormBackwardArguments<T>& arguments, Index row)
      : inverse(arguments.inverse_rms[row]) {
    const Index columns = arguments.columns;
#pragma unroll
    for (int i = 0; i < Runs; ++i) {
      const Index column = (Index{threadIdx.x} + i * blockDim.x) * run_size;
      const Index place = row * columns + column;
      y_gradient[i] = load_run<true>(arguments.y_gradient + place, columns - column);
      x[i] = load_run<true>(arguments.x + place, columns - column);
      x_gradient[i] = load_run<true>(arguments.x_gradient + place, columns - column);
    }
  }
};

/// As rms_norm_backward_kernel, for rows that a block's registers hold, with the sums of the
/// weight's gradient. A row is on its way while the one before it is worked on.
template <int Runs, class T>
OCTAVO_KERNEL void __launch_bounds__(held_threads, Runs * sizeof(T) == 2 ? 2 : 1)
    rms_norm_backward_held_kernel(const RmsNormBackwardArguments<T> arguments) {
  const Index columns = arguments.columns;
  const auto column = [&](int i) { return (Index{threadIdx.x} + i * blockDim.x) * run_size; };
  Run<T> weights[Runs];
  Floats sums[Runs]{};
#pragma unroll
  for (int i = 0; i < Runs; ++i) {
    weights[i] = load_run<true>(arguments.weight + column(i), columns - column(i));
  }
  HeldRow<Runs, T> next(arguments, blockIdx.x);
  for (Index row = blockIdx.x; row < arguments.rows; row += gridDim.x) {
    const HeldRow<Runs, T> held = next;
    if (row + gridDim.x < arguments.rows) next = HeldRow<Runs, T>(arguments, row + gridDim.x);
    const float inverse = held.inverse;
    float dot = 0;
#pragma unroll
    for (int i = 0; i < Runs; ++i) {
      const Floats gradient = to_floats(held.y_gradient[i]);
      const Floats value = to_floats(held.x[i]);
      const Floats weight = to_floats(weights[i]);
#pragma unroll
      for (int j = 0; j < run_size; ++j) {
        dot += gradient.values[j] * weight.values[j] * value.values[j];
        sums[i].values[j] += gradient.values[j] * value.values[j] * inverse;
      }
    }
    const float mean = block_sum(dot) * inverse * inverse / static_cast<float>(columns);
#pragma unroll
    for (int i = 0; i < Runs; ++i) {
      const Floats gradient = to_floats(held.y_gradient[i]);
      const Floats value = to_floats(held.x[i]);
      const Floats weight = to_floats(weights[i]);
      Floats result = to_floats(held.x_gradient[i]);
#pragma unroll
      for (int j = 0; j < run_size; ++j) {
        const float g = gradient.values[j] * weight.values[j];
        result.values[j] += inverse * (g - value.values[j] * mean);
      }
      store_floats<true>(arguments.x_gradient + row * columns + column(i), columns - column(i),
                         result);
    }
  }
  float* target = arguments.weight_sums + Index{blockIdx.x} * columns;
#pragma unroll
  for (int i = 0; i < Runs; ++i) {
    store_floats<true>(target + column(i), columns - column(i), sums[i]);
  }
}

}  // namespace detail

/// See rms_norm_forward. Where the copies do not wait for the values' amax, the values are not
/// written: clusters of blocks hold the rows until they are cast, or the rows are read for their
/// root mean squares, and once more to be cast.
template <LinearPrecision P, OperandKind Kind, class T>
void rms_norm_forward_body(TensorView<const T, 2, Cuda> x, TensorView<const T, 1, Cuda> weight,
                           float epsilon, const Operand<P, Kind, Cuda>& y,
                           TensorView<float, 1, Cuda> inverse_rms, const Context<Cuda>& context) {
  constexpr const char* name = "rms_norm_forward";
  const auto normalise = [&](T* values, std::uint32_t* amax_bits) {
    const bool vectors = detail::rows_are_vectors(x.extent(1), x.data(), weight.data(), values);
    const Index segments = ceil_divide(x.extent(1), detail::segment_columns);
    const Index warps =
        std::clamp(ceil_divide(segments, detail::held_segments), Index{1}, detail::most_row_warps);
    detail::launch(
        name, vectors ? detail::rms_norm_kernel<true, T> : detail::rms_norm_kernel<false, T>,
        x.extent(0), static_cast<int>(warps * 32),
        static_cast<std::size_t>(segments) * sizeof(float), context, x.data(), weight.data(),
        static_cast<int>(x.extent(1)), epsilon, inverse_rms.data(), values, amax_bits);
  };
  if constexpr (!QuantizedPrecision<P>) {
    normalise(y.values.data(), nullptr);
  } else if constexpr (detail::is_tensorwise<typename PrecisionTraits<P>::ScalingType>) {
    const auto find_amax = [&](std::uint32_t* bits) { normalise(y.values.data(), bits); };
    detail::cast_by_current_scale(name, y, find_amax, context);
  } else {
    if constexpr (std::is_same_v<OperandGranularity<P, Kind>, PerTensor>) {
      const auto arguments = detail::cast_arguments(y, 1);
      if (detail::fits_clusters(arguments, x.data(), weight.data())) {
        detail::clear_last_amax(arguments, context);
        const Index cluster = x.extent(1) / detail::segment_columns;
        detail::launch_clusters(name, detail::rms_norm_cast_kernel<OperandFormat<P, Kind>>,
                                ceil_divide(x.extent(0), detail::cluster_rows) * cluster, cluster,
                                detail::cluster_threads, sizeof(detail::SegmentTile), context,
                                arguments, x.data(), weight.data(), epsilon, inverse_rms.data());
        return;
      }
    }
    normalise(nullptr, nullptr);
    const detail::RmsNormSource<T> source{x.data(), weight.data(), inverse_rms.data(), x.extent(1)};
    detail::produce(name, source, y, context);
  }
}

/// See rms_norm_backward. Uses the context's workspace for sums of the weight's gradient.
template <class T, class G>
void rms_norm_backward_body(TensorView<const T, 2, Cuda> y_gradient, TensorView<const T, 2, Cuda> x,
                            TensorView<const T, 1, Cuda> weight,
                            TensorView<const float, 1, Cuda> inverse_rms,
                            TensorView<T, 2, Cuda> x_gradient,
                            TensorView<G, 1, Cuda> weight_gradient, const Context<Cuda>& context) {
  constexpr const char* name = "rms_norm_backward";
  const Index rows = x.extent(0);
  const Index columns = x.extent(1);
  const Index fitting = static_cast<Index>(detail::kernel_workspace_bytes / sizeof(float)) /
                        std::max(Index{1}, columns);
  const Index most = std::clamp(fitting, Index{1}, detail::rms_norm_pieces);
  const Index pieces = std::min(rows, most);
  auto* sums = detail::workspace_elements<float>(pieces * columns, name, context);
  const bool vectors = detail::rows_are_vectors(columns, y_gradient.data(), x.data(), weight.data(),
                                                x_gradient.data());
  const detail::RmsNormBackwardArguments<T> arguments{
      y_gradient.data(), x.data(), weight.data(), inverse_rms.data(),
      x_gradient.data(), sums,     rows,          columns};
  const auto enqueue = [&](auto* kernel, Index shared_floats) {
    detail::launch(name, kernel, pieces, detail::row_threads(columns),
                   static_cast<std::size_t>(shared_floats) * sizeof(float), context, arguments);
  };
  constexpr int most_runs = sizeof(T) == 2 ? 2 : 1;  // that fit a thread's registers
  if (vectors && columns <= detail::held_columns) {
    enqueue(detail::rms_norm_backward_held_kernel<1, T>, 0);
  } else if (vectors && columns <= most_runs * detail::held_columns) {
    enqueue(detail::rms_norm_backward_held_kernel<most_runs, T>, 0);
  } else {
    enqueue(vectors ? detail::rms_norm_backward_kernel<true, T>
                    : detail::rms_norm_backward_kernel<false, T>,
            round_up(columns, detail::run_size));
  }
  detail::add_rows(name, sums, pieces, columns, weight_gradient.data(), context);
}

}  // namespace octavo
