// What the steps of a run add up to.
#include <octavo/train/tally.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace tally_test {

using octavo::StepRecord;
using octavo::Tally;

constexpr double infinite = std::numeric_limits<double>::infinity();
constexpr double nan = std::numeric_limits<double>::quiet_NaN();

void add(Tally& tally, double loss, double milliseconds = 500) {
  StepRecord record;
  record.milliseconds = milliseconds;
  record.result.loss = loss;
  record.result.skipped = !std::isfinite(loss);
  tally.add(record);
}

TEST(Tally, GivesUpAfterSkippedStepsInARowOnly) {
  Tally tally(3);
  for (const double loss : {3.0, infinite, nan, 3.0, nan, nan, 2.5}) {
    add(tally, loss);
    EXPECT_FALSE(tally.gave_up()) << "after step " << tally.steps();
  }
  EXPECT_EQ(tally.skipped(), 4);
  for (int i = 0; i < 3; ++i) add(tally, nan);
  EXPECT_TRUE(tally.gave_up());
  EXPECT_EQ(tally.skipped_in_a_row(), 3);
  EXPECT_EQ(tally.skipped(), 7);
  EXPECT_EQ(tally.steps(), 10);
}

TEST(Tally, TheMeanLossIsThatOfStepsThatCounted) {
  Tally tally(3);
  EXPECT_TRUE(std::isnan(tally.train_loss()));
  for (const double loss : {3.0, nan, 2.0}) add(tally, loss);
  EXPECT_DOUBLE_EQ(tally.train_loss(), 2.5);
}

TEST(Tally, TheRateIsWithoutTheFirstStepWhereThereIsAnother) {
  Tally alone(3);
  add(alone, 3.0);
  EXPECT_DOUBLE_EQ(alone.tokens_per_second(100), 200);
  Tally tally(3);
  add(tally, 3.0, 2000);
  EXPECT_DOUBLE_EQ(tally.tokens_per_second(100), 50);
  add(tally, 3.0);
  EXPECT_DOUBLE_EQ(tally.tokens_per_second(100), 200);
}

TEST(Tally, WarnsOnceOfALossTwiceTheFirst) {
  Tally tally(3);
  for (const double loss : {3.0, 5.9, 4.0, 5.9}) {
    add(tally, loss);
    EXPECT_FALSE(tally.diverges()) << loss;
  }
  add(tally, 6.1);
  EXPECT_TRUE(tally.diverges());
  EXPECT_DOUBLE_EQ(tally.first_loss(), 3.0);
  add(tally, 9.0);
  EXPECT_FALSE(tally.diverges());
}

}  // namespace tally_test
