/// @file
/// How much memory the host has left.
#pragma once

#include <cstddef>
#include <fstream>
#include <limits>
#include <string>

namespace octavo {

/// Bytes that programs can still take without driving others out of memory, swap included; the
/// largest number where the system does not say. More than these many an allocation may be granted
/// and the program killed when it writes to them.
/// Source: MemAvailable and SwapFree of Linux's /proc/meminfo.
inline std::size_t available_host_memory() {
  std::ifstream file("/proc/meminfo");
  std::size_t kibibytes = 0;
  bool is_known = false;
  for (std::string line; std::getline(file, line);) {
    const bool is_available = line.starts_with("MemAvailable:");
    if (!is_available && !line.starts_with("SwapFree:")) continue;
    kibibytes += std::stoull(line.substr(line.find(':') + 1));
    is_known = is_known || is_available;
  }
  return is_known ? kibibytes * 1024 : std::numeric_limits<std::size_t>::max();
}

}  // namespace octavo
