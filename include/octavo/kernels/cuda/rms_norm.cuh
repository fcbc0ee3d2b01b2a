/// @file
/// Root-mean-square normalisation on the `Cuda` device.
#pragma once

#include <octavo/kernels/cuda/cast/produce.cuh>
#include <octavo/kernels/rms_norm.hpp>

#include <cuda/atomic>

namespace octavo {
namespace detail {

// ---- forward ------------------------------------------------------------------------------------

/// The part of a row that one warp squares and sums at once: two runs a lane, `segment_stride` runs
/// apart. Every kernel here sums a row in the same order, two runs, all segments, then 32 lanes, so
/// that a row has one inverse root mean square, to the bit, whatever becomes of its values.
template <class T>
struct Segment {
  Run<T> runs[2];
};
inline constexpr int segment_stride = 32;
static_assert(segment_columns == 2 * segment_stride * run_size);

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

/// Σ of the squares of the lane's part of the segment.
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

/// 1 / root mean square of a row.
/// @param squares  Σ over the row
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
/// @param y          the normalised rows
/// @param amax_bits  null, or raised to the bits of max |y|
template <bool Vectors, class T>
OCTAVO_KERNEL void __launch_bounds__(most_row_warps * 32, sizeof(T) == 2 ? 5 : 2)
    rms_norm_kernel(const T* x, const T* weight, int columns, float epsilon, float* inverse_rms,
                    T* y, std::uint32_t* amax_bits) {
  extern __shared__ float segment_squares[];  // [segments, 32]
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int warps = static_cast<int>(blockDim.x) / 32;
  const int segments = (columns + segment_columns - 1) / segment_columns;
  x += Index{blockIdx.x} * columns;
  const auto load = [&](int segment) {
    return load_segment<Vectors>(x, segment * segment_columns, columns);
  };
  const auto square = [&](int segment, const Segment<T>& values) {
    if (segment < segments) segment_squares[segment * 32 + lane] = sum_of_squares(values);
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
  for (int segment = 0; segment < segments; ++segment) {
    squares += segment_squares[segment * 32 + lane];
  }
  const float inverse = inverse_root(warp_sum(squares), columns, epsilon);
  if (threadIdx.x == 0) inverse_rms[blockIdx.x] = inverse;
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

// ---- forward, cast by scales that do not wait for the values ------------------------------------

/// Rows whose inverse root mean squares one block finds: one a warp.
inline constexpr int inverse_rows = quantize_threads / 32;
/// Blocks that find those of a band, which is a row of tiles.
inline constexpr unsigned inverse_blocks = tile_side / inverse_rows;
/// Bands that these blocks are ahead of those that cast: as many as the GPU works on at once, and
/// few enough that the rows are still in L2 when they are read again.
inline constexpr unsigned bands_ahead = 8;
/// Blocks that a multiprocessor shall hold at once, as tiles_at_once; four were slower.
inline constexpr int norm_tiles_at_once = 3;
/// Segments of a row that a warp has in flight.
inline constexpr int segments_in_flight = 4;

/// What the blocks of one launch tell each other, in memory of which every bit is set before: how
/// many have begun, and the inverse root mean squares that were found. All of it by atomics of the
/// whole GPU. None of them orders other accesses: each word is all that is told with it.
class RmsNormBoard {
 public:
  /// What `words` are set to, byte by byte.
  static constexpr int blank_byte = 0xff;

  /// @param words  see word_count
  explicit RmsNormBoard(std::uint32_t* words) : words_(words) {}

  /// Words that a matrix of this many rows needs.
  static Index word_count(Index rows) { return first_row + rows; }

  /// The block's place among all blocks in the order in which they begin. All threads must call it.
  [[nodiscard]] __device__ unsigned take_ticket() const {
    __shared__ unsigned ticket;
    if (threadIdx.x == 0) {
      ticket = word(0).fetch_add(1, cuda::memory_order_relaxed) + 1;  // blank is one below 0
    }
    __syncthreads();
    return ticket;
  }

  __device__ void tell(Index row, float inverse) const {
    word(first_row + row).store(float_bits(inverse), cuda::memory_order_relaxed);
  }
  /// Waits until the row's inverse root mean square is told.
  [[nodiscard]] __device__ float wait_for(Index row) const {
    std::uint32_t bits = blank;
    while (bits == blank) bits = word(first_row + row).load(cuda::memory_order_relaxed);
    return float_from_bits(bits);
  }

 private:
  static constexpr std::uint32_t blank = 0xffffffffu;  ///< a NaN that no arithmetic makes
  static constexpr Index first_row = 32;               ///< the count has a cache line of its own

  [[nodiscard]] __device__ cuda::atomic_ref<std::uint32_t, cuda::thread_scope_device> word(
      Index i) const {
    return cuda::atomic_ref<std::uint32_t, cuda::thread_scope_device>(words_[i]);
  }

  std::uint32_t* words_;
};

/// The source of normalised rows whose inverse root mean squares other blocks find.
struct RmsNormSource {
  static constexpr int parts = 1;
  static constexpr int rounds_in_flight = 8;
  const Bf16* x;       ///< [rows, columns]
  const Bf16* weight;  ///< [columns]
  RmsNormBoard board;
  Index rows;
  Index columns;

  template <bool Vectors>
  struct Runs {
    const Bf16* x;
    const Bf16* weight;
    RmsNormBoard board;
    Index first_row;
    int stride;
    int columns_inside;
    int rows_inside;
    Floats weights;

    __device__ Run<Bf16> load(int i, int count) const {
      return load_run<Vectors>(x + i * stride, count);
    }
    __device__ void await() {
      const Run<Bf16> loaded = load_run<Vectors>(weight, columns_inside);
      const int row = static_cast<int>(threadIdx.x);
      if (row < tile_side) {
        inverses()[row] = row < rows_inside ? board.wait_for(first_row + row) : 0.0f;
      }
      __syncthreads();
      weights = to_floats(loaded);
    }
    __device__ Produced<Bf16, 1> make(int i, const Run<Bf16>& loaded) const {
      // A root that is not finite would make NaN of the zeros beyond the matrix.
      if constexpr (Vectors) {
        return {{normalised(loaded, columns_inside > 0 ? inverses()[i] : 0.0f, weights)}};
      } else {
        return {{first_elements(normalised(loaded, inverses()[i], weights), columns_inside)}};
      }
    }
    /// Of the tile's rows, in shared memory.
    __device__ static float* inverses() {
      __shared__ float values[tile_side];
      return values;
    }
  };

  [[nodiscard]] bool vectors() const { return rows_are_vectors(columns, x, weight); }

  template <bool Vectors>
  __device__ Runs<Vectors> runs(Index row, Index column) const {
    return {opaque(x + row * columns + column),
            weight + column,
            board,
            row,
            static_cast<int>(columns),
            static_cast<int>(min(columns - column, Index{run_size})),
            static_cast<int>(min(rows - row, Index{tile_side})),
            {}};
  }
};

/// Finds the inverse root mean squares of `inverse_rows` rows.
template <bool Vectors>
__device__ void find_inverses(const RmsNormSource& source, Index first_row, float epsilon,
                              float* inverse_rms) {
  const Index row = first_row + threadIdx.x / 32;
  if (row >= source.rows) return;
  const int columns = static_cast<int>(source.columns);
  const Bf16* x = source.x + row * source.columns;
  float squares = 0;
#pragma unroll 1
  for (int begin = 0; begin < columns; begin += segments_in_flight * segment_columns) {
    Segment<Bf16> segments[segments_in_flight];
#pragma unroll
    for (int i = 0; i < segments_in_flight; ++i) {
      segments[i] = load_segment<Vectors>(x, begin + i * segment_columns, columns);
    }
#pragma unroll
    for (const Segment<Bf16>& segment : segments) squares += sum_of_squares(segment);
  }
  squares = warp_sum(squares);
  if (threadIdx.x % 32 == 0) {
    const float inverse = inverse_root(squares, source.columns, epsilon);
    source.board.tell(row, inverse);
    inverse_rms[row] = inverse;
  }
}

/// Finds the rows' inverse root mean squares, and normalises and casts them in tiles. Blocks of
/// both kinds take turns, in rows of `across`: those that cast a band of tiles wait for those that
/// found its inverses some bands before. A block's turn is its ticket, not its index, so that
/// whatever it waits for has begun, in whichever order the GPU starts blocks; and blocks that find
/// inverses wait for nothing.
/// @param across  blocks of one row: those that find a band's inverses, then a band's tiles
/// @param ahead   rows of blocks that only find inverses
template <class Cast, class Format, class Granularity>
OCTAVO_KERNEL void __launch_bounds__(quantize_threads, norm_tiles_at_once)
    rms_norm_cast_kernel(const CastArguments<Format, Granularity> arguments,
                         const RmsNormSource source, float epsilon, float* inverse_rms,
                         unsigned across, unsigned ahead) {
  const unsigned ticket = source.board.take_ticket();
  const unsigned row = ticket / across;
  const unsigned place = ticket % across;
  const bool is_ahead = row < ahead;
  if (is_ahead || place < inverse_blocks) {
    const unsigned before =
        is_ahead ? row * across : ahead * across + (row - ahead) * inverse_blocks;
    const Index first_row = Index{before + place} * inverse_rows;
    return find_inverses<Cast::fit != Fit::any>(source, first_row, epsilon, inverse_rms);
  }
  Cast::run(arguments, source, TilePlace(row - ahead, place - inverse_blocks));
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
/// written: the rows are read for their root mean squares, and again, from L2, to be cast. Then the
/// context's workspace holds what blocks tell each other.
template <LinearPrecision P, OperandKind Kind, class T>
void rms_norm_forward_body(TensorView<const T, 2, Cuda> x, TensorView<const T, 1, Cuda> weight,
                           float epsilon, const Operand<P, Kind, Cuda>& y,
                           TensorView<float, 1, Cuda> inverse_rms, const Context<Cuda>& context) {
  constexpr const char* name = "rms_norm_forward";
  detail::require_operand_size<P>(name, x.extent(0), x.extent(1));
  detail::require_columns(name, x.extent(1), detail::most_norm_columns);
  const auto normalise = [&](T* values, std::uint32_t* amax_bits) {
    const bool vectors = detail::rows_are_vectors(x.extent(1), x.data(), weight.data(), values);
    const Index segments = ceil_divide(x.extent(1), detail::segment_columns);
    const Index warps =
        std::clamp(ceil_divide(segments, detail::held_segments), Index{1}, detail::most_row_warps);
    detail::launch(
        name, vectors ? detail::rms_norm_kernel<true, T> : detail::rms_norm_kernel<false, T>,
        x.extent(0), static_cast<int>(warps * 32),
        static_cast<std::size_t>(segments) * 32 * sizeof(float), context, x.data(), weight.data(),
        static_cast<int>(x.extent(1)), epsilon, inverse_rms.data(), values, amax_bits);
  };
  if constexpr (!QuantizedPrecision<P>) {
    normalise(y.values.data(), nullptr);
  } else {
    using S = typename PrecisionTraits<P>::ScalingType;
    if constexpr (detail::is_tensorwise<S>) {
      if (detail::must_find_scale(y)) {
        const auto find_amax = [&](std::uint32_t* bits) { normalise(y.values.data(), bits); };
        return detail::cast_by_current_scale(name, y, find_amax, context);
      }
    }
    detail::check_storage<P>();
    const Index words = detail::RmsNormBoard::word_count(x.extent(0));
    auto* board = detail::workspace_elements<std::uint32_t>(words, name, context);
    const detail::RmsNormSource source{x.data(), weight.data(), detail::RmsNormBoard(board),
                                       x.extent(0), x.extent(1)};
    const auto arguments = detail::cast_arguments(y, 1);
    const dim3 tiles = detail::tile_grid(arguments);
    const unsigned across = tiles.x + detail::inverse_blocks;
    const auto ahead = static_cast<unsigned>(
        ceil_divide(Index{detail::bands_ahead} * detail::inverse_blocks, Index{across}));
    check(cudaMemsetAsync(board, detail::RmsNormBoard::blank_byte,
                          static_cast<std::size_t>(words) * sizeof(*board), context.stream()),
          "cudaMemsetAsync");
    detail::with_tile_cast<S, false>(arguments, source.vectors(), [&]<class Cast>(Cast) {
      detail::launch(
          name,
          detail::rms_norm_cast_kernel<Cast, OperandFormat<P, Kind>, OperandGranularity<P, Kind>>,
          Index{across} * (ahead + tiles.y), detail::quantize_threads, Cast::shared_bytes, context,
          arguments, source, epsilon, inverse_rms.data(), across, ahead);
    });
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
  detail::require_columns(name, columns, detail::most_norm_backward_columns);
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
