/// @file
/// Stopping a run between two steps, on Ctrl-C or by a scheduler.
#pragma once

#include <csignal>

namespace octavo {

/// While one lives, SIGINT and SIGTERM are noted instead of ending the program. A second signal of
/// the same kind ends it at once.
class InterruptGuard {
 public:
  InterruptGuard() {
    signal_number() = 0;
    previous_interrupt_ = std::signal(SIGINT, note);
    previous_terminate_ = std::signal(SIGTERM, note);
  }
  ~InterruptGuard() {
    std::signal(SIGINT, previous_interrupt_);
    std::signal(SIGTERM, previous_terminate_);
  }
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  /// The signal that came, or 0.
  [[nodiscard]] static int received() { return static_cast<int>(signal_number()); }

 private:
  using Handler = void (*)(int);

  static volatile std::sig_atomic_t& signal_number() {
    static volatile std::sig_atomic_t number = 0;
    return number;
  }
  static void note(int number) {
    signal_number() = number;
    std::signal(number, SIG_DFL);
  }

  Handler previous_interrupt_;
  Handler previous_terminate_;
};

}  // namespace octavo
