/// @file
/// Totals over the steps of a run.
#pragma once

#include <octavo/session/training_session.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

namespace octavo OCTAVO_ABI {

/// One finished step.
struct StepRecord {
  Index step = 0;
  bool last = false;  ///< no step follows, regardless of why the run ends
  double epoch = 0;
  double learning_rate = 0;
  double milliseconds = 0;
  double tokens = 0;  ///< of the step, on all ranks
  double tokens_per_second = 0;
  StepResult result;
  /// Hash of all weights after it, if the run records hashes.
  std::optional<std::uint64_t> weights_hash{};
};

/// Counts steps, times and losses.
class RunTotals {
 public:
  explicit RunTotals(Index max_skipped) : max_skipped_(max_skipped) {}

  void add(const StepRecord& record) {
    ++steps_;
    tokens_ += record.tokens;
    ++timed_steps_;
    seconds_ += record.milliseconds / 1000.0;
    if (timed_steps_ == 1) first_seconds_ = seconds_;
    if (record.result.skipped) {
      ++skipped_;
      ++skipped_in_a_row_;
      return;
    }
    skipped_in_a_row_ = 0;
    if (std::isnan(record.result.loss)) return;  // the step had no targets
    if (std::isnan(first_loss_)) first_loss_ = record.result.loss;
    recent_.push_back({record.result.loss, record.result.gradient_norm});
    if (recent_.size() > most_recent) recent_.pop_front();
  }

  [[nodiscard]] Index steps() const { return steps_; }
  /// Returns the number of tokens of these steps, which may have different sizes; NaN if the run
  /// resumed from a checkpoint of a version that did not count them.
  [[nodiscard]] double tokens() const { return tokens_; }
  [[nodiscard]] Index skipped() const { return skipped_; }
  [[nodiscard]] Index skipped_in_a_row() const { return skipped_in_a_row_; }
  [[nodiscard]] bool gave_up() const { return skipped_in_a_row_ >= max_skipped_; }
  /// Returns the time of the steps since the run started or was resumed.
  [[nodiscard]] double seconds() const { return seconds_; }
  [[nodiscard]] Index timed_steps() const { return timed_steps_; }

  /// Returns the throughput of these steps in tokens/s. The first step, which includes
  /// preparations, is excluded unless it is the only one; 0 without a step.
  [[nodiscard]] double tokens_per_second(double tokens_in_step) const {
    if (timed_steps_ == 0) return 0;
    if (timed_steps_ == 1) return tokens_in_step / seconds_;
    return tokens_in_step * static_cast<double>(timed_steps_ - 1) / (seconds_ - first_seconds_);
  }

  /// Returns the mean over the last 20 steps that were not skipped.
  [[nodiscard]] double train_loss() const {
    const std::size_t count = std::min<std::size_t>(20, recent_.size());
    double sum = 0;
    for (std::size_t i = recent_.size() - count; i < recent_.size(); ++i) sum += recent_[i].loss;
    return count == 0 ? std::nan("") : sum / static_cast<double>(count);
  }

  /// Maximum number of remembered recent steps; skipped steps do not count.
  static constexpr Index most_recent = 1024;
  struct Applied {
    double loss;
    double gradient_norm;
  };
  [[nodiscard]] const std::deque<Applied>& recent() const { return recent_; }

  /// Returns how often the run returned to a checkpoint after a spike.
  [[nodiscard]] Index rollbacks() const { return rollbacks_; }
  /// Call it after the checkpoint's state was loaded.
  /// @param number  of rollbacks so far
  void note_rollbacks(Index number) { rollbacks_ = number; }

  /// Returns true once, when a loss is twice the first: training that converges never has such a
  /// loss.
  [[nodiscard]] bool diverges() {
    if (warned_ != 0 || recent_.empty() || !(recent_.back().loss > 2 * first_loss_)) return false;
    warned_ = 1;
    return true;
  }
  [[nodiscard]] double first_loss() const { return first_loss_; }

  /// Returns the state that a resumed run needs: everything except times. The entries point into
  /// this.
  [[nodiscard]] std::vector<StateEntry> state() {
    StateEntry losses;
    losses.name = "run.losses";
    losses.format = "fp64";
    losses.shape = losses.whole = {1 + most_recent, 2};
    losses.bytes = (1 + most_recent) * sizeof(Applied);
    losses.read_sync = [this](std::byte* target) {
      // The first step's norm is not needed; the number of tokens is in its place.
      std::vector<Applied> values{{first_loss_, tokens_}};
      values.insert(values.end(), recent_.begin(), recent_.end());
      values.resize(1 + most_recent, {std::nan(""), 0});
      std::memcpy(target, values.data(), values.size() * sizeof(Applied));
    };
    losses.write_sync = [this](const std::byte* source) {
      std::vector<Applied> values(1 + most_recent);
      std::memcpy(values.data(), source, values.size() * sizeof(Applied));
      first_loss_ = values.front().loss;
      tokens_ = values.front().gradient_norm;
      if (tokens_ == 0 && steps_ != 0) tokens_ = std::nan("");
      recent_.assign(values.begin() + 1,
                     std::find_if(values.begin() + 1, values.end(),
                                  [](const Applied& one) { return std::isnan(one.loss); }));
    };
    return {number_entry("run.steps", steps_),
            number_entry("run.skipped", skipped_),
            number_entry("run.skipped_in_a_row", skipped_in_a_row_),
            number_entry("run.warned", warned_),
            number_entry("run.rollbacks", rollbacks_),
            std::move(losses)};
  }

 private:
  Index max_skipped_;
  Index steps_ = 0;
  double tokens_ = 0;
  Index timed_steps_ = 0;
  Index skipped_ = 0;
  Index skipped_in_a_row_ = 0;
  double seconds_ = 0;
  double first_seconds_ = 0;
  double first_loss_ = std::nan("");
  Index warned_ = 0;  ///< 1 after a warning about a loss that is twice the first
  Index rollbacks_ = 0;
  std::deque<Applied> recent_;
};

}  // namespace octavo
