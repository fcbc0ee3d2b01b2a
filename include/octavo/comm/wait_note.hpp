/// @file
/// What a process waits for, to be said when a signal ends it.
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

/// A line that says what this process waits for. Launchers answer a rank's death with SIGTERM to
/// all others, which then can say no more than what was written here before. For one thread.
class WaitNote {
 public:
  /// Takes the place of the line before; what is beyond 500 bytes is cut off.
  static void set(std::string_view text) noexcept {
    Line& line = lines[next];
    next = 1 - next;
    line.length = std::min(text.size(), line.text.size() - 1);
    std::copy_n(text.begin(), line.length, line.text.begin());
    line.text[line.length++] = '\n';
    current = &line;  // a handler sees the line before or this one, whole
  }
  static void clear() noexcept { current = nullptr; }

  /// Writes the line to standard error, if there is one. May be called in a signal's handler.
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

/// While one lives, a SIGTERM that would end the program writes the note before.
class NoteOnTermination {
 public:
  NoteOnTermination() {
    struct sigaction action {};
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
