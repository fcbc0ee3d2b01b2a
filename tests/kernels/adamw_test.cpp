#include <octavo/kernels/adamw.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "support/matrix.hpp"

namespace adamw_test {

using namespace octavo;
using support::Matrix;
using support::random_matrix;

constexpr AdamWSettings settings{0.9f, 0.95f, 1e-8f, 0.1f};
constexpr std::uint64_t seed = 42;

AdamWStep step_number(std::uint32_t t, float learning_rate) {
  return {learning_rate, static_cast<float>(1.0 - std::pow(0.9, t)),
          static_cast<float>(1.0 - std::pow(0.95, t)), t, seed};
}

/// One parameter of `W` with gradients of `G` and moments of `M`.
template <class W, class G, class M>
struct Parameter {
  explicit Parameter(Index size, W value = W(0.0f))
      : weight(1, size, value),
        gradient(1, size),
        master(1, size),
        first(1, size),
        second(1, size) {}

  void update(std::uint32_t t, float learning_rate, bool with_master, float decay = 0.0f,
              float clip = 1.0f, bool skip = false, std::uint64_t stream = 3, int threads = 2,
              const std::vector<Index>& cuts = {}) {
    const AdamWStep step = step_number(t, learning_rate);
    StepStatus status{};
    status.clip_coefficient = clip;
    status.skip = skip ? 1 : 0;
    AdamWParameter<W, G, M, Cpu> parameter;
    parameter.weight = weight.flat();
    parameter.gradient = gradient.flat_input();
    if (with_master) parameter.master = master.flat();
    parameter.first_moment = first.flat();
    parameter.second_moment = second.flat();
    parameter.weight_decay = decay;
    parameter.random_stream = stream;
    support::ContextWithWorkspace place(threads);
    Index begin = 0;
    const auto update_until = [&](Index end) {
      adamw_update<W, G, M, Cpu>(part_of(parameter, begin, end - begin), settings, {&step, {1}},
                                 {&status, {1}}, place.context);
      begin = end;
    };
    for (const Index cut : cuts) update_until(cut);
    update_until(weight.size());
  }

  Matrix<W> weight;
  Matrix<G> gradient;
  Matrix<float> master;
  Matrix<M> first;
  Matrix<M> second;
};

/// AdamW of Loshchilov and Hutter's paper for one element, in double.
struct Reference {
  double weight;
  double m = 0.0;
  double v = 0.0;

