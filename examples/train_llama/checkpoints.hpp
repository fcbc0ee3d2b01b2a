// The checkpoints of a run: listing, export, and the choice of one to resume from.
#pragma once

#include <common/text.hpp>
#include <octavo/checkpoint/checkpoint_export.hpp>
#include <octavo/checkpoint/checkpoint_folder.hpp>
#include <octavo/data/open_file.hpp>
#include <octavo/gemm/gemm_plans.hpp>
#include <octavo/octavo.hpp>
#include <octavo/precision/named_precisions.hpp>
#include <train_llama/options.hpp>
#include <train_llama/ranks.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <optional>
#include <sstream>
#include <string>
#include <system_error>
#include <tuple>
#include <vector>

namespace trainer {

namespace detail {

inline constexpr const char* checkpoints_name = "checkpoints";

inline bool is_checkpoint(const std::filesystem::path& path) {
  std::error_code error;
  return std::filesystem::exists(path / octavo::detail::manifest_name, error);
}

/// Returns the absolute path without a trailing slash.
inline std::filesystem::path absolute_path(const std::filesystem::path& path) {
  const std::filesystem::path whole = std::filesystem::absolute(path).lexically_normal();
  return whole.filename().empty() ? whole.parent_path() : whole;
}

/// Whether a folder contains the files that a run keeps next to its checkpoints.
inline bool has_files_of_run(const std::filesystem::path& folder) {
  std::error_code error;
  return std::filesystem::exists(folder / "config.toml", error) ||
         std::filesystem::exists(folder / "metrics.jsonl", error);
}

/// Whether a path is the checkpoints folder of a run, rather than a run with that name.
inline bool is_checkpoints_folder(const std::filesystem::path& named) {
  std::error_code error;
  return absolute_path(named).filename() == checkpoints_name && !has_files_of_run(named) &&
         !std::filesystem::exists(named / checkpoints_name, error);
}

/// Returns the folder of a run's checkpoints.
/// @param named  the run's folder, or its checkpoints folder
inline std::filesystem::path checkpoints_of(const std::filesystem::path& named) {
  return is_checkpoints_folder(named) ? named : named / checkpoints_name;
}

/// Returns the folder of the run that --out names directly or by its checkpoints folder.
/// @throws ConfigError  if --out names a checkpoint
inline std::string run_of(const std::string& out) {
  if (out.empty()) return out;
  const std::filesystem::path whole = absolute_path(out);
  const std::filesystem::path parent = whole.parent_path();
  octavo::require<octavo::ConfigError>(
      !is_checkpoint(whole), "--out ", out, " is a checkpoint; pass the folder of ",
      parent.filename() == checkpoints_name ? "its run, " + parent.parent_path().string()
                                            : "a run, or of a new one");
  if (!is_checkpoints_folder(whole)) return out;
  const std::filesystem::path& above = parent;
  const bool is_of_run = has_files_of_run(above) || !octavo::list_checkpoints(whole).empty();
  return is_of_run ? above.string() : out;
}

/// Returns the working folder for messages about a relative path, otherwise "".
inline std::string working_folder_text(const std::filesystem::path& path) {
  return path.is_absolute() ? "" : " in " + std::filesystem::current_path().string();
}

/// Prints a table with aligned columns.
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

/// @throws ConfigError  for a checkpoint of adapters, which does not contain the base model
inline void require_full_model(const std::filesystem::path& path,
                               const octavo::CheckpointManifest& manifest) {
  octavo::require<octavo::ConfigError>(
      !manifest.recipe.ends_with(octavo::lora_suffix), path.string(), " contains only adapters (",
      manifest.recipe,
      "); for weights that include them, run the program that trained them with --config "
      "RUN/config.toml --resume RUN --save-hf FOLDER --save-adapters \"\"");
}

/// Warns of an incomplete or damaged checkpoint, and of the steps that are lost with it.
/// @param program  name for messages
/// @param newest   step of the checkpoint that is used instead; none if there is none
inline void warn_of_skipped(const char* program, const octavo::ListedCheckpoint& skipped,
                            std::optional<octavo::Index> newest) {
  const bool is_loss = skipped.is_damaged && newest.has_value() && *newest < skipped.step;
  programs::print_stderr(
      "{}: warning: {} is not a complete checkpoint, and is skipped: {}{}\n", program,
      programs::visible(skipped.path.string()), programs::visible(skipped.problem),
      is_loss ? fmt::format("; {} steps are lost: the newest complete one is of step {}",
                            skipped.step - *newest, *newest)
              : "");
}

/// Returns the checkpoint that a path names: the path itself, or the newest complete checkpoint of
/// a run's folder or checkpoints folder, or "". Warns of incomplete and damaged ones.
/// @param program  name for messages
inline std::filesystem::path checkpoint_in(const std::filesystem::path& named,
                                           const char* program) {
  if (detail::is_checkpoint(named)) return named;
  std::vector<octavo::ListedCheckpoint> skipped;
  std::filesystem::path newest = octavo::newest_checkpoint(
      detail::checkpoints_of(named),
      [&](const octavo::ListedCheckpoint& one) { skipped.push_back(one); });
  for (const octavo::ListedCheckpoint& one : skipped) {
    warn_of_skipped(program, one, octavo::detail::step_in(newest.filename().string()));
  }
  return newest;
}

namespace detail {

/// Returns the name of a precision in programs, or "" if it has none.
/// @param recipe  its name in a checkpoint, such as "fp8-delayed"
inline std::string precision_of(const std::string& recipe) {
  std::string name;
  octavo::named_precisions.for_each([&]<class P>(octavo::NamedPrecision<P> named) {
    if (octavo::precision_name<P>() == recipe) name = named.name;
  });
  return name;
}

/// Returns the name of a recipe for messages: that of its precision in programs, if it has one.
inline std::string precision_text(const std::string& recipe) {
  const std::string name = precision_of(recipe);
  return name.empty() ? recipe : name;
}

}  // namespace detail

/// Returns the checkpoint that --checkpoint names, or "" if it was not set. Sets `choice` to the
/// model of its run and, unless --precision was set, to the run's precision.
/// @throws ConfigError  if the checkpoint does not exist, --model was also set, or this program
///                      does not know its model or precision
inline std::filesystem::path resolve_checkpoint(const CLI::App& app, const std::string& named,
                                                ModelChoice& choice, const char* program) {
  if (named.empty()) return {};
  octavo::require<octavo::ConfigError>(
      app.count("--model") == 0,
      "--checkpoint determines the model, so --model must not be set; pass only one");
  octavo::require<octavo::ConfigError>(
      std::filesystem::exists(named), "--checkpoint ", named, ": there is no such folder",
      detail::working_folder_text(named), "; pass the folder of a run or a checkpoint");
  std::filesystem::path path = checkpoint_in(named, program);
  octavo::require<octavo::ConfigError>(
      !path.empty(), "--checkpoint ", named,
      " is not a complete checkpoint, and contains none in its folder ", detail::checkpoints_name,
      "; pass another checkpoint or run, or train with --checkpoint-every");
  const octavo::CheckpointManifest manifest = octavo::detail::read_manifest(path);
  require_full_model(path, manifest);
  choice.model = manifest.model;
  octavo::require<octavo::ConfigError>(
      detail::is_preset(choice.model) ||
          detail::is_among(detail::compiled(&Instance::model), choice.model),
      path.string(), ": contains the model ", choice.model,
      ", which this program does not know; use a program built with the same models as the one "
      "that trained it");
  if (app.count("--precision") != 0) return path;
  choice.precision = detail::precision_of(manifest.recipe);
  octavo::require<octavo::ConfigError>(
      !choice.precision.empty(), path.string(), ": contains a ", choice.model, " in ",
      manifest.recipe, ", which is not a precision of this program; pass --precision with one of ",
      programs::joined(detail::compiled(&Instance::precision)));
  return path;
}

/// Returns a note if another number of ranks changes the tokens per step, otherwise "".
inline std::string note_of_ranks(const octavo::CheckpointManifest& manifest,
                                 const octavo::Sharding& here, const Options& options) {
  const octavo::Index before = manifest.ranks / manifest.tensor_ranks;
  const octavo::Index now = here.ranks;
  if (before == now) return {};
  const octavo::Index of_each = options.batch * options.sequence_length * options.micro_batches;
  const octavo::Index micro_batches = options.micro_batches * before;
  return octavo::message("with these flags, a step has ", of_each * now, " tokens, but ",
                         of_each * before, " on the checkpoint's number of ranks (", before, ")",
                         micro_batches % now != 0
                             ? ""
                             : octavo::message("; pass --micro-batches ", micro_batches / now,
                                               " for the same number"));
}

/// Returns a note if the algorithms of a resumed session, `here`, are not those of the checkpoint,
/// otherwise "".
inline std::string note_of_gemm_plans(const octavo::CheckpointManifest& manifest,
                                      const std::vector<octavo::GemmPlanRecord>& here) {
  const auto saved = octavo::read_gemm_plans(manifest.gemm_plans, "GEMM plans of the checkpoint");
  // Times are rounded when written as text.
  const auto is_used = [&](const octavo::GemmPlanRecord& plan) {
    return std::ranges::any_of(here, [&](const octavo::GemmPlanRecord& own) {
      return own.replaces(plan) && own.algorithm == plan.algorithm;
    });
  };
  const auto used = static_cast<std::size_t>(std::ranges::count_if(saved, is_used));
  if (used < saved.size()) {
    const octavo::GemmLibrary& library = saved.front().library;
    return octavo::message(used, " of the checkpoint's ", saved.size(),
                           " GEMM plans are used here; the checkpoint's are for ", library.card,
                           " with cuBLASLt ", library.version);
  }
  if (used >= here.size()) return {};
  return octavo::message(
      here.size() - used, " of the ", here.size(),
      " GEMM plans that are used here differ from the ", saved.size(),
      " of the checkpoint; to use the checkpoint's, resume without --gemm-plans");
}

/// Returns a note if the GPU or libraries differ from those that saved a checkpoint, or are
/// unknown, otherwise "".
inline std::string note_of_libraries(const octavo::CheckpointManifest& manifest,
                                     const std::string& here) {
  if (manifest.libraries == here) return {};
  return octavo::message(
      "the checkpoint was saved with ",
      manifest.libraries.empty() ? "no GPU, or an unnamed one" : manifest.libraries,
      "; this machine has ", here.empty() ? "no GPU" : here);
}

/// Returns a note if another version of Octavo saved a checkpoint, or if the padded length of its
/// sequences is unknown or not `run_length`, otherwise "".
inline std::string note_of_octavo(const octavo::CheckpointManifest& manifest,
                                  octavo::Index run_length) {
  std::string text;
  if (manifest.version != octavo::version_string) {
    text = octavo::message("the checkpoint was saved by Octavo ", manifest.version,
                           ", and this is ", octavo::version_string);
  }
  if (manifest.run_length == run_length) return text;
  text += text.empty() ? "the checkpoint " : ", and it ";
  return manifest.run_length == 0
             ? text + "does not record the padded length of its sequences"
             : octavo::message(text, "has sequences padded to ", manifest.run_length,
                               " tokens, but here they are padded to ", run_length);
}

/// Returns the reasons why steps may differ from those of the run that saved a checkpoint.
inline std::vector<std::string> notes_of(const octavo::CheckpointManifest& manifest,
                                         const octavo::TrainingSession& session) {
  std::vector<std::string> notes{note_of_gemm_plans(manifest, session.gemm_plans()),
                                 note_of_libraries(manifest, session.facts().libraries),
                                 note_of_octavo(manifest, session.facts().run_shape.tokens)};
  std::erase(notes, "");
  return notes;
}

/// Prints these reasons, each after `begin`.
inline void print_notes(const char* begin, const octavo::CheckpointManifest& manifest,
                        const octavo::TrainingSession& session) {
  for (const std::string& note : notes_of(manifest, session)) {
    fmt::print("{} | {}: steps may differ from those of the run that saved it\n", begin,
               programs::visible(note));
  }
}

/// Prints a table of the checkpoints in the folder of a run.
/// @throws ConfigError  if --out is not set or does not exist
inline void print_checkpoints(const Options& options) {
  octavo::require<octavo::ConfigError>(!options.out.empty(),
                                       "--list-checkpoints needs the folder of a run; pass --out");
  octavo::require<octavo::ConfigError>(std::filesystem::is_directory(options.out), "--out ",
                                       options.out, ": there is no such folder",
                                       detail::working_folder_text(options.out),
                                       "; pass the folder of a run");
  const std::filesystem::path folder = detail::checkpoints_of(options.out);
  const std::vector<octavo::ListedCheckpoint> all = octavo::list_checkpoints(folder);
  if (all.empty()) {
    fmt::print("{} contains no checkpoint\n", programs::visible(folder.string()));
    return;
  }
  std::vector<std::vector<std::string>> rows{
      {"step", "saved", "MiB", "validation loss", "ranks", "ZeRO", "checkpoint"}};
  for (const octavo::ListedCheckpoint& one : all) {
    const std::string name = programs::visible(one.path.filename().string());
    if (!one.manifest.has_value()) {
      rows.push_back({std::to_string(one.step), "-", "-", "-", "-", "-",
                      name + ", incomplete or damaged: " + programs::visible(one.problem)});
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

namespace detail {

/// Returns the config.toml of a checkpoint's run, or "" if the checkpoint is not in a run's folder.
inline std::filesystem::path config_of(const std::filesystem::path& checkpoint) {
  std::filesystem::path path = checkpoint.lexically_normal();
  if (path.filename().empty()) path = path.parent_path();
  if (!path.has_parent_path()) path = std::filesystem::absolute(path);
  const std::filesystem::path folder = path.parent_path();
  if (folder.filename() != checkpoints_name) return {};
  return folder.parent_path() / "config.toml";
}

/// Returns the value of a flag in a run's config.toml, or "" if it is not set there.
inline std::string configured_flag(const std::filesystem::path& config, const std::string& flag) {
  if (!std::filesystem::exists(config)) return {};
  std::istringstream file(octavo::read_text_file(config));
  for (const CLI::ConfigItem& item : CLI::ConfigTOML().from_config(file)) {
    if (item.name == flag && !item.inputs.empty()) return item.inputs.front();
  }
  return {};
}

}  // namespace detail

}  // namespace trainer
