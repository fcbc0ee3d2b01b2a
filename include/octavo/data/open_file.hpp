/// @file
/// Reading files: a part, or the whole.
#pragma once

#include <octavo/core/error.hpp>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
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

/// @param error  errno
[[noreturn]] inline void reading_failed(const std::filesystem::path& path, int error) {
  const bool forbidden = error == EACCES || error == EPERM;
  const char* const advice =
      forbidden
          ? "; give yourself the right to read it (chmod u+r, of a folder u+rx), or name another"
      : error == EMFILE ? "; each token file stays open: raise the limit of open files (ulimit -n)"
                        : "";
  reading_failed(path, message(std::strerror(error), advice));
}

/// What is the same for every path to one file: links of both kinds among them.
using FileIdentity = std::pair<dev_t, ino_t>;

/// A file that is open for reading. What it holds is copied by system calls and never mapped: a
/// file that another program cuts off is then an error that names it, where memory that is mapped
/// would end the program with SIGBUS.
class OpenFile {
 public:
  /// @throws IoError  if it cannot be opened
  explicit OpenFile(std::filesystem::path path)
      : path_(std::move(path)), descriptor_(::open(path_.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (descriptor_ < 0) reading_failed(path_, errno);
    if (::fstat(descriptor_, &status_) == 0) return;
    const int error = errno;
    ::close(descriptor_);
    reading_failed(path_, error);
  }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  ~OpenFile() { ::close(descriptor_); }

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  /// In bytes, when it was opened.
  [[nodiscard]] std::uint64_t size() const { return static_cast<std::uint64_t>(status_.st_size); }
  [[nodiscard]] bool is_regular() const { return S_ISREG(status_.st_mode); }
  [[nodiscard]] FileIdentity identity() const { return {status_.st_dev, status_.st_ino}; }

  /// Reads the next bytes until `target` is full or the file ends; returns how many came.
  std::size_t read(std::span<std::uint8_t> target) {
    return fill(target.size(), [&](std::size_t count) {
      return ::read(descriptor_, target.data() + count, target.size() - count);
    });
  }

  /// Reads the bytes from `offset` on; any number of threads may.
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
        path_, message("bytes ", offset, " to ", offset + target.size(), " are wanted, but it has ",
                       now.st_size, " bytes now, and had ", size(),
                       " when it was opened; write it anew, and leave it alone "
                       "while it is read"));
  }

 private:
  template <class Some>
  std::size_t fill(std::size_t bytes, const Some& read_some) const {
    std::size_t count = 0;
    while (count < bytes) {
      const ssize_t came = read_some(count);
      if (came < 0 && errno == EINTR) continue;
      if (came < 0) reading_failed(path_, errno);
      if (came == 0) break;
      count += static_cast<std::size_t>(came);
    }
    return count;
  }

  std::filesystem::path path_;
  int descriptor_;
  struct stat status_ {};
};

}  // namespace detail

/// The bytes of a file that is read whole, such as a configuration.
/// @param most  bytes that it may have
/// @throws IoError  naming the file, if it cannot be read or is larger
[[nodiscard]] inline std::string read_text_file(const std::filesystem::path& path,
                                                std::uint64_t most = 100'000'000) {
  const detail::OpenFile file(path);
  if (!file.is_regular()) detail::reading_failed(path, "it is no file");
  if (file.size() > most)
    detail::reading_failed(path, message("it has ", file.size(), " bytes, of at most ", most));
  std::string text(file.size(), '\0');
  file.read_at(0, std::as_writable_bytes(std::span(text)));
  return text;
}

}  // namespace octavo
