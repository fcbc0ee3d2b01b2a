/// @file
/// Casts of two values and of a run. Compile them without --use_fast_math, which flushes subnormal
/// numbers.
#pragma once

#include <octavo/kernels/cuda/cast/counts.cuh>

namespace octavo OCTAVO_ABI::detail {

/// Casts two values to two bytes.
template <class Format>
__device__ std::uint32_t cast_pair(float2 values, float scale) {
  return __nv_cvt_float2_to_fp8x2(scaled_pair(values, scale), __NV_SATFINITE,
                                  cuda_fp8_kind<Format>);
}

/// Casts a run and counts the values that were flushed.
template <class Format>
__device__ Run<Format> cast_run(const Run<Bf16>& run, float scale, CastTotals& totals) {
  Run<Format> result{};
#pragma unroll
  for (int i = 0; i < Run<Bf16>::words_per_run; ++i) {
    result.words[i / 2] |= cast_pair<Format>(bf16_pair(run.words[i]), scale) << (i % 2 * 16);
  }
  count_flushed<Format>(run, result, totals);
  return result;
}

/// Loads the first `count` elements of a run from element `place` on, then zeros.
/// @tparam Vectors  see load_run
template <bool Vectors, class W>
__device__ Floats load_quantized(const W* source, Index place, Index count) {
  if constexpr (FormatTraits<W>::bits == 4) {
    static_assert(Vectors);  // rows are whole blocks, of 16 elements
    Floats result{};
    const std::uint32_t word =
        count > 0 ? reinterpret_cast<const std::uint32_t*>(source)[place / run_size] : 0;
#pragma unroll
    for (int i = 0; i < run_size; ++i) {
      result.values[i] =
          static_cast<float>(W::from_bits(static_cast<std::uint8_t>(word >> (4 * i) & 0xfu)));
    }
    return result;
  } else {
    return to_floats(load_run<Vectors>(source + place, count));
  }
}

}  // namespace octavo::detail
