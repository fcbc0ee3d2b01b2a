// Ranks that are processes of the test's own making, and what became of them.
#pragma once

#include "end_with_parent.hpp"

#include <octavo/comm/launch.hpp>
#include <octavo/core/error.hpp>

#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/// A port at which nobody listens.
inline int free_port() {
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* any = reinterpret_cast<sockaddr*>(&address);
  octavo::require<octavo::IoError>(
      ::bind(socket, any, length) == 0 && ::getsockname(socket, any, &length) == 0, "no free port");
  ::close(socket);
  return ntohs(address.sin_port);
}

inline octavo::Launch launch_of(int rank, int size, int port) {
  return {.launcher = octavo::Launcher::flags,
          .rank = rank,
          .size = size,
          .local_rank = rank,
          .local_size = size,
          .master_address = "127.0.0.1",
          .port = port};
}

/// Makes this process one of this program that runs a test, whatever part of all tests it had.
/// @param filter    of that test
/// @param variable  of the environment, which gets `value`: what the test is to be
[[noreturn]] inline void exec_as_test(const char* filter, const char* variable,
                                      const std::string& value) {
  ::setenv(variable, value.c_str(), 1);
  ::unsetenv("GTEST_TOTAL_SHARDS");
  ::unsetenv("GTEST_SHARD_INDEX");
  ::execl("/proc/self/exe", "rank", filter, "--gtest_brief=1", static_cast<char*>(nullptr));
  ::_exit(127);
}

/// What is left of a rank's process.
struct RankResult {
  int exit_code = 0;         ///< 3: it threw; minus the signal that ended it
  std::string error_output;  ///< what it threw
  double seconds = 0;        ///< since the first was started
};

class RankProcesses {
 public:
  RankProcesses() = default;
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;
  ~RankProcesses() {
    for (const Process& process : processes_) {
      if (!process.is_done) ::kill(process.pid, SIGKILL), ::waitpid(process.pid, nullptr, 0);
    }
  }

  /// Runs a body as a process; it writes to `error_output` what it throws.
  template <class Body>
  void start(const Body& body) {
    Process process;
    process.error_output.reset(std::tmpfile());
    const pid_t parent = ::getpid();
    process.pid = ::fork();
    octavo::require<octavo::IoError>(process.pid >= 0, "fork");
    if (process.pid == 0) {
      end_with_parent(parent, SIGKILL);
      int code = 0;
      try {
        body();
      } catch (const std::exception& error) {
        std::fputs(error.what(), process.error_output.get());
        code = 3;
      }
      std::fflush(process.error_output.get());
      ::_exit(code);
    }
    processes_.push_back(std::move(process));
  }

  [[nodiscard]] pid_t pid(std::size_t rank) const { return processes_[rank].pid; }

  /// Waits for the ends of all but one, whose end it makes.
  /// @param but  -1: waits for all
  std::vector<RankResult> wait(int limit, int but = -1) {
    for (;;) {
      bool is_over = true;
      for (std::size_t rank = 0; rank < processes_.size(); ++rank) {
        const bool is_done = has_ended(processes_[rank]);
        is_over = is_over && (is_done || static_cast<int>(rank) == but);
      }
      if (is_over || seconds() > limit) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    std::vector<RankResult> ends;
    for (Process& process : processes_) {
      if (!process.is_done) {
        ::kill(process.pid, SIGKILL);
        while (!has_ended(process)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      ends.push_back(process.end);
    }
    return ends;
  }

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  struct Process {
    pid_t pid = 0;
    bool is_done = false;
    RankResult end{};
    std::unique_ptr<std::FILE, Close> error_output{};
  };

  [[nodiscard]] double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

  bool has_ended(Process& process) {
    int status = 0;
    if (process.is_done || ::waitpid(process.pid, &status, WNOHANG) != process.pid)
      return process.is_done;
    process.is_done = true;
    process.end.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    process.end.seconds = seconds();
    std::rewind(process.error_output.get());
    for (int letter = 0; (letter = std::fgetc(process.error_output.get())) != EOF;) {
      process.end.error_output += static_cast<char>(letter);
    }
    return true;
  }

  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::vector<Process> processes_;
};
