#include <octavo/formats/bf16.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>

#include "formats/reference.hpp"

namespace bf16_test {

using octavo::Bf16;

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();
const double largest = std::ldexp(255.0, 120);

/// The BF16 number that `code` stands for, by definition: 8 bits of exponent, 7 of mantissa.
double decode(int code) {
  const double sign = (code & 0x8000) != 0 ? -1.0 : 1.0;
  const int exponent = (code >> 7) & 0xff;
  const int mantissa = code & 0x7f;
  if (exponent == 0xff) return mantissa == 0 ? sign * INFINITY : NAN;
  if (exponent == 0) return sign * std::ldexp(mantissa, -133);
  return sign * std::ldexp(128 + mantissa, exponent - 134);
}

/// Distance of the BF16 numbers around `value`.
double unit_in_last_place(double value) {
  int exponent = 0;
  std::frexp(value, &exponent);
  return std::ldexp(1.0, std::max(exponent - 8, -133));
}

/// The BF16 number nearest to `value`, ties to even: double's own rounding of the quotient by a
/// power of two does it.
double nearest(double value) {
  if (!std::isfinite(value)) return value;
  const double unit = unit_in_last_place(value);
  const double rounded = std::nearbyint(value / unit) * unit;
  return std::abs(rounded) > largest ? std::copysign(INFINITY, value) : rounded;
}

TEST(Bf16, CodesMatchDefinitionAndRoundTrip) {
  for (int code = 0; code <= 0xffff; ++code) {
    const Bf16 value = Bf16::from_bits(static_cast<std::uint16_t>(code));
    const double expected = decode(code);
    const auto actual = static_cast<float>(value);
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(actual)) << code;
      EXPECT_EQ(Bf16(actual).bits, 0x7fff) << code;
    } else {
      EXPECT_EQ(actual, expected) << code;
      EXPECT_EQ(std::signbit(actual), std::signbit(expected)) << code;
      EXPECT_EQ(Bf16(actual), value) << code;
    }
  }
}

TEST(Bf16, RoundsToNearestEven) {
  for (std::uint32_t upper = 0; upper <= 0xffffu; ++upper) {
    for (const std::uint32_t lower : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      const float value = reference::float_of((upper << 16) | lower);
      const double expected = nearest(static_cast<double>(value));
      const auto actual = static_cast<float>(Bf16(value));
      if (std::isnan(value)) {
        ASSERT_EQ(Bf16(value).bits, 0x7fff);
      } else {
        ASSERT_EQ(actual, expected) << std::hex << upper << ' ' << lower;
        ASSERT_EQ(std::signbit(actual), std::signbit(expected)) << std::hex << upper;
      }
    }
  }
}

TEST(Bf16, TraitsFollowFromTheDefinition) {
  using Traits = octavo::FormatTraits<Bf16>;
  EXPECT_EQ(Traits::max, decode(0x7f7f));
  EXPECT_EQ(Traits::min_normal, decode(0x0080));
  EXPECT_EQ(Traits::smallest_subnormal, decode(0x0001));
}

/// Checks the outcome for each of the 65536 random numbers; returns the sum of the results.
double sum_of_outcomes(float value) {
  const double unit = unit_in_last_place(static_cast<double>(value));
  double sum = 0.0;
  int strays = 0;
  for (std::uint32_t random = 0; random <= 0xffffu; ++random) {
    const double result = static_cast<float>(Bf16::stochastic(value, random));
    strays += std::abs(result - static_cast<double>(value)) < unit ? 0 : 1;
    sum += result;
  }
  EXPECT_EQ(strays, 0) << value << " left its two neighbours";
  return sum;
}

TEST(Bf16Stochastic, MeanIsExactAndResultsAreNeighbours) {
  for (const float value :
       {1.0f, 1.0f + 0x1p-23f, 1.003f, -3.14159274f, 65504.5f, 1e-20f, -1e30f, 0x1p-126f,
        0x1.23456p-127f, 0x1p-140f, -0x1p-149f, 0.0f, 1.99999988f, 0x1.fdfffep127f}) {
    // Exact: 65536 results of 8 significant bits fit into a double.
    EXPECT_EQ(sum_of_outcomes(value), 65536.0 * static_cast<double>(value)) << value;
  }
}

TEST(Bf16Stochastic, UsesTheLowerSixteenBitsOnly) {
  for (const std::uint32_t random : {0x0000u, 0x4000u, 0x8000u, 0xffffu}) {
    EXPECT_EQ(Bf16::stochastic(1.003f, random), Bf16::stochastic(1.003f, random | 0xabcd0000u));
  }
}

TEST(Bf16Stochastic, SaturatesAtTheLargestFiniteValue) {
  for (const float value : {0x1.fep127f, 0x1.fe0002p127f, 0x1.ffp127f, 0x1.fffffep127f}) {
    for (const std::uint32_t random : {0u, 1u, 0x7fffu, 0x8000u, 0xffffu}) {
      EXPECT_EQ(Bf16::stochastic(value, random).bits, 0x7f7f);
      EXPECT_EQ(Bf16::stochastic(-value, random).bits, 0xff7f);
    }
  }
}

TEST(Bf16Stochastic, KeepsInfinityAndNan) {
  const float narrow_nan = reference::float_of(0x7f800001u);  // its payload is in the lower bits
  for (const std::uint32_t random : {0u, 0x8000u, 0xffffu}) {
    EXPECT_EQ(Bf16::stochastic(infinity, random).bits, 0x7f80);
    EXPECT_EQ(Bf16::stochastic(-infinity, random).bits, 0xff80);
    EXPECT_TRUE(std::isnan(static_cast<float>(Bf16::stochastic(nan, random))));
    EXPECT_TRUE(std::isnan(static_cast<float>(Bf16::stochastic(narrow_nan, random))));
  }
}

}  // namespace bf16_test
