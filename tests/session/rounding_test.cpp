// Stochastic rounding of a session's weights: which bits meet which parameter, step and seed.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "support/small_model.hpp"

namespace rounding_test {

using octavo::Bf16;

using Roundings = std::vector<bool>;  ///< of a matrix's elements: whether one went up
using Session =
    support::SmallSession<Bf16, octavo::AdamW<octavo::MasterWeights<Bf16>, octavo::Moments<Bf16>>>;

constexpr float initial = 0x1p-6f;
constexpr float below = initial - 0x1p-14f;  // BF16's next number

/// A session whose steps take every weight of 2^-6 half way to the next number below, by weight
/// decay; what gradients add is far smaller.
octavo::SessionOptions options(std::uint64_t seed) {
  octavo::SessionOptions result = support::small_options();
  result.batch = {1, 16};
  result.seed = seed;
  result.optimizer = octavo::AdamWSettings{.weight_decay = 0x1p20f};
  return result;
}
constexpr double learning_rate = 0x1p-29;  // times decay, and times 2^-6: 2^-15

/// Sets all matrices to 2^-6, steps, and sees where they went.
std::map<std::string, Roundings> roundings(Session& session, const octavo::SessionOptions& all) {
  session.model().visit([](auto& parameter) {
    if (!parameter.is_matrix()) return;
    std::fill_n(parameter.weight.data(), parameter.weight.size(), Bf16(initial));
  });
  const support::TokenBatch batch = support::step_batch(all, 0);
  EXPECT_FALSE(session.step({batch.tokens, batch.targets}, learning_rate).skipped);
  std::map<std::string, Roundings> result;
  session.model().visit([&](auto& parameter) {
    if (!parameter.is_matrix()) return;
    Roundings& ups = result[parameter.name];
    const std::span values(parameter.weight.data(),
                           static_cast<std::size_t>(parameter.weight.size()));
    for (const Bf16 value : values) ups.push_back(value == Bf16(initial));
    EXPECT_TRUE(std::all_of(values.begin(), values.end(), [](Bf16 value) {
      return value == Bf16(initial) || value == Bf16(below);
    })) << parameter.name;
  });
  return result;
}

/// Whether two sequences agree in half of their places, as independent ones do.
void expect_independent(const Roundings& a, const Roundings& b, const std::string& what) {
  const auto count = static_cast<std::ptrdiff_t>(std::min(a.size(), b.size()));
  double equal = 0;
  for (std::ptrdiff_t i = 0; i < count; ++i) equal += a.begin()[i] == b.begin()[i] ? 1 : 0;
  const double deviation = 0.5 / std::sqrt(static_cast<double>(count));
  EXPECT_NEAR(equal / static_cast<double>(count), 0.5, 5.0 * deviation) << what;
}

TEST(StochasticRounding, RoundsUpHalfOfTheTime) {
  octavo::Context<octavo::Cpu> context{2};
  const octavo::SessionOptions all = options(7);
  Session session(all, context);
  for (const auto& [name, ups] : roundings(session, all)) {
    expect_independent(ups, Roundings(ups.size(), true), name);
  }
}

TEST(StochasticRounding, MatricesUseIndependentBits) {
  octavo::Context<octavo::Cpu> context{2};
  const octavo::SessionOptions all = options(7);
  Session session(all, context);
  const auto matrices = roundings(session, all);
  EXPECT_EQ(matrices.size(), 14U);
  for (const auto& [name, ups] : matrices) {
    for (const auto& [other, others] : matrices) {
      if (name < other) expect_independent(ups, others, (name + " and ").append(other));
    }
  }
}

TEST(StochasticRounding, StepsAndSeedsUseIndependentBits) {
  octavo::Context<octavo::Cpu> context{2};
  Session session(options(7), context);
  Session same(options(7), context);
  Session other(options(8), context);
  const auto first = roundings(session, options(7));
  EXPECT_TRUE(roundings(same, options(7)) == first);
  const auto second = roundings(session, options(7));
  const auto seeded = roundings(other, options(8));
  for (const auto& [name, ups] : first) {
    expect_independent(ups, second.at(name), name + " in two steps");
    expect_independent(ups, seeded.at(name), name + " with two seeds");
  }
}

}  // namespace rounding_test
