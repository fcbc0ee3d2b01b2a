/// @file
/// Tiles of INT8 and E4M3 in shared memory, and the products of the 8-bit forward of attention.
/// Source: PTX ISA 9.0, section on wgmma.mma_async.
#pragma once

#include <octavo/attention/eight_bit.hpp>
#include <octavo/kernels/cuda/warpgroup_cores.cuh>

#include <cuda_fp8.h>

#include <cstdint>

namespace octavo OCTAVO_ABI::detail {

/// Rows of a tile of queries or keys, and tokens of a tile of values.
inline constexpr int eight_bit_tile_rows = static_cast<int>(eight_bit_attention_rows);
/// The reduced dimension of one MMA.
inline constexpr int eight_bit_mma_depth = 32;

/// `rows` rows of `columns` 8-bit values in shared or global memory. Chunks of 16 bytes are
/// permuted by the tensor cores' swizzle of 128 or 64 bytes.
template <int rows, int columns>
struct EightBitTile {
  static_assert(columns == 64 || columns == 128);
  static constexpr int bytes = rows * columns;

  std::uint32_t address;  ///< in shared memory, at a multiple of tile_alignment

  /// Returns the offset of the `chunk`-th 16 values of a row.
  static __host__ __device__ constexpr int offset(int row, int chunk) {
    const int swizzled = columns == 128 ? chunk ^ (row % 8) : chunk ^ (row / 2 % 4);
    return row * columns + swizzled * 16;
  }

