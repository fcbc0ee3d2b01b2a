// What TensorBoard shows of a run.
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

/// A file of events that ends no run: what cannot be written is warned of, once, and then there are
/// no more.
class Events {
 public:
  /// Writes a new file.
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
      // A terminal shows the progress line there.
      programs::tell("{}{}: warning: {}. The run goes on, and TensorBoard is shown no more of it\n",
                     ::isatty(STDERR_FILENO) != 0 ? "\r\033[K" : "", program().name,
                     programs::text_of(error));
    }
  }

  std::unique_ptr<octavo::EventFile> file_;  ///< null: there is none
};

}  // namespace trainer
