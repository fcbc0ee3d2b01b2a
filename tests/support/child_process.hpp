// Another program, run to its end, and what it said.
#pragma once

#include "end_with_parent.hpp"

#include <octavo/core/error.hpp>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

struct ChildResult {
  int exit_code = 0;  ///< as a shell says it, with 128 + a signal's number; -1: after the limit
  double seconds = 0;
  std::string out;
  std::string err;
};

/// Runs a program in a process group of its own, of which nothing is left afterwards; where the
/// test ends before, the program gets SIGTERM, on which a launcher such as mpirun ends what it
/// started.
/// @param limit  seconds, after which it is killed
inline ChildResult run_child(const std::vector<std::string>& command,
                             const std::map<std::string, std::string>& environment, int limit) {
  using Clock = std::chrono::steady_clock;
  std::array<std::array<int, 2>, 2> pipes{};
  for (auto& ends : pipes) octavo::require<octavo::IoError>(::pipe(ends.data()) == 0, "pipe");
  const Clock::time_point start = Clock::now();
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  octavo::require<octavo::IoError>(child >= 0, "fork");
  if (child == 0) {
    end_with_parent(parent, SIGTERM);
    ::setpgid(0, 0);
    ::dup2(pipes[0][1], STDOUT_FILENO);
    ::dup2(pipes[1][1], STDERR_FILENO);
    for (const auto& ends : pipes) ::close(ends[0]), ::close(ends[1]);
    for (const auto& [name, value] : environment) ::setenv(name.c_str(), value.c_str(), 1);
    std::vector<char*> arguments;
    arguments.reserve(command.size() + 1);
    for (const std::string& part : command) arguments.push_back(const_cast<char*>(part.c_str()));
    arguments.push_back(nullptr);
    ::execvp(arguments[0], arguments.data());
    ::_exit(127);
  }
  for (const auto& ends : pipes) ::close(ends[1]);
  ChildResult result;
  std::array<pollfd, 2> open{{{pipes[0][0], POLLIN, 0}, {pipes[1][0], POLLIN, 0}}};
  const auto seconds = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
  while ((open[0].fd >= 0 || open[1].fd >= 0) && seconds() < limit) {
    ::poll(open.data(), open.size(), 100);
    for (std::size_t i = 0; i < open.size(); ++i) {
      if (open[i].fd < 0 || open[i].revents == 0) continue;
      std::array<char, 4096> text{};
      const ssize_t count = ::read(open[i].fd, text.data(), text.size());
      if (count > 0) (i == 0 ? result.out : result.err).append(text.data(), std::size_t(count));
      if (count <= 0) open[i].fd = -1;
    }
  }
  const bool is_late = seconds() >= limit;
  if (is_late) ::kill(-child, SIGKILL);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  result.exit_code = is_late             ? -1
                     : WIFEXITED(status) ? WEXITSTATUS(status)
                                         : 128 + WTERMSIG(status);
  result.seconds = seconds();
  for (const auto& ends : pipes) ::close(ends[0]);
  return result;
}
