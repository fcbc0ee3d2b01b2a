/// @file
/// The file in which a run leaves the algorithms of its GEMMs to the next.
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

/// The content of a file; empty if there is none.
/// @throws IoError  if there is one that cannot be read
inline std::string content_of(const std::filesystem::path& path) {
  std::error_code ignored;
  if (std::filesystem::status(path, ignored).type() == std::filesystem::file_type::not_found) {
    return {};
  }
  return read_text_file(path);
}

/// While it lives others wait who want to write the same file; not where its disk has no locks.
class FileTurn {
 public:
  /// @throws IoError  if another has had it for so long, or another user's may not be taken
  FileTurn(const std::filesystem::path& path, int seconds) {
    const std::filesystem::path lock =
        path.parent_path() / ("." + path.filename().string() + ".lock");
    descriptor_ = open_lock_file(lock);
    if (descriptor_ < 0 && errno == EACCES) refuse(lock);
    if (descriptor_ < 0) return;  // nor can the file beside it be written
    for (int looks = 0; !try_lock(descriptor_); ++looks) {
      if (errno == EACCES) {
        ::close(descriptor_);
        refuse(lock);
      }
      if (errno != EWOULDBLOCK && errno != EINTR) return;
      if (looks == seconds * looks_a_second) {
        ::close(descriptor_);
        throw IoError(message(lock.string(), ": another program has had this lock for ", seconds,
                              " seconds; end it, or give another file"));
      }
      ::usleep(1'000'000 / looks_a_second);
    }
  }
  FileTurn(const FileTurn&) = delete;
  FileTurn& operator=(const FileTurn&) = delete;
  ~FileTurn() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }

 private:
  static constexpr int looks_a_second = 100;

  [[noreturn]] static void refuse(const std::filesystem::path& lock) {
    throw IoError(message(lock.string(),
                          ": this lock of another user's may not be written; have its owner allow "
                          "it, or give another file"));
  }

  int descriptor_;
};

}  // namespace detail

/// The algorithms that earlier runs chose, of all cards and libraries; none if there is no file.
/// @throws IoError  if the file cannot be read, or naming the line that is not as it was written
[[nodiscard]] inline std::vector<GemmPlanRecord> load_gemm_plans(
    const std::filesystem::path& path) {
  return read_gemm_plans(detail::content_of(path), path.string());
}

/// Adds algorithms to what the file holds by now, and replaces those of the same products. The file
/// is replaced whole or not at all, and runs that store at the same time do it by turns, by a lock
/// file beside it; where the disk has no locks one may lose its own.
/// @param seconds  to wait for the turn, at most
/// @throws IoError  if the file cannot be read or written, or another has the turn
inline void store_gemm_plans(const std::filesystem::path& path,
                             std::span<const GemmPlanRecord> records, int seconds = 60) {
  if (records.empty()) return;
  const detail::FileTurn turn(path, seconds);
  const std::string before = detail::content_of(path);
  const std::string after =
      gemm_plans_text(merged_gemm_plans(read_gemm_plans(before, path.string()), records));
  if (after != before) write_file_atomically(path, after);
}

}  // namespace octavo
