#include <octavo/kernels/router.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <type_traits>
#include <vector>

#include "support/matrix.hpp"

namespace router_test {

using namespace octavo;
using support::Matrix;
using support::random_matrix;

/// The softmax of a row, in double.
std::vector<double> softmax(const std::vector<double>& logits) {
  std::vector<double> result;
  result.reserve(logits.size());
  const double most = *std::max_element(logits.begin(), logits.end());
  for (const double logit : logits) result.push_back(std::exp(logit - most));
  const double sum = std::accumulate(result.begin(), result.end(), 0.0);
  for (double& value : result) value /= sum;
  return result;
}

std::vector<double> row_of(const Matrix<float>& matrix, Index row) {
  std::vector<double> result;
  for (Index i = 0; i < matrix.columns; ++i) result.push_back(matrix(row, i));
  return result;
}

/// A router's choices with their memory.
struct Choices {
  Choices(Index tokens, Index expert_count, Index count, bool is_renormalised)
      : probabilities(tokens, expert_count),
        experts(tokens, count, -7),
        weights(tokens, count),
        renormalised(is_renormalised) {}
  ExpertChoices<Cpu> view() {
    return {probabilities.view(), experts.view(), weights.view(), renormalised};
  }
  Matrix<float> probabilities;
  Matrix<std::int32_t> experts;
  Matrix<float> weights;
  bool renormalised;
};

/// Experts of a row by descending logit; equal ones by ascending number.
std::vector<Index> ranking(const std::vector<double>& logits) {
  std::vector<Index> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](Index a, Index b) {
    return logits[static_cast<std::size_t>(a)] > logits[static_cast<std::size_t>(b)];
  });
  return order;
}

template <class T>
class Router : public testing::Test {};
using Storages = testing::Types<float, Bf16>;
TYPED_TEST_SUITE(Router, Storages);

TYPED_TEST(Router, LogitsMatchProduct) {
  for (const Index hidden : {7, 32, 130}) {
    const auto x = random_matrix<TypeParam>(5, hidden, 1);
    const auto w = random_matrix<TypeParam>(6, hidden, 2);
    Matrix<float> logits(5, 6);
    support::ContextWithWorkspace place;
    router_logits(x.input(), w.input(), logits.view(), place.context);
    for (Index t = 0; t < 5; ++t) {
      for (Index e = 0; e < 6; ++e) {
        double expected = 0;
        for (Index i = 0; i < hidden; ++i) expected += x(t, i) * w(e, i);
        EXPECT_NEAR(logits(t, e), expected, 1e-4) << t << ' ' << e;
      }
    }
  }
}

TYPED_TEST(Router, GradientsMatchProducts) {
  constexpr Index tokens = 37;
  constexpr Index experts = 5;
  constexpr Index hidden = 300;
  const double unit = std::is_same_v<TypeParam, float> ? 1e-5 : 0x1p-7;
  const auto x = random_matrix<TypeParam>(tokens, hidden, 1);
  const auto w = random_matrix<TypeParam>(experts, hidden, 2);
  const auto dy = random_matrix<float>(tokens, experts, 3);
  const auto before = random_matrix<TypeParam>(tokens, hidden, 4);
  auto dx = before;
  auto dw = random_matrix<TypeParam>(experts, hidden, 5);
  const auto dw_before = dw;
  Matrix<TypeParam> dw_alone(experts, hidden);
  support::ContextWithWorkspace place(2, router_workspace(experts, hidden));
  add_router_input_gradient(dy.input(), w.input(), dx.view(), place.context);
  router_weight_gradient(dy.input(), x.input(), dw.view(), true, place.context);
  router_weight_gradient(dy.input(), x.input(), dw_alone.view(), false, place.context);
  for (Index i = 0; i < hidden; ++i) {
    for (Index t = 0; t < tokens; ++t) {
      double expected = before(t, i);
      for (Index e = 0; e < experts; ++e) expected += dy(t, e) * w(e, i);
      EXPECT_NEAR(dx(t, i), expected, unit * (1 + std::abs(expected)));
    }
    for (Index e = 0; e < experts; ++e) {
      double expected = 0;
      for (Index t = 0; t < tokens; ++t) expected += dy(t, e) * x(t, i);
      EXPECT_NEAR(dw_alone(e, i), expected, unit * (1 + std::abs(expected)));
      expected += dw_before(e, i);
      EXPECT_NEAR(dw(e, i), expected, unit * (1 + std::abs(expected)));
    }
  }
}

TEST(RouterChoice, TakesTheLargestProbabilities) {
  for (const bool renormalised : {false, true}) {
    const auto logits = random_matrix<float>(40, 9, 1, 2.0f);
    Choices choices(40, 9, 3, renormalised);
    support::ContextWithWorkspace place;
    choose_experts(logits.input(), choices.view(), place.context);
    for (Index t = 0; t < 40; ++t) {
      const auto row = row_of(logits, t);
      const auto p = softmax(row);
      const auto order = ranking(row);
      double sum = 0;
      for (std::size_t j = 0; j < 3; ++j) sum += p[static_cast<std::size_t>(order[j])];
      for (Index j = 0; j < 3; ++j) {
        const Index expert = order[static_cast<std::size_t>(j)];
        EXPECT_EQ(choices.experts.at(t, j), expert) << t;
        const double weight = p[static_cast<std::size_t>(expert)] / (renormalised ? sum : 1.0);
        EXPECT_NEAR(choices.weights(t, j), weight, 1e-6);
      }
      for (Index e = 0; e < 9; ++e) {
        EXPECT_NEAR(choices.probabilities(t, e), p[static_cast<std::size_t>(e)], 1e-6);
      }
    }
  }
}

