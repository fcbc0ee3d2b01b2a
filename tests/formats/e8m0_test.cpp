#include <octavo/formats/e8m0.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>

#include "formats/reference.hpp"

namespace e8m0_test {

using octavo::E8M0;

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();

/// Code of the smallest power of two from 2^-127 to 2^127 that is at least |value|.
int power_above(double value) {
  int code = 0;
  while (code < 0xfe && std::ldexp(1.0, code - 127) < std::abs(value)) ++code;
  return code;
}

TEST(E8M0, DecodesCodesToPowersOfTwo) {
  for (int code = 0; code < 0xff; ++code) {
    const E8M0 value = E8M0::from_bits(static_cast<std::uint8_t>(code));
    EXPECT_EQ(static_cast<float>(value), std::ldexp(1.0, code - 127)) << code;
    EXPECT_EQ(E8M0(static_cast<float>(value)), value) << code;
  }
  EXPECT_TRUE(std::isnan(static_cast<float>(E8M0::from_bits(0xff))));
}

TEST(E8M0, RoundsUp) {
  for (std::uint32_t upper = 0; upper < 0x7f80u; ++upper) {
    for (const std::uint32_t lower : {0u, 1u, 0x8000u, 0xffffu}) {
      const float value = reference::float_of((upper << 16) | lower);
      ASSERT_EQ(E8M0(value).bits, power_above(static_cast<double>(value))) << value;
      ASSERT_EQ(E8M0(-value).bits, power_above(static_cast<double>(value))) << -value;
    }
  }
}

TEST(E8M0, SpecialValues) {
  EXPECT_EQ(E8M0(0.0f).bits, 0x00);
  EXPECT_EQ(E8M0(infinity).bits, 0xfe);
  EXPECT_EQ(E8M0(nan).bits, 0xff);
  EXPECT_EQ(E8M0(std::numeric_limits<float>::max()).bits, 0xfe);
  EXPECT_EQ(E8M0(std::nextafter(0x1p-127f, 1.0f)).bits, 0x01);
}

TEST(E8M0, TraitsFollowFromTheDefinition) {
  using Traits = octavo::FormatTraits<E8M0>;
  EXPECT_EQ(Traits::max, static_cast<float>(E8M0::from_bits(0xfe)));
  EXPECT_EQ(Traits::smallest_subnormal, static_cast<float>(E8M0::from_bits(0x00)));
}

}  // namespace e8m0_test
