// The progress of a run, and an estimate of its remaining time.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <string>

namespace programs {

/// "45 s", "12 min 05 s", "3 h 07 min", "2 d 03 h".
inline std::string duration_text(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "?";
  const auto whole = std::llround(std::min(seconds, 1e12));
  char text[64];
  if (whole < 60) {
    std::snprintf(text, sizeof text, "%lld s", whole);
  } else if (whole < 3600) {
    std::snprintf(text, sizeof text, "%lld min %02lld s", whole / 60, whole % 60);
  } else if (whole < 48 * 3600) {
    const long long minutes = (whole + 30) / 60;
    std::snprintf(text, sizeof text, "%lld h %02lld min", minutes / 60, minutes % 60);
  } else {
    const long long hours = (whole + 1800) / 3600;
    std::snprintf(text, sizeof text, "%lld d %02lld h", hours / 24, hours % 24);
  }
  return text;
}

/// A number of tokens with three digits: "512", "8.19 k", "1.23 M", "500 B".
inline std::string tokens_text(double tokens) {
  constexpr std::array units{"", " k", " M", " B", " T"};
  std::size_t unit = 0;
  // From 999.5 on, three digits would round up to the next unit.
  for (; tokens >= 999.5 && unit + 1 < units.size(); ++unit) tokens /= 1000;
  const int decimals = unit == 0 || tokens >= 99.95 ? 0 : tokens >= 9.995 ? 1 : 2;
  char text[64];
  std::snprintf(text, sizeof text, "%.*f%s", decimals, tokens, units[unit]);
  return text;
}

/// The remaining time of a run that ends after its last step, or earlier at a time limit:
/// "2 d 03 h left", "45 min 00 s left until --max-time".
/// @param by_steps  seconds that the remaining steps take
/// @param by_time   seconds until the time limit
inline std::string time_left_text(double by_steps, double by_time) {
  const double to_limit = std::max(by_time, 0.0);
  if (to_limit < by_steps) return duration_text(to_limit) + " left until --max-time";
  return duration_text(by_steps) + " left";
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
