/// @file
/// Quantisation on the `Cuda` device, with one scale a tensor: equal to the `Cpu` device's to the
/// bit. Compile it without --use_fast_math, which rounds divisions differently.
#pragma once

#include <octavo/kernels/quantize.hpp>
#include <octavo/memory/cuda/buffer.cuh>

#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

namespace octavo {
namespace detail {

inline constexpr int quantize_threads = 256;
/// Elements that one thread reads, casts and writes at once: 16 bytes of FP8.
inline constexpr int cast_run_size = 16;
/// Rows and columns that one block of threads casts and transposes.
inline constexpr int cast_tile_side = 128;
/// Loads of 16 bytes that one thread has in flight while it looks for the amax.
inline constexpr int amax_loads = 4;
inline constexpr int cast_runs_a_row = cast_tile_side / cast_run_size;

template <class Format>
inline constexpr __nv_fp8_interpretation_t cuda_fp8_kind = __NV_E4M3;
template <>
inline constexpr __nv_fp8_interpretation_t cuda_fp8_kind<E5M2> = __NV_E5M2;

/// 16 neighbouring BF16 values, two a word.
struct Bf16Run {
  std::uint32_t words[8];
};

/// 16 neighbouring FP8 values, four a word.
struct Fp8Run {
  std::uint32_t words[4];
};

/// What one thread, one warp or one block of threads counted.
struct CastTotals {
  std::uint32_t amax_bits;  ///< bits of max |x|
  std::uint32_t saturated;
  std::uint32_t flushed;
};

/// The first `count` values from `source`, then zeros; all 16 of them if `count` is larger.
/// @tparam Vectors  `source` is aligned to 16 bytes and `count` is a multiple of 16
template <bool Vectors>
__device__ Bf16Run load_run(const Bf16* source, Index count) {
  Bf16Run run{};
  if constexpr (Vectors) {
    if (count > 0) {
      const uint4 low = reinterpret_cast<const uint4*>(source)[0];
      const uint4 high = reinterpret_cast<const uint4*>(source)[1];
      run = {{low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w}};
    }
  } else {
#pragma unroll
    for (int i = 0; i < cast_run_size; ++i) {
      if (i < count) run.words[i / 2] |= std::uint32_t{source[i].bits} << (i % 2 * 16);
    }
  }
  return run;
}

/// Writes the first `count` values to `target`; all 16 of them if `count` is larger.
/// @tparam Vectors  `target` is aligned to 16 bytes and `count` is a multiple of 16
template <bool Vectors, class Format>
__device__ void store_run(Format* target, Index count, const Fp8Run& run) {
  if constexpr (Vectors) {
    if (count > 0) {
      *reinterpret_cast<uint4*>(target) =
          make_uint4(run.words[0], run.words[1], run.words[2], run.words[3]);
    }
  } else {
#pragma unroll
    for (int i = 0; i < cast_run_size; ++i) {
      if (i < count) target[i].bits = static_cast<std::uint8_t>(run.words[i / 4] >> (i % 4 * 8));
    }
  }
}

/// The larger of each pair of BF16 magnitudes.
__device__ inline std::uint32_t larger_magnitudes(std::uint32_t largest, std::uint32_t pair) {
  return __vmaxu2(largest, pair & 0x7fff7fffu);
}

/// FP32 bits of the larger of two BF16 magnitudes.
__device__ inline std::uint32_t magnitude_bits(std::uint32_t pair) {
  return max(pair << 16, pair & 0xffff0000u);
}

/// Casts a run and counts in it.
/// @param magnitudes  the largest pair of BF16 magnitudes so far
template <class Format>
__device__ Fp8Run cast_run(const Bf16Run& run, float scale, std::uint32_t& magnitudes,
                           CastTotals& totals) {
  Fp8Run result{};
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const std::uint32_t pair = run.words[i];
    const float2 scaled = make_float2(__fmul_rn(__uint_as_float(pair << 16), scale),
                                      __fmul_rn(__uint_as_float(pair & 0xffff0000u), scale));
    const std::uint32_t cast =
        __nv_cvt_float2_to_fp8x2(scaled, __NV_SATFINITE, cuda_fp8_kind<Format>);
    result.words[i / 2] |= cast << (i % 2 * 16);
    magnitudes = larger_magnitudes(magnitudes, pair);
    // Negated, so that NaN counts as saturated.
    totals.saturated += !(fabsf(scaled.x) <= FormatTraits<Format>::max) ? 1u : 0u;
    totals.saturated += !(fabsf(scaled.y) <= FormatTraits<Format>::max) ? 1u : 0u;
    totals.flushed += (cast & 0x7fu) == 0 && (pair & 0x7fffu) != 0 ? 1u : 0u;
    totals.flushed += (cast & 0x7f00u) == 0 && (pair & 0x7fff0000u) != 0 ? 1u : 0u;
  }
  return result;
}

/// Bytes of four rows, four columns each, to four columns of four rows.
__device__ inline uint4 transpose_bytes(uint4 rows) {
  const std::uint32_t low01 = __byte_perm(rows.x, rows.y, 0x5140);
  const std::uint32_t high01 = __byte_perm(rows.x, rows.y, 0x7362);
  const std::uint32_t low23 = __byte_perm(rows.z, rows.w, 0x5140);
  const std::uint32_t high23 = __byte_perm(rows.z, rows.w, 0x7362);
  return make_uint4(__byte_perm(low01, low23, 0x5410), __byte_perm(low01, low23, 0x7632),
                    __byte_perm(high01, high23, 0x5410), __byte_perm(high01, high23, 0x7632));
}

/// What cast_kernel works on.
template <class Format>
struct CastArguments {
  const Bf16* values;  ///< [rows, columns]
  Index rows;
  Index columns;
  Format* row_major;   ///< [rows, columns], or null
  Format* transposed;  ///< [columns, rows], or null
  ScalingSlot* slot;
  bool record;
  bool record_amax;  ///< false where the amax was found before the cast
};

/// A block's tile as FP8 bytes. Runs are swapped within a row by the row's position, so that
/// threads that read down 8 groups of rows meet 8 different sets of shared memory's banks.
struct CastTile {
  uint4 runs[cast_tile_side][cast_runs_a_row];

