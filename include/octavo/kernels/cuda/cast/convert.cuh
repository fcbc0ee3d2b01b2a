/// @file
/// Casts of two values and of a run. Compile them without --use_fast_math, which flushes subnormal
/// numbers.
#pragma once

#include <octavo/kernels/cuda/cast/counts.cuh>

#include <cuda_fp8.h>

namespace octavo OCTAVO_ABI::detail {

template <class Format>
inline constexpr __nv_fp8_interpretation_t cuda_fp8_kind = __NV_E4M3;
template <>
inline constexpr __nv_fp8_interpretation_t cuda_fp8_kind<E5M2> = __NV_E5M2;

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

/// A run of weights as stored, in FP8 or another format. Every FP8 number is an FP16 number.
template <class W>
__device__ Floats weight_floats(const Run<W>& run) {
  static_assert(
      FormatTraits<W>::bits != 4,
      "inference on Cuda: GEMMs of few rows cannot read NVFP4 weights; generate in bf16 or "
      "an FP8 precision, or on Cpu");
  if constexpr (sizeof(W) == 1) {
    Floats result;
#pragma unroll
    for (int i = 0; i < run_size / 2; ++i) {
      const auto pair = static_cast<__nv_fp8x2_storage_t>(run.words[i / 2] >> (i % 2 * 16));
      const __half2 halves(__nv_cvt_fp8x2_to_halfraw2(pair, cuda_fp8_kind<W>));
      const float2 values = __half22float2(halves);
      result.values[2 * i] = values.x;
      result.values[2 * i + 1] = values.y;
    }
    return result;
  } else {
    return to_floats(run);
  }
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
    return weight_floats(load_run<Vectors>(source + place, count));
  }
}

}  // namespace octavo::detail
