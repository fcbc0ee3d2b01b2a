// Which tokens are drawn, and how often: against probabilities that are computed otherwise.
#include <gtest/gtest.h>
#include <octavo/inference/sampling.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

namespace sampling_test {

using octavo::Sampler;
using octavo::SamplingOptions;

/// The shares of the tokens among draws at evenly spaced numbers.
std::vector<double> shares(const std::vector<float>& logits, const SamplingOptions& options,
                           int draws = 20000) {
  Sampler sampler(options);
  std::vector<double> result(logits.size());
  for (int i = 0; i < draws; ++i) {
    const auto token = static_cast<std::size_t>(sampler.draw(logits, (i + 0.5) / draws));
    result.at(token) += 1.0 / draws;
  }
  return result;
}

/// The probabilities, by a sort of all tokens.
std::vector<double> probabilities(const std::vector<float>& logits,
                                  const SamplingOptions& options) {
  std::vector<std::size_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0U);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return logits[a] > logits[b]; });
  std::vector<double> result(logits.size());
  const auto normalise = [&] {
    const double total = std::accumulate(result.begin(), result.end(), 0.0);
    for (double& probability : result) probability /= total;
  };
  for (std::size_t i = 0; i < logits.size(); ++i) {
    result[i] = std::exp(static_cast<double>(logits[i]) / options.temperature);
  }
  if (options.top_k != 0) {
    for (auto rank = static_cast<std::size_t>(options.top_k); rank < order.size(); ++rank) {
      result[order[rank]] = 0;
    }
  }
  normalise();
  double sum = 0;
  for (const std::size_t token : order) {
    if (sum >= options.top_p) result[token] = 0;
    sum += result[token];
  }
  normalise();
  return result;
}

const std::vector<float> logits{0.3f, 2.0f, -1.0f, 1.5f, 2.0f, 0.9f, -4.0f, 1.1f, 1.5f, -0.2f};

TEST(Sampling, FrequenciesMatchProbabilities) {
  const std::vector<SamplingOptions> cases{
      {.temperature = 1},
      {.temperature = 0.5},
      {.temperature = 3},
      {.temperature = 1, .top_k = 3},
      {.temperature = 0.7, .top_k = 100},
      {.temperature = 1, .top_p = 0.6},
      {.temperature = 2, .top_p = 0.95},
      {.temperature = 1, .top_k = 5, .top_p = 0.7},
      {.temperature = 1, .top_k = 5, .top_p = 1},
  };
  for (const SamplingOptions& options : cases) {
    const auto expected = probabilities(logits, options);
    const auto drawn = shares(logits, options);
    for (std::size_t i = 0; i < logits.size(); ++i) {
      // An interval's share of evenly spaced numbers is its length to one of them.
      EXPECT_NEAR(drawn[i], expected[i], 1.1 / 20000)
          << "token " << i << ", temperature " << options.temperature << ", top-k " << options.top_k
          << ", top-p " << options.top_p;
      EXPECT_TRUE(expected[i] > 0 || drawn[i] == 0) << "token " << i;
    }
  }
}

// Of many tokens most are too unlikely to be sorted.
TEST(Sampling, LimitsOnManyTokensMatchSort) {
  std::vector<float> many(5000);
  for (std::size_t i = 0; i < many.size(); ++i) {
    many[i] = static_cast<float>(8 * std::sin(1.7 * static_cast<double>(i * i % 977)));
  }
  std::fill(many.begin() + 1000, many.begin() + 2100, -std::numeric_limits<float>::infinity());
  // The likeliest three lie in one part of the tokens, and of so few parts only one may matter.
  many[4500] = many[4501] = many[4502] = 8.5f;
  for (const auto& [top_k, top_p] : {std::pair<octavo::Index, double>{0, 0.1},
                                     {0, 0.9},
                                     {0, 0.999},
                                     {0, 1.0},
                                     {1, 1.0},
                                     {3, 1.0},
                                     {4, 1.0},
                                     {300, 1.0},
                                     {4, 0.6},
                                     {3800, 0.9}}) {
    const SamplingOptions options{.temperature = 1, .top_k = top_k, .top_p = top_p};
    const auto expected = probabilities(many, options);
    constexpr int draws = 1000;
    const auto drawn = shares(many, options, draws);
    for (std::size_t i = 0; i < many.size(); ++i) {
      ASSERT_NEAR(drawn[i], expected[i], 1.1 / draws) << i << ", " << top_k << ", " << top_p;
    }
  }
}

TEST(Sampling, PrefersLowestOfEqualTokens) {
  EXPECT_EQ(Sampler({.temperature = 0}).draw(logits, 0.99), 1);
  const auto first = [](const SamplingOptions& options) {
    std::vector<std::size_t> drawn;
    const auto all = shares(logits, options);
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (all[i] > 0) drawn.push_back(i);
    }
    return drawn;
  };
  using Tokens = std::vector<std::size_t>;
  EXPECT_EQ(first({.temperature = 1, .top_k = 1}), (Tokens{1}));
  EXPECT_EQ(first({.temperature = 1, .top_k = 3}), (Tokens{1, 3, 4}));
  EXPECT_EQ(first({.temperature = 1, .top_p = 1e-9}), (Tokens{1}));
  const std::vector<float> equal(8, 0.5f);
  EXPECT_EQ(Sampler({.temperature = 0}).draw(equal, 0.9), 0);
  // Half of eight equal tokens are exactly four of them.
  EXPECT_EQ(Sampler({.temperature = 1, .top_p = 0.5}).draw(equal, 0.999), 3);
  EXPECT_EQ(Sampler({.temperature = 0}).draw(std::vector<float>{-1, -0.0f, 0}, 0.9), 1);
}

