#include <octavo/core/random.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>

namespace random_test {

using octavo::philox;
using octavo::RandomStream;
using Words = octavo::Array<std::uint32_t, 4>;

// The known-answer vectors of Random123 (kat_vectors, philox4x32 with 10 rounds).

TEST(Philox, ZeroCounterAndKey) {
  EXPECT_EQ(philox({0, 0}, 0), (Words{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u}));
}

TEST(Philox, AllBitsSet) {
  constexpr std::uint64_t ones = std::numeric_limits<std::uint64_t>::max();
  EXPECT_EQ(philox({ones, ones}, ones),
            (Words{0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu}));
}

TEST(Philox, DigitsOfPi) {
  // Counter 243f6a88 85a308d3 13198a2e 03707344, key a4093822 299f31d0, lower words first.
  constexpr RandomStream stream{0x299f31d0a4093822u, 0x0370734413198a2eu};
  static_assert(philox(stream, 0x85a308d3243f6a88u)[0] == 0xd16cfe09u);
  EXPECT_EQ(philox(stream, 0x85a308d3243f6a88u),
            (Words{0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u}));
}

TEST(RandomWord, IsFirstWordOfPhilox) { EXPECT_EQ(octavo::random_word({0, 0}, 0), 0x6627e8d5u); }

TEST(Uniform, CoversHalfOpenUnitInterval) {
  EXPECT_EQ(octavo::uniform(0), 0.0f);
  EXPECT_EQ(octavo::uniform(0x80000000u), 0.5f);
  EXPECT_EQ(octavo::uniform(0xffffffffu), 1.0f - 0x1p-24f);
}

TEST(Uniform, HasMomentsOfUniformDistribution) {
  constexpr int count = 1 << 20;
  double sum = 0.0;
  double squares = 0.0;
  for (std::uint64_t i = 0; i < count; ++i) {
    const double x = octavo::uniform(octavo::random_word({3, 4}, i));
    sum += x;
    squares += x * x;
  }
  // Five standard errors: 5 · sqrt(1/12 / count) and 5 · sqrt(4/45 / count).
  EXPECT_NEAR(sum / count, 0.5, 1.5e-3);
  EXPECT_NEAR(squares / count, 1.0 / 3.0, 1.5e-3);
}

TEST(Normal, HasMomentsAndTailsOfNormalDistribution) {
  constexpr int count = 1 << 20;
  double sum = 0.0;
  double squares = 0.0;
  double fourth = 0.0;
  int beyond_two = 0;
  int beyond_four = 0;
  for (std::uint64_t i = 0; i < count; ++i) {
    const double x = octavo::normal({1, 2}, i);
    ASSERT_TRUE(std::isfinite(x)) << "position " << i;
    sum += x;
    squares += x * x;
    fourth += x * x * x * x;
    beyond_two += std::abs(x) > 2.0 ? 1 : 0;
    beyond_four += std::abs(x) > 4.0 ? 1 : 0;
  }
  // Five standard errors each: variances of x, x², x⁴ are 1, 2, 96.
  EXPECT_NEAR(sum / count, 0.0, 5e-3);
  EXPECT_NEAR(squares / count, 1.0, 7e-3);
  EXPECT_NEAR(fourth / count, 3.0, 0.05);
  EXPECT_NEAR(static_cast<double>(beyond_two) / count, 0.0455003, 1.1e-3);
  EXPECT_NEAR(beyond_four, 66.4, 41.0);
}

TEST(Normal, NeighboursStreamsAndSeedsAreUncorrelated) {
  constexpr int count = 1 << 18;
  double neighbours = 0.0;
  double streams = 0.0;
  double seeds = 0.0;
  for (std::uint64_t i = 0; i < count; ++i) {
    const double x = octavo::normal({1, 0}, i);
    neighbours += x * octavo::normal({1, 0}, i + 1);
    streams += x * octavo::normal({1, 1}, i);
    seeds += x * octavo::normal({2, 0}, i);
  }
  EXPECT_NEAR(neighbours / count, 0.0, 0.01);  // five standard errors
  EXPECT_NEAR(streams / count, 0.0, 0.01);
  EXPECT_NEAR(seeds / count, 0.0, 0.01);
}

}  // namespace random_test
