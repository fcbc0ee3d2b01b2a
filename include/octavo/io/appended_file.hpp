/// @file
/// Appending whole records to a file.
#pragma once

#include <octavo/core/error.hpp>
#include <octavo/io/temporary.hpp>
#include <octavo/io/write_all.hpp>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

namespace octavo OCTAVO_ABI {

/// Appends records, each with one system call, so that neither a reader nor a killed run leaves a
/// partial record. If the disk is full, the file keeps all complete records. Devices such as
/// /dev/full are written to; a pipe is an error, because a write would wait for its reader.
class AppendedFile {
 public:
  /// Whether existing lines are kept.
  enum class Lines { removed, kept };

  /// Creates the file or opens an existing one. Its folder must exist.
  /// @param before  whether existing lines are kept; a partial last line is always removed
  /// @throws IoError  if the file cannot be opened
  explicit AppendedFile(std::filesystem::path path, Lines before = Lines::removed)
      : path_(require_not_dangling(std::move(path))),
        descriptor_(
            ::open(path_.c_str(),
                   O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | (before == Lines::kept ? 0 : O_TRUNC),
                   0666)) {
    const bool is_ready = descriptor_ >= 0 && find_end();
    const int error = errno;
    if (!is_ready && descriptor_ >= 0) ::close(descriptor_);
    require<IoError>(is_ready, path_.string(), ": cannot be created: ",
                     is_pipe_ ? "it is a pipe, not a regular file" : std::strerror(error),
                     "; check that its folder exists and can be written");
  }
  AppendedFile(const AppendedFile&) = delete;
  AppendedFile& operator=(const AppendedFile&) = delete;
  ~AppendedFile() { ::close(descriptor_); }

  /// Appends a record.
  /// @throws IoError  if it cannot be written completely, and the file then contains none of it;
  ///                  or if the file was removed after it was opened
  void append(std::string_view record) {
    const WriteResult result = write_all(descriptor_, record);
    if (result.error == 0) {
      complete_ += static_cast<off_t>(record.size());
      struct stat status{};
      const bool is_removed = ::fstat(descriptor_, &status) == 0 && status.st_nlink == 0;
      require<IoError>(!is_removed, path_.string(),
                       ": was removed while it was written; earlier content is lost");
      return;
    }
    const bool whole = result.written == 0 || ::ftruncate(descriptor_, complete_) == 0;
    throw IoError(message(path_.string(), ": cannot be written: ", std::strerror(result.error),
                          whole ? "; earlier content is kept" : "; its end is incomplete",
                          "; free disk space, or write elsewhere"));
  }

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  static std::filesystem::path require_not_dangling(std::filesystem::path path) {
    detail::refuse_dangling_link(path);
    return path;
  }

  /// Removes a partial last line, which a killed run or a full disk may leave.
  bool find_end() {
    struct stat status{};
    if (::fstat(descriptor_, &status) != 0) return false;
    is_pipe_ = S_ISFIFO(status.st_mode);
    if (!S_ISREG(status.st_mode)) return !is_pipe_;
    char last = '\n';
    for (complete_ = status.st_size; complete_ > 0; --complete_) {
      if (::pread(descriptor_, &last, 1, complete_ - 1) != 1) return false;
      if (last == '\n') break;
    }
    return complete_ == status.st_size || ::ftruncate(descriptor_, complete_) == 0;
  }

  std::filesystem::path path_;
  int descriptor_;
  bool is_pipe_ = false;
  off_t complete_ = 0;  ///< bytes of complete records
};

}  // namespace octavo
