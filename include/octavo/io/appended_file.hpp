/// @file
/// A file that grows by whole records.
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

/// Appends records, each with one call, so that a reader and a killed run never see half of one.
/// When the disk is full the file keeps every record that was complete. A device such as /dev/full
/// is written to; a pipe is refused, because a write would wait for its reader.
class AppendedFile {
 public:
  /// What becomes of lines that are there.
  enum class Lines { removed, kept };

  /// Creates the file, or opens the one that is there. Its folder must exist.
  /// @param before  if they are kept, what follows the last whole line is not
  /// @throws IoError  if the file cannot be opened
  explicit AppendedFile(std::filesystem::path path, Lines before = Lines::removed)
      : path_(not_dangling(std::move(path))),
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

  /// @throws IoError  if the system does not take all of it; then none of it is in the file
  void append(std::string_view record) {
    const WriteResult result = write_all(descriptor_, record);
    if (result.error == 0) {
      complete_ += static_cast<off_t>(record.size());
      return;
    }
    const bool whole = result.written == 0 || ::ftruncate(descriptor_, complete_) == 0;
    throw IoError(message(path_.string(), ": cannot be written: ", std::strerror(result.error),
                          whole ? "; what was there before is kept" : "; its end is incomplete",
                          "; make room on the disk or write elsewhere"));
  }

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  static std::filesystem::path not_dangling(std::filesystem::path path) {
    detail::refuse_dangling_link(path);
    return path;
  }

  /// Cuts off what a run that was killed or met a full disk may have left of a line.
  bool find_end() {
    struct stat status {};
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
  off_t complete_ = 0;  ///< bytes of the records that are complete
};

}  // namespace octavo
