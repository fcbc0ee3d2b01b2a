/// @file
/// The cost of runs: time, floating-point operations, and the share of the cards' peak.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <common/text.hpp>
#include "run.hpp"

namespace compare_runs {

/// BF16 peak of the cards that Octavo trains on, in TFLOP/s, without sparsity. A GH200 matches an
/// H200.
struct CardPeak {
  std::string_view name;  ///< part of the card's name
  double tflops;
};

/// The first match counts. Source: NVIDIA's data sheets of these cards.
inline constexpr std::array card_peaks{CardPeak{"H100 PCIe", 756}, CardPeak{"H800 PCIe", 756},
                                       CardPeak{"H100 NVL", 835},  CardPeak{"H200 NVL", 835},
                                       CardPeak{"H100", 989.4},    CardPeak{"H200", 989.4},
                                       CardPeak{"H800", 989.4},    CardPeak{"H20", 148}};

/// Returns a card's BF16 peak in TFLOP/s, if it is known; that of a part of a card is not.
inline std::optional<double> peak_of(std::string_view card) {
  if (card.find("MIG") != std::string_view::npos) return {};
  for (const CardPeak& peak : card_peaks) {
    if (card.find(peak.name) != std::string_view::npos) return peak.tflops;
  }
  return {};
}

/// Figures over all steps that count. A missing number is unknown; a non-finite one was not finite.
struct Speed {
  double seconds = 0;                       ///< of steps only
  std::optional<double> milliseconds;       ///< median per step
  std::optional<double> tokens_per_second;  ///< median, of all ranks
  std::optional<double> tflops;             ///< TFLOP/s per card
  std::optional<double> mfu;                ///< fraction: model FLOPs utilisation
};

/// Returns the median of the positive values, if there are any.
inline std::optional<double> median(std::vector<double> values) {
  std::erase_if(values, [](double value) { return !std::isfinite(value) || value <= 0; });
  if (values.empty()) return {};
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

inline Speed speed_of(const Run& run) {
  Speed speed;
  std::vector<double> milliseconds, rates;
  for (const Step& step : run.steps) {
    milliseconds.push_back(step.milliseconds);
    rates.push_back(step.tokens_per_second);
    if (std::isfinite(step.milliseconds)) speed.seconds += step.milliseconds / 1000;
  }
  speed.milliseconds = median(std::move(milliseconds));
  speed.tokens_per_second = median(std::move(rates));
  const Configuration& c = run.configuration;
  if (!speed.tokens_per_second || !(c.flops_per_token > 0) || run.has_other_ranks) return speed;
  speed.tflops = *speed.tokens_per_second * c.flops_per_token / 1e12 / static_cast<double>(c.ranks);
  if (const auto peak = peak_of(c.card)) speed.mfu = *speed.tflops / *peak;
  return speed;
}

/// Returns the nearest integer from 0 to 10¹⁸.
inline std::uint64_t rounded(double value) {
  return static_cast<std::uint64_t>(std::llround(std::clamp(value, 0.0, 1e18)));
}

/// Formats 1:02:03, or 4.5 s below a minute.
inline std::string duration_text(double seconds) {
  if (seconds < 60) return fmt::format("{:.1f} s", seconds);
  const std::uint64_t whole = rounded(seconds);
  return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

inline std::string loss_text(double loss) { return fmt::format("{:.4f}", loss); }

/// Formats whole tokens per second.
inline std::string rate_text(double tokens_per_second) {
  return grouped(rounded(tokens_per_second));
}

/// Formats a number with `show`; "-" if it is unknown, "not finite" if it was not finite.
template <class Show>
std::string number_cell(const std::optional<double>& value, const Show& show) {
  if (!value) return "-";
  return std::isfinite(*value) ? show(*value) : "not finite";
}

inline const std::vector<std::string> speed_head{"run",     "runtime", "ms/step", "tokens/s",
                                                 "TFLOP/s", "MFU",     "speed-up"};

/// @param label  label of the run
/// @param first  speed of the first run, to compare `speed` with
inline std::vector<std::string> speed_cells(const std::string& label, const Speed& speed,
                                            const Speed& first) {
  std::optional<double> speed_up;
  if (speed.tokens_per_second && first.tokens_per_second)
    speed_up = *speed.tokens_per_second / *first.tokens_per_second;
  return {
      label,
      speed.seconds > 0 ? duration_text(speed.seconds) : "-",
      number_cell(speed.milliseconds, [](double value) { return fmt::format("{:.1f}", value); }),
      number_cell(speed.tokens_per_second, rate_text),
      number_cell(speed.tflops, [](double value) { return fmt::format("{:.4g}", value); }),
      number_cell(speed.mfu, [](double value) { return fmt::format("{:.1f} %", 100 * value); }),
      number_cell(speed_up, [](double value) { return fmt::format("{:.2f} x", value); })};
}

}  // namespace compare_runs
