// What a timeline comes to, against answers by hand, and what reports to one.
#include <octavo/core/timeline.hpp>
#include <octavo/core/timeline_figures.hpp>

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

namespace timeline_test {

using namespace octavo;

/// Of a name and a track that figures do not look at.
TimelineSpan span(SpanKind kind, double begin, double end) {
  return {.kind = kind, .track = "", .name = "", .begin = begin, .end = end};
}
using enum SpanKind;

TEST(TimelineFigures, OverlappedCommunicationIsNotExposed) {
  const TimelineFigures figures =
      figures_of(std::vector{span(step, 0, 10'000), span(compute, 1000, 9000),
                             span(communication, 2000, 8000), span(communication, 7000, 9000)});
  EXPECT_EQ(figures.steps, 1);
  EXPECT_DOUBLE_EQ(figures.step_milliseconds, 10);
  EXPECT_DOUBLE_EQ(figures.exposed_milliseconds, 0);
}

// Two steps. In the first, an operation begins under a stage and outlasts it by 2 ms, and another
// runs at the same time for the last one of these: time counts once. A phase is no stage, and a
// copy no communication. In the second, an operation lies half before the step: 1.5 ms of it are in
// it, of which a stage covers 1 ms.
TEST(TimelineFigures, CountUncoveredCommunicationAsExposed) {
  const std::vector<TimelineSpan> spans{
      span(step, 1000, 11'000),        span(phase, 1000, 11'000),
      span(compute, 2000, 5000),       span(communication, 4000, 7000),
      span(communication, 6000, 7000), span(compute, 7000, 11'000),
      span(copy, 2500, 6500),          span(communication, 13'500, 16'500),
      span(step, 15'000, 21'000),      span(compute, 15'500, 21'000)};
  const TimelineFigures figures = figures_of(spans);
  EXPECT_EQ(figures.steps, 2);
  EXPECT_DOUBLE_EQ(figures.step_milliseconds, (10.0 + 6.0) / 2);
  EXPECT_DOUBLE_EQ(figures.exposed_milliseconds, (2.0 + 0.5) / 2);
}

TEST(TimelineFigures, AreZeroWithoutSpans) {
  EXPECT_EQ(figures_of({}).steps, 0);
  EXPECT_EQ(figures_of({}).exposed_milliseconds, 0);
}

/// A step of two stages, two operations and a copy.
void report_step(Timeline<Cpu>& timeline, const int& block, const Context<Cpu>& context) {
  timeline.begin_step_sync(context);
  {
    const auto scope = timeline.host_communication("targets");
  }
  timeline.begin_phase("forward", context);
  timeline.begin_stage("forward", &block, context);
  timeline.enter_phase("backward", context);
  timeline.enter_phase("backward", context);
  timeline.begin_stage("backward", &block, context);
  timeline.end_stage(context);
  {
    const auto scope = timeline.communication("lane", "reduce", &block, context);
  }
  {
    const auto scope = timeline.copy("to host", "store", context);
  }
  timeline.end_phase(context);
  timeline.begin_stage("optimizer", nullptr, context);
  timeline.end_stage(context);
  timeline.end_step_sync(context);
}

TEST(Timeline, RecordsStepsOnlyWhileEnabled) {
  Context<Cpu> context(1);
  Timeline<Cpu> timeline;
  const int block = 0;
  timeline.set_name(&block, "blocks.0");
  report_step(timeline, block, context);
  EXPECT_TRUE(timeline.end().empty()) << "it was off";
  timeline.begin();
  for (int i = 0; i < 2; ++i) report_step(timeline, block, context);
  const std::vector<TimelineSpan> spans = timeline.end();
  report_step(timeline, block, context);
  EXPECT_TRUE(timeline.end().empty()) << "it was off";

  const std::vector<TimelineSpan> expected{
      {.kind = step, .track = "stages", .name = "step"},
      {.kind = communication, .track = "host", .name = "targets"},
      {.kind = phase, .track = "stages", .name = "forward"},
      {.kind = compute, .track = "stages", .name = "forward blocks.0"},
      {.kind = phase, .track = "stages", .name = "backward"},
      {.kind = compute, .track = "stages", .name = "backward blocks.0"},
      {.kind = communication, .track = "lane", .name = "reduce blocks.0"},
      {.kind = copy, .track = "to host", .name = "store"},
      {.kind = compute, .track = "stages", .name = "optimizer"}};
  ASSERT_EQ(spans.size(), 2 * expected.size());
  for (std::size_t i = 0; i < spans.size(); ++i) {
    const TimelineSpan& found = spans[i];
    EXPECT_EQ(found.kind, expected[i % expected.size()].kind) << i;
    EXPECT_EQ(std::string(found.track), expected[i % expected.size()].track) << i;
    EXPECT_EQ(found.name, expected[i % expected.size()].name) << i;
    EXPECT_LE(found.begin, found.end) << i;
    EXPECT_GE(found.begin, 0) << i;
    EXPECT_LE(spans[i == 0 ? 0 : i - 1].begin, found.begin) << i;
  }
  EXPECT_LE(spans[3].end, spans[4].begin) << "a phase ends with its stages";
  EXPECT_GE(spans[4].end, spans[6].end);
  EXPECT_GE(spans[0].end, spans[8].end);
  EXPECT_GE(spans[9].begin, spans[0].end);
}

TEST(Timeline, DropsStepThatThrew) {
  Context<Cpu> context(1);
  Timeline<Cpu> timeline;
  timeline.begin();
  timeline.begin_step_sync(context);
  timeline.begin_phase("forward", context);
  timeline.begin_stage("forward", nullptr, context);
  const int block = 0;
  report_step(timeline, block, context);
  const std::vector<TimelineSpan> spans = timeline.end();
  EXPECT_EQ(spans.size(), 9u);
  EXPECT_EQ(figures_of(spans).steps, 1);
}

// What an evaluation reports then is of no step.
TEST(Timeline, DropsAbandonedStep) {
  Context<Cpu> context(1);
  Timeline<Cpu> timeline;
  timeline.begin();
  timeline.begin_step_sync(context);
  timeline.begin_stage("forward", nullptr, context);
  timeline.abandon();
  timeline.begin_stage("forward", nullptr, context);
  timeline.end_step_sync(context);
  EXPECT_TRUE(timeline.end().empty());
}

}  // namespace timeline_test