  __device__ uint4& run(int row, int run) { return runs[row][run ^ (row / cast_run_size)]; }
  /// Four columns of one row.
  __device__ std::uint32_t word(int row, int word) {
    return reinterpret_cast<const std::uint32_t*>(&run(row, word / 4))[word % 4];
  }
};

/// Reads the block's tile from memory, casts it to `tile` and to the row-major copy.
template <class Format, bool Vectors>
__device__ CastTotals cast_tile_rows(const CastArguments<Format>& arguments, Index row0,
                                     Index column0, CastTile& tile) {
  constexpr int rows_at_once = quantize_threads / cast_runs_a_row;
  constexpr int rounds = cast_tile_side / rows_at_once;
  const int position = static_cast<int>(threadIdx.x) % cast_runs_a_row;
  const int first_row = static_cast<int>(threadIdx.x) / cast_runs_a_row;
  const Index column = column0 + position * cast_run_size;
  Bf16Run runs[rounds];
#pragma unroll
  for (int i = 0; i < rounds; ++i) {
    const Index row = row0 + first_row + i * rows_at_once;
    const Index count = row < arguments.rows ? arguments.columns - column : 0;
    runs[i] = load_run<Vectors>(arguments.values + row * arguments.columns + column, count);
  }
  const float scale = arguments.slot->scale;
  CastTotals totals{};
  std::uint32_t magnitudes = 0;
#pragma unroll
  for (int i = 0; i < rounds; ++i) {
    const int tile_row = first_row + i * rows_at_once;
    const Index row = row0 + tile_row;
    const Fp8Run cast = cast_run<Format>(runs[i], scale, magnitudes, totals);
    tile.run(tile_row, position) =
        make_uint4(cast.words[0], cast.words[1], cast.words[2], cast.words[3]);
    if (arguments.row_major != nullptr && row < arguments.rows) {
      store_run<Vectors>(arguments.row_major + row * arguments.columns + column,
                         arguments.columns - column, cast);
    }
  }
  totals.amax_bits = magnitude_bits(magnitudes);
  return totals;
}

/// Writes the tile to the transposed copy: each thread four columns of 16 rows, each warp 16
/// columns of all rows, so that a warp's stores are whole runs of 128 bytes.
template <class Format, bool Vectors>
__device__ void store_tile_columns(const CastArguments<Format>& arguments, Index row0,
                                   Index column0, CastTile& tile) {
  const int group = static_cast<int>(threadIdx.x) % cast_runs_a_row;
  const int word = static_cast<int>(threadIdx.x) / cast_runs_a_row;
  Fp8Run columns[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = group * cast_run_size + i * 4;
    const uint4 turned =
        transpose_bytes(make_uint4(tile.word(row, word), tile.word(row + 1, word),
                                   tile.word(row + 2, word), tile.word(row + 3, word)));
    columns[0].words[i] = turned.x;
    columns[1].words[i] = turned.y;
    columns[2].words[i] = turned.z;
    columns[3].words[i] = turned.w;
  }
  const Index row = row0 + group * cast_run_size;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const Index column = column0 + word * 4 + i;
    if (column < arguments.columns) {
      store_run<Vectors>(arguments.transposed + column * arguments.rows + row, arguments.rows - row,
                         columns[i]);
    }
  }
}