  /// Returns the tensor cores' descriptor of an operand whose reduced dimension is the columns.
  /// @param row     a multiple of 8
  /// @param column  a multiple of 32
  [[nodiscard]] __device__ std::uint64_t descriptor(int row, int column) const {
    const std::uint32_t start = address + static_cast<std::uint32_t>(row * columns + column);
    constexpr std::uint64_t swizzle = columns == 128 ? 1 : 2;
    constexpr std::uint64_t constant =
        (swizzle << 62) | (std::uint64_t{8 * columns / 16} << 32) | (std::uint64_t{1} << 16);
    return constant | ((start & 0x3ffffu) >> 4);
  }
};

/// Packs four values as E4M3, rounded to nearest even and saturated; the first in the lowest byte.
__device__ inline std::uint32_t pack_e4m3(float a, float b, float c, float d) {
  std::uint32_t packed;
  asm("{\n.reg .b16 low, high;\n"
      "cvt.rn.satfinite.e4m3x2.f32 low, %2, %1;\n"
      "cvt.rn.satfinite.e4m3x2.f32 high, %4, %3;\n"
      "mov.b32 %0, {low, high};\n}\n"
      : "=r"(packed)
      : "f"(a), "f"(b), "f"(c), "f"(d));
  return packed;
}

/// Returns which token of a group of 16 is at a position of a tile of values. This order matches
/// the layout of the first product's results, so that they can be the first operand of the second
/// product without an exchange between threads.
__host__ __device__ constexpr int fp8_token_at(int position) {
  const int quad = position / 4;
  const int within = position % 4;
  return within / 2 * 8 + quad * 2 + within % 2;
}

/// Converts columns 32k to 32k + 31 of probabilities to a fragment, in the order of fp8_token_at.
template <int n>
__device__ Fragment to_fp8_fragment(const Accumulator<n>& sums, int k) {
  const float* v = sums.values + 16 * k;
  return {{pack_e4m3(v[0], v[1], v[4], v[5]), pack_e4m3(v[2], v[3], v[6], v[7]),
           pack_e4m3(v[8], v[9], v[12], v[13]), pack_e4m3(v[10], v[11], v[14], v[15])}};
}

/// Returns the sum of eight values of E4M3, none above 256. Groups of four are added in FP16, which
/// loses at most 2^-11 of their sum.
__device__ inline float sum_of_e4m3(std::uint32_t first, std::uint32_t second) {
  const auto halves = [](std::uint32_t pair) {
    const auto bits = static_cast<__nv_fp8x2_storage_t>(pair);
    return __half2(__nv_cvt_fp8x2_to_halfraw2(bits, __NV_E4M3));
  };
  const float2 sums = __half22float2(__hadd2(__hadd2(halves(first), halves(first >> 16)),
                                             __hadd2(halves(second), halves(second >> 16))));
  return sums.x + sums.y;
}

/// 64 × `n` integers in the registers of four warps, in the layout of `Accumulator`.
template <int n>
struct IntegerAccumulator {
  static constexpr int size = n / 2;
  int values[size];
};

/// See pin(Accumulator).
template <int n>
__device__ void pin(IntegerAccumulator<n>& sums) {
#pragma unroll
  for (int i = 0; i < n / 2; ++i) asm volatile("" : "+r"(sums.values[i])::"memory");
}

/// Sums of products of INT8 values start at the bits of this value. Then the bits of such a sum,
/// whose magnitude is below 2^22, are those of an FP32 value: the sum plus this bias. Instructions
/// that convert integers would take longer than the products.
inline constexpr float integer_bias = 0x1.8p23f;

template <int n>
__device__ void set_to_bias(IntegerAccumulator<n>& sums) {
#pragma unroll
  for (int& value : sums.values) value = __float_as_int(integer_bias);
}

/// Sets `floats` to the sums plus integer_bias, if the sums were started by set_to_bias.
template <int n>
__device__ void to_biased_floats(const IntegerAccumulator<n>& sums, Accumulator<n>& floats) {
#pragma unroll
  for (int i = 0; i < n / 2; ++i) floats.values[i] = __int_as_float(sums.values[i]);
}

// clang-format off
#define OCTAVO_SUMS_32                                                                     \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, " \
  "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define OCTAVO_SUMS_64                                                                       \
  OCTAVO_SUMS_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, "  \
  "%46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define OCTAVO_FOUR(t, v, i) t(v[i]), t(v[i + 1]), t(v[i + 2]), t(v[i + 3])
#define OCTAVO_SIXTEEN(t, v, i) \
  OCTAVO_FOUR(t, v, i), OCTAVO_FOUR(t, v, i + 4), OCTAVO_FOUR(t, v, i + 8), OCTAVO_FOUR(t, v, i + 12)
// clang-format on

/// Starts sums += a · bᵀ over 32 columns of 64 rows of `a` and n rows of `b`, whose values are
/// INT8.
template <int n, int a_rows, int a_columns, int rows, int columns>
__device__ void multiply_int8(IntegerAccumulator<n>& sums, EightBitTile<a_rows, a_columns> a,
                              int a_row, EightBitTile<rows, columns> b, int column) {
  static_assert(n == 128 && rows == n);
  int(&v)[64] = sums.values;
  asm volatile("wgmma.mma_async.sync.aligned.m64n128k32.s32.s8.s8 " OCTAVO_SUMS_64
               "}, %64, %65, 1;\n"
               : OCTAVO_SIXTEEN("+r", v, 0), OCTAVO_SIXTEEN("+r", v, 16),
                 OCTAVO_SIXTEEN("+r", v, 32), OCTAVO_SIXTEEN("+r", v, 48)
               : "l"(a.descriptor(a_row, column)), "l"(b.descriptor(0, column)));
}

/// Starts sums (+)= a · bᵀ over 32 columns of n rows of `b`, whose values are E4M3.
template <int n, int rows, int columns>
__device__ void multiply_fp8(Accumulator<n>& sums, const Fragment& a, EightBitTile<rows, columns> b,
                             int column, bool add) {
  static_assert((n == 64 || n == 128) && rows == n);
  auto& v = sums.values;
  if constexpr (n == 128) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 " OCTAVO_SUMS_64
        "}, {%64, %65, %66, %67}, %68, p, 1, 1;\n}\n"
        : OCTAVO_SIXTEEN("+f", v, 0), OCTAVO_SIXTEEN("+f", v, 16), OCTAVO_SIXTEEN("+f", v, 32),
          OCTAVO_SIXTEEN("+f", v, 48)
        : "r"(a.words[0]), "r"(a.words[1]), "r"(a.words[2]), "r"(a.words[3]),
          "l"(b.descriptor(0, column)), "r"(static_cast<int>(add)));
  } else {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 " OCTAVO_SUMS_32
        "}, {%32, %33, %34, %35}, %36, p, 1, 1;\n}\n"
        : OCTAVO_SIXTEEN("+f", v, 0), OCTAVO_SIXTEEN("+f", v, 16)
        : "r"(a.words[0]), "r"(a.words[1]), "r"(a.words[2]), "r"(a.words[3]),
          "l"(b.descriptor(0, column)), "r"(static_cast<int>(add)));
  }
}

#undef OCTAVO_SUMS_32
#undef OCTAVO_SUMS_64
#undef OCTAVO_FOUR
#undef OCTAVO_SIXTEEN

}  // namespace octavo::detail
