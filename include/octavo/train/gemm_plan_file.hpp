/// @file
/// The file in which a run leaves the algorithms of its GEMMs to the next.
#pragma once

#include <octavo/gemm/gemm_plans.hpp>
#include <octavo/io/atomic_file.hpp>

#include <array>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <system_error>
#include <vector>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

namespace octavo::inline OCTAVO_ABI {
namespace detail {

/// The content of a file; empty if there is none.
/// @throws IoError  if there is one that cannot be read
inline std::string content_of(const std::filesystem::path& path) {
  std::error_code ignored;
  if (std::filesystem::status(path, ignored).type() == std::filesystem::file_type::not_found) {
    return {};
  }
  std::ifstream file(path, std::ios::binary);
  std::string content;
  std::array<char, 4096> piece;
  while (file.read(piece.data(), piece.size()), file.gcount() > 0) {
    content.append(piece.data(), static_cast<std::size_t>(file.gcount()));
  }
  require<IoError>(file.is_open() && !file.bad(), path.string(),
                   ": cannot be read; give a file of GEMM plans, or one that is not there yet");
  return content;
}

/// While it lives others wait who want the same folder; not where its disk has no locks.
class FolderTurn {
 public:
  explicit FolderTurn(const std::filesystem::path& folder)
      : descriptor_(
            ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
    while (descriptor_ >= 0 && ::flock(descriptor_, LOCK_EX) != 0 && errno == EINTR) {
    }
  }
  FolderTurn(const FolderTurn&) = delete;
  FolderTurn& operator=(const FolderTurn&) = delete;
  ~FolderTurn() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }

 private:
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
/// is replaced whole or not at all, and runs that store at the same time do it by turns; where the
/// disk has no locks one may lose its own.
/// @throws IoError  if the file cannot be read or written
inline void store_gemm_plans(const std::filesystem::path& path,
                             std::span<const GemmPlanRecord> records) {
  if (records.empty()) return;
  const detail::FolderTurn turn(path.parent_path());
  const std::string before = detail::content_of(path);
  const std::string after =
      gemm_plans_text(merged_gemm_plans(read_gemm_plans(before, path.string()), records));
  if (after != before) write_file_atomically(path, after);
}

}  // namespace octavo
