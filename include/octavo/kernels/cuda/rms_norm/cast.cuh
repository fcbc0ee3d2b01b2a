/// @file
/// Normalised rows cast with scales that do not depend on the values: one kernel whose blocks
/// exchange the root mean squares of rows.
#pragma once

#include <octavo/kernels/cuda/cast/launch_cast.cuh>
#include <octavo/kernels/cuda/rms_norm/rows.cuh>
#include <octavo/kernels/rms_norm.hpp>

#include <cuda/atomic>

namespace octavo OCTAVO_ABI::detail {

/// Rows whose inverse root mean squares one block computes: one per warp.
inline constexpr int inverse_rows = quantize_threads / 32;
/// Blocks that compute the inverse root mean squares of a band, which is a row of tiles.
inline constexpr unsigned inverse_blocks = tile_side / inverse_rows;
/// Number of bands by which those blocks are ahead of the casting blocks: as many as the GPU
/// processes at once, and few enough that the rows are still in L2 when they are read again.
inline constexpr unsigned bands_ahead = 8;
/// Segments of a row that a warp has in flight.
inline constexpr int segments_in_flight = 4;

/// Communication between the blocks of one launch, in memory whose bits are all set initially: the
/// number of blocks that have begun, and the computed inverse root mean squares. Uses GPU-wide
/// atomics. They do not order other accesses: each word is self-contained.
class RmsNormBoard {
 public:
  /// The initial value of each byte of `words`.
  static constexpr int blank_byte = 0xff;

  /// @param words  see word_count
  explicit RmsNormBoard(std::uint32_t* words) : words_(words) {}

  /// Returns the number of words for a matrix with this many rows.
  static Index word_count(Index rows) { return first_row + rows; }

  /// Returns the block's index in the order in which blocks begin. All threads must call it.
  [[nodiscard]] __device__ unsigned take_ticket() const {
    __shared__ unsigned ticket;
    if (threadIdx.x == 0) {
      ticket = word(0).fetch_add(1, cuda::memory_order_relaxed) + 1;  // the initial value is −1
    }
    __syncthreads();
    return ticket;
  }

  __device__ void publish(Index row, float inverse) const {
    const std::uint32_t bits = isnan(inverse) ? canonical_nan : float_bits(inverse);
    word(first_row + row).store(bits, cuda::memory_order_relaxed);
  }
  /// Waits until the row's inverse root mean square is available.
  [[nodiscard]] __device__ float wait_for(Index row) const {
    std::uint32_t bits = blank;
    while (bits == blank) bits = word(first_row + row).load(cuda::memory_order_relaxed);
    return float_from_bits(bits);
  }

 private:
  static constexpr std::uint32_t blank = 0xffffffffu;  ///< a NaN that `publish` never stores
  static constexpr std::uint32_t canonical_nan = 0x7fffffffu;
  static constexpr Index first_row = 32;  ///< the counter has a separate cache line

  [[nodiscard]] __device__ cuda::atomic_ref<std::uint32_t, cuda::thread_scope_device> word(
      Index i) const {
    return cuda::atomic_ref<std::uint32_t, cuda::thread_scope_device>(words_[i]);
  }

  std::uint32_t* words_;
};

/// The source of normalised rows whose inverse root mean squares other blocks compute.
struct RmsNormSource {
  static constexpr int parts = 1;
  static constexpr int rounds_in_flight = 8;
  static constexpr bool makes_zeros = true;
  const Bf16* x;       ///< [rows, columns]
  const Bf16* weight;  ///< [columns]
  float weight_offset;
  RmsNormBoard board;
  Index rows;
  Index columns;

  template <bool Vectors>
  struct Runs {
    const Bf16* x;
    const Bf16* weight;
    float weight_offset;
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
      weights = offset_weights(loaded, weight_offset);
    }
    __device__ Produced<Bf16, 1> make(int i, const Run<Bf16>& loaded) const {
      // A non-finite root would turn the zeros beyond the matrix into NaN.
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
            weight_offset,
            board,
            row,
            static_cast<int>(columns),
            static_cast<int>(min(columns - column, Index{run_size})),
            static_cast<int>(min(rows - row, Index{tile_side})),
            {}};
  }
};

/// Computes the inverse root mean squares of `inverse_rows` rows.
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
    source.board.publish(row, inverse);
    inverse_rms[row] = inverse;
  }
}

/// Minimum number of blocks of the next kernel per multiprocessor (see tiles_at_once); four are
/// slower.
inline constexpr int norm_tiles_at_once = 3;

/// Computes the rows' inverse root mean squares, and normalises and casts them in tiles. Blocks of
/// both kinds alternate, in rows of `across`. Those that cast a band of tiles wait for the
/// inverses, which other blocks computed some bands earlier. The work of a block depends on its
/// ticket, not on its index, so that all blocks for which it waits have begun, regardless of the
/// order in which the GPU starts blocks. Blocks that compute inverses do not wait.
/// @param across  blocks of one row: those that compute a band's inverses, then a band's tiles
/// @param ahead   number of rows of blocks at the beginning that only compute inverses
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
    return find_inverses<(Cast::fit != Fit::any)>(source, first_row, epsilon, inverse_rms);
  }
  Cast::run(arguments, source, TilePlace(row - ahead, place - inverse_blocks));
}

/// Launches rms_norm_cast_kernel.
struct RmsNormLaunch {
  float epsilon;
  float* inverse_rms;           ///< [rows]
  std::size_t workspace_bytes;  ///< size of the board

  template <class Cast, class Format, class Granularity>
  void launch_cast(const char* name, const CastArguments<Format, Granularity>& arguments,
                   const RmsNormSource& source, dim3 tiles, std::size_t shared_bytes,
                   const Context<Cuda>& context) const {
    const unsigned across = tiles.x + inverse_blocks;
    const auto ahead =
        static_cast<unsigned>(ceil_divide(Index{bands_ahead} * inverse_blocks, Index{across}));
    launch(name, rms_norm_cast_kernel<Cast, Format, Granularity>, Index{across} * (ahead + tiles.y),
           quantize_threads, shared_bytes, context, arguments, source, epsilon, inverse_rms, across,
           ahead);
  }
};

/// Enqueues the kernel that normalises rows and writes an operand's copies without the values.
/// Blocks exchange data through the context's workspace; in a second pass, all of it is already
/// available.
template <QuantizedPrecision P, OperandKind Kind>
void enqueue_norm_cast(const char* name, TensorView<const Bf16, 2, Cuda> x,
                       const NormWeight<Bf16, Cuda>& weight, float epsilon,
                       const Operand<P, Kind, Cuda>& y, TensorView<float, 1, Cuda> inverse_rms,
                       const Context<Cuda>& context) {
  const std::size_t bytes =
      static_cast<std::size_t>(RmsNormBoard::word_count(x.extent(0))) * sizeof(std::uint32_t);
  auto* board = workspace_of<std::uint32_t>(context, bytes, name);
  check(cudaMemsetAsync(board, RmsNormBoard::blank_byte, bytes, context.stream()),
        "cudaMemsetAsync");
  const RmsNormSource source{x.data(),    weight.values.data(), weight.offset, RmsNormBoard(board),
                             x.extent(0), x.extent(1)};
  enqueue_cast<false>(name, source, y, context, RmsNormLaunch{epsilon, inverse_rms.data(), bytes});
}

}  // namespace octavo::detail
