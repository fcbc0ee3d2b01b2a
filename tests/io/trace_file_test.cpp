// Traces are what chrome://tracing and Perfetto read: events of the format's names and units.
#include <octavo/io/trace_file.hpp>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace trace_file_test {

using namespace octavo;

TEST(TraceFile, HasProcessPerRankAndThreadPerTrack) {
  const std::vector<TimelineSpan> spans{
      {.kind = SpanKind::step, .track = "stages", .name = "step", .begin = 1.5, .end = 4001.5},
      {.kind = SpanKind::communication,
       .track = "lane",
       .name = "reduce \"blocks.3\"",
       .begin = 20,
       .end = 30.25},
      {.kind = SpanKind::compute, .track = "stages", .name = "optimizer", .begin = 40, .end = 50}};
  const std::vector<std::string> events{trace_events(0, spans), trace_events(1, {}),
                                        trace_events(2, std::vector{spans[2]})};
  const nlohmann::json trace = nlohmann::json::parse(trace_text(events));
  EXPECT_EQ(trace["displayTimeUnit"], "ms");
  std::map<int, std::string> processes;
  std::map<std::pair<int, int>, std::string> threads;
  std::vector<nlohmann::json> found;
  for (const nlohmann::json& event : trace["traceEvents"]) {
    if (event["ph"] == "X") {
      found.push_back(event);
      continue;
    }
    ASSERT_EQ(event["ph"], "M");
    const std::string name = event["args"]["name"];
    if (event["name"] == "process_name") {
      processes[event["pid"]] = name;
    } else {
      EXPECT_EQ(event["name"], "thread_name");
      threads[{event["pid"], event["tid"]}] = name;
    }
  }
  EXPECT_EQ(processes, (std::map<int, std::string>{{0, "rank 0"}, {1, "rank 1"}, {2, "rank 2"}}));
  ASSERT_EQ(found.size(), 4u);
  const auto track = [&](const nlohmann::json& event) {
    return threads[{event["pid"], event["tid"]}];
  };
  for (std::size_t i = 0; i < 4; ++i) {
    const TimelineSpan& span = i == 3 ? spans[2] : spans[i];
    EXPECT_EQ(found[i]["pid"], i == 3 ? 2 : 0);
    EXPECT_EQ(found[i]["name"], span.name);
    EXPECT_EQ(found[i]["cat"], name_of(span.kind));
    EXPECT_EQ(found[i]["ts"], span.begin);
    EXPECT_EQ(found[i]["dur"], span.end - span.begin);
    EXPECT_EQ(track(found[i]), span.track);
  }
}

}  // namespace trace_file_test
