/// @file
/// Folders that appear whole or not at all, that one process has for itself, and the room on their
/// disk.
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

/// @throws IoError  saying what cannot be done with the path, and why: errno
[[noreturn]] inline void folder_failed(const std::filesystem::path& path, const char* what) {
  throw IoError(message(path.string(), ": cannot be ", what, ": ", std::strerror(errno),
                        "; check the path, its permissions and the room on the disk"));
}

}  // namespace detail

/// Waits until the names in a folder are on the disk.
/// @throws IoError  if the system does not say that they are
inline void synchronise_names(const std::filesystem::path& folder) {
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) detail::folder_failed(folder, "opened");
  const bool is_synchronised = ::fsync(descriptor) == 0;
  const int error = errno;
  const bool is_closed = ::close(descriptor) == 0;
  if (!is_synchronised) errno = error;
  if (!is_synchronised || !is_closed) detail::folder_failed(folder, "brought to the disk");
}

/// Makes a folder that is not there yet; the one above it is.
/// @throws IoError  naming it, and the system's reason
inline void make_new_folder(const std::filesystem::path& folder) {
  if (::mkdir(folder.c_str(), 0777) != 0) detail::folder_failed(folder, "made");
}

/// Gives a folder its name, which is not taken, once all in it is on the disk: whoever finds the
/// name finds all of it, even after a power cut.
/// @param written  whose files are on the disk already; beside `folder`
/// @throws IoError  then there is nothing of that name
inline void commit_folder(const std::filesystem::path& written,
                          const std::filesystem::path& folder) {
  synchronise_names(written);
  if (::rename(written.c_str(), folder.c_str()) != 0) detail::folder_failed(folder, "made");
  try {
    synchronise_names(folder.parent_path());
  } catch (const IoError&) {
    (void)::rename(folder.c_str(), written.c_str());
    throw;
  }
}

/// Removes a folder that has its name: first the name, so that no part of it is taken for all.
/// @param discarded  a name beside it, which is not taken
/// @throws IoError  naming it, and the system's reason
inline void remove_committed_folder(const std::filesystem::path& folder,
                                    const std::filesystem::path& discarded) {
  if (::rename(folder.c_str(), discarded.c_str()) != 0) detail::folder_failed(folder, "removed");
  std::error_code error;
  std::filesystem::remove_all(discarded, error);
  require<IoError>(!error, discarded.string(), ": cannot be removed: ", error.message(),
                   "; remove it by hand");
}

namespace detail {

/// Whether a disk, or a folder from elsewhere, is mounted at a path; false where the system does
/// not say.
inline bool is_mount_point(const std::filesystem::path& path) {
  struct statx status {};
  if (::statx(AT_FDCWD, path.c_str(), 0, 0, &status) != 0) return false;
  return (status.stx_attributes_mask & status.stx_attributes & STATX_ATTR_MOUNT_ROOT) != 0;
}

}  // namespace detail

/// Bytes that a process without privileges may still write to the disk of a folder.
/// @throws IoError  if the system does not say
[[nodiscard]] inline std::uint64_t free_disk_bytes(const std::filesystem::path& folder) {
  struct statvfs disk {};
  if (::statvfs(folder.c_str(), &disk) != 0) detail::folder_failed(folder, "asked for its room");
  return std::uint64_t{disk.f_bavail} * std::uint64_t{disk.f_frsize};
}

/// A disk has no locks.
class NoLocksError : public IoError {
 public:
  using IoError::IoError;
};

namespace detail {

/// Opens a file to lock, which is made where there is none. That of another user may not be there
/// to be written; then it is opened to be read, which `flock` takes, but for disks of a network.
/// @return  below 0: it cannot be opened, with errno
inline int open_lock_file(const std::filesystem::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666);
  if (descriptor >= 0 || errno != EACCES) return descriptor;
  const int readable = ::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
  errno = EACCES;
  return readable;
}

/// Locks an open file for this process alone, or fails with errno: EWOULDBLOCK if another has it,
/// EACCES if it would have to be written for that.
inline bool try_lock(int descriptor) {
  if (::flock(descriptor, LOCK_EX | LOCK_NB) == 0) return true;
  if (errno == EBADF) errno = EACCES;  // NFS locks files that are open to be written
  return false;
}

}  // namespace detail

/// A folder that one process at a time works in. Ends with the process, however it ends.
class FolderLock {
 public:
  /// @throws ConfigError   if another process has it
  /// @throws NoLocksError  if the disk has no locks
  /// @throws IoError       if nothing can be written there
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
                         ": another run is writing there; wait for its end, or choose another "
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