  void update(double gradient, int t, double learning_rate, double decay) {
    m = 0.9 * m + 0.1 * gradient;
    v = 0.95 * v + 0.05 * gradient * gradient;
    const double m_hat = m / (1.0 - std::pow(0.9, t));
    const double v_hat = v / (1.0 - std::pow(0.95, t));
    weight -= learning_rate * (m_hat / (std::sqrt(v_hat) + 1e-8) + decay * weight);
  }
};

template <class T>
double mean(const Matrix<T>& matrix) {
  double sum = 0.0;
  for (const T element : matrix.elements) sum += support::value_of(element);
  return sum / static_cast<double>(matrix.size());
}

/// Ten steps with clipping and weight decay against the paper; returns the last state.
template <class W>
Parameter<W, Bf16, float> check_ten_steps(bool with_master) {
  constexpr Index size = 5001;
  Parameter<W, Bf16, float> p(size);
  p.weight = random_matrix<W>(1, size, 1);
  std::vector<Reference> references;
  for (Index i = 0; i < size; ++i) {
    p.master.at(0, i) = static_cast<float>(p.weight(0, i));
    references.push_back({p.weight(0, i)});
  }
  for (unsigned t = 1; t <= 10; ++t) {
    const float clip = t % 2 == 0 ? 0.25f : 1.0f;
    const float learning_rate = 0.01f * static_cast<float>(t);
    p.gradient = random_matrix<Bf16>(1, size, 100 + t, 0.1f);
    p.gradient.at(0, 17) = Bf16(0.0f);
    p.update(t, learning_rate, with_master, 0.1f, clip);
    for (Index i = 0; i < size; ++i)
      references[static_cast<std::size_t>(i)].update(p.gradient(0, i) * static_cast<double>(clip),
                                                     static_cast<int>(t),
                                                     static_cast<double>(learning_rate), 0.1);
  }
  for (Index i = 0; i < size; ++i) {
    const Reference& expected = references[static_cast<std::size_t>(i)];
    const double updated = with_master ? p.master(0, i) : p.weight(0, i);
    EXPECT_NEAR(updated, expected.weight, 5e-6) << i;
    EXPECT_NEAR(p.first(0, i), expected.m, 1e-7) << i;
    EXPECT_NEAR(p.second(0, i), expected.v, 1e-7) << i;
  }
  return p;
}

TEST(AdamW, TenFp32StepsMatchPaper) { check_ten_steps<float>(false); }

TEST(AdamW, MasterWeightsMatchPaperAndRoundToWeights) {
  const auto p = check_ten_steps<Bf16>(true);
  for (Index i = 0; i < p.weight.size(); ++i)
    EXPECT_NEAR(p.weight(0, i), p.master(0, i), 0x1p-8 * std::abs(p.master(0, i)) * 1.0001);
}

TEST(AdamW, Bf16MomentRoundingIsUnbiased) {
  constexpr Index size = 100000;
  Parameter<float, float, Bf16> p(size);
  // BF16's neighbours of these moments stand 2^-8 apart, relatively; nearest rounding would be off.
  p.gradient = Matrix<float>(1, size, 1.0123f);
  p.update(1, 0.01f, false);
  const double gradient = static_cast<double>(1.0123f);
  const double m = (1.0 - static_cast<double>(0.9f)) * gradient;
  const double v = (1.0 - static_cast<double>(0.95f)) * gradient * gradient;
  // The standard deviation of one rounding is at most half a unit: 2^-9 of the value.
  const double tolerance = 5.0 * 0x1p-9 / std::sqrt(static_cast<double>(size));
  EXPECT_NEAR(mean(p.first), m, m * tolerance);
  EXPECT_NEAR(mean(p.second), v, v * tolerance);
  EXPECT_GT(std::abs(static_cast<double>(static_cast<float>(Bf16(static_cast<float>(m)))) - m),
            2.0 * m * tolerance)
      << "nearest rounding would pass this test: choose another gradient";
}

TEST(AdamW, WeightRoundingWithoutMasterIsUnbiased) {
  constexpr Index size = 100000;
  Parameter<Bf16, float, float> p(size, Bf16(1.0f));
  p.gradient = Matrix<float>(1, size, 0.5f);
  p.update(1, 1e-4f, false);  // a step of 1/40 of BF16's distance below 1
  const double sigma = std::sqrt(0x1p-8 * 1e-4 / static_cast<double>(size));
  EXPECT_NEAR(mean(p.weight), 1.0 - 1e-4, 5.0 * sigma);
  for (const Bf16 w : p.weight.elements)
    ASSERT_TRUE(w == Bf16(1.0f) || w == Bf16(1.0f - 0x1p-8f)) << static_cast<float>(w);
}

/// Whether the rounding of each element went up, of `low` and its neighbour above.
std::vector<bool> went_up(const Matrix<Bf16>& matrix, Bf16 low) {
  std::vector<bool> result(matrix.elements.size());
  std::transform(matrix.elements.begin(), matrix.elements.end(), result.begin(),
                 [low](Bf16 element) { return element != low; });
  return result;
}

/// Share of positions at which two sequences agree, the second read from `distance` on.
double agreement(const std::vector<bool>& a, const std::vector<bool>& b, std::size_t distance) {
  const std::size_t count = a.size() - distance;
  std::size_t equal = 0;
  for (std::size_t i = 0; i < count; ++i) equal += a[i] == b[i + distance] ? 1 : 0;
  return static_cast<double>(equal) / static_cast<double>(count);
}

TEST(AdamW, RoundingIsIndependentAcrossElementsAndTensors) {
  constexpr Index size = 100000;
  constexpr float half_way = 1.0f + 0x1p-8f;  // between two BF16 numbers
  Parameter<Bf16, float, Bf16> p(size, Bf16(1.0f));
  // The first moment lies half way, too.
  p.gradient = Matrix<float>(1, size, half_way / (1.0f - settings.beta1));
  p.update(1, 0x1p-9f, false);
  const float m = (1.0f - settings.beta1) * p.gradient.elements[0];
  const float v = (1.0f - settings.beta2) * p.gradient.elements[0] * p.gradient.elements[0];
  const auto below = [](float value) {
    return Bf16::from_bits(static_cast<std::uint16_t>(float_bits(value) >> 16));
  };
  const std::vector<bool> weights = went_up(p.weight, Bf16(1.0f));
  const std::vector<bool> firsts = went_up(p.first, below(m));
  const std::vector<bool> seconds = went_up(p.second, below(v));
  const auto share = [](const std::vector<bool>& ups) {
    return static_cast<double>(std::count(ups.begin(), ups.end(), true)) /
           static_cast<double>(ups.size());
  };
  const auto expect_independent = [&](const std::vector<bool>& a, const std::vector<bool>& b,
                                      std::size_t distance) {
    const double pa = share(a);
    const double pb = share(b);
    // Five standard deviations, of 1 / (2 √size) at most.
    EXPECT_NEAR(agreement(a, b, distance), pa * pb + (1 - pa) * (1 - pb), 8e-3) << distance;
  };
  EXPECT_NEAR(share(firsts), 0.5, 0.1);  // the test sees something
  EXPECT_NEAR(share(weights), 0.5, 0.1);
  expect_independent(firsts, weights, 0);
  expect_independent(firsts, seconds, 0);
  expect_independent(seconds, weights, 0);
  for (std::size_t distance = 1; distance <= 16; ++distance) {
    expect_independent(weights, weights, distance);
    expect_independent(firsts, firsts, distance);
  }
}

TEST(AdamW, RoundingIsUnbiasedAtEachPositionOfRun) {
  constexpr Index size = 160000;
  Parameter<Bf16, float, float> p(size, Bf16(1.0f));
  p.gradient = Matrix<float>(1, size, 0.5f);
  p.update(1, 1e-3f, false);  // a step of 0.256 of BF16's distance below 1
  for (Index place = 0; place < 8; ++place) {
    double sum = 0.0;
    for (Index i = place; i < size; i += 8) sum += p.weight(0, i);
    const double sigma = std::sqrt(0x1p-8 * 1e-3 * (1.0 - 0.256) * 8.0 / static_cast<double>(size));
    EXPECT_NEAR(sum * 8.0 / static_cast<double>(size), 1.0 - 1e-3, 5.0 * sigma) << place;
  }
}

TEST(AdamW, RoundingUsesDocumentedRandomBits) {
  constexpr Index size = 5003;
  Parameter<Bf16, float, float> p(size, Bf16(1.0f));
  p.gradient = Matrix<float>(1, size, 0.5f);
  p.update(7, 1e-3f, false, 0.0f, 1.0f, false, 3);
  // The same step in FP32 gives what is rounded.
  Parameter<float, float, float> exact(size, 1.0f);
  exact.gradient = p.gradient;
  exact.update(7, 1e-3f, false);
  for (Index i = 0; i < size; ++i) {
    const auto words =
        philox({seed, (std::uint64_t{3 * 4 + 2} << 32) | 7}, static_cast<std::uint64_t>(i / 8));
    const std::uint32_t word = words[static_cast<std::size_t>(i % 8 / 2)];
    const std::uint32_t random = i % 2 == 0 ? word & 0xffffu : word >> 16;
    const std::uint32_t bits = float_bits(exact.weight.elements[static_cast<std::size_t>(i)]);
    ASSERT_EQ(p.weight.elements[static_cast<std::size_t>(i)].bits, (bits + random) >> 16) << i;
  }
}

TEST(AdamW, RoundingMatchesBf16Stochastic) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  for (const float value :
       {0.0f, -0.0f, 1.0f, -1.003f, 1e-42f, 3e38f, -3e38f, 0x1.fep127f, 0x1.fefffep127f,
        0x1.fffffep127f, -0x1.fffffep127f, infinity, -infinity}) {
    for (std::uint32_t random = 0; random < 0x20000; random += 77) {
      ASSERT_EQ(detail::round_stochastic<Bf16>(value, random).bits,
                Bf16::stochastic(value, random).bits)
          << value << ' ' << random;
    }
  }
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(std::isnan(static_cast<float>(detail::round_stochastic<Bf16>(nan, 0xffff))));
  EXPECT_TRUE(std::isnan(static_cast<float>(detail::round_stochastic<Bf16>(-nan, 0xffff))));
}

