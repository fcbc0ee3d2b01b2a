// What some steps of a run spend their time on, as a file.
#pragma once

#include <octavo/core/timeline_figures.hpp>
#include <octavo/io/atomic_file.hpp>
#include <octavo/io/trace_file.hpp>
#include <octavo/octavo.hpp>
#include <train_llama/options.hpp>
#include <train_llama/ranks.hpp>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <vector>

namespace trainer {

/// @throws ConfigError  if there is no folder for the file that --timeline names
/// @throws IoError      if the file cannot be written there
inline void require_timeline_folder(const Options& options) {
  if (options.timeline.empty()) return;
  const std::filesystem::path folder =
      std::filesystem::absolute(options.timeline).lexically_normal().parent_path();
  std::error_code error;
  octavo::require<octavo::ConfigError>(std::filesystem::is_directory(folder, error) &&
                                           !std::filesystem::is_directory(options.timeline, error),
                                       "--timeline ", options.timeline,
                                       ": give a file in a folder that is there");
  // A pipe would take the trial for the file.
  if (std::filesystem::is_other(options.timeline, error)) return;
  const octavo::AtomicFile trial(options.timeline);
}

/// Times steps and writes them. All ranks call its members alike.
class TimelineFile {
 public:
  /// Of the rank that communicates longest without computing beside it.
  struct Result {
    octavo::Index first_step = 0;
    int rank = 0;
    octavo::TimelineFigures figures{};
  };

  TimelineFile(const Options& options, octavo::TrainingSession& session, Ranks& ranks)
      : options_(options), session_(session), ranks_(ranks) {}

  /// To be called once, before `after_step`.
  /// @param done  steps that the run has taken before it was resumed; 0: it begins
  void begin(octavo::Index done) {
    const octavo::Index steps = options_.steps - done;
    first_step_ = done + (steps == 1 ? 1 : 2);
    after_step(done, steps <= 0);
  }

  /// To be called after each step.
  /// @param is_last  no step comes after this one
  void after_step(octavo::Index step, bool is_last) {
    if (options_.timeline.empty() || result_.has_value()) return;
    if (is_begun_ && (is_last || step + 1 == first_step_ + options_.timeline_steps)) write();
    if (!is_begun_ && !is_last && step + 1 == first_step_) {
      session_.begin_timeline_sync();
      is_begun_ = true;
    }
  }

  /// To be called behind the last step, of which `after_step` may not have been told that it is.
  void end() {
    if (is_begun_ && !result_.has_value()) write();
  }

  /// None: no step was timed.
  [[nodiscard]] const std::optional<Result>& result() const { return result_; }

 private:
  void write() {
    const std::vector<octavo::TimelineSpan> spans = session_.end_timeline();
    const octavo::TimelineFigures own = octavo::figures_of(spans);
    if (own.steps == 0) return;  // as on all ranks
    std::vector<octavo::TimelineFigures> all(static_cast<std::size_t>(ranks_.size()));
    ranks_.all_gather_host_sync(std::as_bytes(std::span(&own, 1)),
                                std::as_writable_bytes(std::span(all)), "figures of a timeline");
    const auto worst =
        std::ranges::max_element(all, {}, &octavo::TimelineFigures::exposed_milliseconds);
    result_ = {first_step_, static_cast<int>(worst - all.begin()), *worst};
    const std::vector<std::string> events = octavo::all_gather_texts(
        ranks_, octavo::trace_events(ranks_.rank(), spans), "spans of a timeline");
    if (ranks_.is_first()) {
      octavo::write_file_atomically(options_.timeline, octavo::trace_text(events));
    }
  }

  const Options& options_;
  octavo::TrainingSession& session_;
  Ranks& ranks_;
  octavo::Index first_step_ = 2;  ///< the one before gets everything ready: it is like no other
  bool is_begun_ = false;
  std::optional<Result> result_;
};

}  // namespace trainer
