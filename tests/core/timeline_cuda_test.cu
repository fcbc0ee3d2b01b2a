// Spans of the Cuda device are when its streams work, not when the host enqueues.
#include <octavo/core/cuda/lane.cuh>
#include <octavo/core/cuda/timeline.cuh>

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "support/on_gpu.cuh"

namespace octavo::timeline_cuda_test {

constexpr int work_milliseconds = 20;

/// Keeps a stream busy for a time.
void CUDART_CB wait(void*) {
  std::this_thread::sleep_for(std::chrono::milliseconds(work_milliseconds));
}
void work(const Context<Cuda>& context) {
  check(cudaLaunchHostFunc(context.stream(), wait, nullptr), "cudaLaunchHostFunc");
}

class TimelineOnCuda : public support::OnGpu {};

TEST_F(TimelineOnCuda, SpansFollowStreamOrder) {
  Context<Cuda> context(0);
  const Lane<Cuda> lane(context);
  Timeline<Cuda> timeline;
  timeline.begin();
  for (int step = 0; step < 2; ++step) {
    const auto begin = std::chrono::steady_clock::now();
    timeline.begin_step_sync(context);
    timeline.begin_stage("first", nullptr, context);
    work(context);
    timeline.end_stage(context);
    lane.fork();
    {
      const auto scope = timeline.communication("lane", "reduce", nullptr, lane.context());
      work(lane.context());
    }
    timeline.begin_stage("second", nullptr, context);
    work(context);
    timeline.end_stage(context);
    lane.join();
    context.synchronize();
    timeline.end_step_sync(context);
    const std::vector<TimelineSpan> spans = timeline.end();
    ASSERT_EQ(spans.size(), 4u);
    const TimelineSpan& first = spans[1];
    const TimelineSpan& reduce = spans[2];
    const TimelineSpan& second = spans[3];
    for (const TimelineSpan* span : {&first, &reduce, &second}) {
      EXPECT_GE(span->end - span->begin, 900.0 * work_milliseconds) << span->name;
      EXPECT_GE(span->begin, spans[0].begin - 50) << span->name;
      EXPECT_LE(span->end, spans[0].end + 50) << span->name;
    }
    EXPECT_GE(reduce.begin, first.end - 50);
    EXPECT_GE(second.begin, first.end - 50);
    EXPECT_GE(spans[0].end - spans[0].begin, 1900.0 * work_milliseconds);
    const std::chrono::duration<double, std::micro> host = std::chrono::steady_clock::now() - begin;
    EXPECT_LE(spans[0].end - spans[0].begin, host.count());
    timeline.begin();
  }
}

}  // namespace octavo::timeline_cuda_test
