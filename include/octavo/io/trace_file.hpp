/// @file
/// Trace files of timelines, for chrome://tracing and ui.perfetto.dev.
#pragma once

#include <octavo/core/json_line.hpp>
#include <octavo/core/timeline.hpp>

#include <algorithm>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace octavo OCTAVO_ABI {

/// Returns the events of one rank, one per line: a process with one thread per track.
/// Source: "Trace Event Format", Google, complete events ("X") and metadata ("M"), times in µs.
[[nodiscard]] inline std::string trace_events(int rank, std::span<const TimelineSpan> spans) {
  std::string text;
  const auto add = [&text](const JsonLine& event) {
    text += (text.empty() ? "" : ",\n") + event.str();
  };
  const auto name = [&](const char* what, int thread, std::string_view value) {
    add(JsonLine{}
            .add("ph", "M")
            .add("name", what)
            .add("pid", rank)
            .add("tid", thread)
            .add("args", JsonLine{}.add("name", value)));
  };
  name("process_name", 0, message("rank ", rank));
  std::vector<std::string_view> tracks;
  for (const TimelineSpan& span : spans) {
    const auto found = std::ranges::find(tracks, span.track);
    const auto thread = static_cast<int>(found - tracks.begin());
    if (found == tracks.end()) {
      tracks.emplace_back(span.track);
      name("thread_name", thread, span.track);
    }
    add(JsonLine{}
            .add("ph", "X")
            .add("name", span.name)
            .add("cat", name_of(span.kind))
            .add("pid", rank)
            .add("tid", thread)
            .add("ts", span.begin)
            .add("dur", span.end - span.begin));
  }
  return text;
}

/// Returns the content of a trace file.
/// @param events  of each rank
[[nodiscard]] inline std::string trace_text(std::span<const std::string> events) {
  std::string text = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[";
  for (const std::string& of_rank : events) {
    text += (&of_rank == events.data() ? "\n" : ",\n") + of_rank;
  }
  return text + "\n]}\n";
}

}  // namespace octavo
