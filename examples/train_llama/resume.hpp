// The choice of the checkpoint from which a run resumes.
#pragma once

#include <common/text.hpp>
#include <octavo/checkpoint/checkpoint_folder.hpp>
#include <octavo/checkpoint/checkpoint_load.hpp>
#include <octavo/comm/all_gather_texts.hpp>
#include <octavo/octavo.hpp>
#include <train_llama/checkpoints.hpp>
#include <train_llama/options.hpp>
#include <train_llama/program.hpp>
#include <train_llama/ranks.hpp>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include <sys/stat.h>

namespace trainer {

/// Throws if --resume contradicts the folder of the run. A checkpoint named without --out resumes
/// in the folder of its run.
/// @throws ConfigError  with advice
inline void complete_resume(Options& options) {
  octavo::require<octavo::ConfigError>(
      !options.no_out || options.checkpoint_every == 0,
      "--checkpoint-every needs the run's folder, but --no-out disables it; pass only one");
  if (options.resume.empty()) return;
  const bool is_named = options.resume != "latest" && options.resume != "auto";
  octavo::require<octavo::ConfigError>(
      is_named || !options.out.empty(), "--resume ", options.resume,
      " resumes in the folder that --out names; pass it, or the path of a checkpoint");
  if (!is_named || !options.out.empty() || options.no_out) return;
  const std::filesystem::path path = detail::absolute_path(options.resume);
  const std::filesystem::path checkpoints_folder =
      detail::is_checkpoint(path) ? path.parent_path() : detail::checkpoints_of(path);
  options.out = checkpoints_folder.parent_path().string();
}

/// @throws ConfigError  if a folder contains only checkpoints that were damaged after they were
/// saved
inline void require_none_damaged(const std::filesystem::path& folder, const std::string& resume) {
  std::vector<octavo::ListedCheckpoint> damaged = octavo::list_checkpoints(folder);
  std::erase_if(damaged, [](const octavo::ListedCheckpoint& one) { return !one.is_committed; });
  if (damaged.empty()) return;
  const octavo::ListedCheckpoint& newest = damaged.back();
  const bool is_only = damaged.size() == 1;
  throw octavo::ConfigError(octavo::message(
      "--resume ", resume, ": ", newest.path.string(), " is damaged, ",
      is_only ? "and is the only checkpoint: " : "as are all other checkpoints: ", newest.problem,
      "; restore its files, or remove ", is_only ? "it" : "all of them",
      " to start the run again"));
}

namespace detail {

/// Returns the names of the complete checkpoints in a folder, only the newest if there are many, or
/// "".
inline std::string complete_checkpoints(const std::filesystem::path& folder) {
  constexpr std::size_t most = 8;
  std::vector<std::string> names;
  for (const octavo::ListedCheckpoint& one : octavo::list_checkpoints(folder)) {
    if (one.manifest.has_value()) names.push_back(one.path.filename().string());
  }
  const std::size_t older = names.size() > most ? names.size() - most : 0;
  names.erase(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(older));
  return programs::joined(names) + (older == 0 ? "" : octavo::message(" and ", older, " older"));
}

/// Returns why --resume finds no checkpoint in `named`, and what to do.
inline std::string nothing_to_resume(const Options& options, const std::filesystem::path& named) {
  namespace fs = std::filesystem;
  const bool in_run = options.resume == "latest" || options.resume == "auto";
  const bool exports = !options.export_hf.empty();
  const std::string advice = in_run && !exports
                                 ? "; pass --resume auto to start a new run, or another folder"
                                 : "; pass the folder of a run or a checkpoint";
  const fs::path above = absolute_path(named).parent_path();
  const bool is_of_run = above.filename() == checkpoints_name;
  const std::string others = is_of_run ? complete_checkpoints(above) : "";
  const std::string rest = others.empty() ? advice : "; the folder contains " + others;
  std::error_code error;
  if (fs::is_directory(named, error)) {
    return is_of_run ? octavo::message(named.string(), " is not a complete checkpoint", rest)
                     : octavo::message(checkpoints_of(named).string(), working_folder_text(named),
                                       " has no complete checkpoint", advice);
  }
  if (fs::exists(named, error)) return octavo::message(named.string(), " is not a folder", rest);
  if (!others.empty()) return octavo::message("there is no such checkpoint", rest);
  const std::string what = in_run ? "folder " + named.string() : "such folder";
  const bool is_word = !in_run && !named.has_parent_path();
  const std::string meant = is_word ? programs::nearest(options.resume, {"latest", "auto"}) : "";
  return octavo::message("there is no ", what, working_folder_text(named),
                         meant.empty() ? advice : "; did you mean '" + meant + "'?");
}

}  // namespace detail

/// Returns the checkpoint to resume from, or "". Warns of incomplete and damaged ones.
/// @param program  name for messages
/// @throws ConfigError  if --resume finds none, unless a new run can start, or finds only damaged
///                      ones
inline std::filesystem::path checkpoint_to_resume(const Options& options, const char* program) {
  if (options.resume.empty()) return {};
  const bool in_run = options.resume == "latest" || options.resume == "auto";
  const std::filesystem::path named = in_run ? options.out : options.resume;
  std::filesystem::path newest = checkpoint_in(named, program);
  if (!newest.empty()) return newest;
  require_none_damaged(named / detail::checkpoints_name, options.resume);
  const bool may_begin = options.resume == "auto" && options.export_hf.empty();
  octavo::require<octavo::ConfigError>(may_begin, "--resume ", options.resume, ": ",
                                       detail::nothing_to_resume(options, named));
  return {};
}

/// Returns the newest complete checkpoint before a damaged one of the same folder, or "". Warns of
/// the damaged one.
/// @param program  name for messages
inline std::filesystem::path checkpoint_before(const std::filesystem::path& damaged,
                                               const std::string& problem, const char* program) {
  octavo::ListedCheckpoint skipped{.path = damaged, .problem = problem, .is_damaged = true};
  skipped.step = octavo::detail::step_in(damaged.filename().string()).value_or(0);
  std::filesystem::path before;
  std::optional<octavo::Index> step;
  for (const octavo::ListedCheckpoint& one : octavo::list_checkpoints(damaged.parent_path())) {
    if (!one.manifest.has_value() || one.step >= skipped.step) continue;
    before = one.path;
    step = one.step;
  }
  if (step.has_value()) warn_of_skipped(program, skipped, step);
  return before;
}

/// Resumes from a checkpoint or, if it is damaged and --resume does not name it, from the newest
/// one before it that is not damaged. All ranks must call it.
/// @param resume  resumes from a path
/// @return  the path from which the run resumed
/// @throws ConfigError  if there is none
template <class Resume>
std::filesystem::path resume_undamaged(std::filesystem::path from, const Options& options,
                                       Ranks& ranks, const char* program, const Resume& resume) {
  while (true) {
    try {
      resume(from);
      return from;
    } catch (const octavo::DamagedCheckpointError& error) {  // on all ranks
      if (from == options.resume) throw;
      std::string before;
      if (ranks.is_first()) before = checkpoint_before(from, error.what(), program).string();
      from = octavo::all_gather_texts(ranks, '+' + before, "older checkpoint").front().substr(1);
      octavo::require<octavo::ConfigError>(
          !from.empty(), error.what(),
          ", and there is no complete checkpoint before it; restore its files, or start a new run");
    }
  }
}

/// Warns about data that may have changed since the checkpoint was saved.
/// @param resumed  manifest of the checkpoint `from`
inline void warn_of_data(const RunData& data, const octavo::CheckpointManifest& resumed,
                         const std::filesystem::path& from) {
  if (resumed.validation != data.validation_text()) {
    programs::print_stderr(
        "{}: warning: the validation tokens differ from those of {}, or are unknown there: losses "
        "cannot be compared, and --keep-best starts again\n",
        program().name, programs::visible(from.string()));
  }
  for (const std::filesystem::path& path : data.sampled_files()) {
    struct stat file{};
    if (::stat(path.c_str(), &file) != 0 || file.st_mtime <= resumed.time) continue;
    programs::print_stderr(
        "{}: warning: {} was written after {}; its size and sampled tokens are the same, but the "
        "rest was not compared. If its tokens changed, start a new run\n",
        program().name, programs::visible(path.string()), programs::visible(from.string()));
  }
}

}  // namespace trainer