TEST(AdamW, RoundingDoesNotDependOnThreadsOrSize) {
  const auto run = [](int threads, Index size) {
    Parameter<Bf16, float, Bf16> p(size, Bf16(1.0f));
    p.gradient = Matrix<float>(1, size, 0.5f);
    p.update(1, 1e-3f, false, 0.0f, 1.0f, false, 3, threads);
    return p;
  };
  const auto whole = run(1, 20011);
  const auto parallel = run(4, 20011);
  EXPECT_EQ(whole.weight.elements, parallel.weight.elements);
  EXPECT_EQ(whole.first.elements, parallel.first.elements);
  const auto part = run(3, 4099);
  EXPECT_TRUE(std::equal(part.weight.elements.begin(), part.weight.elements.end(),
                         whole.weight.elements.begin()));
  EXPECT_TRUE(std::equal(part.second.elements.begin(), part.second.elements.end(),
                         whole.second.elements.begin()));
}

TEST(AdamW, PartialUpdatesAreBitwiseEqualToFullUpdate) {
  const auto run = [](bool with_master, const std::vector<Index>& cuts) {
    Parameter<Bf16, float, Bf16> p(1003, Bf16(1.0f));
    p.master = Matrix<float>(1, 1003, 1.0f);
    p.gradient = random_matrix<float>(1, 1003, 5);
    for (std::uint32_t t : {1u, 2u}) {
      p.update(t, 1e-3f, with_master, 0.1f, 0.5f, false, 3, 1, cuts);
    }
    return p;
  };
  for (const bool with_master : {false, true}) {
    const auto whole = run(with_master, {});
    for (const std::vector<Index>& cuts :
         {std::vector<Index>{8}, {512}, {0, 256, 264, 1000}, {1000, 1003}}) {
      const auto parts = run(with_master, cuts);
      EXPECT_EQ(parts.weight.elements, whole.weight.elements) << with_master;
      EXPECT_EQ(parts.master.elements, whole.master.elements) << with_master;
      EXPECT_EQ(parts.first.elements, whole.first.elements) << with_master;
      EXPECT_EQ(parts.second.elements, whole.second.elements) << with_master;
    }
  }
}

