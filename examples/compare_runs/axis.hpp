/// @file
/// The axis of a chart: its range, the positions of values, and the ticks.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <fmt/format.h>

namespace compare_runs {

enum class Scale { linear, logarithmic };

struct Axis {
  double low = 0, high = 1;
  Scale scale = Scale::linear;

  /// Returns 0 at `low`, 1 at `high`; values outside are outside [0, 1].
  double position(double value) const {
    return (transformed(value) - transformed(low)) / (transformed(high) - transformed(low));
  }

  bool can_show(double value) const {
    return std::isfinite(value) && (scale == Scale::linear || value > 0);
  }

 private:
  double transformed(double value) const {
    return scale == Scale::linear ? value : std::log10(value);
  }
};

/// Returns multiples of 1, 2 or 5 times a power of ten in [low, high], about `wanted` of them.
inline std::vector<double> linear_ticks(double low, double high, int wanted) {
  const double rough = (high - low) / wanted;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  const double lead = rough / power;
  const double step = power * (lead < 1.5 ? 1 : lead < 3.5 ? 2 : lead < 7.5 ? 5 : 10);
  std::vector<double> ticks;
  const double slack = step * 1e-6;
  for (double n = std::ceil((low - slack) / step); n * step <= high + slack; ++n)
    ticks.push_back(n * step);
  return ticks;
}

/// Returns powers of ten, thinned to about `wanted`; also 2 and 5 times them if the axis spans few.
inline std::vector<double> logarithmic_ticks(double low, double high, int wanted) {
  const int first = static_cast<int>(std::floor(std::log10(low)));
  const int last = static_cast<int>(std::ceil(std::log10(high)));
  const bool few = std::log10(high / low) < 2;
  const int stride = std::max(1, (last - first) / wanted);
  std::vector<double> ticks;
  for (int exponent = first; exponent <= last; exponent += stride)
    for (const double factor : {1.0, 2.0, 5.0}) {
      const double tick = factor * std::pow(10, exponent);
      if ((factor == 1 || few) && tick >= low && tick <= high) ticks.push_back(tick);
    }
  return ticks.size() > 1 ? ticks : linear_ticks(low, high, wanted);
}

inline std::vector<double> ticks(const Axis& axis, int wanted) {
  return axis.scale == Scale::linear ? linear_ticks(axis.low, axis.high, wanted)
                                     : logarithmic_ticks(axis.low, axis.high, wanted);
}

/// Formats 0, 0.5, 250, 2,000 as 2k, 1.5M.
inline std::string tick_text(double value) {
  const double size = std::abs(value);
  if (size < 1e-12) return "0";
  if (size >= 1e12 || size < 1e-4) return fmt::format("{:.3g}", value);
  if (size >= 1e9) return fmt::format("{:.6g}G", value / 1e9);
  if (size >= 1e6) return fmt::format("{:.6g}M", value / 1e6);
  if (size >= 1e3) return fmt::format("{:.6g}k", value / 1e3);
  return fmt::format("{:.6g}", value);
}

}  // namespace compare_runs
