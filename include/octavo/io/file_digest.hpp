/// @file
/// Length and checksum of a file.
#pragma once

#include <octavo/core/context.hpp>
#include <octavo/data/open_file.hpp>
#include <octavo/io/crc32c.hpp>
#include <octavo/io/for_each_part.hpp>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

#include <fcntl.h>
#include <sys/types.h>
#include <unistd.h>

namespace octavo OCTAVO_ABI {

/// Identifies the content of a file.
struct FileDigest {
  std::uint64_t bytes = 0;
  std::uint32_t checksum = 0;  ///< `crc32c`

  friend bool operator==(const FileDigest&, const FileDigest&) = default;
};

namespace detail {

/// Reads part of a file block by block, and computes its digest. The digest covers the bytes that
/// exist; `error` is an errno if they cannot be read.
struct FilePart {
  FileDigest digest{};
  int error = 0;

  FilePart() = default;
  FilePart(int descriptor, std::uint64_t begin, std::uint64_t size) {
    constexpr std::size_t block = std::size_t{1} << 18;  // still in the cache when it is summed
    const auto bytes = std::make_unique_for_overwrite<std::byte[]>(block);
    while (digest.bytes < size) {
      const std::uint64_t left = std::min<std::uint64_t>(block, size - digest.bytes);
      const ssize_t count =
          ::pread(descriptor, bytes.get(), left, static_cast<off_t>(begin + digest.bytes));
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) error = errno;
      if (count <= 0) return;
      const std::span part(bytes.get(), static_cast<std::size_t>(count));
      digest.bytes += part.size();
      digest.checksum = crc32c(part, digest.checksum);
    }
  }
};

}  // namespace detail

/// Extends a `crc32c` by further bytes.
/// @param before   checksum of the preceding bytes; 0 if there are none
/// @param context  whose threads process parts of the bytes
[[nodiscard]] inline std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t before,
                                          const Context<Cpu>& context) {
  using detail::part_bytes;
  std::vector<std::uint32_t> checksums((bytes.size() + part_bytes - 1) / part_bytes);
  for_each_part(bytes.size(), context, [&](std::size_t begin, std::size_t size) {
    checksums[begin / part_bytes] = crc32c(bytes.subspan(begin, size));
  });
  for (std::size_t i = 0; i < checksums.size(); ++i) {
    const std::size_t size = std::min(part_bytes, bytes.size() - i * part_bytes);
    before = combine_crc32c(before, checksums[i], size);
  }
  return before;
}

/// Where the bytes of a file are read from.
enum class ReadFrom {
  anywhere,  ///< the system's cache, if it has them
  disk       ///< the disk, if the file system can drop its cached pages
};

/// Computes the digest of a whole file.
/// @param context  whose threads read parts of it
/// @throws IoError  naming the file and the system's error
[[nodiscard]] inline FileDigest digest_of_file(const std::filesystem::path& path,
                                               const Context<Cpu>& context = Context<Cpu>(1),
                                               ReadFrom source = ReadFrom::anywhere) {
  using detail::part_bytes;
  struct stat status{};
  const int descriptor = detail::open_regular_file(path, status);
  if (source == ReadFrom::disk) (void)::posix_fadvise(descriptor, 0, 0, POSIX_FADV_DONTNEED);
  int error = 0;
  FileDigest digest;
  std::vector<detail::FilePart> parts(static_cast<std::size_t>(context.threads()));
  // Reads until a part ends early: the reported size of a file may be wrong.
  for (bool is_whole = true; is_whole;) {
    parallel_for(static_cast<Index>(parts.size()), many_elements, context, [&](Index i) {
      const std::uint64_t begin = digest.bytes + static_cast<std::uint64_t>(i) * part_bytes;
      parts[static_cast<std::size_t>(i)] = detail::FilePart(descriptor, begin, part_bytes);
    });
    for (const detail::FilePart& part : parts) {
      if (!is_whole) break;
      error = part.error;
      digest.checksum = combine_crc32c(digest.checksum, part.digest.checksum, part.digest.bytes);
      digest.bytes += part.digest.bytes;
      is_whole = error == 0 && part.digest.bytes == part_bytes;
    }
  }
  ::close(descriptor);
  if (error != 0) detail::reading_failed(path, error);
  return digest;
}

}  // namespace octavo
