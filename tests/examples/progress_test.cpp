// How long a run will still take.
#include <common/progress.hpp>
#include <prepare_data/progress.hpp>

#include <gtest/gtest.h>

#include <optional>

namespace progress_test {

using programs::duration_text;
using programs::StepTime;

TEST(DurationText, HasTwoUnitsAtMost) {
  EXPECT_EQ(duration_text(0), "0 s");
  EXPECT_EQ(duration_text(59.4), "59 s");
  EXPECT_EQ(duration_text(59.6), "1 min 00 s");
  EXPECT_EQ(duration_text(754), "12 min 34 s");
  EXPECT_EQ(duration_text(3600), "1 h 00 min");
  EXPECT_EQ(duration_text(3600 * 27.5), "27 h 30 min");
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
