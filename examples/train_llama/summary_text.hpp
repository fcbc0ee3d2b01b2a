// Text about losses and steps.
#pragma once

#include <common/text.hpp>
#include <octavo/checkpoint/checkpoints.hpp>
#include <octavo/run/training_run.hpp>
#include <train_llama/program.hpp>

#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <string>

namespace trainer {

/// Warns about a failed checkpoint on stderr.
inline void warn_of_failed_checkpoint(const octavo::CheckpointRecord& record) {
  const std::string path = programs::visible(record.path.string());
  if (record.error.empty()) {
    programs::print_stderr("{}: warning: {}: {}\n", program().name, path,
                           programs::visible(record.warning));
  } else {
    programs::print_stderr(
        "{}: warning: NOT SAVED at step {}: {}. The run continues, and earlier checkpoints are "
        "unchanged\n",
        program().name, record.step, programs::visible(record.error));
  }
}

/// Returns the name of a run: the last component of its folder's path.
inline std::string name_of_run(const std::filesystem::path& folder) {
  if (folder.empty()) return {};
  const std::filesystem::path path = std::filesystem::absolute(folder).lexically_normal();
  return (path.filename().empty() ? path.parent_path() : path).filename().string();
}

/// Formats a loss.
/// @param is_none_if_nan  NaN means that there were no targets
inline std::string loss_text(double loss, bool is_none_if_nan) {
  if (std::isfinite(loss)) return fmt::format("{:.4f}", loss);
  return std::isnan(loss) && is_none_if_nan ? "none (no targets)" : "not finite";
}

/// Returns how many steps this process took, and how fast, such as "4 steps in 0.3 s, 72 in total |
/// ".
inline std::string steps_text(const octavo::RunSummary& summary) {
  if (summary.taken == 0) return fmt::format("no new steps, {} in total | ", summary.steps);
  return fmt::format(
      "{} step{} in {:.1f} s{} | {:.0f} tok/s{} | ", summary.taken, summary.taken == 1 ? "" : "s",
      summary.seconds,
      summary.taken == summary.steps ? "" : fmt::format(", {} in total", summary.steps),
      summary.tokens_per_second, summary.taken == 1 ? "" : " after the first");
}

/// Warns of weights whose loss is not finite, if no other message of the run does.
/// @param targets  tokens of the last evaluation
inline void warn_of_nonfinite_loss(const octavo::RunSummary& summary, octavo::Index targets) {
  if (summary.gave_up || targets == 0 || std::isfinite(summary.validation_loss)) return;
  programs::print_stderr(
      "{}: warning: the validation loss after the last step is not finite: the trained weights "
      "are useless. Train again from an earlier checkpoint, or from the start, with a lower "
      "--learning-rate\n",
      program().name);
}

}  // namespace trainer
