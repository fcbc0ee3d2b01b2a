/// @file
/// Reading regular files, in parts or whole, and standard input.
#pragma once

#include <octavo/core/error.hpp>
#include <octavo/data/file_kind.hpp>

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
#include <sys/stat.h>
#include <unistd.h>

namespace octavo OCTAVO_ABI {

namespace detail {

[[noreturn]] inline void reading_failed(const std::filesystem::path& path,
                                        std::string_view reason) {
  throw IoError(message(path.string(), ": cannot be read: ", reason));
}

/// Returns advice about a missing file: the folder to which its path is relative; "" for an
/// absolute path. If a configuration file is used in another folder, its relative paths refer to
/// other files.
inline std::string start_of(const std::filesystem::path& path) {
  std::error_code ignored;
  if (path.is_absolute()) return "";
  return "; relative paths start at " + std::filesystem::current_path(ignored).string();
}

/// @param error  errno
[[noreturn]] inline void reading_failed(const std::filesystem::path& path, int error) {
  const bool forbidden = error == EACCES || error == EPERM;
  const char* const advice =
      forbidden         ? "; make it readable (chmod u+r, for a folder u+rx), or use another file"
      : error == EMFILE ? "; each token file stays open: raise the limit on open files (ulimit -n)"
                        : "";
  reading_failed(path,
                 message(std::strerror(error), advice, error == ENOENT ? start_of(path) : ""));
}

/// Returns the kind of a file that is not a regular file, for messages.
inline const char* kind_of_file(mode_t mode) {
  return S_ISDIR(mode)    ? "a folder"
         : S_ISFIFO(mode) ? "a pipe"
         : S_ISSOCK(mode) ? "a socket"
                          : "a device";
}

/// Opens a regular file for reading. Anything else is an error: opening a pipe would wait for a
/// writer, and reading a device may never end.
/// @param status  receives the file's status
/// @return the descriptor, which the caller closes
/// @throws IoError  naming the file and the reason
[[nodiscard]] inline int open_regular_file(const std::filesystem::path& path, struct stat& status) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) reading_failed(path, errno);
  const int error = ::fstat(descriptor, &status) == 0 ? 0 : errno;
  if (error == 0 && S_ISREG(status.st_mode)) return descriptor;
  ::close(descriptor);
  if (error != 0) reading_failed(path, error);
  reading_failed(path, message("it is ", kind_of_file(status.st_mode), ", not a regular file"));
}

/// The identity of a file. It is equal for all paths to one file, including links.
using FileIdentity = std::pair<dev_t, ino_t>;

/// Selects standard input.
struct StandardInput {};

/// A regular file, or standard input, that is open for reading. Its content is copied by system
/// calls and never mapped: if another program truncates the file, reading throws an error that
/// names it, whereas mapped memory would end the program with SIGBUS.
class OpenFile {
 public:
  /// @throws IoError  if it cannot be opened, or is not a regular file
  explicit OpenFile(std::filesystem::path path)
      : path_(std::move(path)), descriptor_(open_regular_file(path_, status_)) {}
  /// Opens standard input, which may be of any type.
  /// @throws IoError  if it is closed
  explicit OpenFile(StandardInput)
      : path_("standard input"), descriptor_(::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0)) {
    if (descriptor_ < 0 || ::fstat(descriptor_, &status_) != 0) reading_failed(path_, errno);
  }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  ~OpenFile() { ::close(descriptor_); }

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  /// Returns the size in bytes at the time of opening; 0 for a pipe.
  [[nodiscard]] std::uint64_t size() const { return static_cast<std::uint64_t>(status_.st_size); }
  [[nodiscard]] FileIdentity identity() const { return {status_.st_dev, status_.st_ino}; }

  /// Reads the next bytes until `target` is full or the file ends. Returns the number of bytes.
  std::size_t read(std::span<std::uint8_t> target) {
    return fill(target.size(), [&](std::size_t count) {
      return ::read(descriptor_, target.data() + count, target.size() - count);
    });
  }

  /// Reads the bytes from `offset` on. Several threads may call it concurrently.
  /// @throws IoError  with the offset, if the file ends before `target` is full
  void read_at(std::uint64_t offset, std::span<std::byte> target) const {
    const std::size_t count = fill(target.size(), [&](std::size_t done) {
      return ::pread(descriptor_, target.data() + done, target.size() - done,
                     static_cast<off_t>(offset + done));
    });
    if (count == target.size()) return;
    struct stat now = status_;
    (void)::fstat(descriptor_, &now);
    reading_failed(
        path_, message("bytes ", offset, " to ", offset + target.size(), " are missing: it had ",
                       size(), " bytes when it was opened, but has ", now.st_size,
                       " now; write it again, and do not change it while it is read"));
  }

 private:
  template <class Some>
  std::size_t fill(std::size_t bytes, const Some& read_some) const {
    std::size_t count = 0;
    while (count < bytes) {
      const ssize_t received = read_some(count);
      if (received < 0 && errno == EINTR) continue;
      if (received < 0) reading_failed(path_, errno);
      if (received == 0) break;
      count += static_cast<std::size_t>(received);
    }
    return count;
  }

  std::filesystem::path path_;
  struct stat status_{};
  int descriptor_;
};

}  // namespace detail

/// The default maximum size of a file that is read whole, in bytes.
inline constexpr std::uint64_t max_file_bytes = 100'000'000;

/// Returns the bytes of a file that is read whole.
/// @param most  maximum size in bytes
/// @throws IoError  naming the file, if it cannot be read, is not a regular file, or is larger
[[nodiscard]] inline std::string read_whole_file(const std::filesystem::path& path,
                                                 std::uint64_t most = max_file_bytes) {
  detail::OpenFile file(path);
  if (file.size() > most)
    detail::reading_failed(path,
                           message("it must have at most ", most, " bytes, but has ", file.size()));
  std::string text(file.size() + 1, '\0');
  const std::size_t count = file.read({reinterpret_cast<std::uint8_t*>(text.data()), text.size()});
  if (count != file.size()) {
    detail::reading_failed(path, message("it had ", file.size(), " bytes when it was opened, but ",
                                         count > file.size() ? "more" : std::to_string(count),
                                         " were read; do not change it while it is read"));
  }
  text.resize(count);
  return text;
}

/// Returns the bytes of a text file that is read whole, such as a configuration, without a
/// byte-order mark.
/// @throws IoError  as `read_whole_file` does, and if the file has a known format that is not text
[[nodiscard]] inline std::string read_text_file(const std::filesystem::path& path,
                                                std::uint64_t most = max_file_bytes) {
  std::string text = read_whole_file(path, most);
  detail::require_text(path, text);
  text.erase(0, detail::byte_order_mark_length(text));
  return text;
}

}  // namespace octavo
