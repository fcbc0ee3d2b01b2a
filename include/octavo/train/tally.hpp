/// @file
/// What the steps of a run add up to.
#pragma once

#include <octavo/train/training_session.hpp>

#include <cmath>
#include <deque>
#include <numeric>
#include <string>

namespace octavo::inline OCTAVO_ABI {

/// One finished step.
struct StepRecord {
  Index step = 0;
  bool last = false;  ///< no other follows, however the run ends
  double epoch = 0;
  double learning_rate = 0;
  double milliseconds = 0;
  double tokens_per_second = 0;
  StepResult result;
};

/// Counts steps, times and losses.
class Tally {
 public:
  explicit Tally(Index max_skipped) : max_skipped_(max_skipped) {}

  void add(const StepRecord& record) {
    ++steps_;
    seconds_ += record.milliseconds / 1000.0;
    if (steps_ == 1) first_seconds_ = seconds_;
    if (record.result.skipped) {
      ++skipped_;
      ++skipped_in_a_row_;
      return;
    }
    skipped_in_a_row_ = 0;
    if (std::isnan(first_loss_)) first_loss_ = record.result.loss;
    recent_.push_back(record.result.loss);
    if (recent_.size() > 20) recent_.pop_front();
  }

  [[nodiscard]] Index steps() const { return steps_; }
  [[nodiscard]] Index skipped() const { return skipped_; }
  [[nodiscard]] Index skipped_in_a_row() const { return skipped_in_a_row_; }
  [[nodiscard]] bool gave_up() const { return skipped_in_a_row_ >= max_skipped_; }
  [[nodiscard]] double seconds() const { return seconds_; }

  /// Without the first step, which also gets everything ready; with it where there is no other.
  [[nodiscard]] double tokens_per_second(double tokens_in_step) const {
    return steps_ > 1
               ? tokens_in_step * static_cast<double>(steps_ - 1) / (seconds_ - first_seconds_)
               : tokens_in_step / seconds_;
  }

  /// Mean of the last 20 steps that were not skipped.
  [[nodiscard]] double train_loss() const {
    return recent_.empty() ? std::nan("")
                           : std::accumulate(recent_.begin(), recent_.end(), 0.0) /
                                 static_cast<double>(recent_.size());
  }

  /// Once, when a loss is twice the first: no training that goes well has such a loss.
  [[nodiscard]] bool diverges() {
    if (warned_ || recent_.empty() || !(recent_.back() > 2 * first_loss_)) return false;
    warned_ = true;
    return true;
  }
  [[nodiscard]] double first_loss() const { return first_loss_; }

 private:
  Index max_skipped_;
  Index steps_ = 0;
  Index skipped_ = 0;
  Index skipped_in_a_row_ = 0;
  double seconds_ = 0;
  double first_seconds_ = 0;
  double first_loss_ = std::nan("");
  bool warned_ = false;
  std::deque<double> recent_;
};

}  // namespace octavo