/// Adds a warp's totals to its block's. All threads of the warp must call it.
__device__ inline void add_to_block(const CastTotals& totals, CastTotals& block) {
  const std::uint32_t amax = __reduce_max_sync(0xffffffffu, totals.amax_bits);
  const std::uint32_t saturated = __reduce_add_sync(0xffffffffu, totals.saturated);
  const std::uint32_t flushed = __reduce_add_sync(0xffffffffu, totals.flushed);
  if (threadIdx.x % 32 != 0) return;
  atomicMax(&block.amax_bits, amax);
  atomicAdd(&block.saturated, saturated);
  atomicAdd(&block.flushed, flushed);
}

__device__ inline void add_to_counter(std::uint64_t& counter, std::uint32_t count) {
  if (count != 0) atomicAdd(reinterpret_cast<unsigned long long*>(&counter), count);
}

/// Adds a block's totals to the slot. One thread of the block calls it.
template <class Format>
__device__ void add_to_slot(const CastArguments<Format>& arguments, const CastTotals& totals) {
  ScalingSlot& slot = *arguments.slot;
  if (blockIdx.x == 0) {
    slot.elements += static_cast<std::uint64_t>(arguments.rows * arguments.columns);
  }
  if (arguments.record_amax) {
    atomicMax(&slot.amax_bits, totals.amax_bits);
    atomicMax(&slot.last_amax_bits, totals.amax_bits);
  }
  if (arguments.row_major == nullptr && arguments.transposed == nullptr) return;
  add_to_counter(slot.saturated, totals.saturated);
  add_to_counter(slot.flushed, totals.flushed);
}

/// Casts and transposes one tile a block.
/// @param tiles_across  tiles from left to right
template <class Format, bool Vectors>
OCTAVO_KERNEL void __launch_bounds__(quantize_threads)
    cast_kernel(const CastArguments<Format> arguments, unsigned tiles_across) {
  __shared__ CastTile tile;
  __shared__ CastTotals block;
  const Index row0 = Index{blockIdx.x / tiles_across} * cast_tile_side;
  const Index column0 = Index{blockIdx.x % tiles_across} * cast_tile_side;
  if (threadIdx.x == 0) block = {};
  const CastTotals totals = cast_tile_rows<Format, Vectors>(arguments, row0, column0, tile);
  __syncthreads();
  if (arguments.transposed != nullptr) {
    store_tile_columns<Format, Vectors>(arguments, row0, column0, tile);
  }
  if (!arguments.record) return;
  add_to_block(totals, block);
  __syncthreads();
  if (threadIdx.x == 0) add_to_slot(arguments, block);
}

