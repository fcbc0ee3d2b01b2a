#include <octavo/kernels/cross_entropy.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include "support/matrix.hpp"

namespace cross_entropy_test {

using namespace octavo;
using support::Matrix;
using support::random_matrix;

constexpr Index tokens = 6;
constexpr Index vocabulary = 37;
constexpr Index padded = 48;
const std::vector<std::int32_t> targets{5, -1, 36, 0, -100, 5};

TensorView<const std::int32_t, 1, Cpu> target_view() { return {targets.data(), {tokens}}; }

/// Logits with large values in the columns that pad the vocabulary, and rows far from zero.
template <class T>
Matrix<T> logits_with_padding() {
  auto logits = random_matrix<T>(tokens, padded, 1, 3.0f);
  for (Index t = 0; t < tokens; ++t) {
    for (Index c = 0; c < padded; ++c) {
      if (c >= vocabulary) logits.at(t, c) = T(1e4f);
      if (t == 2 && c < vocabulary) logits.at(t, c) = T(static_cast<float>(c) + 500.0f);
      if (t == 3 && c < vocabulary) logits.at(t, c) = T(-500.0f - static_cast<float>(c));
    }
  }
  return logits;
}

/// log Σ exp over the real vocabulary, in double.
template <class T>
double log_sum_exp(const Matrix<T>& logits, Index t) {
  double largest = logits(t, 0);
  for (Index c = 1; c < vocabulary; ++c) largest = std::max(largest, logits(t, c));
  double sum = 0.0;
  for (Index c = 0; c < vocabulary; ++c) sum += std::exp(logits(t, c) - largest);
  return largest + std::log(sum);
}

template <class T>
class CrossEntropy : public testing::Test {
 protected:
  static constexpr double unit = std::is_same_v<T, float> ? 2e-6 : 0x1p-8;
};
using Storages = testing::Types<float, Bf16>;
TYPED_TEST_SUITE(CrossEntropy, Storages);

TYPED_TEST(CrossEntropy, LossAndGradientMatchFormula) {
  using T = TypeParam;
  constexpr double scale = 0.125;
  const auto logits = logits_with_padding<T>();
  Matrix<T> gradient = logits;
  Matrix<float> losses(1, tokens, -7.0f);
  support::ContextWithWorkspace place;
  const Matrix<float> gradient_scale(1, 1, static_cast<float>(scale));
  cross_entropy(gradient.view(), target_view(), losses.flat(), vocabulary,
                gradient_scale.flat_input(), place.context);
  for (Index t = 0; t < tokens; ++t) {
    const Index target = targets[static_cast<std::size_t>(t)];
    const double sum = log_sum_exp(logits, t);
    const double loss = target < 0 ? 0.0 : sum - logits(t, target);
    EXPECT_NEAR(losses(0, t), loss, 1e-6 * (1.0 + loss)) << t;
    for (Index c = 0; c < padded; ++c) {
      double expected = 0.0;
      if (c < vocabulary && target >= 0)
        expected = scale * (std::exp(logits(t, c) - sum) - (c == target ? 1.0 : 0.0));
      EXPECT_NEAR(gradient(t, c), expected, this->unit * std::abs(expected) + 1e-8)
          << t << ' ' << c;
      if (target < 0 || c >= vocabulary) {
        EXPECT_EQ(gradient(t, c), 0.0) << t << ' ' << c;
      }
    }
  }
}

// The exponential of the difference between the two logits is infinite in FP32.
TYPED_TEST(CrossEntropy, HandlesLargestLogitAtAnyPosition) {
  using T = TypeParam;
  for (Index vocabulary_size = 1; vocabulary_size <= vocabulary; ++vocabulary_size) {
    Matrix<T> logits(vocabulary_size, padded, T(-100.0f));
    std::vector<std::int32_t> first(static_cast<std::size_t>(vocabulary_size), 0);
    for (Index t = 0; t < vocabulary_size; ++t) logits.at(t, t) = T(100.0f);
    Matrix<float> losses(1, vocabulary_size);
    support::ContextWithWorkspace place;
    cross_entropy(logits.view(), {first.data(), {vocabulary_size}}, losses.flat(), vocabulary_size,
                  {}, place.context);
    for (Index t = 0; t < vocabulary_size; ++t) EXPECT_EQ(losses(0, t), t == 0 ? 0 : 200) << t;
  }
}

TYPED_TEST(CrossEntropy, PreservesLogitsWithoutGradientScale) {
  using T = TypeParam;
  const auto logits = logits_with_padding<T>();
  Matrix<T> same = logits;
  Matrix<T> gradient = logits;
  Matrix<float> losses(1, tokens, -7.0f);
  Matrix<float> training_losses(1, tokens);
  support::ContextWithWorkspace place;
  cross_entropy(same.view(), target_view(), losses.flat(), vocabulary, {}, place.context);
  const Matrix<float> one(1, 1, 1.0f);
  cross_entropy(gradient.view(), target_view(), training_losses.flat(), vocabulary,
                one.flat_input(), place.context);
  EXPECT_EQ(same.elements, logits.elements);
  EXPECT_EQ(losses.elements, training_losses.elements);
}

TEST(CrossEntropyNan, YieldsNonFiniteLoss) {
  Matrix<float> logits(tokens, padded);
  logits.at(0, 3) = std::numeric_limits<float>::quiet_NaN();
  logits.at(2, 0) = std::numeric_limits<float>::infinity();
  Matrix<float> losses(1, tokens);
  support::ContextWithWorkspace place;
  cross_entropy(logits.view(), target_view(), losses.flat(), vocabulary, {}, place.context);
  EXPECT_FALSE(std::isfinite(losses(0, 0)));
  EXPECT_FALSE(std::isfinite(losses(0, 2)));
  EXPECT_TRUE(std::isfinite(losses(0, 3)));
}

TYPED_TEST(CrossEntropy, TargetOutsideVocabularyYieldsNan) {
  using T = TypeParam;
  // In the padding, and beyond all rows; the rows between are as if nothing were wrong.
  const std::vector<std::int32_t> outside{5, vocabulary, 36, 2'000'000'000, padded, -1};
  const TensorView<const std::int32_t, 1, Cpu> view{outside.data(), {tokens}};
  const auto logits = logits_with_padding<T>();
  Matrix<T> gradient = logits;
  Matrix<float> losses(1, tokens, -7.0f);
  Matrix<float> evaluated(1, tokens, -7.0f);
  const Matrix<float> scale(1, 1, 0.125f);
  support::ContextWithWorkspace place;
  Matrix<T> same = logits;
  cross_entropy(same.view(), view, evaluated.flat(), vocabulary, {}, place.context);
  cross_entropy(gradient.view(), view, losses.flat(), vocabulary, scale.flat_input(),
                place.context);
  EXPECT_EQ(same.elements, logits.elements);
  for (Index t = 0; t < tokens; ++t) {
    const bool nan = outside[static_cast<std::size_t>(t)] >= vocabulary;
    EXPECT_EQ(std::isnan(losses(0, t)), nan) << t;
    EXPECT_EQ(std::isnan(evaluated(0, t)), nan) << t;
    for (Index c = 0; c < vocabulary; ++c) EXPECT_EQ(std::isnan(gradient(t, c)), nan) << t << c;
    for (Index c = vocabulary; c < padded; ++c) EXPECT_EQ(gradient(t, c), 0.0) << t << ' ' << c;
  }
}

TEST(CrossEntropyErrors, ShapesMustAgree) {
  Matrix<float> logits(tokens, padded);
  Matrix<float> losses(1, tokens);
  Matrix<float> few(1, tokens - 1);
  support::ContextWithWorkspace place;
  for (const Index wrong : {Index{0}, padded + 1}) {
    EXPECT_THROW(
        cross_entropy(logits.view(), target_view(), losses.flat(), wrong, {}, place.context),
        ShapeError);
  }
  EXPECT_THROW(
      cross_entropy(logits.view(), target_view(), few.flat(), vocabulary, {}, place.context),
      ShapeError);
  const Matrix<float> two(1, 2, 1.0f);
  EXPECT_THROW(cross_entropy(logits.view(), target_view(), losses.flat(), vocabulary,
                             two.flat_input(), place.context),
               ShapeError);
}

}  // namespace cross_entropy_test
