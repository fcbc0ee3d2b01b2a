/// @file
/// Statistics of casts: the maximum magnitude, saturated values and values flushed to zero.
#pragma once

#include <octavo/kernels/cuda/cast/amax.cuh>

namespace octavo OCTAVO_ABI::detail {

/// Counts of one thread, one warp or one block of threads.
struct CastTotals {
  std::uint32_t amax_bits;  ///< bits of max |x|
  std::uint32_t saturated;
  std::uint32_t flushed;
};

/// Returns the totals of a warp to all its threads, all of which must call it.
__device__ inline CastTotals warp_totals(const CastTotals& totals) {
  return {__reduce_max_sync(0xffffffffu, totals.amax_bits),
          __reduce_add_sync(0xffffffffu, totals.saturated),
          __reduce_add_sync(0xffffffffu, totals.flushed)};
}

/// Counts of the warps of a block, in shared memory.
struct BlockTotals {
  CastTotals warps[quantize_threads / 32];

  /// Stores a warp's totals. All threads must call it; before `sum`, the block must synchronise.
  __device__ void put(const CastTotals& totals) {
    const CastTotals warp = warp_totals(totals);
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = warp;
  }
  /// Returns the totals of the block to all threads of one warp, all of which must call it.
  [[nodiscard]] __device__ CastTotals sum() const {
    const unsigned lane = threadIdx.x % 32;
    return warp_totals(lane < quantize_threads / 32 ? warps[lane] : CastTotals{});
  }
};

__device__ inline void add_to_counter(std::uint64_t& counter, std::uint64_t count) {
  if (count != 0) atomicAdd(reinterpret_cast<unsigned long long*>(&counter), count);
}

/// Multiplies two values by the scale of their cast.
__device__ inline float2 scaled_pair(float2 values, float scale) {
  return make_float2(__fmul_rn(values.x, scale), __fmul_rn(values.y, scale));
}

/// Counts how many of two scaled values saturate.
template <class Format>
__device__ void count_saturated(float2 scaled, CastTotals& totals) {
  totals.saturated += !(fabsf(scaled.x) <= largest_unsaturated<Format>) ? 1u : 0u;
  totals.saturated += !(fabsf(scaled.y) <= largest_unsaturated<Format>) ? 1u : 0u;
}

/// Counts two values that were cast to the two low bytes of `cast`.
template <class Format>
__device__ void count_pair(float2 values, float scale, std::uint32_t cast, CastTotals& totals) {
  count_saturated<Format>(scaled_pair(values, scale), totals);
  totals.flushed += (cast & 0x7fu) == 0 && values.x != 0.0f ? 1u : 0u;
  totals.flushed += (cast & 0x7f00u) == 0 && values.y != 0.0f ? 1u : 0u;
}

/// Bit 7 of each byte of a flag word corresponds to one of four bytes or BF16 values.
inline constexpr std::uint32_t byte_flags = 0x80808080u;

/// Flags nonzero bytes of FP8; other bits are undefined.
__device__ inline std::uint32_t flag_not_zero(std::uint32_t bytes) {
  return (bytes & ~byte_flags) + ~byte_flags;
}

/// Flags nonzero BF16 values, two in each word; other bits are undefined.
__device__ inline std::uint32_t flag_not_zero(std::uint32_t first, std::uint32_t second) {
  constexpr std::uint32_t signs = 0x80008000u;
  constexpr std::uint32_t ones = 0x00010001u;
  return __byte_perm((first | signs) - ones, (second | signs) - ones, 0x7531);
}

/// Counts the saturated values of a run.
template <class Format>
__device__ void count_saturated(const Run<Bf16>& run, float scale, CastTotals& totals) {
#pragma unroll
  for (const std::uint32_t word : run.words) {
    count_saturated<Format>(scaled_pair(bf16_pair(word), scale), totals);
  }
}

/// Counts the flushed values of a run. For most runs, the first test is sufficient.
template <class Format>
__device__ void count_flushed(const Run<Bf16>& run, const Run<Format>& cast, CastTotals& totals) {
  const std::uint32_t kept[2] = {flag_not_zero(cast.words[0]), flag_not_zero(cast.words[1])};
  if ((kept[0] & kept[1] & byte_flags) != byte_flags) {
    const std::uint32_t flushed[2] = {
        flag_not_zero(run.words[0], run.words[1]) & ~kept[0] & byte_flags,
        flag_not_zero(run.words[2], run.words[3]) & ~kept[1] & byte_flags};
    totals.flushed += static_cast<std::uint32_t>(__popc(flushed[0] | flushed[1] >> 1));
  }
}

/// Whether a value of this magnitude saturates. If not, no smaller one does.
template <class Format>
__device__ bool saturates(float magnitude, float scale) {
  return !(__fmul_rn(magnitude, scale) <= largest_unsaturated<Format>);
}

/// The magnitudes that certainly do not saturate with a scale.
class SafeMagnitudes {
 public:
  SafeMagnitudes() = default;

