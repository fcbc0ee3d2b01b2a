// The timeline of a step of ranks: its stages, and the operations between ranks where they belong.
#include <octavo/core/timeline_figures.hpp>
#include <octavo/parallel/data_parallel.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "support/small_model.hpp"
#include "support/thread_ranks.hpp"

namespace train_timeline_test {

using namespace octavo;
using Session = ModelSession<support::SmallModel<support::MixedPrecision>, AdamW<>, DataParallel<>>;

constexpr int steps = 2;

/// Each rank's spans of two steps, behind one and before one that are not timed.
/// @param late  milliseconds by which rank 1 comes later than others to the timeline's begin
std::vector<std::vector<TimelineSpan>> timelines(int ranks, Zero zero, int late = 0) {
  std::vector<std::vector<TimelineSpan>> result(static_cast<std::size_t>(ranks));
  support::on_ranks(ranks, [&](support::ThreadComm& communicator) {
    Context<Cpu> context{1};
    SessionOptions options = support::small_options();
    options.batch = {1, 48};
    options.sharding.zero = zero;
    Session session(options, context, communicator);
    const auto step = [&](unsigned number) {
      const auto batch = support::make_batch(48, support::small.vocabulary, number);
      EXPECT_FALSE(session.step({batch.tokens, batch.targets}, 1e-3).skipped);
    };
    step(0);
    std::this_thread::sleep_for(std::chrono::milliseconds(communicator.rank() * late));
    session.begin_timeline_sync();
    for (unsigned i = 1; i <= steps; ++i) step(i);
    result[static_cast<std::size_t>(communicator.rank())] = session.end_timeline();
    step(9);
    EXPECT_TRUE(session.end_timeline().empty());
  });
  return result;
}

std::vector<TimelineSpan> named(const std::vector<TimelineSpan>& spans, SpanKind kind,
                                const std::string& name) {
  std::vector<TimelineSpan> found;
  std::ranges::copy_if(spans, std::back_inserter(found), [&](const TimelineSpan& span) {
    return span.kind == kind && span.name == name;
  });
  return found;
}

class TimelineOfRanks : public testing::TestWithParam<Zero> {};
INSTANTIATE_TEST_SUITE_P(Stages, TimelineOfRanks, testing::Values(Zero::optimizer, Zero::weights));

TEST_P(TimelineOfRanks, OrdersStagesAndOperationsOfEachStep) {
  const std::vector<std::string> runs{"embedding.weight", "blocks.0", "blocks.1", "blocks.2",
                                      "final_norm.weight to head.weight"};
  for (const std::vector<TimelineSpan>& spans : timelines(2, GetParam())) {
    const auto of = [&](SpanKind kind, const std::string& name) {
      std::vector<TimelineSpan> found = named(spans, kind, name);
      EXPECT_EQ(found.size(), std::size_t{steps}) << name;
      found.resize(steps);
      return found;
    };
    const auto whole = of(SpanKind::step, "step");
    const auto forward = of(SpanKind::phase, "forward");
    const auto backward = of(SpanKind::phase, "backward");
    const auto optimizer = of(SpanKind::compute, "optimizer");
    const auto sums = of(SpanKind::communication, "sums");
    const auto is_within = [](const TimelineSpan& part, const TimelineSpan& span) {
      EXPECT_GE(part.begin, span.begin) << part.name << " in " << span.name;
      EXPECT_LE(part.end, span.end) << part.name << " in " << span.name;
    };
    for (std::size_t i = 0; i < steps; ++i) {
      for (const auto* phase : {&forward, &backward, &optimizer, &sums}) {
        is_within((*phase)[i], whole[i]);
      }
      EXPECT_LE(forward[i].end, backward[i].begin);
      EXPECT_LE(backward[i].end, sums[i].begin);
      EXPECT_LE(sums[i].end, optimizer[i].begin);
    }
    for (const std::string& run : runs) {
      const auto forwards = of(SpanKind::compute, "forward " + run);
      const auto backwards = of(SpanKind::compute, "backward " + run);
      const auto reduces = of(SpanKind::communication, "reduce " + run);
      const auto gathers = named(spans, SpanKind::communication, "gather " + run);
      ASSERT_GE(gathers.size(), std::size_t{steps}) << run;
      for (std::size_t i = 0; i < steps; ++i) {
        is_within(forwards[i], forward[i]);
        is_within(backwards[i], backward[i]);
        is_within(reduces[i], backward[i]);
        EXPECT_GE(reduces[i].begin, backwards[i].end) << run;
        is_within(gathers[i * gathers.size() / steps], forward[i]);
      }
    }
    // The one block in FP8.
    EXPECT_EQ(named(spans, SpanKind::compute, "cast blocks.1").size(), std::size_t{steps});
    EXPECT_TRUE(named(spans, SpanKind::compute, "cast blocks.0").empty());
    // What the one device does at once is not beside anything.
    const TimelineFigures figures = figures_of(spans);
    double communication = 0;
    for (const TimelineSpan& span : spans) {
      if (span.kind == SpanKind::communication) communication += span.end - span.begin;
    }
    EXPECT_EQ(figures.steps, steps);
    EXPECT_NEAR(figures.exposed_milliseconds * steps * 1000, communication, 1e-6 * communication);
    EXPECT_LT(figures.exposed_milliseconds, figures.step_milliseconds);
  }
}

TEST(TimelineOfRanks, RanksShareTimeOrigin) {
  constexpr int late = 400;
  const auto all = timelines(2, Zero::optimizer, late);
  // No rank can leave an exchange before the other has come to it.
  const auto first = named(all[0], SpanKind::communication, "sums");
  const auto second = named(all[1], SpanKind::communication, "sums");
  for (std::size_t i = 0; i < steps; ++i) {
    const double both = std::max(first[i].begin, second[i].begin);
    // Threads may have to wait for a processor between the exchange and their clock.
    EXPECT_GT(std::min(first[i].end, second[i].end), both - 1000.0 * late / 2);
  }
}

}  // namespace train_timeline_test
