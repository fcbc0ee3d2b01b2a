// The progress of a run towards its last step or its time limit.
#pragma once

#include <common/progress.hpp>
#include <octavo/octavo.hpp>
#include <train_llama/options.hpp>

#include <fmt/format.h>

#include <chrono>
#include <string>

namespace trainer {

/// Returns the number of tokens of one step, including padding.
inline double tokens_of_step(const Options& options) {
  return static_cast<double>(options.batch * options.sequence_length * options.micro_batches) *
         options.ranks;
}

/// Counts steps and their time.
class Pace {
 public:
  explicit Pace(const Options& options) : options_(options) {}

  /// Must be called after each step. Times include evaluations and records between steps.
  void after_step() {
    const auto now = std::chrono::steady_clock::now();
    step_time_.add(std::chrono::duration<double>(now - last_step_).count());
    last_step_ = now;
  }

  /// Returns "1.20 B of 3.00 B tokens | 2 d 03 h left".
  [[nodiscard]] std::string text(octavo::Index step) const {
    const double of_step = tokens_of_step(options_);
    const std::chrono::duration<double> limit = end_time(options_) - last_step_;
    return fmt::format(
        "{} of {} tokens | {}", programs::tokens_text(static_cast<double>(step) * of_step),
        programs::tokens_text(static_cast<double>(options_.steps) * of_step),
        programs::time_left_text(step_time_.left(static_cast<double>(options_.steps - step)),
                                 limit.count()));
  }

 private:
  const Options& options_;
  programs::StepTime step_time_;
  std::chrono::steady_clock::time_point last_step_ = std::chrono::steady_clock::now();
};

}  // namespace trainer
