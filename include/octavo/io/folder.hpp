/// @file
/// Atomic creation and removal of folders, folder locks, and free disk space.
#pragma once

#include <octavo/core/error.hpp>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

namespace octavo OCTAVO_ABI {

namespace detail {

/// @throws IoError  naming the path, the failed operation and errno
[[noreturn]] inline void folder_failed(const std::filesystem::path& path, const char* what) {
  throw IoError(message(path.string(), ": cannot be ", what, ": ", std::strerror(errno),
                        "; check the path, its permissions and the free disk space"));
}

}  // namespace detail

/// Synchronises the directory entries of a folder with the disk.
/// @throws IoError  if the system reports an error
inline void fsync_folder(const std::filesystem::path& folder) {
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) detail::folder_failed(folder, "opened");
  const bool is_synchronised = ::fsync(descriptor) == 0;
  const int error = errno;
  const bool is_closed = ::close(descriptor) == 0;
  if (!is_synchronised) errno = error;
  if (!is_synchronised || !is_closed) detail::folder_failed(folder, "flushed to the disk");
}

/// Creates a folder that does not exist yet, in an existing folder.
/// @throws IoError  naming the folder and the system's error
inline void make_new_folder(const std::filesystem::path& folder) {
  if (::mkdir(folder.c_str(), 0777) != 0) detail::folder_failed(folder, "made");
}

/// Renames a complete folder to its final name, which must be free. If the final name exists, even
/// after a power failure, the folder is complete.
/// @param written  the folder under its temporary name, next to `folder`; its files must be on the
///                 disk already
/// @throws IoError  if it fails; then `folder` does not exist
inline void commit_folder(const std::filesystem::path& written,
                          const std::filesystem::path& folder) {
  fsync_folder(written);
  if (::rename(written.c_str(), folder.c_str()) != 0) detail::folder_failed(folder, "made");
  try {
    fsync_folder(folder.parent_path());
  } catch (const IoError&) {
    (void)::rename(folder.c_str(), written.c_str());
    throw;
  }
}

/// Removes a committed folder. The folder is renamed first, so that a partly removed folder is not
/// mistaken for a complete one.
/// @param discarded  a free name next to it
/// @throws IoError  naming the folder and the system's error
inline void remove_committed_folder(const std::filesystem::path& folder,
                                    const std::filesystem::path& discarded) {
  if (::rename(folder.c_str(), discarded.c_str()) != 0) detail::folder_failed(folder, "removed");
  std::error_code error;
  std::filesystem::remove_all(discarded, error);
  require<IoError>(!error, discarded.string(), ": cannot be removed: ", error.message(),
                   "; remove it by hand");
}

namespace detail {

/// Whether a file system is mounted at a path; false if the system does not report it.
inline bool is_mount_point(const std::filesystem::path& path) {
  struct statx status{};
  if (::statx(AT_FDCWD, path.c_str(), 0, 0, &status) != 0) return false;
  return (status.stx_attributes_mask & status.stx_attributes & STATX_ATTR_MOUNT_ROOT) != 0;
}

}  // namespace detail

/// Returns the free bytes of a folder's disk, for unprivileged processes.
/// @throws IoError  if the system does not report them
[[nodiscard]] inline std::uint64_t free_disk_bytes(const std::filesystem::path& folder) {
  struct statvfs disk{};
  if (::statvfs(folder.c_str(), &disk) != 0)
    detail::folder_failed(folder, "checked for free disk space");
  return std::uint64_t{disk.f_bavail} * std::uint64_t{disk.f_frsize};
}

/// A file system does not support locks.
class NoLocksError : public IoError {
 public:
  using IoError::IoError;
};

namespace detail {

/// Opens a lock file, and creates it if it does not exist. If it belongs to another user and is not
/// writable, it is opened for reading, which suffices for `flock` except on network file systems.
/// @return  a descriptor, or a negative value with errno
inline int open_lock_file(const std::filesystem::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666);
  if (descriptor >= 0 || errno != EACCES) return descriptor;
  const int readable = ::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
  errno = EACCES;
  return readable;
}

/// Acquires an exclusive lock on an open file. On failure, errno is EWOULDBLOCK if another process
/// has the lock, and EACCES if locking requires a writable file.
inline bool try_lock(int descriptor) {
  if (::flock(descriptor, LOCK_EX | LOCK_NB) == 0) return true;
  if (errno == EBADF) errno = EACCES;  // NFS locks only files that are open for writing
  return false;
}

}  // namespace detail

/// Locks a folder for this process. The system releases it when the process ends.
class FolderLock {
 public:
  /// @throws ConfigError   if another process has locked the folder
  /// @throws NoLocksError  if the file system does not support locks
  /// @throws IoError       if the folder is not writable
  explicit FolderLock(const std::filesystem::path& folder) {
    const std::filesystem::path path = folder / ".lock";
    descriptor_ = detail::open_lock_file(path);
    if (descriptor_ < 0) detail::folder_failed(path, "written");
    if (detail::try_lock(descriptor_)) return;
    const int error = errno;
    ::close(std::exchange(descriptor_, -1));
    errno = error;
    if (error == EACCES) detail::folder_failed(path, "written");
    require<ConfigError>(error != EWOULDBLOCK, folder.string(),
                         ": another run is writing there; wait until it ends, or choose another "
                         "folder");
    throw NoLocksError(message(path.string(), ": cannot be locked: ", std::strerror(error),
                               "; choose a folder on another disk"));
  }
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;
  ~FolderLock() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }

 private:
  int descriptor_ = -1;
};

}  // namespace octavo
