/// @file
/// The figures of a timeline: how long a step takes, and how long it waits for other ranks.
#pragma once

#include <octavo/core/timeline.hpp>

#include <algorithm>
#include <span>
#include <vector>

namespace octavo OCTAVO_ABI {

/// The figures of a timeline.
struct TimelineFigures {
  Index steps = 0;
  double step_milliseconds = 0;     ///< of a step, on average
  double exposed_milliseconds = 0;  ///< of a step in which the device communicates but does not
                                    ///< compute, on average
};

/// Computes the figures. Communication that overlaps with a stage costs no time; the rest is
/// exposed.
[[nodiscard]] inline TimelineFigures figures_of(std::span<const TimelineSpan> spans) {
  struct Change {
    double time;
    SpanKind kind;
    int by;  ///< 1: a span of this kind begins; −1: one ends
  };
  std::vector<Change> changes;
  for (const TimelineSpan& span : spans) {
    changes.push_back({span.begin, span.kind, 1});
    changes.push_back({span.end, span.kind, -1});
  }
  std::ranges::sort(changes, {}, &Change::time);
  int running[5]{};
  TimelineFigures figures;
  double before = 0;
  for (const Change& change : changes) {
    const auto runs = [&](SpanKind kind) { return running[static_cast<int>(kind)] > 0; };
    const double milliseconds = (change.time - before) / 1000;
    if (runs(SpanKind::step)) {
      figures.step_milliseconds += milliseconds;
      if (runs(SpanKind::communication) && !runs(SpanKind::compute)) {
        figures.exposed_milliseconds += milliseconds;
      }
    }
    before = change.time;
    running[static_cast<int>(change.kind)] += change.by;
    if (change.kind == SpanKind::step && change.by > 0) ++figures.steps;
  }
  if (figures.steps == 0) return figures;
  figures.step_milliseconds /= static_cast<double>(figures.steps);
  figures.exposed_milliseconds /= static_cast<double>(figures.steps);
  return figures;
}

}  // namespace octavo
