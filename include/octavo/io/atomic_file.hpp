/// @file
/// Atomic writing of files.
#pragma once

#include <octavo/core/error.hpp>
#include <octavo/io/folder.hpp>
#include <octavo/io/temporary.hpp>
#include <octavo/io/write_all.hpp>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/types.h>
#include <unistd.h>

namespace octavo OCTAVO_ABI {

namespace detail {

[[noreturn]] inline void writing_failed(const std::filesystem::path& path, int error) {
  throw IoError(message(path.string(), ": cannot be written: ", std::strerror(error),
                        "; check the path, its permissions and the free disk space"));
}

}  // namespace detail

/// Writes a file atomically: the content is written to a temporary file in the same folder, which
/// `commit` flushes to disk and renames. Without a commit, or after a failure, the path is
/// unchanged and the temporary file is removed. Temporary files that killed programs left in the
/// folder are also removed. If the path is a link, its target is replaced. A device or pipe
/// (/dev/stdout) cannot be replaced and is written directly.
///
/// All members throw an IoError that names the file and the system's error.
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path path) : path_(std::move(path)) {
    std::error_code ignored;
    const std::filesystem::file_status status = std::filesystem::status(path_, ignored);
    if (std::filesystem::is_directory(status)) detail::writing_failed(path_, EISDIR);
    if (std::filesystem::is_other(status)) {
      file_ = {{}, open_nonblocking(path_)};
    } else {
      detail::refuse_dangling_link(path_);
      target_ = std::filesystem::exists(status) ? std::filesystem::canonical(path_)
                                                : std::filesystem::absolute(path_);
      file_ = detail::create_temporary_file(target_.parent_path());
    }
    if (!file_) detail::writing_failed(path_, errno);
  }
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  /// Appends to the file.
  void write(std::string_view content) {
    const int error = write_all(file_.descriptor(), content).error;
    if (error != 0) detail::writing_failed(path_, error);
  }

  /// Writes at byte `offset`, without moving the position of `write`.
  void write_at(std::uint64_t offset, std::span<const std::byte> content) {
    while (!content.empty()) {
      const ssize_t count =
          ::pwrite(file_.descriptor(), content.data(), content.size(), static_cast<off_t>(offset));
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) detail::writing_failed(path_, count < 0 ? errno : EIO);
      content = content.subspan(static_cast<std::size_t>(count));
      offset += static_cast<std::uint64_t>(count);
    }
  }

  /// Renames the file to its path. Must be the last call. If the folder cannot be synchronised, the
  /// file is renamed, but a power failure may undo the rename.
  void commit() {
    // A pipe cannot be synchronised; the error is EINVAL.
    if (::fsync(file_.descriptor()) != 0 && errno != EINVAL) detail::writing_failed(path_, errno);
    // A network file system reports errors when the file is closed. The other descriptor keeps the
    // lock.
    const int written = ::fcntl(file_.descriptor(), F_DUPFD_CLOEXEC, 0);
    if (written < 0 || ::close(written) != 0) detail::writing_failed(path_, errno);
    if (target_.empty()) return;
    if (::rename(file_.path().c_str(), target_.c_str()) != 0) detail::writing_failed(path_, errno);
    file_.release();
    fsync_folder(target_.parent_path());
  }

 private:
  /// Opens a device or pipe. A pipe without a reader is an error, because opening it would block.
  static int open_nonblocking(const std::filesystem::path& path) {
    const int descriptor = ::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC);
    require<IoError>(descriptor >= 0 || errno != ENXIO, path.string(),
                     ": cannot be written: it is a pipe without a reader, or a device without a "
                     "driver; choose another path");
    if (descriptor >= 0) ::fcntl(descriptor, F_SETFL, O_WRONLY);
    return descriptor;
  }

  std::filesystem::path path_;
  std::filesystem::path target_;  ///< links resolved; empty if the file is written directly
  detail::Temporary file_;
};

/// Writes a file atomically; see AtomicFile.
/// @throws IoError  naming the file and the system's error
inline void write_file_atomically(const std::filesystem::path& path, std::string_view content) {
  AtomicFile file(path);
  file.write(content);
  file.commit();
}

}  // namespace octavo
