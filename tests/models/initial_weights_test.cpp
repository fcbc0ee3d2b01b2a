// The weights that a session starts from: their sizes, and that none repeats another's numbers.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "support/small_model.hpp"

namespace initial_weights_test {

using octavo::Fp32;
using octavo::Index;

/// The initial values of every parameter, without the rows that pad it.
std::map<std::string, std::vector<double>> initial_weights(std::uint64_t seed) {
  octavo::SessionOptions options = support::small_options();
  options.batch = {1, 16};
  options.seed = seed;
  octavo::Context<octavo::Cpu> context{2};
  support::SmallSession<Fp32> session(options, context);
  std::map<std::string, std::vector<double>> weights;
  session.model().visit([&](auto& parameter) {
    const bool table = parameter.weight.extent(0) == support::small.padded_vocabulary() &&
                       (parameter.name == "embedding.weight" || parameter.name == "head.weight");
    const Index rows = table ? support::small.vocabulary : parameter.weight.extent(0);
    const float* values = parameter.weight.data();
    weights[parameter.name].assign(values, values + rows * parameter.weight.extent(1));
  });
  return weights;
}

double mean_product(const std::vector<double>& a, const std::vector<double>& b, std::size_t count) {
  double sum = 0;
  for (std::size_t i = 0; i < count; ++i) sum += a[i] * b[i];
  return sum / static_cast<double>(count);
}

/// Correlation of what both have of the same positions, in standard deviations of its estimate.
double correlation(const std::vector<double>& a, const std::vector<double>& b) {
  const std::size_t count = std::min(a.size(), b.size());
  return mean_product(a, b, count) /
         std::sqrt(mean_product(a, a, count) * mean_product(b, b, count)) *
         std::sqrt(static_cast<double>(count));
}

// GPT-2's initialisation: 0.02, and 0.02 / √(2 · layers) where a matrix writes to the residual.
TEST(InitialWeights, MatricesAreNormalAndNormsAreOne) {
  int matrices = 0;
  for (const auto& [name, values] : initial_weights(7)) {
    if (name.find("norm") != std::string::npos) {
      EXPECT_TRUE(std::all_of(values.begin(), values.end(), [](double v) { return v == 1.0; }))
          << name;
      continue;
    }
    const bool residual = name.ends_with(".output.weight") || name.ends_with(".down.weight");
    const double deviation = residual ? 0.02 / std::sqrt(6.0) : 0.02;
    const double count = static_cast<double>(values.size());
    double mean = 0;
    double fourth = 0;
    for (const double v : values) {
      mean += v / count;
      fourth += std::pow(v / deviation, 4) / count;
    }
    const double variance = mean_product(values, values, values.size());
    // Five standard deviations of the mean, of the second and of the fourth moment.
    EXPECT_NEAR(mean, 0.0, 5.0 * deviation / std::sqrt(count)) << name;
    EXPECT_NEAR(variance / (deviation * deviation), 1.0, 5.0 * std::sqrt(2.0 / count)) << name;
    EXPECT_NEAR(fourth, 3.0, 5.0 * std::sqrt(96.0 / count)) << name;
    ++matrices;
  }
  EXPECT_EQ(matrices, 3 * 4 + 2);
}

TEST(InitialWeights, MatricesAreUncorrelated) {
  const auto weights = initial_weights(7);
  for (const auto& [name, values] : weights) {
    if (name.find("norm") != std::string::npos) continue;
    for (const auto& [other, others] : weights) {
      if (other <= name || other.find("norm") != std::string::npos) continue;
      EXPECT_LT(std::abs(correlation(values, others)), 5.0) << name << " and " << other;
    }
  }
}

TEST(InitialWeights, DependOnTheSeed) {
  const auto weights = initial_weights(7);
  EXPECT_TRUE(weights == initial_weights(7));
  for (const auto& [name, values] : initial_weights(8)) {
    if (name.find("norm") != std::string::npos) continue;
    EXPECT_LT(std::abs(correlation(values, weights.at(name))), 5.0) << name;
  }
}

}  // namespace initial_weights_test
