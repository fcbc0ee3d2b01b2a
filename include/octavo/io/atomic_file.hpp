/// @file
/// Writing a file whole or not at all.
#pragma once

#include <octavo/core/error.hpp>
#include <octavo/io/write_all.hpp>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>

#include <fcntl.h>
#include <unistd.h>

namespace octavo::inline OCTAVO_ABI {

namespace detail {

[[noreturn]] inline void writing_failed(const std::filesystem::path& path, int error) {
  throw IoError(message(path.string(), ": cannot be written: ", std::strerror(error),
                        "; check the path, its permissions and the room on the disk"));
}

/// Writes `content` and closes; returns 0 only once all is on the disk, otherwise errno.
inline int write_and_close(int descriptor, std::string_view content) {
  int error = write_all(descriptor, content).error;
  // What is no file on a disk, such as a pipe, cannot be synchronised and says EINVAL.
  if (error == 0 && ::fsync(descriptor) != 0 && errno != EINVAL) error = errno;
  if (::close(descriptor) != 0 && error == 0) error = errno;
  return error;
}

/// Makes a rename in `folder` survive a power cut, where the folder can be opened at all.
inline void synchronise_folder(const std::filesystem::path& folder) {
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return;
  ::fsync(descriptor);
  ::close(descriptor);
}

/// A new file with a name of its own.
struct TemporaryFile {
  std::filesystem::path path;
  int descriptor = -1;  ///< −1 if none could be created; errno tells why
};

inline TemporaryFile create_temporary(const std::filesystem::path& folder) {
  TemporaryFile file;
  // A killed process may have left the names that its number gives, and numbers come again.
  for (int attempt = 0; attempt < 1000; ++attempt) {
    file.path = folder / message(".octavo-", ::getpid(), '-', attempt, ".tmp");
    file.descriptor = ::open(file.path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file.descriptor >= 0 || errno != EEXIST) break;
  }
  return file;
}

}  // namespace detail

/// Writes `content` to a temporary file beside `path`, and renames it to `path` once it is on the
/// disk. A failure leaves what was at `path` as it was, and no temporary file. A link to a file
/// stays: what it points to is replaced. A device or pipe (/dev/stdout) cannot be replaced and is
/// written directly.
/// @throws IoError  naming the file and the system's reason
inline void write_file_atomically(const std::filesystem::path& path, std::string_view content) {
  std::error_code ignored;
  const std::filesystem::file_status status = std::filesystem::status(path, ignored);
  if (std::filesystem::is_directory(status)) detail::writing_failed(path, EISDIR);
  if (std::filesystem::is_other(status)) {
    const int descriptor = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
    const int error = descriptor < 0 ? errno : detail::write_and_close(descriptor, content);
    if (error != 0) detail::writing_failed(path, error);
    return;
  }
  const std::filesystem::path target = std::filesystem::exists(status)
                                           ? std::filesystem::canonical(path)
                                           : std::filesystem::absolute(path);
  const detail::TemporaryFile temporary = detail::create_temporary(target.parent_path());
  if (temporary.descriptor < 0) detail::writing_failed(path, errno);
  int error = detail::write_and_close(temporary.descriptor, content);
  if (error == 0 && ::rename(temporary.path.c_str(), target.c_str()) != 0) error = errno;
  if (error != 0) {
    ::unlink(temporary.path.c_str());
    detail::writing_failed(path, error);
  }
  detail::synchronise_folder(target.parent_path());
}

}  // namespace octavo
