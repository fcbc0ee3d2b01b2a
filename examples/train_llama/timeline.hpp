// Writes a timeline of some steps of a run to a file.
#pragma once

#include <common/paths.hpp>
#include <octavo/core/timeline_figures.hpp>
#include <octavo/io/atomic_file.hpp>
#include <octavo/io/trace_file.hpp>
#include <octavo/octavo.hpp>
#include <train_llama/options.hpp>
#include <train_llama/program.hpp>
#include <train_llama/ranks.hpp>

#include <algorithm>
#include <cstddef>
#include <exception>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <vector>

namespace trainer {

/// @throws ConfigError  if the folder of the --timeline file does not exist, or the file exists and
///                      is not a timeline
/// @throws IoError      if the file is not writable
inline void require_timeline_folder(const Options& options) {
  if (options.timeline.empty()) return;
  const std::filesystem::path folder =
      std::filesystem::absolute(options.timeline).lexically_normal().parent_path();
  std::error_code error;
  octavo::require<octavo::ConfigError>(
      std::filesystem::is_directory(folder, error) &&
          !std::filesystem::is_directory(options.timeline, error),
      "--timeline ", options.timeline,
      ": the folder of the file does not exist; pass a file in an existing folder");
  programs::require_own_output("--timeline " + options.timeline, options.timeline,
                               "{\"displayTimeUnit\":");
  // The reader of a pipe would see the test write.
  if (std::filesystem::is_other(options.timeline, error)) return;
  const octavo::AtomicFile trial(options.timeline);
}

/// Times steps and writes them. All ranks must call its members in the same order.
class TimelineFile {
 public:
  /// Times of the rank with the most exposed communication.
  struct Result {
    octavo::Index first_step = 0;
    int rank = 0;
    octavo::TimelineFigures figures{};
  };

  TimelineFile(const Options& options, octavo::TrainingSession& session, Ranks& ranks)
      : options_(options), session_(session), ranks_(ranks) {}

  /// Starts timing. Called once, before `after_step`.
  /// @param done  steps of the run before it was resumed; 0 for a new run
  void begin(octavo::Index done) {
    const octavo::Index steps = options_.steps - done;
    first_step_ = done + (steps == 1 ? 1 : 2);
    after_step(done, steps <= 0);
  }

  /// Called after each step.
  /// @param is_last  whether this is the last step
  void after_step(octavo::Index step, bool is_last) {
    if (options_.timeline.empty() || result_.has_value()) return;
    if (is_begun_ && (is_last || step + 1 == first_step_ + options_.timeline_steps)) write();
    if (!is_begun_ && !is_last && step + 1 == first_step_) {
      session_.begin_timeline_sync();
      is_begun_ = true;
    }
  }

  /// Called after the last step, in case `after_step` was not told that it is the last.
  void end() {
    if (is_begun_ && !result_.has_value()) write();
  }

  /// Throws the error that prevented the file from being written, if there was one.
  void require_written() const {
    if (not_written_ != nullptr) std::rethrow_exception(not_written_);
  }

  /// Returns the result, or nothing if no step was timed.
  [[nodiscard]] const std::optional<Result>& result() const { return result_; }

 private:
  void write() {
    const std::vector<octavo::TimelineSpan> spans = session_.end_timeline();
    const octavo::TimelineFigures own = octavo::figures_of(spans);
    if (own.steps == 0) return;  // the same on all ranks
    std::vector<octavo::TimelineFigures> all(static_cast<std::size_t>(ranks_.size()));
    ranks_.all_gather_host_sync(std::as_bytes(std::span(&own, 1)),
                                std::as_writable_bytes(std::span(all)), "figures of a timeline");
    const auto worst =
        std::ranges::max_element(all, {}, &octavo::TimelineFigures::exposed_milliseconds);
    result_ = {first_step_, static_cast<int>(worst - all.begin()), *worst};
    const std::vector<std::string> events = octavo::all_gather_texts(
        ranks_, octavo::trace_events(ranks_.rank(), spans), "spans of a timeline");
    if (ranks_.is_first()) {
      try {
        octavo::write_file_atomically(options_.timeline, octavo::trace_text(events));
      } catch (const octavo::IoError& error) {
        not_written_ = std::current_exception();
        programs::print_stderr("{}: warning: {}. The run continues without a timeline\n",
                               program().name, programs::text_of(error));
      }
    }
  }

  const Options& options_;
  octavo::TrainingSession& session_;
  Ranks& ranks_;
  octavo::Index first_step_ = 2;  ///< the one before includes preparation
  bool is_begun_ = false;
  std::optional<Result> result_;
  std::exception_ptr not_written_;
};

}  // namespace trainer
