/// @file
/// A file that grows by whole records.
#pragma once

#include <octavo/core/error.hpp>
#include <octavo/io/write_all.hpp>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <utility>

#include <fcntl.h>
#include <sys/types.h>
#include <unistd.h>

namespace octavo::inline OCTAVO_ABI {

/// Appends records, each with one call, so that a reader and a killed run never see half of one.
/// When the disk is full the file keeps every record that was complete.
class AppendedFile {
 public:
  /// Creates the file, or empties what is there. Its folder must exist.
  /// @throws IoError  if the file cannot be opened
  explicit AppendedFile(std::filesystem::path path)
      : path_(std::move(path)),
        descriptor_(
            ::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0666)) {
    require<IoError>(descriptor_ >= 0, path_.string(),
                     ": cannot be created: ", std::strerror(errno),
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
  std::filesystem::path path_;
  int descriptor_;
  off_t complete_ = 0;  ///< bytes of the records that are complete
};

}  // namespace octavo
