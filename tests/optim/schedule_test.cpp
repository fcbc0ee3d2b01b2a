#include <gtest/gtest.h>
#include <octavo/optim/schedule.hpp>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>

namespace schedule_test {

using octavo::Schedule;
using octavo::ScheduleKind;

/// 10 steps of warm-up to 2.0, then 100 steps down to a quarter of it.
Schedule schedule(ScheduleKind kind) {
  return {.kind = kind,
          .learning_rate = 2.0,
          .final_fraction = 0.25,
          .warmup_steps = 10,
          .steps = 110,
          .decay_fraction = 0.2};
}

TEST(Schedule, WarmsUpLinearlyFromFirstStep) {
  for (const ScheduleKind kind : {ScheduleKind::cosine, ScheduleKind::linear,
                                  ScheduleKind::constant, ScheduleKind::warmup_stable_decay}) {
    EXPECT_DOUBLE_EQ(schedule(kind).at(1), 0.2);
    EXPECT_DOUBLE_EQ(schedule(kind).at(5), 1.0);
    EXPECT_DOUBLE_EQ(schedule(kind).at(10), 2.0);
    EXPECT_LE(schedule(kind).at(11), 2.0);
  }
}

// 0.5 + 1.5 · (1 + cos(π · progress)) / 2.
TEST(Schedule, CosineMatchesFormula) {
  const Schedule cosine = schedule(ScheduleKind::cosine);
  EXPECT_NEAR(cosine.at(35), 0.5 + 1.5 * (1.0 + std::sqrt(0.5)) / 2.0, 1e-12);
  EXPECT_NEAR(cosine.at(60), 1.25, 1e-12);
  EXPECT_NEAR(cosine.at(85), 0.5 + 1.5 * (1.0 - std::sqrt(0.5)) / 2.0, 1e-12);
  EXPECT_NEAR(cosine.at(110), 0.5, 1e-12);
}

TEST(Schedule, LinearMatchesFormula) {
  const Schedule linear = schedule(ScheduleKind::linear);
  EXPECT_NEAR(linear.at(20), 1.85, 1e-12);
  EXPECT_NEAR(linear.at(60), 1.25, 1e-12);
  EXPECT_NEAR(linear.at(110), 0.5, 1e-12);
}

TEST(Schedule, ConstantStaysConstant) {
  const Schedule constant = schedule(ScheduleKind::constant);
  for (const std::int64_t step : {11, 60, 110, 1000}) EXPECT_DOUBLE_EQ(constant.at(step), 2.0);
}

// A fifth of 110 steps is 22: stable up to step 88, down from 89 on.
TEST(Schedule, WarmupStableDecayMatchesFormula) {
  const Schedule wsd = schedule(ScheduleKind::warmup_stable_decay);
  EXPECT_DOUBLE_EQ(wsd.at(11), 2.0);
  EXPECT_NEAR(wsd.at(88), 2.0, 1e-12);
  EXPECT_NEAR(wsd.at(89), 2.0 - 1.5 / 22.0, 1e-12);
  EXPECT_NEAR(wsd.at(99), 1.25, 1e-12);
  EXPECT_NEAR(wsd.at(110), 0.5, 1e-12);
}

TEST(Schedule, StaysAtFinalRateAfterLastStep) {
  for (const ScheduleKind kind :
       {ScheduleKind::cosine, ScheduleKind::linear, ScheduleKind::warmup_stable_decay}) {
    EXPECT_NEAR(schedule(kind).at(111), 0.5, 1e-12);
    EXPECT_NEAR(schedule(kind).at(100000), 0.5, 1e-12);
  }
}

TEST(Schedule, DecaysFromFirstStepWithoutWarmup) {
  Schedule linear = schedule(ScheduleKind::linear);
  linear.warmup_steps = 0;
  linear.steps = 10;
  linear.final_fraction = 0.0;
  EXPECT_NEAR(linear.at(1), 1.8, 1e-12);
  EXPECT_NEAR(linear.at(10), 0.0, 1e-12);
}

TEST(Schedule, StaysFiniteWithoutDecaySteps) {
  Schedule wsd = schedule(ScheduleKind::warmup_stable_decay);
  wsd.decay_fraction = 0.0;
  EXPECT_DOUBLE_EQ(wsd.at(109), 2.0);
  EXPECT_DOUBLE_EQ(wsd.at(110), 2.0);
}

TEST(Schedule, RejectsNumbersWithoutMeaning) {
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  constexpr double infinity = std::numeric_limits<double>::infinity();
  const auto refused = [](const auto& change) {
    Schedule wrong = schedule(ScheduleKind::warmup_stable_decay);
    change(wrong);
    EXPECT_THROW(wrong.check(), octavo::ConfigError);
    EXPECT_THROW((void)wrong.at(1), octavo::ConfigError);
  };
  for (const double number : {-0.1, nan, infinity}) {
    refused([&](Schedule& wrong) { wrong.learning_rate = number; });
    refused([&](Schedule& wrong) { wrong.final_fraction = number; });
    refused([&](Schedule& wrong) { wrong.decay_fraction = number; });
  }
  refused([](Schedule& wrong) { wrong.decay_fraction = 1.1; });
  refused([](Schedule& wrong) { wrong.warmup_steps = -1; });
  refused([](Schedule& wrong) { wrong.steps = 0; });
  EXPECT_THROW((void)schedule(ScheduleKind::cosine).at(0), octavo::ConfigError);
  EXPECT_NO_THROW(schedule(ScheduleKind::cosine).check());
}

TEST(Schedule, WarmupLongerThanRunStillRisesLinearly) {
  for (const ScheduleKind kind : {ScheduleKind::cosine, ScheduleKind::linear,
                                  ScheduleKind::constant, ScheduleKind::warmup_stable_decay}) {
    Schedule short_run = schedule(kind);
    short_run.steps = 4;
    EXPECT_DOUBLE_EQ(short_run.at(1), 0.2);
    EXPECT_DOUBLE_EQ(short_run.at(4), 0.8);
  }
}

}  // namespace schedule_test
