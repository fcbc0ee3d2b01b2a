// The conversions against those of the CUDA Toolkit's headers, which also run on the host.
#include <octavo/formats/formats.hpp>

#include <gtest/gtest.h>

#if __has_include(<cuda_fp8.h>) && __has_include(<cuda_fp4.h>) && __has_include(<cuda_bf16.h>)
#define OCTAVO_HAS_CUDA_FORMATS 1
#include <cuda_bf16.h>
#include <cuda_fp4.h>
#include <cuda_fp8.h>

#include <cmath>
#include <cstdint>
#include <ios>

#include "formats/reference.hpp"
#endif

namespace cuda_headers_test {

#if defined(OCTAVO_HAS_CUDA_FORMATS)

using octavo::Bf16;
using octavo::E2M1;
using octavo::E4M3;
using octavo::E5M2;
using octavo::E8M0;

/// Compares two conversions from float to bits on every float whose lowest byte is one of four:
/// among them every sign, exponent, Inf, subnormal and tie, and the closest neighbours of ties.
template <class Ours, class Theirs>
void expect_equal_on_floats(std::uint32_t upper_patterns, const Ours& ours, const Theirs& theirs) {
  std::uint64_t differences = 0;
  std::uint32_t first = 0;
  for (std::uint32_t upper = 0; upper < upper_patterns; ++upper) {
    for (const std::uint32_t lower : {0x00u, 0x01u, 0x80u, 0xffu}) {
      const std::uint32_t bits = (upper << 8) | lower;
      const float value = reference::float_of(bits);
      if (ours(value) == theirs(value)) continue;
      if (differences++ == 0) first = bits;
    }
  }
  const float value = reference::float_of(first);
  EXPECT_EQ(differences, 0u) << "first at bits " << std::hex << first << ": ours " << ours(value)
                             << ", CUDA's " << theirs(value);
}

constexpr std::uint32_t all_floats = 1u << 24;
constexpr std::uint32_t positive_floats = 1u << 23;

template <class Ours, class Theirs>
void expect_equal_on_codes(int codes) {
  for (int code = 0; code < codes; ++code) {
    Theirs theirs;
    theirs.__x = static_cast<decltype(theirs.__x)>(code);
    const auto expected = static_cast<float>(theirs);
    const auto actual = static_cast<float>(Ours::from_bits(static_cast<std::uint8_t>(code)));
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(actual)) << code;
    } else {
      EXPECT_EQ(reference::bits_of(actual), reference::bits_of(expected)) << code;
    }
  }
}

TEST(CudaHeaders, E4m3EncodingMatches) {
  expect_equal_on_floats(
      all_floats, [](float x) -> int { return E4M3(x).bits; },
      [](float x) -> int { return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3); });
}

TEST(CudaHeaders, E5m2EncodingMatches) {
  expect_equal_on_floats(
      all_floats, [](float x) -> int { return E5M2(x).bits; },
      [](float x) -> int { return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E5M2); });
}

TEST(CudaHeaders, E2m1EncodingMatches) {
  expect_equal_on_floats(
      all_floats, [](float x) -> int { return E2M1(x).bits; },
      [](float x) -> int { return __nv_cvt_float_to_fp4(x, __NV_E2M1, cudaRoundNearest); });
}

TEST(CudaHeaders, E8m0EncodingMatches) {
  expect_equal_on_floats(
      positive_floats, [](float x) -> int { return E8M0(x).bits; },
      [](float x) -> int { return __nv_cvt_float_to_e8m0(x, __NV_SATFINITE, cudaRoundPosInf); });
}

TEST(CudaHeaders, Bf16RoundingMatches) {
  expect_equal_on_floats(
      all_floats, [](float x) -> int { return Bf16(x).bits; },
      [](float x) -> int { return __bfloat16_as_ushort(__float2bfloat16_rn(x)); });
}

TEST(CudaHeaders, DecodingOfEveryCodeMatches) {
  expect_equal_on_codes<E4M3, __nv_fp8_e4m3>(256);
  expect_equal_on_codes<E5M2, __nv_fp8_e5m2>(256);
  expect_equal_on_codes<E8M0, __nv_fp8_e8m0>(256);
  expect_equal_on_codes<E2M1, __nv_fp4_e2m1>(16);
}

TEST(CudaHeaders, DecodingOfEveryBf16Matches) {
  for (std::uint32_t code = 0; code <= 0xffffu; ++code) {
    const auto bits = static_cast<std::uint16_t>(code);
    const float expected = __bfloat162float(__ushort_as_bfloat16(bits));
    const auto actual = static_cast<float>(Bf16::from_bits(bits));
    EXPECT_EQ(reference::bits_of(actual), reference::bits_of(expected)) << code;
  }
}

#else

TEST(CudaHeaders, ConversionsMatch) {
  GTEST_SKIP() << "cuda_fp8.h, cuda_fp4.h and cuda_bf16.h were not found when this was compiled";
}

#endif

}  // namespace cuda_headers_test
