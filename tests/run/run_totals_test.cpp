// What the steps of a run add up to.
#include <octavo/run/run_totals.hpp>
#include <octavo/session/state.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace run_totals_test {

using octavo::RunTotals;
using octavo::StepRecord;

constexpr double infinite = std::numeric_limits<double>::infinity();
constexpr double nan = std::numeric_limits<double>::quiet_NaN();

void add(RunTotals& totals, double loss, double milliseconds = 500) {
  StepRecord record;
  record.milliseconds = milliseconds;
  record.result.loss = loss;
  record.result.gradient_norm = 2 * loss;
  record.result.skipped = !std::isfinite(loss);
  totals.add(record);
}

TEST(RunTotals, GivesUpOnlyAfterConsecutiveSkippedSteps) {
  RunTotals totals(3);
  for (const double loss : {3.0, infinite, nan, 3.0, nan, nan, 2.5}) {
    add(totals, loss);
    EXPECT_FALSE(totals.gave_up()) << "after step " << totals.steps();
  }
  EXPECT_EQ(totals.skipped(), 4);
  for (int i = 0; i < 3; ++i) add(totals, nan);
  EXPECT_TRUE(totals.gave_up());
  EXPECT_EQ(totals.skipped_in_a_row(), 3);
  EXPECT_EQ(totals.skipped(), 7);
  EXPECT_EQ(totals.steps(), 10);
}

TEST(RunTotals, MeanLossExcludesSkippedSteps) {
  RunTotals totals(3);
  EXPECT_TRUE(std::isnan(totals.train_loss()));
  for (const double loss : {3.0, nan, 2.0}) add(totals, loss);
  EXPECT_DOUBLE_EQ(totals.train_loss(), 2.5);
}

// Such as a batch of padding, or of documents that end with each token.
TEST(RunTotals, StepsWithoutTargetsHaveNoLoss) {
  RunTotals totals(3);
  StepRecord without;
  without.result.loss = octavo::LossSum{}.mean();
  totals.add(without);
  for (const double loss : {3.0, 2.0}) add(totals, loss);
  totals.add(without);
  EXPECT_EQ(totals.first_loss(), 3.0);
  EXPECT_DOUBLE_EQ(totals.train_loss(), 2.5);
  EXPECT_EQ(totals.recent().size(), 2u);
  EXPECT_FALSE(totals.diverges());
  EXPECT_EQ(totals.skipped_in_a_row(), 0);
  EXPECT_EQ(totals.steps(), 4);
}

TEST(RunTotals, RateExcludesFirstStepIfThereAreMore) {
  RunTotals alone(3);
  add(alone, 3.0);
  EXPECT_DOUBLE_EQ(alone.tokens_per_second(100), 200);
  RunTotals totals(3);
  add(totals, 3.0, 2000);
  EXPECT_DOUBLE_EQ(totals.tokens_per_second(100), 50);
  add(totals, 3.0);
  EXPECT_DOUBLE_EQ(totals.tokens_per_second(100), 200);
}

TEST(RunTotals, RestoresItsState) {
  RunTotals first(4);
  for (int i = 0; i < 23; ++i) add(first, 3.0 - 0.1 * i);
  for (const double loss : {nan, 7.0, nan, nan}) add(first, loss);
  EXPECT_TRUE(first.diverges());
  RunTotals second(4);
  add(second, 1.0);  // of which nothing may be left but its time
  octavo::load_state_sync(octavo::save_state_sync(first.state()), second.state());
  EXPECT_EQ(second.steps(), 27);
  EXPECT_EQ(second.skipped(), 3);
  EXPECT_EQ(second.skipped_in_a_row(), 2);
  EXPECT_EQ(second.train_loss(), first.train_loss());
  EXPECT_TRUE(std::ranges::equal(second.recent(), first.recent(), [](auto& a, auto& b) {
    return a.loss == b.loss && a.gradient_norm == b.gradient_norm;
  }));
  EXPECT_EQ(second.first_loss(), 3.0);
  EXPECT_FALSE(second.diverges()) << "it was said before";
  add(first, 2.0);
  add(second, 2.0);
  EXPECT_EQ(second.train_loss(), first.train_loss());
  EXPECT_EQ(second.timed_steps(), 2);
  EXPECT_EQ(second.seconds(), 1.0);
  // One that is as new has no loss.
  octavo::load_state_sync(octavo::save_state_sync(RunTotals(4).state()), second.state());
  EXPECT_TRUE(std::isnan(second.train_loss()));
  EXPECT_EQ(RunTotals(4).tokens_per_second(100), 0.0);
}

TEST(RunTotals, CountsTokensOfEachStep) {
  RunTotals first(4);
  for (const double tokens : {64.0, 64.0, 192.0}) {
    StepRecord record;
    record.tokens = tokens;
    first.add(record);
  }
  EXPECT_EQ(first.tokens(), 320);
  RunTotals second(4);
  octavo::load_state_sync(octavo::save_state_sync(first.state()), second.state());
  EXPECT_EQ(second.tokens(), 320);
  StepRecord more;
  more.tokens = 8;
  second.add(more);
  EXPECT_EQ(second.tokens(), 328);
}

// Checkpoints of version 0.1.0 have zero there.
TEST(RunTotals, UncountedTokensAreUnknown) {
  RunTotals first(4);
  add(first, 3.0);
  RunTotals second(4);
  octavo::load_state_sync(octavo::save_state_sync(first.state()), second.state());
  EXPECT_EQ(second.steps(), 1);
  EXPECT_TRUE(std::isnan(second.tokens()));
}

TEST(RunTotals, ReportsDivergenceOnceAtTwiceFirstLoss) {
  RunTotals totals(3);
  for (const double loss : {3.0, 5.9, 4.0, 5.9}) {
    add(totals, loss);
    EXPECT_FALSE(totals.diverges()) << loss;
  }
  add(totals, 6.1);
  EXPECT_TRUE(totals.diverges());
  EXPECT_DOUBLE_EQ(totals.first_loss(), 3.0);
  add(totals, 9.0);
  EXPECT_FALSE(totals.diverges());
}

}  // namespace run_totals_test
