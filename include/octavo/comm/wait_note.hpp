/// @file
/// A note about what a process waits for, printed when a signal ends it.
#pragma once

#include <octavo/core/version.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <string_view>

#include <signal.h>
#include <sys/types.h>
#include <unistd.h>

namespace octavo OCTAVO_ABI {

/// A line about the operation for which this process waits. If a rank dies, launchers send SIGTERM
/// to all others, whose signal handler can print only the text prepared here. For use by one
/// thread.
class WaitNote {
 public:
  /// Replaces the line. Text beyond 500 bytes is cut off.
  static void set(std::string_view text) noexcept {
    Line& line = lines[next];
    next = 1 - next;
    line.length = std::min(text.size(), line.text.size() - 1);
    std::copy_n(text.begin(), line.length, line.text.begin());
    line.text[line.length++] = '\n';
    current = &line;  // a handler sees either the previous line or this one, completely
  }
  static void clear() noexcept { current = nullptr; }

  /// Writes the line, if there is one, to standard error. May be called in a signal handler.
  static void write() noexcept {
    const Line* line = current;
    if (line == nullptr) return;
    const int error = errno;
    [[maybe_unused]] const ssize_t written =
        ::write(STDERR_FILENO, line->text.data(), line->length);
    errno = error;
  }

 private:
  struct Line {
    std::array<char, 501> text;
    std::size_t length;
  };

  static_assert(std::atomic<const Line*>::is_always_lock_free);
  inline static std::array<Line, 2> lines{};
  inline static std::size_t next = 0;
  inline static std::atomic<const Line*> current{nullptr};
};

/// During its lifetime, a SIGTERM that ends the program first prints the note.
class NoteOnTermination {
 public:
  NoteOnTermination() {
    struct sigaction action{};
    ::sigaction(SIGTERM, nullptr, &action);
    is_ours_ = action.sa_handler == SIG_DFL;
    if (!is_ours_) return;
    action = {};
    action.sa_handler = end;
    ::sigaction(SIGTERM, &action, nullptr);
  }
  ~NoteOnTermination() {
    if (is_ours_) std::signal(SIGTERM, SIG_DFL);
  }
  NoteOnTermination(const NoteOnTermination&) = delete;
  NoteOnTermination& operator=(const NoteOnTermination&) = delete;

 private:
  static void end(int number) {
    WaitNote::write();
    std::signal(number, SIG_DFL);
    ::raise(number);
  }

  bool is_ours_ = false;
};

}  // namespace octavo
