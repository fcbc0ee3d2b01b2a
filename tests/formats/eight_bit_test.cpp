#include <octavo/formats/eight_bit.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

namespace eight_bit_test {

using octavo::E8M0;
using octavo::EightBit;
using octavo::FirstMomentCode;
using octavo::SecondMomentCode;

/// The levels of the codes 0 to `count` - 1, by the definition.
std::vector<double> levels(int count) {
  std::vector<double> result;
  result.reserve(static_cast<std::size_t>(count));
  for (int k = 0; k < count; ++k) {
    result.push_back((16.0 + k % 16) * std::pow(2.0, std::floor(k / 16.0)) - 16.0);
  }
  return result;
}

E8M0 scale_of(int exponent) { return E8M0::from_bits(static_cast<std::uint8_t>(exponent + 127)); }

/// What tests need of either moment.
struct First {
  using Code = FirstMomentCode;
  static constexpr int codes = 128;
  static constexpr int largest_exponent = 116;  ///< with which 3952 is finite
};
struct Second {
  using Code = SecondMomentCode;
  static constexpr int codes = 256;
  static constexpr int largest_exponent = 108;  ///< with which 1015792 is finite
};

template <class Moment>
std::uint8_t encoded(double value, E8M0 scale, std::uint32_t random) {
  using Code = typename Moment::Code;
  const float within = Code::saturated(static_cast<float>(value), scale);
  return EightBit::upper(Code::encode(within, scale, random)).bits;
}

template <class Moment>
class EightBitCodes : public testing::Test {};
using Moments = testing::Types<First, Second>;
TYPED_TEST_SUITE(EightBitCodes, Moments);

constexpr std::uint32_t most_random = 0xffffffffu;

TYPED_TEST(EightBitCodes, RoundTripForAnyRandomBits) {
  using Code = typename TypeParam::Code;
  const std::vector<double> all = levels(TypeParam::codes);
  for (const int exponent : {-127, -126, -60, 0, 13, TypeParam::largest_exponent}) {
    const E8M0 scale = scale_of(exponent);
    for (int k = 0; k < TypeParam::codes; ++k) {
      const double value = std::ldexp(all[static_cast<std::size_t>(k)], exponent);
      const EightBit code{static_cast<std::uint8_t>(k)};
      ASSERT_EQ(Code::decode(code, scale), value) << k << " at 2^" << exponent;
      for (const std::uint32_t random : {0u, 1u << 8, 1u << 31, most_random}) {
        ASSERT_EQ(encoded<TypeParam>(value, scale, random), k) << random;
      }
    }
  }
}

TYPED_TEST(EightBitCodes, ScaleIsSmallestThatHoldsGroupMaximum) {
  const double largest = levels(TypeParam::codes).back();
  std::mt19937 random(1);
  std::vector<float> amaxes;
  for (int exponent = -126; exponent < 128; ++exponent) {
    for (const double part : {1.0, 0.5 * largest / std::pow(2.0, std::floor(std::log2(largest)))}) {
      const double edge = std::ldexp(2.0 * part, exponent - 1);
      if (edge > static_cast<double>(std::numeric_limits<float>::max())) continue;
      const auto amax = static_cast<float>(edge);
      amaxes.insert(amaxes.end(), {amax, std::nextafter(amax, 0.0f), std::nextafter(amax, 3e38f)});
    }
    amaxes.push_back(
        static_cast<float>(std::ldexp(1.0 + static_cast<double>(random()) * 0x1p-32, exponent)));
  }
  for (const float amax : amaxes) {
    int exponent = -127;
    while (exponent < TypeParam::largest_exponent &&
           std::ldexp(largest, exponent) < static_cast<double>(amax)) {
      ++exponent;
    }
    ASSERT_EQ(TypeParam::Code::Levels::scale(amax), scale_of(exponent)) << amax;
  }
  EXPECT_EQ(TypeParam::Code::Levels::scale(0.0f).bits, 0);
}

/// Steps between neighbours, each at several places, with random bits that stand for all.
TYPED_TEST(EightBitCodes, RoundToNeighboursAndPreserveMean) {
  const std::vector<double> all = levels(TypeParam::codes);
  const E8M0 scale = scale_of(0);
  constexpr int draws = 4096;
  for (std::size_t k = TypeParam::codes == 256 ? 1 : 0; k + 1 < all.size(); ++k) {
    for (const double part : {0.0, 0.01, 0.25, 0.5, 0.9}) {
      const double value = all[k] + part * (all[k + 1] - all[k]);
      int ups = 0;
      for (int i = 0; i < draws; ++i) {
        const auto code = encoded<TypeParam>(value, scale, static_cast<std::uint32_t>(i) << 20);
        ASSERT_TRUE(code == k || (part > 0.0 && code == k + 1)) << value << ": " << int{code};
        ups += code == k + 1 ? 1 : 0;
      }
      // Random bits in steps of 1/4096; the sum with the offset is rounded to 2^-19 of a step.
      ASSERT_NEAR(static_cast<double>(ups) / draws, part, 1.0 / draws + 0x1p-19) << value;
    }
  }
}

TYPED_TEST(EightBitCodes, SaturateLargeValues) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  const int last = TypeParam::codes - 1;
  for (const float value : {infinity, std::numeric_limits<float>::max(),
                            std::numeric_limits<float>::quiet_NaN(), 1.1e6f}) {
    for (const std::uint32_t random : {0u, most_random}) {
      EXPECT_EQ(encoded<TypeParam>(static_cast<double>(value), scale_of(0), random), last) << value;
    }
  }
  const E8M0 scale = TypeParam::Code::Levels::scale(infinity);
  EXPECT_EQ(scale, scale_of(TypeParam::largest_exponent));
  const EightBit largest{static_cast<std::uint8_t>(last)};
  EXPECT_LE(TypeParam::Code::decode(largest, scale), std::numeric_limits<float>::max());
}

TEST(EightBit, FirstMomentsHaveASign) {
  for (int k = 0; k < 128; ++k) {
    const EightBit plus{static_cast<std::uint8_t>(k)};
    const EightBit minus{static_cast<std::uint8_t>(k + 128)};
    const float value = FirstMomentCode::decode(plus, scale_of(3));
    EXPECT_EQ(FirstMomentCode::decode(minus, scale_of(3)), -value);
    const float between = FirstMomentCode::saturated(value * 1.01f, scale_of(3));
    EXPECT_EQ(FirstMomentCode::saturated(value * -1.01f, scale_of(3)), -between);
    for (const std::uint32_t random : {0u, 0x12345678u, most_random}) {
      EXPECT_EQ(FirstMomentCode::encode(-between, scale_of(3), random),
                FirstMomentCode::encode(between, scale_of(3), random) + 0x80000000u);
    }
  }
}

TEST(EightBit, NonzeroSecondMomentsStayNonzero) {
  for (const int exponent : {-127, -30, 0, 50}) {
    for (const float part : {1e-6f, 0.3f, 0.99f}) {
      const double value = std::ldexp(static_cast<double>(part), exponent);
      if (value < 0x1p-130) continue;
      for (const std::uint32_t random : {0u, most_random}) {
        EXPECT_EQ(encoded<Second>(value, scale_of(exponent), random), 1) << value;
      }
    }
    EXPECT_EQ(encoded<Second>(0.0, scale_of(exponent), most_random), 0);
  }
}

}  // namespace eight_bit_test