TEST(RouterChoice, BreaksTiesByLowerExpertAndRanksNanLast) {
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  constexpr float inf = std::numeric_limits<float>::infinity();
  Matrix<float> logits(5, 5);
  logits.elements = {1,   3,    3,   1,    3,    // ties
                     -0., 0,    -1,  0,    -0.,  // zeros are equal
                     nan, 1,    -2,  -nan, nan,  // NaN last, of either sign
                     nan, nan,  nan, nan,  nan,  //
                     -5,  -inf, -2,  -3,   -4};
  Choices choices(5, 5, 4, true);
  support::ContextWithWorkspace place;
  choose_experts(logits.input(), choices.view(), place.context);
  EXPECT_EQ(choices.experts.elements, (std::vector<std::int32_t>{1, 2, 4, 0,  //
                                                                 0, 1, 3, 4,  //
                                                                 1, 2, 0, 3,  //
                                                                 0, 1, 2, 3,  //
                                                                 2, 3, 4, 0}));
}

TEST(RouterChoice, RefusesMoreChoicesThanExperts) {
  const Matrix<float> logits(2, 3);
  Choices choices(2, 3, 4, true);
  support::ContextWithWorkspace place;
  EXPECT_THROW(choose_experts(logits.input(), choices.view(), place.context), ShapeError);
}

/// Σ dw · weight of a token, with the experts that the router chose.
double weighted(const std::vector<double>& logits, Choices& choices, const Matrix<float>& dw,
                Index token) {
  const auto p = softmax(logits);
  double sum = 0;
  double chosen = 0;
  for (Index j = 0; j < dw.columns; ++j) {
    const double of_expert = p[static_cast<std::size_t>(choices.experts.at(token, j))];
    sum += dw(token, j) * of_expert;
    chosen += of_expert;
  }
  return choices.renormalised ? sum / chosen : sum;
}

TEST(RouterChoice, BackwardMatchesCentralDifference) {
  constexpr Index tokens = 11;
  constexpr Index experts = 6;
  constexpr double coefficient = 0.7;
  for (const bool renormalised : {false, true}) {
    const auto logits = random_matrix<float>(tokens, experts, 1, 2.0f);
    const auto dw = random_matrix<float>(tokens, 2, 2);
    Choices choices(tokens, experts, 2, renormalised);
    Matrix<std::int32_t> counts(1, experts, 0);
    Matrix<float> sums(1, experts);
    const ExpertBalance<Cpu> balance{counts.flat(), sums.flat()};
    Matrix<float> gradient(tokens, experts);
    support::ContextWithWorkspace place;
    choose_experts(logits.input(), choices.view(), place.context);
    add_expert_balance(choices.view(), balance, place.context);
    choose_experts_backward(choices.view(), dw.input(),
                            BalanceTerm<Cpu>::of(balance, static_cast<float>(coefficient), tokens),
                            gradient.view(), place.context);
    for (Index t = 0; t < tokens; ++t) {
      auto row = row_of(logits, t);
      const auto objective = [&] {
        double loss = 0;  // the token's term of the load-balancing loss
        const auto p = softmax(row);
        for (std::size_t e = 0; e < experts; ++e) loss += counts.elements[e] * p[e];
        return weighted(row, choices, dw, t) + coefficient * experts * loss / (tokens * tokens);
      };
      for (std::size_t e = 0; e < experts; ++e) {
        const double expected = support::central_difference(row[e], 1e-5, objective);
        EXPECT_NEAR(gradient(t, static_cast<Index>(e)), expected, 2e-6) << t << ' ' << e;
      }
    }
  }
}

TEST(RouterBalance, LossSumsOverLayers) {
  constexpr Index tokens = 70;
  constexpr Index experts = 4;
  Matrix<std::int32_t> counts(1, experts, 0);
  Matrix<float> sums(1, experts);
  Matrix<float> loss(1, 1);
  const ExpertBalance<Cpu> balance{counts.flat(), sums.flat()};
  std::vector<double> expected_counts(experts);
  std::vector<double> expected_sums(experts);
  support::ContextWithWorkspace place;
  for (const unsigned layer : {1u, 2u}) {
    const auto logits = random_matrix<float>(tokens, experts, layer);
    Choices choices(tokens, experts, 2, true);
    choose_experts(logits.input(), choices.view(), place.context);
    add_expert_balance(choices.view(), balance, place.context);
    for (Index t = 0; t < tokens; ++t) {
      const auto row = row_of(logits, t);
      const auto p = softmax(row);
      const auto order = ranking(row);
      for (std::size_t e = 0; e < experts; ++e) expected_sums[e] += p[e];
      for (std::size_t j = 0; j < 2; ++j) ++expected_counts[static_cast<std::size_t>(order[j])];
    }
  }
  expert_balance_loss(balance, 2 * tokens, loss.flat(), place.context);
  double expected = 0;
  for (std::size_t e = 0; e < experts; ++e) {
    EXPECT_EQ(counts.elements[e], expected_counts[e]);
    EXPECT_NEAR(support::value_of(sums.elements[e]), expected_sums[e], 1e-4);
    expected += experts * expected_counts[e] / (2 * tokens) * expected_sums[e] / (2 * tokens);
  }
  EXPECT_NEAR(loss(0, 0), expected, 1e-5);
}

}  // namespace router_test
