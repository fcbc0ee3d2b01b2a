/// @file
/// Steps whose loss or gradients are far above earlier ones, and how a run responds to them.
#pragma once

#include <octavo/core/error.hpp>
#include <octavo/run/run_totals.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <string>
#include <vector>

namespace octavo OCTAVO_ABI {

/// The response of a run to a spike: a step whose loss or gradient norm is above the limits
/// computed from earlier steps. The spike itself never changes anything.
enum class OnSpike {
  off,       ///< there are no limits
  stop,      ///< end, and save the state from before the spike
  skip,      ///< continue with the next batch
  rollback,  ///< return to the last checkpoint, and continue with the batches after the spike
};
inline constexpr std::array<const char*, 4> on_spike_names{"off", "stop", "skip", "rollback"};

struct SpikeOptions {
  OnSpike action = OnSpike::off;
  double threshold = 8;     ///< deviations above the median
  Index window = 50;        ///< steps that the median covers; no limits before there are this many
  Index max_rollbacks = 3;  ///< per run; the next spike stops it
};

/// The response of a run to one spike.
struct SpikeRecord {
  Index step = 0;
  double loss = 0, loss_limit = 0;
  double gradient_norm = 0, gradient_norm_limit = 0;
  OnSpike action = OnSpike::off;  ///< the response: also `stop` if there is no checkpoint
  Index resumed_step = 0;         ///< after a rollback: the step of the checkpoint
  Index rollbacks = 0;            ///< of the run so far
  std::string reason{};           ///< why it stopped instead of rolling back
};

namespace detail {

/// @throws ConfigError  for an invalid threshold
inline void check_spike_threshold(double threshold) {
  require<ConfigError>(threshold > 0 && std::isfinite(threshold),
                       "the threshold of spikes must be positive, but is ", threshold,
                       "; set a number of deviations, such as 8");
}

}  // namespace detail

/// Returns the largest value that is not a spike: median + threshold · σ of the earlier values,
/// where σ is 1.4826 times their median absolute deviation from the median, and at least 2 % of the
/// median. Source: Rousseeuw and Croux 1993, Alternatives to the Median Absolute Deviation: the
/// factor makes it the standard deviation of a normal distribution.
/// @param values     at least 1
/// @param threshold  finite and positive
/// @throws ConfigError  without a value, for a value that is NaN, and for another threshold
[[nodiscard]] inline double spike_limit(std::vector<double> values, double threshold) {
  detail::check_spike_threshold(threshold);
  require<ConfigError>(
      !values.empty() &&
          std::ranges::none_of(values, [](double value) { return std::isnan(value); }),
      "spike_limit: there must be at least one earlier value, and none may be NaN; "
      "omit steps without a value");
  const auto median_of = [](std::vector<double>& all) {
    std::ranges::sort(all);
    const std::size_t half = all.size() / 2;
    return all.size() % 2 == 1 ? all[half] : (all[half - 1] + all[half]) / 2;
  };
  const double median = median_of(values);
  for (double& value : values) value = std::abs(value - median);
  const double sigma = std::max(1.4826 * median_of(values), 0.02 * std::abs(median));
  return median + threshold * sigma;
}

namespace detail {

/// @throws ConfigError  for invalid options
inline void check_spike_options(const SpikeOptions& options, bool is_saved) {
  if (options.action == OnSpike::off) return;
  check_spike_threshold(options.threshold);
  require<ConfigError>(options.window >= 2 && options.window <= RunTotals::most_recent,
                       "the window of spikes must have 2 to ", RunTotals::most_recent,
                       " steps, but has ", options.window);
  require<ConfigError>(options.max_rollbacks >= 1,
                       "the maximum number of rollbacks must be at least 1, but is ",
                       options.max_rollbacks);
  require<ConfigError>(options.action != OnSpike::rollback || is_saved,
                       "a rollback after a spike needs a checkpoint, but the run saves none; pass "
                       "--checkpoint-every, or another --on-spike");
}

/// The limits of a run's next step; infinite until enough steps have been taken.
struct SpikeLimits {
  double loss = std::numeric_limits<double>::infinity();
  double gradient_norm = std::numeric_limits<double>::infinity();

  SpikeLimits() = default;
  SpikeLimits(const SpikeOptions& options, const RunTotals& totals) {
    const auto window = static_cast<std::size_t>(options.window);
    const auto& recent = totals.recent();
    if (options.action == OnSpike::off || recent.size() < window) return;
    std::vector<double> losses, norms;
    for (std::size_t i = recent.size() - window; i < recent.size(); ++i) {
      losses.push_back(recent[i].loss);
      norms.push_back(recent[i].gradient_norm);
    }
    loss = spike_limit(std::move(losses), options.threshold);
    gradient_norm = spike_limit(std::move(norms), options.threshold);
  }
};

}  // namespace detail
}  // namespace octavo
