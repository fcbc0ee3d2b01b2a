// AdamW with moments in 8 bits.
#include <octavo/kernels/adamw.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "support/matrix.hpp"

namespace adamw_eight_bit_test {

using namespace octavo;
using support::Matrix;
using support::random_matrix;

constexpr AdamWSettings settings{};
constexpr Index group = 128;

/// What a step depends on beside the parameter.
struct Step {
  std::uint32_t number = 1;
  float learning_rate = 0.01f;
  float decay = 0.0f;
  float clip = 1.0f;
  bool skip = false;
  std::uint64_t seed = 42;
  std::uint64_t stream = 3;
  int threads = 1;
  std::vector<Index> cuts = {};  ///< between parts that are updated one by one

  [[nodiscard]] AdamWStep on_device() const {
    return {learning_rate,
            static_cast<float>(1.0 - std::pow(static_cast<double>(settings.beta1), number)),
            static_cast<float>(1.0 - std::pow(static_cast<double>(settings.beta2), number)), number,
            seed};
  }
};

/// One parameter, its gradient and its state.
template <class W>
struct State {
  explicit State(Index size, float value = 0.0f)
      : weight(static_cast<std::size_t>(size), W(value)),
        gradient(1, size),
        first(static_cast<std::size_t>(size)),
        second(static_cast<std::size_t>(size)),
        first_scale(static_cast<std::size_t>((size + group - 1) / group)),
        second_scale(first_scale) {}

  template <class T>
  static TensorView<T, 1, Cpu> view(std::vector<T>& elements) {
    return {elements.data(), {static_cast<Index>(elements.size())}};
  }

  AdamWParameter<W, float, EightBit, Cpu> parameter() {
    AdamWParameter<W, float, EightBit, Cpu> result;
    result.weight = view(weight);
    result.gradient = gradient.flat_input();
    if (!master.empty()) result.master = view(master);
    result.first_moment = view(first);
    result.second_moment = view(second);
    result.first_scale = view(first_scale);
    result.second_scale = view(second_scale);
    return result;
  }

  void update(const Step& step) {
    const AdamWStep now = step.on_device();
    StepStatus status{};
    status.clip_coefficient = step.clip;
    status.skip = step.skip ? 1 : 0;
    AdamWParameter<W, float, EightBit, Cpu> whole = parameter();
    whole.weight_decay = step.decay;
    whole.random_stream = step.stream;
    const support::ContextWithWorkspace place(step.threads);
    Index begin = 0;
    const auto update_until = [&](Index end) {
      adamw_update<W, float, EightBit, Cpu>(part_of(whole, begin, end - begin), settings,
                                            {&now, {1}}, {&status, {1}}, place.context);
      begin = end;
    };
    for (const Index cut : step.cuts) update_until(cut);
    update_until(whole.weight.size());
  }

  friend bool operator==(const State& a, const State& b) {
    return a.weight == b.weight && a.master == b.master && a.first == b.first &&
           a.second == b.second && a.first_scale == b.first_scale &&
           a.second_scale == b.second_scale;
  }

  std::vector<W> weight;
  Matrix<float> gradient;
  std::vector<float> master;
  std::vector<EightBit> first, second;
  std::vector<E8M0> first_scale, second_scale;
};

/// What a code stands for, by the format's definition, and the distance to the next one.
struct Level {
  double value;
  double step;
};
Level level(int k, E8M0 scale) {
  const double power = std::pow(2.0, std::floor(k / 16.0));
  const double unit = std::ldexp(1.0, scale.bits - 127);
  return {((16.0 + k % 16) * power - 16.0) * unit, power * unit};
}
Level first_level(EightBit code, E8M0 scale) {
  const Level magnitude = level(code.bits % 128, scale);
  return {code.bits < 128 ? magnitude.value : -magnitude.value, magnitude.step};
}

/// AdamW of Loshchilov and Hutter's paper for one element, in double.
struct Exact {
  double weight, m, v;