/// Raises `amax_bits` to the bits of max |values|.
/// @param vectors  runs of 8 values to read at once; the rest is read one by one
template <class Storage>
OCTAVO_KERNEL void __launch_bounds__(quantize_threads)
    amax_kernel(const Storage* values, Index count, Index vectors, std::uint32_t* amax_bits) {
  const Index thread = Index{blockIdx.x} * quantize_threads + threadIdx.x;
  const Index stride = Index{gridDim.x} * quantize_threads;
  std::uint32_t magnitudes = 0;
  for (Index begin = thread; begin < vectors; begin += amax_loads * stride) {
    uint4 runs[amax_loads];
#pragma unroll
    for (int i = 0; i < amax_loads; ++i) {
      const Index position = begin + i * stride;
      runs[i] = position < vectors ? reinterpret_cast<const uint4*>(values)[position] : uint4{};
    }
#pragma unroll
    for (const uint4& run : runs) {
      magnitudes = larger_magnitudes(magnitudes, run.x);
      magnitudes = larger_magnitudes(magnitudes, run.y);
      magnitudes = larger_magnitudes(magnitudes, run.z);
      magnitudes = larger_magnitudes(magnitudes, run.w);
    }
  }
  for (Index i = vectors * 8 + thread; i < count; i += stride) {
    magnitudes = larger_magnitudes(magnitudes, values[i].bits);
  }
  __shared__ std::uint32_t block;
  if (threadIdx.x == 0) block = 0;
  __syncthreads();
  const std::uint32_t warp = __reduce_max_sync(0xffffffffu, magnitude_bits(magnitudes));
  if (threadIdx.x % 32 == 0) atomicMax(&block, warp);
  __syncthreads();
  if (threadIdx.x == 0 && block != 0) atomicMax(amax_bits, block);
}

/// Turns the amax, whose bits `slot->scale` holds, into the scale of current scaling.
template <class Format>
OCTAVO_KERNEL void current_scale_kernel(ScalingSlot* slot, bool power_of_two, bool record) {
  const std::uint32_t amax_bits = float_bits(slot->scale);
  slot->scale = current_scale(FormatTraits<Format>::max, float_from_bits(amax_bits), power_of_two);
  slot->scale_inverse = __fdiv_rn(1.0f, slot->scale);
  if (!record) return;
  slot->amax_bits = max(slot->amax_bits, amax_bits);
  slot->last_amax_bits = amax_bits;
}

/// True if vectors of 16 bytes can be read or written from there on.
inline bool is_vector_aligned(const void* address) {
  return reinterpret_cast<std::uintptr_t>(address) % sizeof(uint4) == 0;
}

/// Enqueues what sets the slot's scale from the tensor itself.
template <class S, class Format, class Storage>
void set_current_scale(TensorView<Storage, 2, Cuda> values, ScalingSlot* slot, bool record,
                       const Context<Cuda>& context) {
  constexpr Index most_blocks = 1024;  // enough to fill any GPU; more would only add atomics
  constexpr Index vectors_a_block = Index{quantize_threads} * amax_loads;
  const Index vectors = is_vector_aligned(values.data()) ? values.size() / 8 : 0;
  const Index blocks =
      std::clamp(ceil_divide(values.size() / 8, vectors_a_block), Index{1}, most_blocks);
  // The scale's own memory gathers the amax, so that no other memory is needed.
  fill_zero(&slot->scale, sizeof(slot->scale), context);
  amax_kernel<<<static_cast<unsigned>(blocks), quantize_threads, 0, context.stream()>>>(
      values.data(), values.size(), vectors, reinterpret_cast<std::uint32_t*>(&slot->scale));
  check(cudaGetLastError(), "the launch of quantize's amax kernel");
  current_scale_kernel<Format>
      <<<1, 1, 0, context.stream()>>>(slot, S::rounding == ScaleRounding::power_of_two, record);
  check(cudaGetLastError(), "the launch of quantize's scale kernel");
}

/// One thread a slot.
template <Device D>
OCTAVO_KERNEL void update_slots_kernel(TensorView<ScalingSlot, 1, D> slots,
                                       const ScalingRule* rules, float* history, Index longest,
                                       std::int32_t group) {
  const Index i = Index{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= slots.extent(0) || rules[i].group != group) return;
  update_slot(slots.data()[i], rules[i], history + i * longest);
}