TEST(Sampling, NeverDrawsImpossibleTokens) {
  constexpr float never = -std::numeric_limits<float>::infinity();
  const std::vector<float> some{never, 1, never, 0, never};
  const double last = std::nextafter(1.0, 0.0);
  for (const double temperature : {1e-300, 1.0, 1e300}) {
    EXPECT_EQ(Sampler({.temperature = temperature}).draw(some, 0), 1);
  }
  EXPECT_EQ(Sampler({.temperature = 1e-300}).draw(some, last), 1);
  EXPECT_EQ(Sampler({.temperature = 1}).draw(some, last), 3);
  EXPECT_EQ(Sampler({.temperature = 1, .top_k = 5}).draw(some, last), 3);
  EXPECT_EQ(Sampler({.temperature = 1e300}).draw(some, 0.6), 3) << "all that can be are as likely";
  EXPECT_EQ(Sampler({.temperature = 1}).draw(std::vector<float>{4}, last), 0);
  // Weights of e^-37.6 add up to more than half a unit of 1's last place, but one of them taken
  // from 1 leaves 1: something is left of the largest number behind the last token that can be.
  const std::vector<float> rounded{-37.6f, -37.6f, -37.6f, 0, never};
  EXPECT_EQ(Sampler({.temperature = 1}).draw(rounded, last), 3);
  std::vector<float> far_apart(9000, never);
  for (const std::size_t i : {0u, 2000u, 4000u}) far_apart[i] = rounded[0];
  far_apart[6000] = 0;
  EXPECT_EQ(Sampler({.temperature = 1}).draw(far_apart, last), 6000);
}

// Sums are of parts of the tokens; none of them draws one that cannot be.
TEST(Sampling, DrawsFirstAndLastPossibleOfManyTokens) {
  constexpr float never = -std::numeric_limits<float>::infinity();
  std::vector<float> many(5000, never);
  std::fill(many.begin() + 7, many.begin() + 3003, 0.25f);
  Sampler sampler({.temperature = 1});
  EXPECT_EQ(sampler.draw(many, 0), 7);
  EXPECT_EQ(sampler.draw(many, std::nextafter(1.0, 0.0)), 3002);
  EXPECT_EQ(sampler.draw(many, 2000.5 / 2996), 2007);
  EXPECT_EQ(Sampler({.temperature = 0}).draw(many, 0.5), 7);
  many[4999] = 0.5f;
  EXPECT_EQ(Sampler({.temperature = 0}).draw(many, 0.5), 4999);
}

TEST(Sampling, DrawsAreIndependent) {
  std::vector<float> first(3000);
  for (std::size_t i = 0; i < first.size(); ++i) {
    first[i] = static_cast<float>(4 * std::sin(static_cast<double>(i * i % 977)));
  }
  const std::vector<float> second(first.rbegin() + 400, first.rend());
  for (const SamplingOptions& options : {SamplingOptions{.temperature = 1},
                                         {.temperature = 1, .top_k = 50},
                                         {.temperature = 1, .top_p = 0.5}}) {
    Sampler sampler(options);
    for (const double random : {0.1, 0.5, 0.9}) {
      (void)sampler.draw(first, random);
      EXPECT_EQ(sampler.draw(second, random), Sampler(options).draw(second, random)) << random;
    }
  }
  // The likeliest come from another part of the tokens than before.
  std::vector<float> here(2500, -20.0f);
  here[0] = here[2100] = 0;
  std::vector<float> there(2500, -20.0f);
  std::fill(there.begin(), there.begin() + 6, -0.1f);
  there[1500] = 0;
  Sampler sampler({.temperature = 1, .top_k = 4});
  EXPECT_EQ(sampler.draw(here, 0.1), 0);
  EXPECT_EQ(sampler.draw(there, 0.1), 1500);
}

TEST(Sampling, RejectsInvalidLogitAtAnyIndex) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> equal(1100, 1.0f);
  for (std::size_t i = 0; i < equal.size(); ++i) {
    std::vector<float> logits_with = equal;
    for (const float wrong : {nan, -nan, infinity}) {
      logits_with[i] = wrong;
      EXPECT_THROW((void)Sampler({}).draw(logits_with, 0.5), octavo::ConfigError) << i;
    }
  }
}

TEST(Sampling, RejectsInvalidOptionsAndLogits) {
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  constexpr double infinity = std::numeric_limits<double>::infinity();
  for (const double wrong : {-0.1, nan, infinity}) {
    EXPECT_THROW(Sampler({.temperature = wrong}), octavo::ConfigError);
  }
  for (const double wrong : {0.0, -1.0, 1.1, nan}) {
    EXPECT_THROW(Sampler({.top_p = wrong}), octavo::ConfigError);
  }
  EXPECT_THROW(Sampler({.top_k = -1}), octavo::ConfigError);
  for (const double wrong : {-0.1, 1.0, nan, infinity}) {
    EXPECT_THROW((void)Sampler({}).draw(logits, wrong), octavo::ConfigError) << wrong;
  }
  EXPECT_THROW((void)Sampler({}).draw({}, 0.5), octavo::ConfigError);
  const auto nan_logit = std::numeric_limits<float>::quiet_NaN();
  const auto large = std::numeric_limits<float>::infinity();
  for (const auto& wrong : {std::vector<float>{0, nan_logit}, std::vector<float>{nan_logit, 0},
                            std::vector<float>{0, large}, std::vector<float>{-large, -large}}) {
    EXPECT_THROW((void)Sampler({}).draw(wrong, 0.5), octavo::ConfigError);
    EXPECT_THROW((void)Sampler({.temperature = 0}).draw(wrong, 0.5), octavo::ConfigError);
  }
}

}  // namespace sampling_test
