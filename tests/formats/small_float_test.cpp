#include <octavo/formats/formats.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>

#include "formats/reference.hpp"

namespace small_float_test {

using octavo::E2M1;
using octavo::E4M3;
using octavo::E5M2;
using octavo::FormatTraits;

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();

template <class Format>
constexpr reference::Format definition{};
template <>
constexpr reference::Format definition<E4M3> = reference::e4m3;
template <>
constexpr reference::Format definition<E5M2> = reference::e5m2;
template <>
constexpr reference::Format definition<E2M1> = reference::e2m1;

template <class Format>
class SmallFloat : public testing::Test {};
using SmallFloats = testing::Types<E4M3, E5M2, E2M1>;
TYPED_TEST_SUITE(SmallFloat, SmallFloats);

TYPED_TEST(SmallFloat, EveryCodeDecodesToItsDefinition) {
  for (int code = 0; code < definition<TypeParam>.codes(); ++code) {
    const double expected = reference::decode(definition<TypeParam>, code);
    const auto actual = static_cast<float>(TypeParam::from_bits(static_cast<std::uint8_t>(code)));
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(actual)) << "code " << code;
    } else {
      EXPECT_EQ(actual, expected) << "code " << code;
      EXPECT_EQ(std::signbit(actual), std::signbit(expected)) << "code " << code;
    }
  }
}

TYPED_TEST(SmallFloat, EveryFiniteCodeSurvivesTheRoundTrip) {
  for (int code = 0; code < definition<TypeParam>.codes(); ++code) {
    if (!std::isfinite(reference::decode(definition<TypeParam>, code))) continue;
    const TypeParam value = TypeParam::from_bits(static_cast<std::uint8_t>(code));
    EXPECT_EQ(TypeParam(static_cast<float>(value)), value) << "code " << code;
  }
}

TYPED_TEST(SmallFloat, TraitsFollowFromTheDefinition) {
  using Traits = FormatTraits<TypeParam>;
  const reference::Format& format = definition<TypeParam>;
  EXPECT_EQ(1 << Traits::bits, format.codes());
  EXPECT_EQ(Traits::exponent_bits, format.exponent_bits);
  EXPECT_EQ(Traits::mantissa_bits, format.mantissa_bits);
  EXPECT_EQ(Traits::exponent_bias, format.bias);
  EXPECT_EQ(Traits::max, reference::decode(format, format.largest));
  EXPECT_EQ(Traits::min_normal, reference::decode(format, 1 << format.mantissa_bits));
  EXPECT_EQ(Traits::smallest_subnormal, reference::decode(format, 1));
  EXPECT_EQ(Traits::has_infinity, format.infinity != 0);
  EXPECT_EQ(Traits::has_nan, format.has_nan);
}

/// The first float for which the conversion is not the nearest value, if there is one.
template <class Format>
testing::AssertionResult rounds_to_nearest(float value) {
  const int expected = reference::nearest(definition<Format>, static_cast<double>(value));
  const int actual = Format(value).bits;
  if (actual == expected) return testing::AssertionSuccess();
  return testing::AssertionFailure() << value << " (bits " << std::hex << reference::bits_of(value)
                                     << ") became " << actual << ", nearest is " << expected;
}

TYPED_TEST(SmallFloat, RoundsTiesToEven) {
  const reference::Format& format = definition<TypeParam>;
  for (int code = 0; code < format.largest; ++code) {
    const auto tie = static_cast<float>(
        (reference::decode(format, code) + reference::decode(format, code + 1)) / 2.0);
    for (const float sign : {1.0f, -1.0f}) {
      for (const float value : {tie, std::nextafter(tie, 0.0f), std::nextafter(tie, infinity)}) {
        EXPECT_TRUE(rounds_to_nearest<TypeParam>(sign * value));
      }
    }
    EXPECT_EQ(TypeParam(tie).bits % 2, 0);
  }
}

TYPED_TEST(SmallFloat, RoundsToNearest) {
  for (std::uint32_t upper = 0; upper <= 0xffffu; ++upper) {
    for (const std::uint32_t lower : {0u, 1u, 0x7fffu, 0x8000u, 0xffffu}) {
      ASSERT_TRUE(rounds_to_nearest<TypeParam>(reference::float_of((upper << 16) | lower)));
    }
  }
}

/// A line of the published table.
struct Line {
  float value;
  int e4m3;
  int e5m2;
};

TEST(Fp8, TableOfSpecialValues) {
  const float above_tie = std::nextafter(464.0f, infinity);
  for (const Line& line : {
           Line{464.0f, 0x7e, 0x5f},
           Line{above_tie, 0x7e, 0x5f},
           Line{61439.0f, 0x7e, 0x7b},
           Line{61440.0f, 0x7e, 0x7b},
           Line{infinity, 0x7e, 0x7b},
           Line{-infinity, 0xfe, 0xfb},
           Line{nan, 0x7f, 0x7f},
           Line{-nan, 0x7f, 0x7f},
           Line{0.0f, 0x00, 0x00},
           Line{-0.0f, 0x80, 0x80},
           Line{0x1p-10f, 0x00, 0x14},
           Line{0x1p-17f, 0x00, 0x00},
       }) {
    EXPECT_EQ(E4M3(line.value).bits, line.e4m3) << line.value;
    EXPECT_EQ(E5M2(line.value).bits, line.e5m2) << line.value;
  }
}

TEST(Fp8, ConvertsAtCompileTime) {
  static_assert(E4M3(448.0f).bits == 0x7e && E5M2(-1.0f).bits == 0xbc);
  static_assert(static_cast<float>(E4M3::from_bits(0x01)) == 0x1p-9f);
}

TEST(Fp4, SpecialValues) {
  EXPECT_EQ(E2M1(infinity).bits, 0x7);
  EXPECT_EQ(E2M1(-infinity).bits, 0xf);
  EXPECT_EQ(E2M1(nan).bits, 0x7);
  EXPECT_EQ(E2M1(-nan).bits, 0x7);
  EXPECT_EQ(E2M1(-0.0f).bits, 0x8);
  EXPECT_EQ(E2M1(0.25f).bits, 0x0);  // tie between 0 and 0.5
  EXPECT_EQ(E2M1(0.75f).bits, 0x2);  // tie between 0.5 and 1
  EXPECT_EQ(E2M1(5.0f).bits, 0x6);   // tie between 4 and 6
}

TEST(Fp4, TakesTheLowerNibbleOfItsBits) { EXPECT_EQ(E2M1::from_bits(0xf3).bits, 0x3); }

}  // namespace small_float_test
