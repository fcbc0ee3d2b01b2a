/// @file
/// The progress of an evaluation on the terminal.
#pragma once

#include <octavo/core/device.hpp>

#include <common/progress.hpp>
#include <common/text.hpp>

#include <chrono>
#include <cstdio>

#include <unistd.h>

namespace evaluate {

/// A line that is updated in place on a terminal, and otherwise printed once per minute.
class Progress {
 public:
  Progress(const char* task, bool is_first) : task_(task), is_first_(is_first) {}
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress() {
    if (is_first_ && on_terminal_) programs::print_stderr("\r\033[K");
  }
  void operator()(octavo::Index done, octavo::Index all) {
    const auto now = std::chrono::steady_clock::now();
    time_.add(std::chrono::duration<double>(now - last_).count());
    last_ = now;
    if (!is_first_ || (!on_terminal_ && now - last_print_ < std::chrono::minutes(1))) return;
    last_print_ = now;
    programs::print_stderr("{}{} | batch {} of {} | {} left{}", on_terminal_ ? "\r\033[K" : "",
                           task_, done, all,
                           programs::duration_text(time_.left(static_cast<double>(all - done))),
                           on_terminal_ ? "" : "\n");
    std::fflush(stderr);
  }

 private:
  const char* task_;
  bool is_first_;
  bool on_terminal_ = ::isatty(STDERR_FILENO) != 0;
  programs::StepTime time_;
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point last_print_ = last_;
};

}  // namespace evaluate
