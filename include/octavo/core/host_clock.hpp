/// @file
/// The clock of the host.
#pragma once

#include <octavo/core/version.hpp>

#include <ctime>

namespace octavo OCTAVO_ABI::detail {

/// Returns the microseconds of the host's clock, which all processes of a host share.
[[nodiscard]] inline double host_microseconds() {
  std::timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);  // including <chrono> takes a tenth of octavo.hpp's
                                           // compile time
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) * 1e-3;
}

}  // namespace octavo OCTAVO_ABI::detail