  /// @param scale  finite and positive
  template <class Format>
  __device__ static SafeMagnitudes of(float scale) {
    // Rounded down to BF16, and by one more value if the quotient itself was rounded up.
    const float quotient = fminf(__fdividef(largest_unsaturated<Format>, scale), largest_bf16);
    const std::uint32_t bits = float_bits(quotient) >> 16;
    const bool too_large = bits > 0 && saturates<Format>(float_from_bits(bits << 16), scale);
    return SafeMagnitudes((bits - (too_large ? 1u : 0u)) * 0x10001u);
  }

  /// @param magnitudes  the larger of each pair: see larger_magnitudes
  [[nodiscard]] __device__ bool contains(std::uint32_t magnitudes) const {
    return __vmaxu2(magnitudes, max_magnitude_) == max_magnitude_;
  }

 private:
  static constexpr float largest_bf16 = FormatTraits<Bf16>::max;
  __device__ explicit SafeMagnitudes(std::uint32_t most) : max_magnitude_(most) {}

  std::uint32_t max_magnitude_ = 0;  ///< the largest of them, in both halves of the word
};

/// Subtracts the counts of elements beyond the matrix: one thread cast `elements`, of which `count`
/// are inside. The scale of an MX block that contains a NaN is NaN and also turns their zeros into
/// NaN. With other scales, these elements are not counted.
__device__ inline void discount_beyond(int count, int elements, float scale, CastTotals& totals) {
  if (!isnan(scale)) return;
  const int within = min(max(count, 0), elements);
  totals.saturated -= static_cast<std::uint32_t>(elements - within);
}

/// Counts, for a source that reads a matrix of E4M3, how many of its values have the largest
/// magnitude or are NaN: see `swiglu_forward`.
struct LargestCounter {
  OperandStatistics* statistics = nullptr;  ///< null: nothing is counted
  Index elements = 0;                       ///< of the matrix

  /// Returns the count of two runs.
  __device__ static std::uint32_t of(const Run<E4M3>& first, const Run<E4M3>& second) {
    // Adding 2 carries into the sign's bit from the codes 0x7e, the largest magnitude, and 0x7f,
    // NaN.
    const auto flags = [](std::uint32_t word) { return (word & ~byte_flags) + 0x02020202u; };
    const std::uint32_t found[4] = {flags(first.words[0]), flags(first.words[1]),
                                    flags(second.words[0]), flags(second.words[1])};
    const std::uint32_t any = (found[0] | found[1] | found[2] | found[3]) & byte_flags;
    if (any == 0) [[likely]]
      return 0;
    std::uint32_t count = 0;
#pragma unroll
    for (const std::uint32_t word : found) {
      count += static_cast<std::uint32_t>(__popc(word & byte_flags));
    }
    return count;
  }

  /// Adds the counts of a block's threads, in one atomic unless all are 0. All threads must call
  /// it.
  __device__ void add(std::uint32_t count) const {
    if (statistics == nullptr) return;
    if (threadIdx.x == 0 && blockIdx.x == 0 && blockIdx.y == 0) {
      add_to_counter(statistics->elements, static_cast<std::uint64_t>(elements));
    }
    if (__syncthreads_or(count != 0 ? 1 : 0) == 0) return;
    const std::uint32_t block = kernels::block_sum(count);
    if (threadIdx.x == 0) add_to_counter(statistics->saturated, block);
  }
};

}  // namespace octavo::detail
