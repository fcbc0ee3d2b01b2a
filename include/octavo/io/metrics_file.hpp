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
#include <sys/types.h>
#include <unistd.h>

namespace octavo::inline OCTAVO_ABI {

/// Appends whole lines, each with one call, so that a reader and a killed run never see half of
/// one. When the disk is full the file keeps every line that was complete.
class MetricsFile {
 public:
  /// Creates the file, or empties what is there. Its folder must exist.
  /// @throws IoError  if the file cannot be opened
  explicit MetricsFile(std::filesystem::path path)
      : path_(std::move(path)),
        descriptor_(
            ::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0666)) {
    require<IoError>(descriptor_ >= 0, path_.string(),
                     ": cannot be created: ", std::strerror(errno),
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
  std::filesystem::path path_;
  int descriptor_;
  off_t complete_ = 0;  ///< bytes of the lines that are complete
};

}  // namespace octavo
