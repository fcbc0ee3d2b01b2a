/// @file
/// Temporary files and folders next to the ones that they become, and leftovers of killed programs.
#pragma once

#include <octavo/core/error.hpp>

#include <cerrno>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

namespace octavo OCTAVO_ABI::detail {

/// Owns a file or folder with a temporary name. The path is locked (`flock`) during the lifetime of
/// its owner, so that processes of any host or PID namespace can distinguish it from a leftover.
class Temporary {
 public:
  Temporary() = default;
  Temporary(std::filesystem::path path, int descriptor)
      : path_(std::move(path)), descriptor_(descriptor) {}
  Temporary(const Temporary&) = delete;
  Temporary& operator=(const Temporary&) = delete;
  Temporary(Temporary&& other) noexcept { *this = std::move(other); }
  Temporary& operator=(Temporary&& other) noexcept {
    std::swap(path_, other.path_);
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  /// Removes it, unless it was released.
  ~Temporary() {
    std::error_code ignored;
    // remove_all opens folders, and so fails if all descriptors are in use.
    if (!path_.empty() && ::unlink(path_.c_str()) != 0) {
      std::filesystem::remove_all(path_, ignored);
    }
    if (descriptor_ >= 0) ::close(descriptor_);
  }

  /// Whether it was created; if not, errno contains the reason.
  explicit operator bool() const { return descriptor_ >= 0; }
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  /// Returns the descriptor of the file, open for writing, or of the folder, open for reading.
  [[nodiscard]] int descriptor() const { return descriptor_; }
  /// Keeps the file or folder, for example because it was renamed.
  void release() { path_.clear(); }

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
};

inline constexpr std::string_view temporary_prefix = ".octavo-";

/// Whether an open file or folder is the one at a path.
inline bool is_at(const std::filesystem::path& path, int descriptor) {
  struct stat opened{};
  struct stat there{};
  return ::fstat(descriptor, &opened) == 0 && ::lstat(path.c_str(), &there) == 0 &&
         opened.st_ino == there.st_ino && opened.st_dev == there.st_dev;
}

/// Locks the file or folder that was just created.
/// @return false if another process regards it as a leftover and removes it
inline bool lock_as_owner(const std::filesystem::path& path, int descriptor) {
  // On a disk without locks, leftovers are not removed either.
  if (::flock(descriptor, LOCK_EX | LOCK_NB) != 0) return errno != EWOULDBLOCK;
  return is_at(path, descriptor);
}

/// Removes temporary files and folders whose owners no longer exist.
/// @param folder  in which they are; need not exist
inline void remove_leftovers(const std::filesystem::path& folder) {
  std::error_code error;
  for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end;
       at.increment(error)) {
    const std::filesystem::path& path = at->path();
    if (!path.filename().string().starts_with(temporary_prefix)) continue;
    std::error_code ignored;
    const auto type = at->symlink_status(ignored).type();
    const bool is_folder = type == std::filesystem::file_type::directory;
    if (!is_folder && type != std::filesystem::file_type::regular) continue;
    // NFS locks only files that are open for writing.
    const int mode = is_folder ? O_RDONLY | O_DIRECTORY : O_RDWR;
    const int descriptor = ::open(path.c_str(), mode | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (descriptor < 0) continue;
    const bool has_no_owner = ::flock(descriptor, LOCK_EX | LOCK_NB) == 0;
    if (has_no_owner && is_at(path, descriptor)) std::filesystem::remove_all(path, ignored);
    ::close(descriptor);
  }
}

/// Creates a file or folder with a new temporary name, and locks it.
/// @param end     of the name
/// @param create  creates it, and returns a descriptor, or −1 with errno
template <class Create>
Temporary create_temporary(const std::filesystem::path& folder, const std::string& end,
                           const Create& create) {
  remove_leftovers(folder);
  // Process IDs are reused on a host, and are not unique between hosts.
  for (int attempt = 0; attempt < 1000; ++attempt) {
    std::filesystem::path path = folder / message(temporary_prefix, ::getpid(), '-', attempt, end);
    const int descriptor = create(path);
    if (descriptor < 0 && errno == EEXIST) continue;
    if (descriptor < 0) return {};
    if (lock_as_owner(path, descriptor)) return {std::move(path), descriptor};
    ::close(descriptor);
  }
  errno = EEXIST;
  return {};
}

/// Creates a file, open for writing.
inline Temporary create_temporary_file(const std::filesystem::path& folder) {
  return create_temporary(folder, ".tmp", [](const std::filesystem::path& path) {
    return ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  });
}

/// Creates a folder.
/// @param name  of the folder that it becomes; a long one is cut
inline Temporary create_temporary_folder(const std::filesystem::path& folder,
                                         const std::string& name) {
  return create_temporary(folder, '-' + name.substr(0, 200), [](const std::filesystem::path& path) {
    if (::mkdir(path.c_str(), 0777) != 0) return -1;
    const int descriptor = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    const int error = errno;
    if (descriptor < 0) ::rmdir(path.c_str());
    errno = error;
    return descriptor;
  });
}

/// Throws if a path is a link to a file that does not exist: opening it would create that file
/// elsewhere.
/// @throws IoError  naming the link and the file
inline void refuse_dangling_link(const std::filesystem::path& path) {
  std::error_code ignored;
  if (!std::filesystem::is_symlink(std::filesystem::symlink_status(path, ignored))) return;
  if (std::filesystem::status(path, ignored).type() != std::filesystem::file_type::not_found)
    return;
  throw IoError(message(path.string(), ": cannot be written: it is a link to ",
                        std::filesystem::read_symlink(path, ignored).string(),
                        ", which does not exist; remove the link, or choose another path"));
}

}  // namespace octavo OCTAVO_ABI::detail