  void update(double gradient, const Step& step) {
    m = settings.beta1 * m + (1.0 - settings.beta1) * gradient;
    v = settings.beta2 * v + (1.0 - settings.beta2) * gradient * gradient;
    const double m_hat = m / (1.0 - std::pow(settings.beta1, step.number));
    const double v_hat = v / (1.0 - std::pow(settings.beta2, step.number));
    weight -=
        step.learning_rate * (m_hat / (std::sqrt(v_hat) + settings.epsilon) + step.decay * weight);
  }
};

/// The elements of a state in double.
template <class W>
std::vector<Exact> exact(const State<W>& state) {
  std::vector<Exact> result;
  for (std::size_t i = 0; i < state.weight.size(); ++i) {
    const double weight = state.master.empty() ? support::value_of(state.weight[i])
                                               : static_cast<double>(state.master[i]);
    result.push_back({weight, first_level(state.first[i], state.first_scale[i / group]).value,
                      level(state.second[i].bits, state.second_scale[i / group]).value});
  }
  return result;
}

/// Gradients whose magnitudes differ from row to row of 16, by up to 2^10 within a group.
Matrix<float> gradients(Index size, unsigned seed) {
  Matrix<float> result = random_matrix<float>(1, size, seed, 0.1f);
  for (Index i = 0; i < size; ++i)
    result.at(0, i) *= std::ldexp(1.0f, static_cast<int>(-(i / 16) % 11));
  return result;
}

/// Each step is the paper's from the state that was there, with weights that are not rounded any
/// further, and moments that are rounded to a neighbour.
template <class W>
void check_steps(bool with_master) {
  constexpr Index size = 1003;
  State<W> state(size);
  const Matrix<W> initial = random_matrix<W>(1, size, 1);
  state.weight = initial.elements;
  for (const W weight : initial.elements) {
    if (with_master) state.master.push_back(static_cast<float>(weight));
  }
  for (std::uint32_t t = 1; t <= 12; ++t) {
    Step step{.number = t, .learning_rate = 0.01f * static_cast<float>(t), .decay = 0.1f};
    step.clip = t % 2 == 0 ? 0.25f : 1.0f;
    state.gradient = gradients(size, 100 + t);
    std::vector<Exact> expected = exact(state);
    for (Index i = 0; i < size; ++i) {
      expected[static_cast<std::size_t>(i)].update(
          state.gradient(0, i) * static_cast<double>(step.clip), step);
    }
    state.update(step);
    const std::vector<Exact> now = exact(state);
    for (std::size_t i = 0; i < now.size(); ++i) {
      ASSERT_NEAR(now[i].weight, expected[i].weight, 5e-6) << i << " in step " << t;
      const Level m = first_level(state.first[i], state.first_scale[i / group]);
      const Level v = level(state.second[i].bits, state.second_scale[i / group]);
      ASSERT_NEAR(m.value, expected[i].m, m.step * 1.001) << i << " in step " << t;
      ASSERT_NEAR(v.value, expected[i].v, v.step * 1.001) << i << " in step " << t;
      if (with_master) {
        ASSERT_EQ(state.weight[i], W(state.master[i]));
      }
    }
  }
}

TEST(AdamWEightBit, StepsMatchPaperForDecodedState) {
  check_steps<float>(false);
  check_steps<Bf16>(true);
}

TEST(AdamWEightBit, GroupScalesUseFullCodeRange) {
  State<float> state(300);
  state.gradient = gradients(300, 5);
  for (Index i = 128; i < 256; ++i) state.gradient.at(0, i) *= 0x1p-30f;
  state.update({});
  const int largest[] = {127, 127, 127};
  for (std::size_t g = 0; g < 3; ++g) {
    const auto begin = g * group;
    const auto end = std::min<std::size_t>(begin + group, 300);
    int first = 0;
    int second = 0;
    for (std::size_t i = begin; i < end; ++i) {
      first = std::max(first, state.first[i].bits % 128);
      second = std::max(second, int{state.second[i].bits});
    }
    // The largest is in the upper half of the range: of the first's 128 codes in the last 17.
    EXPECT_GE(first, largest[g] - 16) << g;
    EXPECT_GE(second, 255 - 16) << g;
  }
}

// Over many seeds, each element's mean is what is rounded.
TEST(AdamWEightBit, MomentRoundingIsUnbiased) {
  constexpr Index size = 256;
  constexpr int seeds = 1000;
  State<float> begin(size);
  begin.gradient = gradients(size, 7);
  begin.update({});
  std::vector<Exact> expected = exact(begin);
  begin.gradient = gradients(size, 8);
  const Step second_step{.number = 2};
  for (Index i = 0; i < size; ++i)
    expected[static_cast<std::size_t>(i)].update(begin.gradient(0, i), second_step);
  std::vector<double> m(size);
  std::vector<double> v(size);
  for (int seed = 0; seed < seeds; ++seed) {
    State<float> state = begin;
    Step step = second_step;
    step.seed = static_cast<std::uint64_t>(seed);
    state.update(step);
    const std::vector<Exact> now = exact(state);
    for (std::size_t i = 0; i < now.size(); ++i) {
      m[i] += now[i].m / seeds;
      v[i] += now[i].v / seeds;
    }
  }
  begin.update(second_step);
  double nearest_misses = 0;
  for (std::size_t i = 0; i < size; ++i) {
    const Level first = first_level(begin.first[i], begin.first_scale[i / group]);
    const Level second = level(begin.second[i].bits, begin.second_scale[i / group]);
    // A rounding's standard deviation is half a step at most; that of the code below another
    // segment is half as large. Below one scale a second moment is rounded up.
    const double deviation = 0.5 / std::sqrt(static_cast<double>(seeds));
    EXPECT_NEAR(m[i], expected[i].m, 5.0 * deviation * 2.0 * first.step) << i;
    const double least = level(1, begin.second_scale[i / group]).value;
    EXPECT_NEAR(v[i], std::max(expected[i].v, least), 5.0 * deviation * 2.0 * second.step) << i;
    nearest_misses += std::abs(first.value - expected[i].m) > 0.25 * first.step ? 1 : 0;
  }
  EXPECT_GT(nearest_misses, size / 4) << "the test sees no rounding";
}

TEST(AdamWEightBit, RoundingUsesDocumentedRandomBits) {
  constexpr Index size = 1003;
  State<float> state(size);
  state.gradient = gradients(size, 9);
  const Step step{.number = 7};
  state.update(step);
  int compared = 0;
  for (Index i = 0; i < size; ++i) {
    const auto e = static_cast<std::size_t>(i);
    const auto position = static_cast<std::uint64_t>(8 * (i / 128) + i / 8 % 8);
    const auto words =
        philox({step.seed, (std::uint64_t{4 * step.stream} << 32) | step.number}, position);
    const std::uint32_t word = words[static_cast<std::size_t>(i / 64 % 2 * 2 + i % 8 / 4)];
    constexpr std::uint32_t first_factors[] = {0x00000001u, 0xC2B2AE3Du, 0xD2511F53u, 0xA511E9B3u};
    constexpr std::uint32_t second_factors[] = {0x9E3779B1u, 0x27D4EB2Fu, 0xCD9E8D57u, 0x8DA6B343u};
    const auto share = [&](const std::uint32_t(&factors)[4]) {
      return static_cast<double>(word * factors[i % 4] >> 8) * 0x1p-24;
    };
    const auto expect = [&](double value, int code, E8M0 scale, double random, int least) {
      int k = 0;
      while (level(k + 1, scale).value <= value) ++k;
      const Level below = level(k, scale);
      const double part = (value - below.value) / below.step;
      if (std::abs(part + random - 1.0) < 1e-4) return;  // FP32's rounding may decide
      EXPECT_EQ(code, std::max(least, k + (part + random >= 1.0 ? 1 : 0))) << i;
      ++compared;
    };
    const double g = state.gradient(0, i);
    expect((1.0 - settings.beta1) * std::abs(g), state.first[e].bits % 128,
           state.first_scale[e / group], share(first_factors), 0);
    expect((1.0 - settings.beta2) * g * g, state.second[e].bits, state.second_scale[e / group],
           share(second_factors), 1);
  }
  EXPECT_GT(compared, 1990);
}

/// Three steps of the same gradients.
template <class W>
State<W> after_steps(const Step& like, bool with_master) {
  State<W> state(1003, 1.0f);
  if (with_master) state.master.assign(1003, 1.0f);
  for (std::uint32_t t = 1; t <= 3; ++t) {
    Step step = like;
    step.number = t;
    step.decay = 0.1f;
    state.gradient = gradients(1003, t);
    state.update(step);
  }
  return state;
}

TEST(AdamWEightBit, PartialUpdatesAreBitwiseEqualToFullUpdate) {
  for (const bool with_master : {false, true}) {
    const auto whole = after_steps<Bf16>({}, with_master);
    for (const std::vector<Index>& cuts :
         {std::vector<Index>{128}, {512}, {0, 256, 384, 896}, {896, 1003}}) {
      EXPECT_TRUE(after_steps<Bf16>({.cuts = cuts}, with_master) == whole) << cuts[0];
    }
  }
}

TEST(AdamWEightBit, RoundingDependsOnSeedStepAndStreamNotThreads) {
  const auto run = [](const Step& step) {
    State<float> state(20011);
    state.gradient = gradients(20011, 3);
    state.update(step);
    return state;
  };
  const auto once = run({});
  EXPECT_TRUE(run({.threads = 4}) == once);
  for (const Step& other : {Step{.number = 2}, Step{.seed = 43}, Step{.stream = 4}}) {
    EXPECT_FALSE(run(other).first == once.first);
    EXPECT_FALSE(run(other).second == once.second);
  }
}

TEST(AdamWEightBit, SkippedStepChangesNothing) {
  auto state = after_steps<Bf16>({}, true);
  const auto before = state;
  state.update({.number = 4, .skip = true});
  EXPECT_TRUE(state == before);
  state.update({.number = 4});
  EXPECT_FALSE(state == before);
}

TEST(AdamWEightBit, ZeroGradientsKeepStateZero) {
  const State<float> untouched(300, 1.0f);
  State<float> state = untouched;
  state.update({});
  EXPECT_TRUE(state == untouched);
}

// A group of one huge gradient: the others' updates stay within a step, as they are without it.
TEST(AdamWEightBit, HugeGradientKeepsOtherUpdatesBounded) {
  State<float> state(group);
  constexpr std::size_t huge = 77;
  for (std::uint32_t t = 1; t <= 30; ++t) {
    std::vector<float> before = state.weight;
    state.gradient = random_matrix<float>(1, group, t, 1e-3f);
    if (t == 5) state.gradient.at(0, huge) = 1e6f;
    state.update({.number = t});
    for (std::size_t i = 0; i < group; ++i) {
      // |m̂| / √v̂ of the paper is at most (1 − β₁) / √(1 − β₂) / √(1 − β₁² / β₂) = 1.17 in the
      // long run, and less in the first steps.
      ASSERT_LE(std::abs(state.weight[i] - before[i]), 0.01f * 1.2f) << i << " in step " << t;
    }
  }
}

TEST(AdamWEightBit, StateStaysFiniteForExtremeGradients) {
  for (const float size : {1e-38f, 1e-25f, 1e18f, 1e25f, std::numeric_limits<float>::max()}) {
    State<float> state(group);
    for (std::uint32_t t = 1; t <= 3; ++t) {
      for (Index i = 0; i < group; ++i) state.gradient.at(0, i) = i % 3 == 0 ? size : -size * 0.1f;
      state.update({.number = t});
    }
    state.gradient = random_matrix<float>(1, group, 1);
    state.update({.number = 4});
    for (const Exact& element : exact(state)) {
      ASSERT_TRUE(std::isfinite(static_cast<float>(element.weight)) &&
                  std::isfinite(static_cast<float>(element.m)) &&
                  std::isfinite(static_cast<float>(element.v)))
          << size;
    }
  }
}

TEST(AdamWEightBitErrors, RejectsCutGroupsAndWrongScaleCounts) {
  State<float> state(384);
  for (const std::vector<Index>& cuts : {std::vector<Index>{8}, {64}, {120, 128}, {128, 248}}) {
    EXPECT_THROW(state.update({.cuts = cuts}), ShapeError) << cuts[0];
  }
  EXPECT_THROW((void)part_of(state.parameter(), 0, 100), ShapeError);
  EXPECT_NO_THROW((void)part_of(state.parameter(), 128, 256));
  EXPECT_NO_THROW(state.update({.cuts = {128, 256}}));

  state.first_scale.pop_back();
  EXPECT_THROW(state.update({}), ShapeError);
  state.first_scale.emplace_back();
  state.second_scale.emplace_back();
  EXPECT_THROW(state.update({}), ShapeError);
}

}  // namespace adamw_eight_bit_test
