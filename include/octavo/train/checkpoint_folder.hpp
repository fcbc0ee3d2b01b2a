/// @file
/// The checkpoints in a folder: which there are, which of them are whole, which may go.
#pragma once

#include <octavo/io/folder.hpp>
#include <octavo/train/checkpoint_manifest.hpp>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <unistd.h>

namespace octavo OCTAVO_ABI {

/// Something in a folder of checkpoints that is one, or was to be.
struct ListedCheckpoint {
  std::filesystem::path path;
  Index step = 0;
  std::optional<CheckpointManifest> manifest{};  ///< none: it is no whole checkpoint
  std::string problem{};                         ///< why it is none
  /// Whether it has its name, which a save gives it at its end: it is whole, or was damaged since.
  bool is_committed = false;
};

/// Which checkpoints of a run stay. The newest two always do.
struct CheckpointsToKeep {
  Index last = 2;     ///< so many of the newest
  Index every = 0;    ///< and those of steps that this divides; 0: none
  bool best = false;  ///< and the one with the smallest validation loss, of the newest's data
};

namespace detail {

/// "step-00000100".
inline std::string checkpoint_name(Index step) {
  const std::string digits = std::to_string(step);
  return "step-" + std::string(digits.size() < 8 ? 8 - digits.size() : 0, '0') + digits;
}

/// A name that no checkpoint has, of this process alone.
inline std::string temporary_name(Index step, const char* purpose) {
  return message('.', checkpoint_name(step), '.', purpose, '-', ::getpid());
}

/// The step in the name of a checkpoint, or of a temporary folder.
inline std::optional<Index> step_in(std::string name) {
  if (name.starts_with('.')) name.erase(0, 1);
  const std::string prefix = "step-";
  if (!name.starts_with(prefix)) return std::nullopt;
  Index step = 0;
  const char* end = name.data() + name.size();
  const auto [rest, error] = std::from_chars(name.data() + prefix.size(), end, step);
  if (error != std::errc{} || (rest != end && *rest != '.')) return std::nullopt;
  return step;
}

/// What the folder of a checkpoint says and has. Checksums of large files are not looked at.
inline ListedCheckpoint look_at_checkpoint(const std::filesystem::path& path) {
  ListedCheckpoint found{path, step_in(path.filename().string()).value_or(0)};
  if (path.filename().string().starts_with('.')) {
    found.problem = "what a save that was cut off has left";
    return found;
  }
  found.is_committed = true;
  std::error_code error;
  if (!std::filesystem::exists(path / manifest_name, error)) {
    found.problem = message("has no ", manifest_name);
    return found;
  }
  try {
    CheckpointManifest manifest = read_manifest(path);
    for (const CheckpointFile& file : manifest.files) {
      const auto bytes = std::filesystem::file_size(path / file.name, error);
      require<IoError>(!error, (path / file.name).string(), ": ", error.message());
      require<IoError>(bytes == file.digest.bytes, (path / file.name).string(), ": has ", bytes,
                       " bytes, but was written with ", file.digest.bytes);
    }
    found.step = manifest.step;
    found.manifest = std::move(manifest);
  } catch (const IoError& damage) {
    found.problem = damage.what();
  }
  return found;
}

/// Those that need not stay.
/// @param whole  ascending
inline std::vector<std::filesystem::path> superfluous(const std::vector<ListedCheckpoint>& whole,
                                                      const CheckpointsToKeep& keep) {
  const std::size_t last = static_cast<std::size_t>(std::max(keep.last, Index{2}));
  const auto loss = [&](const ListedCheckpoint& one) {
    const bool is_comparable = one.manifest->validation == whole.back().manifest->validation;
    return is_comparable ? one.manifest->validation_loss : std::nullopt;
  };
  const ListedCheckpoint* best = nullptr;
  for (const ListedCheckpoint& one : whole) {
    if (loss(one).has_value() && (best == nullptr || *loss(one) < *loss(*best))) best = &one;
  }
  std::vector<std::filesystem::path> result;
  for (std::size_t i = 0; i + last < whole.size(); ++i) {
    const bool stays =
        (keep.every != 0 && whole[i].step % keep.every == 0) || (keep.best && &whole[i] == best);
    if (!stays) result.push_back(whole[i].path);
  }
  return result;
}

}  // namespace detail

/// What there is in a folder of checkpoints, such as RUN/checkpoints: by step, what is no whole one
/// among it. None where there is no such folder.
/// @throws IoError  if it cannot be looked into
[[nodiscard]] inline std::vector<ListedCheckpoint> list_checkpoints(
    const std::filesystem::path& folder) {
  std::vector<ListedCheckpoint> all;
  std::error_code error;
  if (!std::filesystem::exists(folder, error) && !error) return all;
  for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end;
       at.increment(error)) {
    if (detail::step_in(at->path().filename().string()).has_value()) {
      all.push_back(detail::look_at_checkpoint(at->path()));
    }
  }
  require<IoError>(!error, folder.string(), ": cannot be looked into: ", error.message());
  std::ranges::sort(all, [](const ListedCheckpoint& a, const ListedCheckpoint& b) {
    return std::pair(a.step, a.path) < std::pair(b.step, b.path);
  });
  return all;
}

/// The newest whole checkpoint of a folder; "" if there is none.
/// @param skipped  is told of everything that is no whole one
/// @throws IoError  if the folder cannot be looked into
[[nodiscard]] inline std::filesystem::path newest_checkpoint(
    const std::filesystem::path& folder,
    const std::function<void(const ListedCheckpoint&)>& skipped) {
  std::filesystem::path newest;
  for (const ListedCheckpoint& one : list_checkpoints(folder)) {
    if (one.manifest.has_value()) {
      newest = one.path;
    } else {
      skipped(one);
    }
  }
  return newest;
}

}  // namespace octavo
