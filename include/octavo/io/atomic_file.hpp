/// @file
/// Writing a file whole or not at all.
#pragma once

#include <octavo/core/error.hpp>
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
                        "; check the path, its permissions and the room on the disk"));
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
  std::filesystem::path path{};
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

/// A file that is there whole or not at all: what is written goes to a temporary file beside it,
/// which `commit` renames once it is on the disk. Without a commit, and after a failure, what was
/// at the path is as it was, and there is no temporary file. A link to a file stays: what it points
/// to is replaced. A device or pipe (/dev/stdout) cannot be replaced and is written directly.
///
/// All members throw an IoError that names the file and the system's reason.
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path path) : path_(std::move(path)) {
    std::error_code ignored;
    const std::filesystem::file_status status = std::filesystem::status(path_, ignored);
    if (std::filesystem::is_directory(status)) detail::writing_failed(path_, EISDIR);
    if (std::filesystem::is_other(status)) {
      file_.descriptor = ::open(path_.c_str(), O_WRONLY | O_CLOEXEC);
    } else {
      target_ = std::filesystem::exists(status) ? std::filesystem::canonical(path_)
                                                : std::filesystem::absolute(path_);
      file_ = detail::create_temporary(target_.parent_path());
    }
    if (file_.descriptor < 0) detail::writing_failed(path_, errno);
  }
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile() {
    if (file_.descriptor >= 0) ::close(file_.descriptor);
    if (!file_.path.empty()) ::unlink(file_.path.c_str());
  }

  /// Appends to what was written so far.
  void write(std::string_view content) {
    const int error = write_all(file_.descriptor, content).error;
    if (error != 0) detail::writing_failed(path_, error);
  }

  /// Writes to the place from byte `offset` on, and leaves that of `write` where it is.
  void write_at(std::uint64_t offset, std::span<const std::byte> content) {
    while (!content.empty()) {
      const ssize_t count =
          ::pwrite(file_.descriptor, content.data(), content.size(), static_cast<off_t>(offset));
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) detail::writing_failed(path_, count < 0 ? errno : EIO);
      content = content.subspan(static_cast<std::size_t>(count));
      offset += static_cast<std::uint64_t>(count);
    }
  }

  /// Puts the file in its place. The last call.
  void commit() {
    // What is no file on a disk, such as a pipe, cannot be synchronised and says EINVAL.
    int error = ::fsync(file_.descriptor) != 0 && errno != EINVAL ? errno : 0;
    if (::close(std::exchange(file_.descriptor, -1)) != 0 && error == 0) error = errno;
    if (error == 0 && !target_.empty()) {
      if (::rename(file_.path.c_str(), target_.c_str()) != 0) error = errno;
    }
    if (error != 0) detail::writing_failed(path_, error);
    file_.path.clear();
    if (!target_.empty()) detail::synchronise_folder(target_.parent_path());
  }

 private:
  std::filesystem::path path_;
  std::filesystem::path target_;  ///< without links; empty: the file is written directly
  detail::TemporaryFile file_;
};

/// Writes a file whole or not at all; see AtomicFile.
/// @throws IoError  naming the file and the system's reason
inline void write_file_atomically(const std::filesystem::path& path, std::string_view content) {
  AtomicFile file(path);
  file.write(content);
  file.commit();
}

}  // namespace octavo
