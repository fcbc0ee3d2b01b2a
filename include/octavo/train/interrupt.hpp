/// @file
/// Stopping a run between two steps, on Ctrl-C or by a scheduler.
#pragma once

#include <octavo/comm/wait_note.hpp>
#include <octavo/core/version.hpp>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>

#include <signal.h>
#include <time.h>
#include <unistd.h>

namespace octavo OCTAVO_ABI {

/// While one lives, SIGINT, SIGTERM and SIGUSR1 are noted instead of ending the program; what the
/// process waits for then (`WaitNote`) is written to standard error. What comes within a second is
/// the same wish: schedulers and terminals may send a signal more than once. One that comes later
/// ends the program at once.
class InterruptGuard {
 public:
  /// @param acknowledgement  written to standard error when a signal is first noted; it has to live
  ///                         as long as the guard. Null: nothing is written
  explicit InterruptGuard(const char* acknowledgement = nullptr) {
    first_time = 0;
    signal_number = 0;
    said = acknowledgement;
    struct sigaction action {};
    action.sa_handler = note;
    action.sa_flags = SA_RESTART;
    ::sigaction(SIGINT, &action, &previous_interrupt_);
    ::sigaction(SIGTERM, &action, &previous_terminate_);
    ::sigaction(SIGUSR1, &action, &previous_user_);
  }
  ~InterruptGuard() {
    ::sigaction(SIGINT, &previous_interrupt_, nullptr);
    ::sigaction(SIGTERM, &previous_terminate_, nullptr);
    ::sigaction(SIGUSR1, &previous_user_, nullptr);
    signal_number = 0;
  }
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  /// The signal that came while the guard has lived, or 0; 0 without a guard.
  [[nodiscard]] static int received() { return signal_number; }

 private:
  static constexpr std::int64_t repeats_nanoseconds = 1'000'000'000;

  static void note(int number) {
    timespec now{};
    ::clock_gettime(CLOCK_MONOTONIC, &now);
    const std::int64_t time = std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
    // Two threads may be interrupted at once.
    std::int64_t first = 0;
    if (first_time.compare_exchange_strong(first, time)) {
      signal_number = number;
      WaitNote::write();
      acknowledge();
    } else if (time - first > repeats_nanoseconds) {
      std::signal(number, SIG_DFL);
      ::raise(number);
    }
  }

  /// What it interrupts may be about to look at errno.
  static void acknowledge() {
    const char* text = said;
    if (text == nullptr) return;
    const int error = errno;
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text, std::strlen(text));
    errno = error;
  }

  static_assert(std::atomic<std::int64_t>::is_always_lock_free);
  static_assert(std::atomic<const char*>::is_always_lock_free);
  inline static std::atomic<int> signal_number{0};
  inline static std::atomic<std::int64_t> first_time{0};  ///< of the first signal; 0: none came
  inline static std::atomic<const char*> said{nullptr};

  struct sigaction previous_interrupt_ {};
  struct sigaction previous_terminate_ {};
  struct sigaction previous_user_ {};
};

}  // namespace octavo