TEST(AdamWErrors, RejectsUnalignedAndOutOfRangeParts) {
  Parameter<Bf16, float, float> p(16);
  EXPECT_THROW(p.update(1, 1e-3f, false, 0, 1, false, 3, 1, {4}), ShapeError);
  EXPECT_THROW(p.update(1, 1e-3f, false, 0, 1, false, 3, 1, {24}), ShapeError);
  EXPECT_THROW(p.update(1, 1e-3f, false, 0, 1, false, 3, 1, {-8}), ShapeError);
}

TEST(AdamW, RandomnessDependsOnStepAndStreamOnly) {
  const auto run = [](std::uint32_t t, std::uint64_t stream) {
    Parameter<Bf16, float, float> p(2000, Bf16(1.0f));
    p.gradient = Matrix<float>(1, 2000, 0.5f);
    p.update(t, 1e-3f, false, 0.0f, 1.0f, false, stream);
    return p.weight.elements;
  };
  EXPECT_EQ(run(1, 3), run(1, 3));
  EXPECT_NE(run(1, 3), run(2, 3));
  EXPECT_NE(run(1, 3), run(1, 4));
}

TEST(AdamW, SkippedStepChangesNothing) {
  Parameter<Bf16, float, Bf16> p(300, Bf16(1.0f));
  p.gradient = random_matrix<float>(1, 300, 1);
  p.update(1, 0.1f, true);
  const auto weight = p.weight.elements;
  const auto master = p.master.elements;
  const auto first = p.first.elements;
  const auto second = p.second.elements;
  p.update(2, 0.1f, true, 0.1f, 1.0f, true);
  EXPECT_EQ(p.weight.elements, weight);
  EXPECT_EQ(p.master.elements, master);
  EXPECT_EQ(p.first.elements, first);
  EXPECT_EQ(p.second.elements, second);
  p.update(2, 0.1f, true, 0.1f);
  EXPECT_NE(p.master.elements, master);
}

TEST(AdamWErrors, ShapesMustAgree) {
  Parameter<float, float, float> p(8);
  p.gradient = Matrix<float>(1, 7);
  EXPECT_THROW(p.update(1, 0.1f, false), ShapeError);
  p.gradient = Matrix<float>(1, 8);
  p.second = Matrix<float>(1, 9);
  EXPECT_THROW(p.update(1, 0.1f, false), ShapeError);
}

}  // namespace adamw_test
