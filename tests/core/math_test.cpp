#include <octavo/core/math.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace math_test {

using octavo::fast_exp;

double relative_error(float x) {
  const double expected = std::exp(static_cast<double>(x));
  return std::abs(static_cast<double>(fast_exp(x)) - expected) / expected;
}

TEST(FastExp, ErrorIsWithinBoundOverWholeRange) {
  double worst = 0.0;
  float worst_at = 0.0f;
  for (int i = 0; i <= 2000000; ++i) {
    const float x = -87.3f + 175.3f * static_cast<float>(i) / 2000000.0f;
    const double error = relative_error(x > 88.0f ? 88.0f : x);
    if (error > worst) {
      worst = error;
      worst_at = x;
    }
  }
  EXPECT_LT(worst, 0x1p-22) << "at " << worst_at;
}

TEST(FastExp, ErrorIsWithinBoundForSmallArguments) {
  for (int exponent = -149; exponent < 6; ++exponent) {
    for (const float significand : {1.0f, 1.25f, 1.5f, 1.9999f}) {
      const float x = std::ldexp(significand, exponent);
      EXPECT_LT(relative_error(x), 0x1p-22) << x;
      EXPECT_LT(relative_error(-x), 0x1p-22) << -x;
    }
  }
  EXPECT_EQ(fast_exp(0.0f), 1.0f);
  EXPECT_EQ(fast_exp(-0.0f), 1.0f);
}

TEST(FastExp, ClampsAtBothEnds) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  for (const float x : {-87.5f, -100.0f, -1e30f, -std::numeric_limits<float>::max(), -infinity})
    EXPECT_EQ(fast_exp(x), 0.0f) << x;
  for (const float x : {88.5f, 100.0f, 1e30f, infinity}) {
    EXPECT_EQ(fast_exp(x), fast_exp(88.0f)) << x;
    EXPECT_TRUE(std::isfinite(fast_exp(x))) << x;
  }
  EXPECT_TRUE(std::isnan(fast_exp(std::numeric_limits<float>::quiet_NaN())));
}

}  // namespace math_test
