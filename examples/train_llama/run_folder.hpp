// The folder of a run.
#pragma once

#include <CLI/CLI.hpp>
#include <octavo/core/utf8.hpp>
#include <octavo/data/text_stream.hpp>
#include <octavo/io/folder.hpp>
#include <octavo/io/hugging_face_writer.hpp>
#include <octavo/octavo.hpp>
#include <train_llama/checkpoints.hpp>
#include <train_llama/options.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <unistd.h>

namespace trainer {

namespace detail {

/// Creates a folder and its parents; returns false if it existed already.
/// @throws IoError  if it cannot be created
inline bool make_folder(const std::filesystem::path& folder) {
  std::error_code error;
  const bool made = std::filesystem::create_directories(folder, error);
  octavo::require<octavo::IoError>(!error, folder.string(),
                                   ": cannot be created: ", error.message(),
                                   "; choose another --out, or pass --no-out");
  return made;
}

/// Returns the local time as 2026-11-22-141503.
inline std::string time_text() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  ::localtime_r(&now, &local);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%d-%H%M%S", &local);
  return text;
}

/// Returns a precision as a part of a folder's name: the brackets,
/// commas and spaces of a C++ type become dashes.
inline std::string folder_word(const std::string& precision) {
  constexpr std::size_t most = 100;
  std::string word;
  for (const char letter : precision) {
    const bool is_special = std::string_view("<>{}(),: ").find(letter) != std::string_view::npos;
    if (!is_special) word += letter;
    if (is_special && !word.empty() && word.back() != '-') word += '-';
  }
  word.resize(std::min(word.size(), most));
  while (word.ends_with('-')) word.pop_back();
  return word;
}

}  // namespace detail

namespace detail {

/// Whether a metrics.jsonl contains neither a step nor an end, only the run and its evaluation
/// before the first step.
inline bool has_no_steps(const std::filesystem::path& metrics) {
  octavo::FileLines lines(metrics);
  for (std::string line; lines.next(line);) {
    const bool precedes_steps = line.starts_with("{\"event\":\"run\"") ||
                                line.starts_with("{\"event\":\"evaluation\",\"step\":0,");
    if (!precedes_steps) return false;
  }
  return true;
}

/// Whether a metrics.jsonl ends with the summary of a run.
inline bool has_ended(const std::filesystem::path& metrics) {
  if (!std::filesystem::exists(metrics)) return false;
  octavo::FileLines lines(metrics);
  bool has_summary = false;
  for (std::string line; lines.next(line);) {
    has_summary = line.starts_with("{\"event\":\"summary\"");
  }
  return has_summary;
}

}  // namespace detail

/// Returns which steps of a run its metrics.jsonl does not record, for example after a failed
/// write, or "".
/// @param step  the last step before the run resumes
inline std::string note_of_unrecorded_steps(const std::filesystem::path& metrics,
                                            octavo::Index step) {
  if (!std::filesystem::exists(metrics)) return {};
  constexpr std::string_view begin = "{\"event\":\"step\",\"step\":";
  octavo::Index last = 0;
  octavo::FileLines lines(metrics);
  for (std::string line; lines.next(line) && lines.is_whole();) {
    if (!line.starts_with(begin)) continue;
    octavo::Index recorded = 0;
    std::from_chars(line.data() + begin.size(), line.data() + line.size(), recorded);
    last = std::max(last, recorded);
  }
  if (last >= step) return {};
  const std::string steps = last + 1 == step ? octavo::message("step ", step)
                                             : octavo::message("steps ", last + 1, " to ", step);
  return octavo::message(metrics.string(), " does not record ", steps,
                         ", which the run completed; a write to it failed");
}

/// Throws if the value of a flag cannot be written to config.toml, which is UTF-8.
/// @throws ConfigError  naming the flag
inline void require_readable_flags(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& value : option->results()) {
      std::string_view rest = value;
      while (!rest.empty() && octavo::utf8_length(rest) != 0) {
        rest.remove_prefix(octavo::utf8_length(rest));
      }
      octavo::require<octavo::ConfigError>(
          rest.empty(), option->get_name(), " must be valid UTF-8, but is '", value,
          "'; rename the file or folder, because config.toml cannot contain this name");
    }
  }
}

