/// @file
/// What runs cost: time, floating-point operations, and the share of what their cards can do.
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

/// The most that a card of those that Octavo trains on multiplies and adds in BF16, in TFLOP/s,
/// without sparsity. A GH200 is found as an H200.
struct CardPeak {
  std::string_view name;  ///< what the card's name has in it
  double tflops;
};

/// The first that fits counts.
/// Source: NVIDIA's data sheets of these cards.
inline constexpr std::array card_peaks{CardPeak{"H100 PCIe", 756}, CardPeak{"H800 PCIe", 756},
                                       CardPeak{"H100 NVL", 835},  CardPeak{"H200 NVL", 835},
                                       CardPeak{"H100", 989.4},    CardPeak{"H200", 989.4},
                                       CardPeak{"H800", 989.4},    CardPeak{"H20", 148}};

/// TFLOP/s of BF16 that a card reaches at most, if it is known: of a part of one it is not.
inline std::optional<double> peak_of(std::string_view card) {
  if (card.find("MIG") != std::string_view::npos) return {};
  for (const CardPeak& peak : card_peaks) {
    if (card.find(peak.name) != std::string_view::npos) return peak.tflops;
  }
  return {};
}

/// Of all steps that count. An absent number is not known, and one that is not finite was not.
struct Speed {
  std::optional<double> least_loss, last_loss;  ///< of validation
  double seconds = 0;                           ///< of steps alone
  std::optional<double> milliseconds;           ///< of a step, the median
  std::optional<double> tokens_per_second;      ///< likewise, of all ranks
  std::optional<double> tflops;                 ///< TFLOP/s of a card
  std::optional<double> mfu;                    ///< of 1: model FLOPs utilisation
};

/// Of the values that are above zero, if there are any.
inline std::optional<double> median(std::vector<double> values) {
  std::erase_if(values, [](double value) { return !std::isfinite(value) || value <= 0; });
  if (values.empty()) return {};
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

inline Speed speed_of(const Run& run) {
  Speed speed;
  for (const Evaluation& evaluation : run.evaluations) {
    if (!speed.least_loss || evaluation.loss < *speed.least_loss || std::isnan(*speed.least_loss))
      speed.least_loss = evaluation.loss;
    speed.last_loss = evaluation.loss;
  }
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

/// The nearest of the numbers 0, 1, … 10¹⁸.
inline std::uint64_t rounded(double value) {
  return static_cast<std::uint64_t>(std::llround(std::clamp(value, 0.0, 1e18)));
}

/// 1:02:03, or 4.5 s below a minute.
inline std::string duration_text(double seconds) {
  if (seconds < 60) return fmt::format("{:.1f} s", seconds);
  const std::uint64_t whole = rounded(seconds);
  return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

inline std::string loss_text(double loss) { return fmt::format("{:.4f}", loss); }

/// Whole tokens a second.
inline std::string rate_text(double tokens_per_second) {
  return grouped(rounded(tokens_per_second));
}

/// A number as `show` writes it; "-" where it is not known, "not finite" where it was not.
template <class Show>
std::string number_cell(const std::optional<double>& value, const Show& show) {
  if (!value) return "-";
  return std::isfinite(*value) ? show(*value) : "not finite";
}

inline const std::vector<std::string> speed_head{"recipe",  "min loss", "final loss",
                                                 "runtime", "ms/step",  "tokens/s",
                                                 "TFLOP/s", "MFU",      "speed-up"};

/// @param label  of the run
/// @param first  what `speed` is held against: of the first run
inline std::vector<std::string> speed_cells(const std::string& label, const Speed& speed,
                                            const Speed& first) {
  std::optional<double> speed_up;
  if (speed.tokens_per_second && first.tokens_per_second)
    speed_up = *speed.tokens_per_second / *first.tokens_per_second;
  return {
      label,
      number_cell(speed.least_loss, loss_text),
      number_cell(speed.last_loss, loss_text),
      speed.seconds > 0 ? duration_text(speed.seconds) : "-",
      number_cell(speed.milliseconds, [](double value) { return fmt::format("{:.1f}", value); }),
      number_cell(speed.tokens_per_second, rate_text),
      number_cell(speed.tflops, [](double value) { return fmt::format("{:.4g}", value); }),
      number_cell(speed.mfu, [](double value) { return fmt::format("{:.1f} %", 100 * value); }),
      number_cell(speed_up, [](double value) { return fmt::format("{:.2f} x", value); })};
}

}  // namespace compare_runs
