// Messages about why a run ended before its last step, and what to do about it.
#pragma once

#include <common/text.hpp>
#include <octavo/run/training_run.hpp>
#include <train_llama/options.hpp>
#include <train_llama/report.hpp>

#include <filesystem>
#include <string>
#include <vector>

namespace trainer {

/// Returns one line about a run that ended after --max-skipped steps, with advice.
inline std::string skip_limit_message(const octavo::RunSummary& summary, const Report& report,
                                      const Options& options) {
  std::vector<std::string> nonfinite_operands;
  for (const octavo::OperandReport& operand : summary.operands) {
    if (operand.nonfinite > 0) nonfinite_operands.push_back(operand.name);
  }
  std::string where;
  if (!nonfinite_operands.empty()) {
    where = "; the last one had an Inf or NaN in " + nonfinite_operands.front();
    if (nonfinite_operands.size() > 1)
      where += octavo::message(" and ", nonfinite_operands.size() - 1, " more operands");
  }
  const std::string file = report.metrics_file();
  return octavo::message(
      options.max_skipped, " consecutive steps were not finite",
      options.on_spike == "skip" ? " or spikes" : "", " and were skipped", where,
      file.empty() ? "" : "; see the skipped steps in " + programs::visible(file),
      ". Lower --learning-rate or raise --warmup");
}

/// Returns the flags that resume the run in a folder from its last checkpoint.
inline std::string resume_command_text(const std::filesystem::path& saved_in) {
  const std::filesystem::path folder = (saved_in / "").parent_path();  // without a trailing slash
  return programs::visible(octavo::message("resume with --config ",
                                           programs::shell_word((folder / "config.toml").string()),
                                           " --resume ", programs::shell_word(folder.string())));
}

/// Returns one line about a run that ended at a batch with too many documents, and how to resume.
/// @param saved_in  the run's folder; empty if it keeps no checkpoints
inline std::string document_limit_message(const octavo::RunSummary& summary,
                                          const std::filesystem::path& saved_in,
                                          const Options& options) {
  std::string batch = octavo::message(
      "a batch of step ", summary.steps + 1, " has ", summary.documents,
      " documents, including those that begin with a sequence, and --most-documents is ",
      options.most_documents);
  if (saved_in.empty()) {
    return octavo::message(batch,
                           "; the run keeps no checkpoints: start it again with --most-documents ",
                           summary.documents, " or more, and with --checkpoint-every");
  }
  if (!summary.is_saved) return batch;
  return octavo::message(batch, "; ", resume_command_text(saved_in), " --most-documents ",
                         summary.documents, " or more");
}

}  // namespace trainer
