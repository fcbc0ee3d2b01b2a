// Gradients in FP8 between ranks: each value is off by one rounding to E4M3 with its block's scale.
#include <octavo/kernels/packed_parts.hpp>
#include <octavo/kernels/rank_sums.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <random>
#include <vector>

namespace packed_parts_test {

using namespace octavo;

constexpr Index ranks = 3;
constexpr Index elements = 384;

/// Values of every magnitude: block b of a rank is of about 2^-(4 b).
std::vector<float> values() {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::vector<float> result;
  for (Index i = 0; i < ranks * elements; ++i) {
    result.push_back(std::ldexp(normal(random), static_cast<int>(-4 * (i % elements / 128))));
  }
  return result;
}

/// What rank `part` gets if all ranks send the same: the sum of its part over as many ranks.
template <class Sum>
std::vector<Sum> exchanged(const std::vector<float>& sent, std::vector<Sum> sum, bool accumulate) {
  const Context<Cpu> context(2);
  std::vector<std::byte> packed(static_cast<std::size_t>(ranks * PackedPart::bytes(elements)),
                                std::byte{0xff});
  const TensorView<std::byte, 2, Cpu> view{packed.data(), {ranks, PackedPart::bytes(elements)}};
  pack_parts(TensorView<const float, 2, Cpu>{sent.data(), {ranks, elements}}, view, context);
  sum_packed_parts(RankParts<std::byte, Cpu>(view), TensorView<Sum, 1, Cpu>{sum.data(), {elements}},
                   accumulate, context);
  return sum;
}

/// The largest distance of a value from the nearest E4M3 number, by the format's definition: half
/// of the last of 3 bits of mantissa, or half of the smallest number.
double rounding(double value, double scale) {
  const double scaled = std::abs(value) * scale;
  if (scaled == 0) return 0;
  const double exponent = std::max(std::floor(std::log2(scaled)), -6.0);
  return std::ldexp(1.0, static_cast<int>(exponent) - 4) / scale;
}

TEST(PackedParts, EachValueIsRoundedOnce) {
  const std::vector<float> sent = values();
  const auto sum = exchanged(sent, std::vector<float>(elements, 7.0f), false);
  double worst = 0;
  for (Index e = 0; e < elements; ++e) {
    double exact = 0;
    double allowed = 0;
    for (Index rank = 0; rank < ranks; ++rank) {
      const Index block = rank * elements + e / 128 * 128;
      double amax = 0;
      for (Index i = 0; i < 128; ++i) {
        amax = std::max(amax, std::abs(double{sent[static_cast<std::size_t>(block + i)]}));
      }
      const double value = sent[static_cast<std::size_t>(rank * elements + e)];
      exact += value;
      allowed += rounding(value, 448 / amax) * 1.0001 + 1e-6 * std::abs(value);
    }
    const double error = std::abs(double{sum[static_cast<std::size_t>(e)]} - exact);
    EXPECT_LE(error, allowed) << "element " << e;
    worst = std::max(worst, error / allowed);
  }
  EXPECT_GT(worst, 0.3) << "nothing was rounded to FP8";
}

// Ranks send whole rows, so every byte must be written.
TEST(PackedParts, LayoutIsCodesThenFactorsThenZeros) {
  const std::vector<float> sent(2 * 128, -448.0f);
  std::vector<std::byte> packed(2 * 256, std::byte{0xff});
  ASSERT_EQ(PackedPart::bytes(128), 256);
  const Context<Cpu> context(1);
  pack_parts(TensorView<const float, 2, Cpu>{sent.data(), {2, 128}},
             TensorView<std::byte, 2, Cpu>{packed.data(), {2, 256}}, context);
  std::vector<std::byte> part(256, std::byte{0});
  std::fill_n(part.begin(), 128, std::byte{0xfe});  // -448 is the largest E4M3 number
  part[130] = std::byte{0x80};                      // 1 in FP32
  part[131] = std::byte{0x3f};
  std::vector<std::byte> expected = part;
  expected.insert(expected.end(), part.begin(), part.end());
  EXPECT_EQ(packed, expected);
}

TEST(PackedParts, AccumulatesIntoSum) {
  const std::vector<float> sent = values();
  const auto once = exchanged(sent, std::vector<float>(elements, 0.0f), false);
  const auto twice = exchanged(sent, once, true);
  for (std::size_t e = 0; e < once.size(); ++e) {
    EXPECT_NEAR(twice[e], 2 * once[e], 1e-5f * std::abs(once[e])) << e;
  }
}

TEST(PackedParts, PreservesZerosAndPropagatesNonFinite) {
  std::vector<float> sent(static_cast<std::size_t>(ranks * elements), 0.0f);
  sent[elements + 200] = std::numeric_limits<float>::infinity();
  sent[5] = 1e-42f;
  const auto sum = exchanged(sent, std::vector<Bf16>(elements), false);
  for (std::size_t e = 0; e < sum.size(); ++e) {
    const float value = static_cast<float>(sum[e]);
    if (e / 128 == 1) {
      EXPECT_TRUE(std::isnan(value)) << e;
    } else {
      EXPECT_NEAR(value, sent[e], 1e-42f) << e;
    }
  }
}

TEST(PackedParts, SumsPartsInRankOrder) {
  const Context<Cpu> context(1);
  // 2^24 + 1 + 1 is 2^24 in FP32; 1 + 1 + 2^24 is 2^24 + 2.
  const std::vector<float> sent{16777216.0f, 1.0f, 1.0f, 1.0f, 1.0f, 16777216.0f};
  std::vector<float> sum{0.5f, 0.5f};
  const TensorView<const float, 2, Cpu> all{sent.data(), {3, 2}};
  const TensorView<float, 1, Cpu> target{sum.data(), {2}};
  sum_parts(RankParts<float, Cpu>(all), target, false, context);
  const std::vector<float> wanted{16777216.0f, 16777218.0f};
  EXPECT_EQ(sum, wanted);
  // Whichever part lies elsewhere.
  for (Index own = 0; own < 3; ++own) {
    std::vector<float> received = sent;
    std::vector<float> part{sent[2 * static_cast<std::size_t>(own)],
                            sent[2 * static_cast<std::size_t>(own) + 1]};
    received[2 * static_cast<std::size_t>(own)] = 1e30f;
    received[2 * static_cast<std::size_t>(own) + 1] = -1e30f;
    const TensorView<const float, 2, Cpu> others{received.data(), {3, 2}};
    sum_parts(RankParts<float, Cpu>(others, part.data(), own), target, false, context);
    EXPECT_EQ(sum, wanted) << "own " << own;
  }
}

TEST(PackedParts, RejectsPartialBlocks) {
  const Context<Cpu> context(1);
  std::vector<float> sent(200);
  std::vector<std::byte> packed(512);
  EXPECT_THROW(pack_parts(TensorView<const float, 2, Cpu>{sent.data(), {2, 100}},
                          TensorView<std::byte, 2, Cpu>{packed.data(), {2, 256}}, context),
               ShapeError);
}

TEST(StatusSums, SumOverAllRanks) {
  const Context<Cpu> context(1);
  const std::vector<double> of_ranks{1, 20, 0, 4, 50, 3, 16, 80, 2};
  StepStatus status{};
  status.squared_norm = 4;  // this rank's own
  status.loss_sum = 50;
  status.nonfinite = 3;
  sum_statuses(TensorView<const double, 2, Cpu>{of_ranks.data(), {3, StepStatus::sums}},
               TensorView<StepStatus, 1, Cpu>{&status, {1}}, context);
  EXPECT_EQ(status.squared_norm, 21);
  EXPECT_EQ(status.loss_sum, 150);
  EXPECT_EQ(status.nonfinite, 5);
}

}  // namespace packed_parts_test
