/// @file
/// Learning-rate schedules.
#pragma once

#include <octavo/core/error.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numbers>
#include <string>

namespace octavo OCTAVO_ABI {

/// The shape of the learning-rate schedule after the warm-up.
enum class ScheduleKind { cosine, linear, constant, warmup_stable_decay };

/// Names on command lines, in the order of `ScheduleKind`.
inline constexpr std::array schedule_names{"cosine", "linear", "constant", "wsd"};

/// A learning-rate schedule.
struct Schedule {
  ScheduleKind kind = ScheduleKind::cosine;
  double learning_rate = 3e-4;    ///< at the end of the warm-up
  double final_fraction = 0.1;    ///< fraction of `learning_rate` at the last step
  std::int64_t warmup_steps = 0;  ///< steps of the linear warm-up
  std::int64_t steps = 1;         ///< of the whole training
  double decay_fraction = 0.2;    ///< fraction of the steps that `warmup_stable_decay` decays over

  /// @throws ConfigError  for a member that is out of range
  void check() const {
    const auto in = [](const char* which, auto value, bool good, const char* rule) {
      require<ConfigError>(good, "Schedule: ", which, " must be ", rule, ", but is ", value,
                           "; set another");
    };
    in("learning_rate", learning_rate, learning_rate >= 0 && std::isfinite(learning_rate),
       "finite and at least 0");
    in("final_fraction", final_fraction, final_fraction >= 0 && std::isfinite(final_fraction),
       "finite and at least 0");
    in("warmup_steps", warmup_steps, warmup_steps >= 0, "at least 0");
    in("steps", steps, steps >= 1, "at least 1");
    in("decay_fraction", decay_fraction, decay_fraction >= 0 && decay_fraction <= 1, "0 to 1");
  }

  /// Returns the learning rate of `step`, counted from 1.
  /// @throws ConfigError  as `check` does, and for a step below 1
  [[nodiscard]] double at(std::int64_t step) const {
    check();
    require<ConfigError>(step >= 1, "Schedule: step must be at least 1, but is ", step,
                         "; the first step is 1");
    if (step <= warmup_steps) {
      return learning_rate * static_cast<double>(step) / static_cast<double>(warmup_steps);
    }
    const double rest = static_cast<double>(std::max<std::int64_t>(1, steps - warmup_steps));
    const double progress = std::min(1.0, static_cast<double>(step - warmup_steps) / rest);
    return learning_rate * (final_fraction + (1.0 - final_fraction) * shape(progress));
  }

 private:
  /// Returns a factor that falls from 1 to 0 as `progress` rises from 0 to 1.
  [[nodiscard]] double shape(double progress) const {
    switch (kind) {
      case ScheduleKind::cosine:
        return 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
      case ScheduleKind::linear:
        return 1.0 - progress;
      case ScheduleKind::constant:
        return 1.0;
      case ScheduleKind::warmup_stable_decay: {
        const double decay = decay_fraction * static_cast<double>(steps) /
                             static_cast<double>(std::max<std::int64_t>(1, steps - warmup_steps));
        return progress <= 1.0 - decay ? 1.0 : (1.0 - progress) / decay;
      }
    }
    throw UsageError("unknown schedule");
  }
};

}  // namespace octavo
