/// @file
/// The amount of available host memory.
#pragma once

#include <octavo/core/version.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

namespace octavo OCTAVO_ABI {
namespace detail {

inline constexpr std::size_t unlimited_memory = std::numeric_limits<std::size_t>::max();

/// Returns the contents of a kernel file; empty if it does not exist. Does not use file streams,
/// whose header is slow to compile.
inline std::string text_of_file(const std::string& path) {
  std::string text;
  if (std::FILE* file = std::fopen(path.c_str(), "r"); file != nullptr) {
    for (int letter = std::fgetc(file); letter != EOF; letter = std::fgetc(file)) {
      text += static_cast<char>(letter);
    }
    std::fclose(file);
  }
  return text;
}

/// Returns the text after `name` in the first line that begins with it; empty if there is no such
/// line.
inline std::string rest_of_line(const std::string& text, std::string_view name) {
  for (std::size_t line = 0; line < text.size();) {
    const std::size_t end = std::min(text.find('\n', line), text.size());
    if (text.compare(line, name.size(), name) == 0) {
      return text.substr(line + name.size(), end - line - name.size());
    }
    line = end + 1;
  }
  return {};
}

/// Returns the number after `name`, or at the beginning of the text if `name` is empty; nothing for
/// "max" or if no line begins with `name`.
inline std::optional<std::size_t> number_after(const std::string& text,
                                               std::string_view name = "") {
  const std::string rest = rest_of_line(text, name);
  char* end = nullptr;
  const std::size_t number = std::strtoull(rest.c_str(), &end, 10);
  if (end == rest.c_str()) return std::nullopt;
  return number;
}

/// Returns the memory available on this machine, including swap. Source: MemAvailable and SwapFree
/// of Linux's /proc/meminfo.
inline std::size_t available_in_machine() {
  const std::string text = text_of_file("/proc/meminfo");
  const auto available = number_after(text, "MemAvailable:");
  if (!available) return unlimited_memory;
  const std::size_t kibibytes = *available + number_after(text, "SwapFree:").value_or(0);
  return kibibytes * 1024;
}

/// Returns the memory available in a control group. The kernel reclaims memory that caches file
/// contents. Source: memory.max, memory.current and memory.stat of Linux's control groups, version
/// 2.
inline std::size_t available_in_group(const std::string& group) {
  const auto most = number_after(text_of_file(group + "/memory.max"));
  const auto used = number_after(text_of_file(group + "/memory.current"));
  if (!most || !used) return unlimited_memory;
  const std::string statistics = text_of_file(group + "/memory.stat");
  const std::size_t file_cache_bytes = number_after(statistics, "active_file ").value_or(0) +
                                       number_after(statistics, "inactive_file ").value_or(0);
  return *most - std::min(*most, *used - std::min(*used, file_cache_bytes));
}

/// Returns the memory available in the group that `membership` names and in its ancestors.
/// @param root        of the tree of groups
/// @param membership  a file such as /proc/self/cgroup
inline std::size_t available_in_groups(const std::string& root, const std::string& membership) {
  std::size_t available = available_in_group(root);
  // The group's name in version 2, and then each ancestor, up to each slash.
  const std::string group = rest_of_line(text_of_file(membership), "0::");
  for (std::size_t end = 0; end < group.size();) {
    end = std::min(group.find('/', end + 1), group.size());
    available = std::min(available, available_in_group(root + group.substr(0, end)));
  }
  return available;
}

}  // namespace detail

/// Returns the bytes that programs can still use without being killed, according to Linux: the
/// machine and its version 2 control groups; if unknown, the largest number. Memory that was
/// allocated and not written to yet counts as free.
[[nodiscard]] inline std::size_t available_host_memory() {
  return std::min(detail::available_in_machine(),
                  detail::available_in_groups("/sys/fs/cgroup", "/proc/self/cgroup"));
}

}  // namespace octavo