namespace detail {

/// Returns the name of a file or folder that does not belong to a run; "" if there is none, or if
/// the folder contains a part of a run. Logs are ignored, because they may exist before the run.
inline std::string foreign_entry_of(const std::filesystem::path& folder) {
  std::string foreign;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    const auto is_name = [&](const char* other) { return name == other; };
    constexpr std::array of_runs{checkpoints_name, "config.toml", "metrics.jsonl", "manifest.txt",
                                 ".lock"};
    if (std::ranges::any_of(of_runs, is_name) || name.starts_with("events.out.tfevents.")) {
      return {};
    }
    const bool is_empty = entry.is_regular_file(error) && entry.file_size(error) == 0;
    const bool is_log = name.ends_with(".log") || name.ends_with(".out") || name.ends_with(".err");
    if (!is_empty && !is_log && (foreign.empty() || name < foreign)) foreign = name;
  }
  return foreign;
}

}  // namespace detail

/// Throws if --out is not usable for a run. Creates nothing.
/// @param out_from  configuration file that sets --out; empty for the command line
/// @throws ConfigError  if --out contains a file that the run would write, if it contains only
///                      files that belong to no run, or if it is not accessible
inline void require_free_out(const Options& options, const std::string& out_from) {
  if (options.out.empty()) return;
  const std::filesystem::path folder = options.out;
  const std::string remedy =
      out_from.empty() ? "" : "; it is set in " + out_from + ", and the command line overrides it";
  for (const char* name : {"metrics.jsonl", "config.toml"}) {
    const std::filesystem::path file = folder / name;
    std::error_code error;
    const bool taken = std::filesystem::exists(file, error);
    octavo::require<octavo::ConfigError>(!error, file.string(),
                                         ": cannot be accessed: ", error.message(),
                                         "; choose another --out, or pass --no-out");
    const bool is_removable =
        taken && file.filename() == "metrics.jsonl" && detail::has_no_steps(file);
    const bool has_both = std::filesystem::exists(folder / "config.toml", error);
    octavo::require<octavo::ConfigError>(
        !is_removable, file.string(),
        " exists already, from a run that took no step; if that run has ended, remove the file",
        has_both ? " and " + (folder / "config.toml").string() : "", ", or choose another --out");
    octavo::require<octavo::ConfigError>(
        !taken, file.string(),
        " exists already, and a run would overwrite it; resume it with --resume ",
        std::filesystem::exists(folder / detail::checkpoints_name, error) ? "latest" : "auto",
        ", or choose another --out", remedy);
  }
  const std::string foreign = detail::foreign_entry_of(folder);
  octavo::require<octavo::ConfigError>(
      foreign.empty(), "--out ", options.out,
      " must be a new or empty folder, or the folder of a run, but it contains other files, such "
      "as ",
      foreign, "; choose another --out", remedy);
}

/// Whether --resume auto restarts the run of --out, because it ended before its first checkpoint.
inline bool restarts_run(const Options& options) {
  if (options.resume != "auto" || options.out.empty()) return false;
  const std::filesystem::path folder = options.out;
  return (std::filesystem::exists(folder / "metrics.jsonl") ||
          std::filesystem::exists(folder / "config.toml")) &&
         std::filesystem::exists(folder / detail::checkpoints_name) &&
         std::ranges::none_of(octavo::list_checkpoints(folder / detail::checkpoints_name),
                              &octavo::ListedCheckpoint::is_committed);
}

/// Renames the files of the run that restarts, for example to metrics-2026-11-22-141503.jsonl.
/// @param folder  the folder, which this run has locked
/// @throws IoError  if the folder is not writable
inline void rename_unsaved_run_files(const std::filesystem::path& folder) {
  for (const char* name : {"config.toml", "metrics.jsonl"}) {
    const std::filesystem::path file = folder / name;
    if (!std::filesystem::exists(file)) continue;
    const std::filesystem::path new_path =
        folder /
        octavo::message(file.stem().string(), '-', detail::time_text(), file.extension().string());
    std::error_code error;
    std::filesystem::rename(file, new_path, error);
    octavo::require<octavo::IoError>(!error, file.string(),
                                     ": cannot be renamed: ", error.message());
    fmt::print("resume | no checkpoint yet, the run starts again; its {} was renamed to {}\n", name,
               programs::visible(new_path.string()));
  }
}

/// Creates the folder that --out names, or else a new one in runs/. Returns "" with --no-out.
/// @throws IoError  if the folder cannot be created or is not writable
inline std::filesystem::path make_run_folder(const Options& options) {
  if (options.no_out) return {};
  if (!options.out.empty()) {
    std::filesystem::path folder = options.out;
    detail::make_folder(folder);
    // Before the call: its arguments are evaluated in any order, and the message reads errno.
    const bool is_writable = ::access(folder.c_str(), W_OK | X_OK) == 0;
    octavo::require<octavo::IoError>(is_writable, folder.string(),
                                     ": cannot be written: ", std::strerror(errno),
                                     "; choose another --out, or pass --no-out");
    return folder;
  }
  const std::string name = octavo::message("runs/", detail::time_text(), '-', options.model, '-',
                                           detail::folder_word(options.precision));
  std::filesystem::path folder = name;
  // Two runs may start in the same second.
  for (int next = 2; !detail::make_folder(folder); ++next) {
    folder = octavo::message(name, '-', next);
  }
  return folder;
}

