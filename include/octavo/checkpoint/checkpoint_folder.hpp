/// @file
/// The checkpoints in a folder: listing them, and selecting those to keep.
#pragma once

#include <octavo/checkpoint/checkpoint_manifest.hpp>
#include <octavo/io/folder.hpp>

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

/// An entry of a folder of checkpoints: a checkpoint, or an incomplete or damaged one.
struct ListedCheckpoint {
  std::filesystem::path path;
  Index step = 0;
  std::optional<CheckpointManifest> manifest{};  ///< none if incomplete or damaged
  std::string problem{};                         ///< why there is no manifest
  /// Whether a save committed it: it is complete, or was damaged later.
  bool is_committed = false;
  /// Whether a save wrote this folder under this name, and its files were damaged later. If it is
  /// neither complete nor damaged, something else has the name of a checkpoint.
  bool is_damaged = false;
};

/// Which checkpoints of a run are kept. The newest two always are.
struct CheckpointsToKeep {
  Index last = 2;     ///< number of the newest to keep
  Index every = 0;    ///< also keep those whose step is a multiple of this; 0: none
  bool best = false;  ///< also keep the one with the lowest loss on the newest one's data
};

namespace detail {

/// Returns a name such as "step-00000100".
inline std::string checkpoint_name(Index step) {
  const std::string digits = std::to_string(step);
  return "step-" + std::string(digits.size() < 8 ? 8 - digits.size() : 0, '0') + digits;
}

/// Returns a temporary name, which no checkpoint and no other process of this host has.
inline std::string temporary_name(Index step, const char* purpose) {
  return message('.', checkpoint_name(step), '.', purpose, '-', ::getpid());
}

/// Whether a name is one of `temporary_name`, of any process.
inline bool is_temporary_name(const std::string& name) {
  return name.starts_with(".step-") &&
         (name.find(".tmp-") != std::string::npos || name.find(".old-") != std::string::npos);
}

/// Returns the step in the name of a checkpoint or of a temporary folder.
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

/// Examines the folder of a checkpoint. Checksums of large files are not verified.
inline ListedCheckpoint inspect_checkpoint(const std::filesystem::path& path) {
  const std::string name = path.filename().string();
  const std::optional<Index> named = step_in(name);
  ListedCheckpoint found{path, named.value_or(0)};
  if (is_temporary_name(name)) {
    found.problem = "left by an interrupted save";
    return found;
  }
  found.is_committed = true;
  std::error_code error;
  if (!std::filesystem::exists(path / manifest_name, error)) {
    found.problem = message("has no ", manifest_name);
    return found;
  }
  try {
    found.is_damaged = true;
    CheckpointManifest manifest = read_manifest(path);
    if (named.has_value() && *named != manifest.step) {
      found.is_damaged = false;
      found.problem = message("its ", manifest_name, " is of step ", manifest.step,
                              ": it is a copy under another name");
      return found;
    }
    for (const CheckpointFile& file : manifest.files) {
      const auto bytes = std::filesystem::file_size(path / file.name, error);
      require<IoError>(!error, (path / file.name).string(), ": ", error.message());
      require<IoError>(bytes == file.digest.bytes, (path / file.name).string(), ": has ", bytes,
                       " bytes, but was written with ", file.digest.bytes);
    }
    found.step = manifest.step;
    found.manifest = std::move(manifest);
    found.is_damaged = false;
  } catch (const IoError& damage) {
    found.problem = damage.what();
  }
  return found;
}

/// Renames a damaged checkpoint, so that its step can be saved again.
/// @return  its new path, such as RUN/checkpoints/damaged-step-00000100
/// @throws IoError  naming the folder and the system's error
inline std::filesystem::path rename_damaged(const std::filesystem::path& checkpoint) {
  const std::filesystem::path folder = checkpoint.parent_path();
  const std::string name = "damaged-" + checkpoint.filename().string();
  std::filesystem::path renamed_path = folder / name;
  for (int next = 2; std::filesystem::exists(std::filesystem::symlink_status(renamed_path));
       ++next) {
    renamed_path = folder / message(name, '-', next);
  }
  if (::rename(checkpoint.c_str(), renamed_path.c_str()) != 0) folder_failed(checkpoint, "renamed");
  fsync_folder(folder);
  return renamed_path;
}

/// Returns the checkpoints that need not be kept.
/// @param whole  complete checkpoints, in ascending order
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
    const bool is_kept =
        (keep.every != 0 && whole[i].step % keep.every == 0) || (keep.best && &whole[i] == best);
    if (!is_kept) result.push_back(whole[i].path);
  }
  return result;
}

}  // namespace detail

/// Lists a folder of checkpoints, such as RUN/checkpoints, by step, including incomplete and
/// damaged ones. The list is empty if the folder does not exist.
/// @throws IoError  if it cannot be listed
[[nodiscard]] inline std::vector<ListedCheckpoint> list_checkpoints(
    const std::filesystem::path& folder) {
  std::vector<ListedCheckpoint> all;
  std::error_code error;
  if (!std::filesystem::exists(folder, error) && !error) return all;
  for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end;
       at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (!detail::step_in(name).has_value()) continue;
    if (name.starts_with('.') && !detail::is_temporary_name(name)) continue;
    ListedCheckpoint& one = all.emplace_back(detail::inspect_checkpoint(at->path()));
    const std::string own_name = detail::checkpoint_name(one.step);
    if (one.is_committed && name != own_name && (one.manifest.has_value() || one.is_damaged)) {
      one.manifest.reset();
      one.is_damaged = false;
      one.problem = "it is a copy of " + own_name + "; move it to another folder";
    }
  }
  require<IoError>(!error, folder.string(), ": cannot be listed: ", error.message());
  std::ranges::sort(all, [](const ListedCheckpoint& a, const ListedCheckpoint& b) {
    return std::pair(a.step, a.path) < std::pair(b.step, b.path);
  });
  return all;
}

/// Returns the newest complete checkpoint of a folder; "" if there is none.
/// @param skipped  called with every incomplete or damaged one
/// @throws IoError  if the folder cannot be listed
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
