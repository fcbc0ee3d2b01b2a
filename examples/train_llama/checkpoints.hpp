// The checkpoints of a run: which one it goes on from, and what there is.
#pragma once

#include <common/text.hpp>
#include <octavo/octavo.hpp>
#include <train_llama/options.hpp>
#include <train_llama/ranks.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

namespace trainer {

namespace detail {

inline constexpr const char* checkpoints_name = "checkpoints";

inline bool is_checkpoint(const std::filesystem::path& path) {
  std::error_code error;
  return std::filesystem::exists(path / octavo::detail::manifest_name, error);
}

/// A table of texts, its columns as wide as their widest.
inline void print_table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths(rows.front().size());
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t i = 0; i + 1 < row.size(); ++i) {
      line += fmt::format("{:>{}} | ", row[i], widths[i]);
    }
    fmt::print("{}{}\n", line, row.back());
  }
}

inline std::string local_time_text(std::int64_t seconds) {
  const auto time = static_cast<std::time_t>(seconds);
  std::tm local{};
  ::localtime_r(&time, &local);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &local);
  return text;
}

}  // namespace detail

/// Throws unless --resume and the folder of the run go together; a checkpoint that is named alone
/// goes on in the run that it is of.
/// @throws ConfigError  saying what to change
inline void complete_resume(Options& options) {
  octavo::require<octavo::ConfigError>(
      !options.no_out || options.checkpoint_every == 0,
      "--checkpoint-every wants checkpoints in the run's folder, and --no-out wants none; give "
      "one");
  octavo::require<octavo::ConfigError>(
      !options.convert || !options.resume.empty(),
      "--convert is about the checkpoint that a run goes on from; give --resume, too");
  if (options.resume.empty()) return;
  const bool is_named = options.resume != "latest" && options.resume != "auto";
  octavo::require<octavo::ConfigError>(
      is_named || !options.out.empty(), "--resume ", options.resume,
      " goes on in the folder that --out names; give it, or the path of a checkpoint");
  if (!is_named || !options.out.empty() || options.no_out) return;
  const std::filesystem::path path = std::filesystem::absolute(options.resume).lexically_normal();
  const std::filesystem::path trimmed = path.filename().empty() ? path.parent_path() : path;
  options.out =
      (detail::is_checkpoint(trimmed) ? trimmed.parent_path().parent_path() : trimmed).string();
}

/// The checkpoint that the run goes on from, or "". What is no whole one is warned of.
/// @throws ConfigError  if --resume finds none
inline std::filesystem::path checkpoint_to_resume(const Options& options) {
  if (options.resume.empty()) return {};
  const bool in_run = options.resume == "latest" || options.resume == "auto";
  std::filesystem::path named = in_run ? options.out : options.resume;
  if (detail::is_checkpoint(named)) return named;
  const std::filesystem::path folder = named / detail::checkpoints_name;
  std::filesystem::path newest =
      octavo::newest_checkpoint(folder, [](const octavo::ListedCheckpoint& skipped) {
        fmt::print(stderr, "train_llama: warning: {} is no whole checkpoint, and is skipped: {}\n",
                   programs::visible(skipped.path.string()), programs::visible(skipped.problem));
      });
  octavo::require<octavo::ConfigError>(
      !newest.empty() || options.resume == "auto", "--resume ", options.resume, ": ",
      folder.string(),
      " has no whole checkpoint; give --resume auto to begin then, or another folder");
  return newest;
}

/// Prints what there is in the folder of a run.
/// @throws ConfigError  if the command line names none
inline void print_checkpoints(const Options& options) {
  octavo::require<octavo::ConfigError>(
      !options.out.empty(), "--list-checkpoints is of the run that --out names; give it");
  const std::filesystem::path folder =
      std::filesystem::path(options.out) / detail::checkpoints_name;
  const std::vector<octavo::ListedCheckpoint> all = octavo::list_checkpoints(folder);
  if (all.empty()) {
    fmt::print("{} has no checkpoint\n", programs::visible(folder.string()));
    return;
  }
  std::vector<std::vector<std::string>> rows{
      {"step", "saved", "MiB", "validation loss", "ranks", "ZeRO", "checkpoint"}};
  for (const octavo::ListedCheckpoint& one : all) {
    const std::string name = programs::visible(one.path.filename().string());
    if (!one.manifest.has_value()) {
      rows.push_back({std::to_string(one.step), "-", "-", "-", "-", "-",
                      name + ", no whole one: " + programs::visible(one.problem)});
      continue;
    }
    const octavo::CheckpointManifest& manifest = *one.manifest;
    rows.push_back({std::to_string(one.step), detail::local_time_text(manifest.time),
                    fmt::format("{:.1f}", static_cast<double>(manifest.bytes()) / 1048576.0),
                    manifest.validation_loss.has_value()
                        ? fmt::format("{:.4f}", *manifest.validation_loss)
                        : "-",
                    std::to_string(manifest.ranks), std::to_string(manifest.zero), name});
  }
  detail::print_table(rows);
}

}  // namespace trainer
