/// @file
/// Checked writing to a file descriptor.
#pragma once

#include <octavo/core/version.hpp>

#include <cerrno>
#include <cstddef>
#include <string_view>

#include <sys/types.h>
#include <unistd.h>

namespace octavo OCTAVO_ABI {

/// The result of a write.
struct WriteResult {
  std::size_t written = 0;  ///< bytes
  int error = 0;            ///< errno, or 0 if all was written
};

/// Writes all of `content` in one call. If the system writes only a part, further calls follow,
/// which return the error.
[[nodiscard]] inline WriteResult write_all(int descriptor, std::string_view content) {
  WriteResult result;
  while (result.written < content.size()) {
    const ssize_t count =
        ::write(descriptor, content.data() + result.written, content.size() - result.written);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      result.error = count < 0 ? errno : EIO;
      return result;
    }
    result.written += static_cast<std::size_t>(count);
  }
  return result;
}

}  // namespace octavo
