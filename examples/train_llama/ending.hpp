// Why a run has ended before its last step, and what to do about it.
#pragma once

#include <common/text.hpp>
#include <octavo/train/training_run.hpp>
#include <train_llama/options.hpp>
#include <train_llama/report.hpp>

#include <filesystem>
#include <string>
#include <vector>

namespace trainer {

/// What to look at and to change, in one line.
inline std::string why_it_gave_up(const octavo::RunSummary& summary, const Report& report,
                                  const Options& options) {
  std::vector<std::string> met;
  for (const octavo::OperandReport& operand : summary.operands) {
    if (operand.nonfinite > 0) met.push_back(operand.name);
  }
  std::string where;
  if (!met.empty()) {
    where = "; the last met an Inf or NaN in " + met.front();
    if (met.size() > 1) where += octavo::message(" and ", met.size() - 1, " more operands");
  }
  const std::string file = report.metrics_file();
  return octavo::message(
      options.max_skipped, " steps in a row were not finite",
      options.on_spike == "skip" ? " or spikes" : "", ", and changed nothing", where,
      file.empty() ? "" : "; see the skipped steps in " + programs::visible(file),
      ". Lower --learning-rate or raise --warmup");
}

/// With which flags the run in a folder goes on from its last checkpoint.
inline std::string how_to_go_on(const std::filesystem::path& saved_in) {
  const std::filesystem::path folder = (saved_in / "").parent_path();  // without a slash behind it
  return programs::visible(octavo::message("go on with --config ",
                                           programs::shell_word((folder / "config.toml").string()),
                                           " --resume ", programs::shell_word(folder.string())));
}

/// Which batch has more documents than there is room for, and how to go on, in one line.
/// @param saved_in  the run's folder; empty: it keeps no checkpoints
inline std::string why_it_stopped(const octavo::RunSummary& summary,
                                  const std::filesystem::path& saved_in, const Options& options) {
  std::string batch = octavo::message(
      "a batch of step ", summary.steps + 1, " has ", summary.documents,
      " documents, those that begin with a sequence included, and --most-documents is ",
      options.most_documents);
  if (saved_in.empty()) {
    return octavo::message(batch, "; no checkpoint is kept: begin again with --most-documents ",
                           summary.documents, " or more, and with --checkpoint-every");
  }
  if (!summary.is_saved) return batch;
  return octavo::message(batch, "; ", how_to_go_on(saved_in), " --most-documents ",
                         summary.documents, " or more");
}

}  // namespace trainer
