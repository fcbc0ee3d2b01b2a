// How long a run will still take.
#include <common/progress.hpp>
#include <prepare_data/progress.hpp>

#include <gtest/gtest.h>

#include <optional>

namespace progress_test {

using programs::duration_text;
using programs::StepTime;
using programs::time_left_text;
using programs::tokens_text;

TEST(DurationText, HasTwoUnitsAtMost) {
  EXPECT_EQ(duration_text(0), "0 s");
  EXPECT_EQ(duration_text(59.4), "59 s");
  EXPECT_EQ(duration_text(59.6), "1 min 00 s");
  EXPECT_EQ(duration_text(754), "12 min 34 s");
  EXPECT_EQ(duration_text(3600), "1 h 00 min");
  EXPECT_EQ(duration_text(3600 * 27.5), "27 h 30 min");
  EXPECT_EQ(duration_text(3600 * 48), "2 d 00 h");
  EXPECT_EQ(duration_text(3600 * 51.4), "2 d 03 h");
  EXPECT_EQ(duration_text(3600 * 71.6), "3 d 00 h");
}

TEST(TokensText, HasThreeDigits) {
  EXPECT_EQ(tokens_text(0), "0");
  EXPECT_EQ(tokens_text(999), "999");
  EXPECT_EQ(tokens_text(1000), "1.00 k");
  EXPECT_EQ(tokens_text(8192), "8.19 k");
  EXPECT_EQ(tokens_text(524288), "524 k");
  EXPECT_EQ(tokens_text(999499), "999 k");
  EXPECT_EQ(tokens_text(999500), "1.00 M");
  EXPECT_EQ(tokens_text(9.996e6), "10.0 M");
  EXPECT_EQ(tokens_text(1.2e9), "1.20 B");
  EXPECT_EQ(tokens_text(15.4e12), "15.4 T");
  EXPECT_EQ(tokens_text(2e15), "2000 T");
}

TEST(TimeLeftText, CountsToLastStepOrTimeLimit) {
  EXPECT_EQ(time_left_text(90, 1e9), "1 min 30 s left");
  EXPECT_EQ(time_left_text(90, 30), "30 s left until --max-time");
  EXPECT_EQ(time_left_text(90, -1), "0 s left until --max-time");
  EXPECT_EQ(time_left_text(0, -1), "0 s left");
}

TEST(PreparationProgress, HasRatesAndTheTimeLeft) {
  using prepare_data::Progress;
  EXPECT_EQ(Progress(400, true).text(100, 3000, 2.0),
            "[=======                       ] 25 % | 3,000 tokens | 1,500 tokens/s | 6 s left");
  EXPECT_EQ(Progress(400, false).text(400, 1, 2.0), "100 % | 1 token | 0 tokens/s | 0 s left");
  EXPECT_EQ(Progress(std::nullopt, true).text(100, 3000, 2.0),
            "100 bytes | 3,000 tokens | 1,500 tokens/s");
}

TEST(StepTime, IsTheMeanOfTheStepsAfterTheFirst) {
  StepTime time;
  time.add(100);
  EXPECT_DOUBLE_EQ(time.left(3), 300);
  time.add(2);
  EXPECT_DOUBLE_EQ(time.left(10), 20);
  time.add(4);
  EXPECT_DOUBLE_EQ(time.left(10), 30);
}

TEST(StepTime, DoesNotJumpWhenOneStepIsSlow) {
  StepTime time;
  for (int i = 0; i < 200; ++i) time.add(1);
  time.add(11);  // an evaluation came between
  EXPECT_NEAR(time.left(100), 120, 1e-6);
}

TEST(StepTime, FollowsALastingChange) {
  StepTime time;
  for (int i = 0; i < 200; ++i) time.add(1);
  for (int i = 0; i < 250; ++i) time.add(2);
  EXPECT_NEAR(time.left(100), 200, 2);
}

}  // namespace progress_test
