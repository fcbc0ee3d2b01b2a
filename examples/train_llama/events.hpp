// TensorBoard events of a run.
#pragma once

#include <common/text.hpp>
#include <octavo/io/event_file.hpp>
#include <octavo/octavo.hpp>
#include <octavo/run/training_run.hpp>
#include <train_llama/gpu_log.hpp>
#include <train_llama/program.hpp>

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <utility>
#include <vector>

#include <unistd.h>

namespace trainer {

/// Returns the event of a step.
inline octavo::EventSummary event_of(const octavo::StepRecord& record,
                                     const std::vector<octavo::OperandReport>& operands,
                                     const GpuLog& gpu) {
  octavo::EventSummary summary;
  if (!std::isnan(record.result.loss)) summary.add_scalar("train/loss", record.result.loss);
  summary.add_scalar("train/learning_rate", record.learning_rate)
      .add_scalar("train/gradient_norm", record.result.gradient_norm)
      .add_scalar("train/skipped", record.result.skipped ? 1 : 0)
      .add_scalar("speed/milliseconds", record.milliseconds)
      .add_scalar("speed/tokens_per_second", record.tokens_per_second);
  gpu.add_to(summary);
  std::vector<double> amaxes;
  for (const octavo::OperandReport& operand : operands) {
    summary.add_scalar("amax/" + operand.name, operand.amax)
        .add_scalar("saturated/" + operand.name, operand.saturated)
        .add_scalar("flushed/" + operand.name, operand.flushed);
    if (operand.amax > 0) amaxes.push_back(std::log2(static_cast<double>(operand.amax)));
  }
  if (!amaxes.empty()) summary.add_histogram("operands/log2_amax", std::move(amaxes));
  return summary;
}

/// An event file whose errors do not end the run: the first failed write prints a warning and
/// disables it.
class Events {
 public:
  /// Creates a new file.
  void open(const std::filesystem::path& folder) {
    attempt([&] { file_ = std::make_unique<octavo::EventFile>(folder); });
  }

  void write(std::int64_t step, const octavo::EventSummary& summary) {
    if (file_ != nullptr) attempt([&] { file_->write(step, summary); });
  }

  /// See `octavo::EventFile`.
  void begin_steps(std::int64_t step) {
    if (file_ != nullptr) attempt([&] { file_->begin_steps(step); });
  }

  [[nodiscard]] bool is_open() const { return file_ != nullptr; }

 private:
  template <class Part>
  void attempt(const Part& part) {
    try {
      part();
    } catch (const octavo::IoError& error) {
      file_.reset();
      // On a terminal, the message starts below the progress line.
      programs::print_stderr(
          "{}{}: warning: {}. The run continues, but writes no more TensorBoard events\n",
          ::isatty(STDERR_FILENO) != 0 ? "\r\033[K" : "", program().name, programs::text_of(error));
    }
  }

  std::unique_ptr<octavo::EventFile> file_;  ///< null if disabled
};

}  // namespace trainer
