// Delayed scaling with a short history and head room, in a whole model.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "support/small_model.hpp"

namespace margin_test {

using octavo::AmaxReduction;
using octavo::DelayedScaling;
using octavo::Margin;

template <AmaxReduction Reduction, int Room>
double train(std::vector<octavo::OperandReport>* operands) {
  using Precision = octavo::Fp8Recipe<DelayedScaling<16, Reduction, Margin{Room}>>;
  const octavo::SessionOptions options = support::small_options();
  octavo::Context<octavo::Cpu> context{2};
  support::SmallSession<Precision> session(options, context);
  double loss = 0;
  for (unsigned i = 0; i < 40; ++i) {
    const support::TokenBatch batch = support::step_batch(options, i);
    const octavo::StepResult result = session.step({batch.tokens, batch.targets}, 3e-3);
    EXPECT_FALSE(result.skipped);
    if (i >= 35) loss += result.loss / 5;
  }
  *operands = session.operands();
  return loss;
}

template <AmaxReduction Reduction, int Room>
void expect_margin() {
  std::vector<octavo::OperandReport> operands;
  EXPECT_LT((train<Reduction, Room>(&operands)), std::log(96.0) - 0.7);
  ASSERT_EQ(operands.size(), 36U);
  for (const octavo::OperandReport& operand : operands) {
    // The scale of the next step aims the history's amax at the format's largest value / 2^room;
    // the newest amax is at most that of the history.
    const double largest = std::string(operand.format) == "E4M3" ? 448.0 : 57344.0;
    const double target = largest / (1 << Room);
    const double reached = static_cast<double>(operand.amax) * static_cast<double>(operand.scale);
    EXPECT_GT(reached, 0.0) << operand.name;
    EXPECT_LE(reached, target * 1.000001) << operand.name;
    if (Reduction == AmaxReduction::most_recent) {
      EXPECT_NEAR(reached, target, target * 1e-6) << operand.name;
    }
    EXPECT_EQ(operand.name.ends_with("output_gradient") ? "E5M2" : "E4M3",
              std::string(operand.format));
  }
}

TEST(Margin, TrainsWithoutMargin) { expect_margin<AmaxReduction::most_recent, 0>(); }
TEST(Margin, TrainsWithMarginOfOne) { expect_margin<AmaxReduction::max, 1>(); }
TEST(Margin, TrainsWithMarginOfTwo) { expect_margin<AmaxReduction::max, 2>(); }

}  // namespace margin_test
