// Estimates the remaining time of a run.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>

namespace programs {

/// "45 s", "12 min 05 s", "3 h 07 min".
inline std::string duration_text(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "?";
  const auto whole = std::llround(std::min(seconds, 1e12));
  char text[64];
  if (whole < 60) {
    std::snprintf(text, sizeof text, "%lld s", whole);
  } else if (whole < 3600) {
    std::snprintf(text, sizeof text, "%lld min %02lld s", whole / 60, whole % 60);
  } else {
    const long long minutes = (whole + 30) / 60;
    std::snprintf(text, sizeof text, "%lld h %02lld min", minutes / 60, minutes % 60);
  }
  return text;
}

/// Smoothed seconds per step: all steps have the same weight at first; later, about the last 50
/// count. The first step is dropped after the second, because it includes preparation.
class StepTime {
 public:
  void add(double seconds) {
    ++count_;
    const double weight = 1.0 / std::clamp(count_ - 1.0, 1.0, 50.0);
    mean_ += weight * (seconds - mean_);
  }

  /// Returns the seconds that `steps` more steps will take.
  [[nodiscard]] double left(double steps) const { return mean_ * steps; }

 private:
  double count_ = 0;
  double mean_ = 0;
};

}  // namespace programs
