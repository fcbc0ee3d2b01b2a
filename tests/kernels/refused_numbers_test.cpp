// Numbers for which an operation would compute NaN, or something else than its name says.
#include <gtest/gtest.h>
#include <octavo/kernels/initialize.hpp>
#include <octavo/kernels/layer_norm.hpp>
#include <octavo/kernels/rms_norm.hpp>
#include <octavo/kernels/rope.hpp>
#include <octavo/kernels/step_status.hpp>

#include <limits>

#include "support/matrix.hpp"
#include "support/quantized_operand.hpp"

namespace refused_numbers_test {

using namespace octavo;
using support::Matrix;

constexpr float nan = std::numeric_limits<float>::quiet_NaN();
constexpr float infinity = std::numeric_limits<float>::infinity();

class RefusedNumbers : public testing::TestWithParam<float> {
 protected:
  /// Whether an operation that is given the number throws a ConfigError.
  template <class Operation>
  static void expect_refused(const Operation& operation) {
    EXPECT_THROW(operation(GetParam()), ConfigError);
    EXPECT_NO_THROW(operation(0.0f));
    EXPECT_NO_THROW(operation(0.5f));
  }

  support::ContextWithWorkspace place_;
  Matrix<float> x_ = support::random_matrix<float>(4, 8, 1);
  Matrix<float> y_{4, 8};
  Matrix<float> weight_ = support::random_matrix<float>(1, 8, 2);
};
INSTANTIATE_TEST_SUITE_P(Numbers, RefusedNumbers,
                         testing::Values(nan, infinity, -infinity, -1.0f, -1e-30f));

TEST_P(RefusedNumbers, AsEpsilonOfRmsNorm) {
  Matrix<float> inverse(1, 4);
  expect_refused([&](float epsilon) {
    rms_norm_forward(x_.input(), weight_.flat_input(), epsilon, support::dense_input(y_),
                     inverse.flat(), place_.context);
  });
}

TEST_P(RefusedNumbers, AsEpsilonOfLayerNorm) {
  Matrix<float> statistics(4, 2);
  expect_refused([&](float epsilon) {
    layer_norm_forward(x_.input(), weight_.flat_input(), weight_.flat_input(), epsilon,
                       support::dense_input(y_), statistics.flat(), place_.context);
  });
}

TEST_P(RefusedNumbers, AsEpsilonOfQueriesAndKeys) {
  const HeadLayout layout{2, 1, 2};
  const Matrix<float> rotation = support::random_matrix<float>(4, 2, 3);
  const auto head = support::random_matrix<float>(1, 2, 4);
  expect_refused([&](float epsilon) {
    rope_forward(x_.input(), layout,
                 QkNorm<const float, Cpu>{head.flat_input(), head.flat_input(), epsilon},
                 rotation.input(), Index{4}, y_.view(), place_.context);
  });
}

TEST_P(RefusedNumbers, AsMaximumOfGradientNorm) {
  StepStatus status{};
  const StepLimits limits{};
  expect_refused([&](float largest) {
    decide_step<Cpu>(largest, {&limits, {1}}, {&status, {1}}, place_.context);
  });
}

TEST_P(RefusedNumbers, AsDeviationOfInitialValues) {
  expect_refused([&](float deviation) {
    initialize_values(y_.flat(), {.initial = Initial::normal(deviation), .live = 32},
                      place_.context);
  });
  expect_refused([&](float bound) {
    initialize_values(y_.flat(), {.initial = Initial::uniform(bound), .live = 32}, place_.context);
  });
}

}  // namespace refused_numbers_test
