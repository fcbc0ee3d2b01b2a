/// @file
/// The file of a run's metrics, one JSON object a line.
#pragma once

#include <octavo/core/error.hpp>
#include <octavo/io/json_line.hpp>
#include <octavo/io/write_all.hpp>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

namespace octavo::inline OCTAVO_ABI {

/// Appends whole lines, each with one call, so that a reader and a killed run never see half of
/// one. When the disk is full the file keeps every line that was complete.
class MetricsFile {
 public:
  /// What becomes of lines that are there.
  enum class Lines { removed, kept };

  /// Creates the file, or opens the one that is there. Its folder must exist.
  /// @param before  if they are kept, what follows the last whole line is not
  /// @throws IoError  if the file cannot be opened
  explicit MetricsFile(std::filesystem::path path, Lines before = Lines::removed)
      : path_(std::move(path)),
        descriptor_(
            ::open(path_.c_str(),
                   O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | (before == Lines::kept ? 0 : O_TRUNC),
                   0666)) {
    const bool is_ready = descriptor_ >= 0 && find_end();
    const int error = errno;
    if (!is_ready && descriptor_ >= 0) ::close(descriptor_);
    require<IoError>(is_ready, path_.string(), ": cannot be created: ", std::strerror(error),
                     "; check that its folder exists and can be written");
  }
  MetricsFile(const MetricsFile&) = delete;
  MetricsFile& operator=(const MetricsFile&) = delete;
  ~MetricsFile() { ::close(descriptor_); }

  /// Appends a line.
  /// @throws IoError  if the system does not take all of it; then none of it is in the file
  void write(const JsonLine& line) {
    const std::string text = line.str() + '\n';
    const WriteResult result = write_all(descriptor_, text);
    if (result.error == 0) {
      complete_ += static_cast<off_t>(text.size());
      return;
    }
    const bool whole = result.written == 0 || ::ftruncate(descriptor_, complete_) == 0;
    throw IoError(message(path_.string(), ": cannot be written: ", std::strerror(result.error),
                          whole ? "; the lines before are kept" : "; its last line is incomplete",
                          "; make room on the disk or write elsewhere"));
  }

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  /// Cuts off what a run that was killed or met a full disk may have left of a line.
  bool find_end() {
    struct stat status {};
    if (::fstat(descriptor_, &status) != 0) return false;
    if (!S_ISREG(status.st_mode)) return true;
    char last = '\n';
    for (complete_ = status.st_size; complete_ > 0; --complete_) {
      if (::pread(descriptor_, &last, 1, complete_ - 1) != 1) return false;
      if (last == '\n') break;
    }
    return complete_ == status.st_size || ::ftruncate(descriptor_, complete_) == 0;
  }

  std::filesystem::path path_;
  int descriptor_;
  off_t complete_ = 0;  ///< bytes of the lines that are complete
};

}  // namespace octavo
