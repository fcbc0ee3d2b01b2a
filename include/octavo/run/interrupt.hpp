/// @file
/// Stopping a run between two steps, on Ctrl-C or a scheduler's signal.
#pragma once

#include <octavo/comm/wait_note.hpp>
#include <octavo/core/version.hpp>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include <signal.h>
#include <time.h>
#include <unistd.h>

namespace octavo OCTAVO_ABI {

/// While it exists, SIGINT, SIGTERM, SIGUSR1 and SIGHUP are recorded instead of ending the program,
/// and the operation for which the process waits (`WaitNote`) is written to standard error. If
/// SIGHUP was ignored, as under nohup, it remains ignored. Signals within a second count as one
/// request, because schedulers and terminals may send a signal more than once. A later signal ends
/// the program immediately.
class InterruptGuard {
 public:
  /// @param acknowledgement  written to standard error at the first signal; must outlive the guard.
  ///                         Null: nothing is written
  explicit InterruptGuard(const char* acknowledgement = nullptr) {
    first_time = 0;
    signal_number = 0;
    acknowledgement_text = acknowledgement;
    struct sigaction action{};
    action.sa_handler = note;
    action.sa_flags = SA_RESTART;
    for (std::size_t i = 0; i < signals.size(); ++i) {
      ::sigaction(signals[i], &action, &previous_[i]);
      const bool is_ignored = signals[i] == SIGHUP && previous_[i].sa_handler == SIG_IGN;
      if (is_ignored) ::sigaction(signals[i], &previous_[i], nullptr);
    }
  }
  ~InterruptGuard() {
    for (std::size_t i = 0; i < signals.size(); ++i) {
      ::sigaction(signals[i], &previous_[i], nullptr);
    }
    signal_number = 0;
  }
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  /// Returns the signal that the guard received, or 0; 0 without a guard.
  [[nodiscard]] static int received() { return signal_number; }

  /// Records a signal on behalf of the program itself, without an acknowledgement.
  static void request(int number) { (void)is_first(number); }

 private:
  static constexpr std::array signals{SIGINT, SIGTERM, SIGUSR1, SIGHUP};
  static constexpr std::int64_t repeats_nanoseconds = 1'000'000'000;

  static std::int64_t time() {
    timespec now{};
    ::clock_gettime(CLOCK_MONOTONIC, &now);
    return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
  }

  /// Records the first signal. Two threads may be interrupted at the same time.
  static bool is_first(int number) {
    std::int64_t none = 0;
    if (!first_time.compare_exchange_strong(none, time())) return false;
    signal_number = number;
    return true;
  }

  static void note(int number) {
    if (is_first(number)) {
      WaitNote::write();
      acknowledge();
    } else if (time() - first_time > repeats_nanoseconds) {
      std::signal(number, SIG_DFL);
      ::raise(number);
    }
  }

  /// Preserves errno, which the interrupted code may be about to read.
  static void acknowledge() {
    const char* text = acknowledgement_text;
    if (text == nullptr) return;
    const int error = errno;
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text, std::strlen(text));
    errno = error;
  }

  static_assert(std::atomic<std::int64_t>::is_always_lock_free);
  static_assert(std::atomic<const char*>::is_always_lock_free);
  inline static std::atomic<int> signal_number{0};
  inline static std::atomic<std::int64_t> first_time{0};  ///< of the first signal; 0: none
  inline static std::atomic<const char*> acknowledgement_text{nullptr};

  std::array<struct sigaction, signals.size()> previous_{};
};

}  // namespace octavo
