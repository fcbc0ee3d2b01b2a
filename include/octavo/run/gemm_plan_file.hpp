/// @file
/// The file through which a run passes its GEMM algorithms to later runs.
#pragma once

#include <octavo/data/open_file.hpp>
#include <octavo/gemm/gemm_plans.hpp>
#include <octavo/io/atomic_file.hpp>
#include <octavo/io/folder.hpp>

#include <cerrno>
#include <filesystem>
#include <span>
#include <string>
#include <system_error>
#include <vector>

#include <sys/file.h>
#include <unistd.h>

namespace octavo OCTAVO_ABI {
namespace detail {

/// Returns the content of a file; empty if the file does not exist.
/// @throws IoError  if it exists but cannot be read
inline std::string content_of(const std::filesystem::path& path) {
  std::error_code ignored;
  if (std::filesystem::status(path, ignored).type() == std::filesystem::file_type::not_found) {
    return {};
  }
  return read_text_file(path);
}

/// A lock that makes other writers of the same file wait. Without effect if the file system has no
/// locks.
class FileLock {
 public:
  /// @throws IoError  if another program keeps the lock for longer, or this user may not write
  ///                  another user's lock
  FileLock(const std::filesystem::path& path, int seconds) {
    const std::filesystem::path lock =
        path.parent_path() / ("." + path.filename().string() + ".lock");
    descriptor_ = open_lock_file(lock);
    if (descriptor_ < 0 && errno == EACCES) refuse(lock);
    if (descriptor_ < 0) return;  // nor can a file next to it be written
    for (int looks = 0; !try_lock(descriptor_); ++looks) {
      if (errno == EACCES) {
        ::close(descriptor_);
        refuse(lock);
      }
      if (errno != EWOULDBLOCK && errno != EINTR) return;
      if (looks == seconds * polls_per_second) {
        ::close(descriptor_);
        throw IoError(message(lock.string(), ": another program has had this lock for ", seconds,
                              " seconds; end it, or pass another file"));
      }
      ::usleep(1'000'000 / polls_per_second);
    }
  }
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;
  ~FileLock() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }

 private:
  static constexpr int polls_per_second = 100;

  [[noreturn]] static void refuse(const std::filesystem::path& lock) {
    throw IoError(message(lock.string(),
                          ": this lock belongs to another user, and cannot be written; ask its "
                          "owner for permission, or pass another file"));
  }

  int descriptor_;
};

}  // namespace detail

/// Returns the algorithms that earlier runs chose, for all cards and libraries; none if the file
/// does not exist.
/// @throws IoError  if the file cannot be read, or if a line is invalid, naming it
[[nodiscard]] inline std::vector<GemmPlanRecord> load_gemm_plans(
    const std::filesystem::path& path) {
  return read_gemm_plans(detail::content_of(path), path.string());
}

/// Adds algorithms to the current content of the file, and replaces those of the same products. The
/// file is replaced atomically. Runs that store at the same time are serialised by a lock file next
/// to it; if the file system has no locks, one run's algorithms may be lost.
/// @param seconds  maximum time to wait for the lock
/// @throws IoError  if the file cannot be read or written, or another program keeps the lock
inline void store_gemm_plans(const std::filesystem::path& path,
                             std::span<const GemmPlanRecord> records, int seconds = 60) {
  if (records.empty()) return;
  const detail::FileLock lock(path, seconds);
  const std::string before = detail::content_of(path);
  const std::string after =
      gemm_plans_text(merged_gemm_plans(read_gemm_plans(before, path.string()), records));
  if (after != before) write_file_atomically(path, after);
}

}  // namespace octavo
