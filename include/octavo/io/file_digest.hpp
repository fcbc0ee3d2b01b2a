/// @file
/// Length and checksum of a file.
#pragma once

#include <octavo/core/error.hpp>
#include <octavo/io/crc32c.hpp>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <span>
#include <vector>

#include <fcntl.h>
#include <sys/types.h>
#include <unistd.h>

namespace octavo::inline OCTAVO_ABI {

/// What tells whether a file is what it was.
struct FileDigest {
  std::uint64_t bytes = 0;
  std::uint32_t checksum = 0;  ///< `crc32c`

  friend bool operator==(const FileDigest&, const FileDigest&) = default;
};

/// Reads a file from its begin on.
/// @param most  bytes that are read at most
/// @throws IoError  naming the file and the system's reason
[[nodiscard]] inline FileDigest digest_of_file(const std::filesystem::path& path,
                                               std::uint64_t most = ~std::uint64_t{0}) {
  constexpr std::size_t block = std::size_t{1} << 20;
  FileDigest digest;
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  std::vector<std::byte> bytes(block);
  ssize_t count = descriptor < 0 ? -1 : 1;
  while (count != 0 && descriptor >= 0 && digest.bytes < most) {
    const std::uint64_t left = most - digest.bytes;
    count = ::read(descriptor, bytes.data(), left < block ? left : block);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) break;
    const auto part = std::span(bytes).first(static_cast<std::size_t>(count));
    digest.bytes += part.size();
    digest.checksum = crc32c(part, digest.checksum);
  }
  const int error = errno;
  if (descriptor >= 0) ::close(descriptor);
  require<IoError>(count >= 0, path.string(), ": cannot be read: ", std::strerror(error));
  return digest;
}

}  // namespace octavo
