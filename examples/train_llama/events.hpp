// TensorBoard events of a run.
#pragma once

#include <common/text.hpp>
#include <octavo/io/event_file.hpp>
#include <octavo/octavo.hpp>
#include <train_llama/program.hpp>

#include <cstdint>
#include <filesystem>
#include <memory>

#include <unistd.h>

namespace trainer {

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