/// Whether a resumed run appends to the files of the run that was saved.
inline bool appends_to_saved_run(const std::filesystem::path& resume_from, const Options& options) {
  namespace fs = std::filesystem;
  if (resume_from.empty() || options.out.empty()) return false;
  // The checkpoint itself may be a link to another disk.
  return fs::weakly_canonical(detail::absolute_path(resume_from).parent_path()) ==
         fs::weakly_canonical(fs::path(options.out) / detail::checkpoints_name);
}

namespace detail {

/// Whether a path is a folder, or is in it. Neither needs to exist.
inline bool is_in(const std::filesystem::path& path, const std::filesystem::path& folder) {
  const auto inner = std::filesystem::weakly_canonical(absolute_path(path));
  const auto outer = std::filesystem::weakly_canonical(absolute_path(folder));
  return std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end()).first == outer.end();
}

/// Throws if the folder of a flag is where the run writes other files.
/// @throws ConfigError  naming both
inline void require_no_overlap(const char* flag, const std::filesystem::path& folder,
                               const Options& options) {
  const std::filesystem::path run = options.out;
  for (const char* name :
       {checkpoints_name, "config.toml", "metrics.jsonl", "manifest.txt", ".lock"}) {
    octavo::require<octavo::ConfigError>(run.empty() || !is_in(folder, run / name), flag, ' ',
                                         folder.string(), ": the run writes ",
                                         (run / name).string(), "; pass another folder");
  }
  const std::pair<const char*, std::string> others[]{{"--out", options.out},
                                                     {"--timeline", options.timeline},
                                                     {"--save-adapters", options.save_adapters},
                                                     {"--save-hf", options.save_hf}};
  for (const auto& [other, path] : others) {
    octavo::require<octavo::ConfigError>(
        path.empty() || flag == std::string(other) || !is_in(path, folder), other, ' ', path,
        " is in the folder of ", flag, ", ", folder.string(),
        ", which is written as a whole; pass another folder");
  }
}

}  // namespace detail

/// @param place_of  returns a flag's place in a configuration file, or ""
/// @throws ConfigError, IoError  if a folder that must be new exists, cannot be created, or is in
///                               the way of other files of the run
template <class PlaceOf>
void require_free_folders(const Options& options, const PlaceOf& place_of) {
  const std::pair<const char*, std::string> folders[]{{"--save-adapters", options.save_adapters},
                                                      {"--save-hf", options.save_hf}};
  for (const auto& [flag, folder] : folders) {
    if (folder.empty()) continue;
    detail::require_no_overlap(flag, folder, options);
    try {
      octavo::HuggingFaceWriter::require_free(folder);
    } catch (const octavo::IoError& error) {
      const std::string place = place_of(flag);
      throw octavo::IoError(octavo::message(
          place, flag, ": ", error.what(),
          place.empty() ? ""
                        : octavo::message("; ", flag, " \"\" on the command line disables it")));
    }
  }
}

/// Throws if the disk of --save-hf or --save-adapters has less room than the weights take.
/// @throws IoError  with both sizes
inline void require_room_for_weights(octavo::TrainingSession& session, const Options& options) {
  const auto require = [&](const char* flag, const std::string& folder, bool wants_adapters) {
    if (folder.empty()) return;
    std::uint64_t bytes = 0;
    for (const octavo::WeightInfo& weight : session.weights().list()) {
      if (weight.is_adapter != wants_adapters) continue;
      const std::uint64_t of_element = weight.format == "bf16" ? 2 : 4;
      bytes += of_element * static_cast<std::uint64_t>(weight.rows * weight.columns);
    }
    std::filesystem::path above = detail::absolute_path(folder);
    std::error_code error;
    while (!std::filesystem::exists(above, error) && above != above.parent_path()) {
      above = above.parent_path();
    }
    const std::uint64_t room = octavo::free_disk_bytes(above);
    const auto [takes, is_free] = octavo::size_texts(bytes, room);
    octavo::require<octavo::IoError>(room > bytes, flag, ' ', folder, ": the weights need ", takes,
                                     ", but ", is_free,
                                     " are free on the disk; free disk space, or pass another "
                                     "folder");
  };
  require("--save-adapters", options.save_adapters, true);
  require("--save-hf", options.save_hf, false);
}

}  // namespace trainer
