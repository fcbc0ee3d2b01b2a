/// @file
/// How much memory the host has left.
#pragma once

#include <algorithm>
#include <cstddef>
#include <fstream>
#include <limits>
#include <string>

namespace octavo {
namespace detail {

inline constexpr std::size_t unlimited_memory = std::numeric_limits<std::size_t>::max();

/// The number that a file consists of; where there is none, such as for "max", all that there is.
inline std::size_t number_in_file(const char* path) {
  std::size_t number = 0;
  return std::ifstream(path) >> number ? number : unlimited_memory;
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

/// What this container can give.
/// Source: memory.max and memory.current of Linux's control groups, version 2.
inline std::size_t available_in_container() {
  const std::size_t most = number_in_file("/sys/fs/cgroup/memory.max");
  const std::size_t used = number_in_file("/sys/fs/cgroup/memory.current");
  return most == unlimited_memory ? most : most - std::min(most, used);
}

}  // namespace detail

/// Bytes that programs can still take without one of them being killed, as far as the system says;
/// else the largest number. Memory that was allocated and not written to yet counts as free.
inline std::size_t available_host_memory() {
  return std::min(detail::available_in_machine(), detail::available_in_container());
}

}  // namespace octavo