/// One thread a slot.
template <Device D>
OCTAVO_KERNEL void clear_statistics_kernel(TensorView<ScalingSlot, 1, D> slots) {
  const Index i = Index{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= slots.extent(0)) return;
  ScalingSlot& slot = slots.data()[i];
  slot.elements = slot.saturated = slot.flushed = 0;
}

/// Threads of a block in kernels with one thread a slot.
inline constexpr unsigned slot_threads = 32;

inline unsigned slot_blocks(TensorView<ScalingSlot, 1, Cuda> slots) {
  return static_cast<unsigned>(ceil_divide(slots.extent(0), slot_threads));
}

}  // namespace detail

/// See quantize. Tensorwise reads the values twice: for the amax, then for both copies.
template <QuantizedPrecision P, OperandKind Kind>
void quantize_body(const Operand<P, Kind, Cuda>& operand, const Context<Cuda>& context) {
  using S = typename PrecisionTraits<P>::ScalingType;
  using Format = OperandFormat<P, Kind>;
  static_assert(std::is_same_v<OperandGranularity<P, Kind>, PerTensor>,
                "quantize on Cuda: the recipe must have one scale a tensor; choose "
                "Fp8Recipe<Delayed> or Fp8Recipe<Tensorwise>");
  static_assert(
      std::is_same_v<typename PrecisionTraits<P>::Storage, Bf16>,
      "quantize on Cuda: FP8 operands are cast from Bf16; make it the precision's Storage");
  constexpr bool knows_amax = detail::is_tensorwise<S>;
  const Index rows = operand.values.extent(0);
  const Index columns = operand.values.extent(1);
  const detail::CastArguments<Format> arguments{
      operand.values.data(),     rows,         columns,        operand.row_major.data(),
      operand.transposed.data(), operand.slot, operand.record, !knows_amax};
  if constexpr (knows_amax) {
    detail::set_current_scale<S, Format>(operand.values, operand.slot, operand.record, context);
  } else if (operand.record) {
    fill_zero(&operand.slot->last_amax_bits, sizeof(std::uint32_t), context);
  }
  const Index across = std::max(Index{1}, ceil_divide(columns, detail::cast_tile_side));
  const Index down = std::max(Index{1}, ceil_divide(rows, detail::cast_tile_side));
  const bool vectors = columns % detail::cast_run_size == 0 &&
                       (operand.transposed.empty() || rows % detail::cast_run_size == 0) &&
                       detail::is_vector_aligned(arguments.values) &&
                       detail::is_vector_aligned(arguments.row_major) &&
                       detail::is_vector_aligned(arguments.transposed);
  const auto kernel =
      vectors ? detail::cast_kernel<Format, true> : detail::cast_kernel<Format, false>;
  kernel<<<static_cast<unsigned>(across * down), detail::quantize_threads, 0, context.stream()>>>(
      arguments, static_cast<unsigned>(across));
  check(cudaGetLastError(), "the launch of quantize's cast kernel");
}

/// See update_delayed_scales.
inline void update_delayed_scales_body(TensorView<ScalingSlot, 1, Cuda> slots,
                                       TensorView<const ScalingRule, 1, Cuda> rules,
                                       TensorView<float, 2, Cuda> history, OperandKind group,
                                       const Context<Cuda>& context) {
  if (slots.extent(0) == 0) return;
  detail::update_slots_kernel<<<detail::slot_blocks(slots), detail::slot_threads, 0,
                                context.stream()>>>(
      slots, rules.data(), history.data(), history.extent(1), static_cast<std::int32_t>(group));
  check(cudaGetLastError(), "the launch of update_delayed_scales");
}

/// See clear_statistics.
inline void clear_statistics_body(TensorView<ScalingSlot, 1, Cuda> slots,
                                  const Context<Cuda>& context) {
  if (slots.extent(0) == 0) return;
  detail::clear_statistics_kernel<<<detail::slot_blocks(slots), detail::slot_threads, 0,
                                    context.stream()>>>(slots);
  check(cudaGetLastError(), "the launch of clear_statistics");
}

}  // namespace octavo
