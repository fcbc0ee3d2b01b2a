// The progress of prepare_data on standard error.
#pragma once

#include <common/progress.hpp>
#include <common/text.hpp>

#include <octavo/core/device.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>

namespace prepare_data {

/// Returns the whole number of tokens per second.
inline std::uint64_t rate_of(octavo::Index tokens, double seconds) {
  return static_cast<std::uint64_t>(static_cast<double>(tokens) / std::max(seconds, 1e-3));
}

/// Shows how much was converted: on a terminal in a line that is updated in place, elsewhere in a
/// new line every half minute.
class Progress {
 public:
  /// @param bytes  size of all files, if known
  Progress(std::optional<std::uint64_t> bytes, bool is_terminal)
      : bytes_(bytes), is_terminal_(is_terminal) {}

  /// @param done    bytes of the files read so far
  /// @param tokens  number of tokens written so far
  void show(std::uint64_t done, octavo::Index tokens) {
    const Clock::time_point now = Clock::now();
    if (!is_terminal_ && now - last_line_ < std::chrono::seconds(30)) return;
    last_line_ = now;
    const std::string line =
        text(done, tokens, std::chrono::duration<double>(now - start_).count());
    if (is_terminal_) {
      programs::print_stderr("\r\033[K{}", line);
      std::fflush(stderr);
    } else {
      programs::print_stderr("prepare_data: {}\n", line);
    }
  }

  /// Removes the line from a terminal.
  void clear() const {
    if (!is_terminal_) return;
    programs::print_stderr("\r\033[K");
    std::fflush(stderr);
  }

  /// Returns the line after `seconds`.
  [[nodiscard]] std::string text(std::uint64_t done, octavo::Index tokens, double seconds) const {
    const std::string counts = fmt::format(
        "{} | {} tokens/s", programs::counted(static_cast<std::uint64_t>(tokens), "token"),
        programs::grouped(rate_of(tokens, seconds)));
    if (!bytes_.has_value()) return programs::counted(done, "byte") + " | " + counts;
    const double share = std::min(
        1.0, static_cast<double>(done) / static_cast<double>(std::max<std::uint64_t>(1, *bytes_)));
    const std::string left = programs::duration_text(seconds * (1 / std::max(share, 1e-9) - 1));
    const std::string rest = fmt::format("{:.0f} % | {} | {} left", 100 * share, counts, left);
    if (!is_terminal_) return rest;
    const auto full = static_cast<std::size_t>(30 * share);
    return fmt::format("[{}{}] {}", std::string(full, '='), std::string(30 - full, ' '), rest);
  }

 private:
  using Clock = std::chrono::steady_clock;

  std::optional<std::uint64_t> bytes_;
  bool is_terminal_;
  Clock::time_point start_ = Clock::now();
  Clock::time_point last_line_ = start_;
};

}  // namespace prepare_data
