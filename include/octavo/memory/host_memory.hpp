/// @file
/// How much memory the host has left.
#pragma once

#include <octavo/core/version.hpp>

#include <algorithm>
#include <cstddef>
#include <fstream>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

namespace octavo::inline OCTAVO_ABI {
namespace detail {

inline constexpr std::size_t unlimited_memory = std::numeric_limits<std::size_t>::max();

/// The number that a file consists of; none for "max", and where there is no file.
inline std::optional<std::size_t> number_in_file(const std::string& path) {
  std::size_t number = 0;
  if (std::ifstream(path) >> number) return number;
  return std::nullopt;
}

/// What this machine can give, swap included.
/// Source: MemAvailable and SwapFree of Linux's /proc/meminfo.
inline std::size_t available_in_machine() {
  std::ifstream file("/proc/meminfo");
  std::size_t kibibytes = 0;
  bool is_known = false;
  for (std::string line; std::getline(file, line);) {
    const bool is_available = line.starts_with("MemAvailable:");
    if (!is_available && !line.starts_with("SwapFree:")) continue;
    kibibytes += std::stoull(line.substr(line.find(':') + 1));
    is_known = is_known || is_available;
  }
  return is_known ? kibibytes * 1024 : unlimited_memory;
}

/// What a control group can give. Of what it uses, the kernel gives files' contents back.
/// Source: memory.max, memory.current and memory.stat of Linux's control groups, version 2.
inline std::size_t available_in_group(const std::string& group) {
  const auto most = number_in_file(group + "/memory.max");
  const auto used = number_in_file(group + "/memory.current");
  if (!most || !used) return unlimited_memory;
  std::size_t of_files = 0;
  std::ifstream statistics(group + "/memory.stat");
  std::size_t bytes = 0;
  for (std::string name; statistics >> name >> bytes;) {
    if (name == "active_file" || name == "inactive_file") of_files += bytes;
  }
  return *most - std::min(*most, *used - std::min(*used, of_files));
}

/// What the group that `membership` names, and the groups that it is in, can give.
/// @param root        of the tree of groups
/// @param membership  a file such as /proc/self/cgroup
inline std::size_t available_in_groups(const std::string& root, const std::string& membership) {
  std::size_t available = available_in_group(root);
  std::ifstream file(membership);
  for (std::string line; std::getline(file, line);) {
    constexpr std::string_view version_2 = "0::/";
    if (!line.starts_with(version_2)) continue;
    // The group's name, and what stands in it before each slash.
    const std::string group = line.substr(version_2.size() - 1);
    for (std::size_t end = 0; end < group.size();) {
      end = std::min(group.find('/', end + 1), group.size());
      available = std::min(available, available_in_group(root + group.substr(0, end)));
    }
  }
  return available;
}

}  // namespace detail

/// Bytes that programs can still take without one of them being killed, as far as Linux says: the
/// machine, and its control groups of version 2; else the largest number. Memory that was allocated
/// and not written to yet counts as free.
[[nodiscard]] inline std::size_t available_host_memory() {
  return std::min(detail::available_in_machine(),
                  detail::available_in_groups("/sys/fs/cgroup", "/proc/self/cgroup"));
}

}  // namespace octavo
