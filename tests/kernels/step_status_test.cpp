#include <octavo/kernels/step_status.hpp>

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "support/matrix.hpp"

namespace step_status_test {

using namespace octavo;
using support::Matrix;
using support::random_matrix;

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();

TensorView<StepStatus, 1, Cpu> view(StepStatus& status) { return {&status, {1}}; }

/// Completes a status whose operands' counts rose from `before` to `after` non-finite values.
StepStatus finished(StepStatus status, float max_gradient_norm, std::uint32_t before = 0,
                    std::uint32_t after = 0, const StepLimits& limits = {}) {
  std::array<OperandStatistics, 3> now{};
  std::array<OperandStatistics, 3> old{};
  old[0].nonfinite = now[0].nonfinite = 9;
  old[2].nonfinite = before;
  now[2].nonfinite = after;
  support::ContextWithWorkspace place;
  add_nonfinite<Cpu>({now.data(), {3}}, {old.data(), {3}}, view(status), place.context);
  decide_step<Cpu>(max_gradient_norm, {&limits, {1}}, view(status), place.context);
  return status;
}

StepStatus with(double squared_norm, double loss_sum) {
  StepStatus status{};
  status.squared_norm = squared_norm;
  status.loss_sum = loss_sum;
  return status;
}

template <class G>
void check_norm() {
  support::ContextWithWorkspace place;
  StepStatus status{};
  double expected = 0.0;
  for (const Index size : {1, 63, 4097, 300000}) {
    const auto gradient = random_matrix<G>(1, size, static_cast<unsigned>(size), 0.01f);
    for (const G g : gradient.elements) expected += support::value_of(g) * support::value_of(g);
    add_squared_norm(gradient.flat_input(), view(status), place.context);
    EXPECT_NEAR(status.squared_norm, expected, 2e-6 * expected) << size;
  }
}

TEST(StepStatus, SquaredNormsAddUp) {
  check_norm<float>();
  check_norm<Bf16>();
}

TEST(StepStatus, SquaredNormDoesNotDependOnTheNumberOfThreads) {
  const auto gradient = random_matrix<float>(1, 100001, 1);
  StepStatus one{};
  StepStatus four{};
  support::ContextWithWorkspace single(1);
  support::ContextWithWorkspace several(4);
  add_squared_norm(gradient.flat_input(), view(one), single.context);
  add_squared_norm(gradient.flat_input(), view(four), several.context);
  EXPECT_EQ(one.squared_norm, four.squared_norm);
}

TEST(StepStatus, LossesAddUpInDouble) {
  Matrix<float> losses(1, 1000, 0.1f);
  losses.at(0, 0) = 1e7f;
  StepStatus status{};
  status.loss_sum = 2.0;
  support::ContextWithWorkspace place;
  add_losses(losses.flat_input(), view(status), place.context);
  EXPECT_NEAR(status.loss_sum, 2.0 + 1e7 + 999.0 * static_cast<double>(0.1f), 1e-5);
}

TEST(StepStatus, ClipsAboveTheLargestNormOnly) {
  EXPECT_FLOAT_EQ(finished(with(25.0, 1.0), 1.0f).gradient_norm, 5.0f);
  EXPECT_NEAR(finished(with(25.0, 1.0), 1.0f).clip_coefficient, 0.2, 1e-6);
  EXPECT_EQ(finished(with(0.25, 1.0), 1.0f).clip_coefficient, 1.0f);
  EXPECT_EQ(finished(with(25.0, 1.0), 0.0f).clip_coefficient, 1.0f) << "0 turns clipping off";
  EXPECT_EQ(finished(with(0.0, 1.0), 1.0f).clip_coefficient, 1.0f);
}

TEST(StepStatus, SkipsNonFiniteSteps) {
  EXPECT_EQ(finished(with(25.0, 1.0), 1.0f).skip, 0u);
  for (const float bad : {infinity, -infinity, nan}) {
    const auto value = static_cast<double>(bad);
    EXPECT_EQ(finished(with(std::abs(value), 1.0), 1.0f).skip, 1u) << bad;
    EXPECT_EQ(finished(with(25.0, value), 1.0f).skip, 1u) << bad;
  }
}

TEST(StepStatus, SkipsStepsAboveLimits) {
  const auto skip = [](const StepStatus& status, const StepLimits& limits) {
    return finished(status, 1.0f, 0, 0, limits).skip;
  };
  EXPECT_EQ(skip(with(25.0, 3.0), {.loss_sum = 3.0, .gradient_norm = 5.0}), 0u);
  EXPECT_EQ(skip(with(25.0, 3.0), {.loss_sum = 2.99}), StepStatus::skip_above_limits);
  EXPECT_EQ(skip(with(25.0, 3.0), {.gradient_norm = 4.99}), StepStatus::skip_above_limits);
  EXPECT_EQ(skip(with(25.0, 3.0), {}), 0u);
  for (const float bad : {infinity, nan}) {
    EXPECT_EQ(skip(with(static_cast<double>(bad), 3.0), {.loss_sum = 1.0, .gradient_norm = 1.0}),
              StepStatus::skip_not_finite);
  }
}

TEST(StepStatus, SkipsOnNonFiniteOperandOfThisStep) {
  const StepStatus old_news = finished(with(1.0, 1.0), 0.0f, 4, 4);
  EXPECT_EQ(old_news.nonfinite, 0.0);
  EXPECT_EQ(old_news.skip, 0u);
  const StepStatus news = finished(with(1.0, 1.0), 0.0f, 4, 6);
  EXPECT_EQ(news.nonfinite, 2.0);
  EXPECT_EQ(news.skip, 1u);
}

TEST(StepStatus, NonFiniteGradientsReachTheNorm) {
  for (const float bad : {infinity, -infinity, nan}) {
    Matrix<Bf16> gradient(1, 5000, Bf16(1.0f));
    gradient.at(0, 4999) = Bf16(bad);
    StepStatus status{};
    support::ContextWithWorkspace place;
    add_squared_norm(gradient.flat_input(), view(status), place.context);
    EXPECT_EQ(finished(status, 1.0f).skip, 1u) << bad;
  }
}

TEST(StepStatus, RestoresBytesOnlyIfSkipped) {
  std::array<std::byte, 5> target{};
  const std::array<std::byte, 5> source{std::byte{1}, std::byte{2}, std::byte{3}, std::byte{4},
                                        std::byte{5}};
  support::ContextWithWorkspace place;
  StepStatus status{};
  restore_if_skipped<Cpu>({target.data(), {5}}, {source.data(), {5}}, view(status), place.context);
  EXPECT_EQ(target, (std::array<std::byte, 5>{}));
  status.skip = 1;
  restore_if_skipped<Cpu>({target.data(), {5}}, {source.data(), {5}}, view(status), place.context);
  EXPECT_EQ(target, source);
  EXPECT_THROW(restore_if_skipped<Cpu>({target.data(), {5}}, {source.data(), {4}}, view(status),
                                       place.context),
               ShapeError);
}

}  // namespace step_status_test
