// The checkpoints of a run: which one it goes on from, and what there is.
#pragma once

#include <common/text.hpp>
#include <octavo/data/open_file.hpp>
#include <octavo/gemm/gemm_plans.hpp>
#include <octavo/octavo.hpp>
#include <octavo/precision/named_precisions.hpp>
#include <octavo/train/checkpoint_export.hpp>
#include <octavo/train/checkpoint_folder.hpp>
#include <train_llama/options.hpp>
#include <train_llama/ranks.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <filesystem>
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

/// The same path from the root on, without a slash at its end.
inline std::filesystem::path whole_path(const std::filesystem::path& path) {
  const std::filesystem::path whole = std::filesystem::absolute(path).lexically_normal();
  return whole.filename().empty() ? whole.parent_path() : whole;
}

/// Whether a folder has files that a run keeps beside its checkpoints.
inline bool has_files_of_run(const std::filesystem::path& folder) {
  std::error_code error;
  return std::filesystem::exists(folder / "config.toml", error) ||
         std::filesystem::exists(folder / "metrics.jsonl", error);
}

/// Whether a path is that of a run's checkpoints, and not of a run that is called so.
inline bool is_of_checkpoints(const std::filesystem::path& named) {
  std::error_code error;
  return whole_path(named).filename() == checkpoints_name && !has_files_of_run(named) &&
         !std::filesystem::exists(named / checkpoints_name, error);
}

/// Where the checkpoints of a run are.
/// @param named  the run's folder, or that of its checkpoints
inline std::filesystem::path checkpoints_of(const std::filesystem::path& named) {
  return is_of_checkpoints(named) ? named : named / checkpoints_name;
}

/// The folder of the run that --out names, by itself or by that of its checkpoints.
/// @throws ConfigError  if --out names a checkpoint
inline std::string run_of(const std::string& out) {
  if (out.empty()) return out;
  const std::filesystem::path whole = whole_path(out);
  const std::filesystem::path of_all = whole.parent_path();
  octavo::require<octavo::ConfigError>(
      !is_checkpoint(whole), "--out ", out, " is a checkpoint; give the folder of ",
      of_all.filename() == checkpoints_name ? "its run, " + of_all.parent_path().string()
                                            : "a run, or of a new one");
  if (!is_of_checkpoints(whole)) return out;
  const std::filesystem::path& above = of_all;
  const bool is_of_run = has_files_of_run(above) || !octavo::list_checkpoints(whole).empty();
  return is_of_run ? above.string() : out;
}

/// Of a path that is relative, the folder that it was looked for in.
inline std::string looked_for_in(const std::filesystem::path& path) {
  return path.is_absolute() ? "" : " in " + std::filesystem::current_path().string();
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

/// @throws ConfigError  for the checkpoint of adapters, which has nothing of the model beside them
inline void require_whole_model(const std::filesystem::path& path,
                                const octavo::CheckpointManifest& manifest) {
  octavo::require<octavo::ConfigError>(
      !manifest.recipe.ends_with(octavo::lora_suffix), path.string(), " has adapters only (",
      manifest.recipe,
      "); for weights with them in it give the program that trained "
      "them --config "
      "RUN/config.toml --resume RUN --save-hf FOLDER --save-adapters \"\"");
}

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
  const std::filesystem::path path = detail::whole_path(options.resume);
  const std::filesystem::path of_all =
      detail::is_checkpoint(path) ? path.parent_path() : detail::checkpoints_of(path);
  options.out = of_all.parent_path().string();
}

/// The checkpoint that a path names: it, or the newest whole one of a run's folder or of that of
/// its checkpoints, or "". Warns of incomplete and damaged ones.
/// @param program  for messages
inline std::filesystem::path checkpoint_in(const std::filesystem::path& named,
                                           const char* program) {
  if (detail::is_checkpoint(named)) return named;
  return octavo::newest_checkpoint(
      detail::checkpoints_of(named), [program](const octavo::ListedCheckpoint& skipped) {
        programs::tell("{}: warning: {} is not a complete checkpoint, and is skipped: {}\n",
                       program, programs::visible(skipped.path.string()),
                       programs::visible(skipped.problem));
      });
}

namespace detail {

/// The name that programs have for a precision; "" where they have none.
/// @param recipe  its name in a checkpoint, such as "fp8 delayed"
inline std::string precision_of(const std::string& recipe) {
  std::string name;
  const auto look_at = [&]<class P>(const octavo::NamedPrecision<P>& one) {
    if (octavo::precision_name<P>() == recipe) name = one.name;
  };
  std::apply([&](const auto&... named) { (look_at(named), ...); }, octavo::named_precisions);
  return name;
}

}  // namespace detail

/// The checkpoint that --checkpoint names, or "" if it names none; `choice` becomes the model of
/// its run, in the run's precision unless --precision says another.
/// @throws ConfigError  if there is none, --model names a model too, or programs know not its own
inline std::filesystem::path take_checkpoint(const CLI::App& app, const std::string& named,
                                             ModelChoice& choice, const char* program) {
  if (named.empty()) return {};
  octavo::require<octavo::ConfigError>(
      app.count("--model") == 0,
      "--checkpoint says which model it is of, and --model does, too; give one");
  octavo::require<octavo::ConfigError>(std::filesystem::exists(named), "--checkpoint ", named,
                                       ": there is no such folder", detail::looked_for_in(named),
                                       "; name the folder of a run, or of a checkpoint");
  std::filesystem::path path = checkpoint_in(named, program);
  octavo::require<octavo::ConfigError>(!path.empty(), "--checkpoint ", named,
                                       " is not a complete checkpoint, and has none in its folder ",
                                       detail::checkpoints_name, "; name one, or a run's folder");
  const octavo::CheckpointManifest manifest = octavo::detail::read_manifest(path);
  require_whole_model(path, manifest);
  choice.model = manifest.model;
  octavo::require<octavo::ConfigError>(
      detail::is_preset(choice.model) ||
          detail::is_among(detail::compiled(&Instance::model), choice.model),
      path.string(), ": is of the model ", choice.model,
      ", which this program does not know; take a program that was built as the one that trained "
      "it");
  if (app.count("--precision") != 0) return path;
  choice.precision = detail::precision_of(manifest.recipe);
  octavo::require<octavo::ConfigError>(!choice.precision.empty(), path.string(), ": is of a ",
                                       choice.model, " in ", manifest.recipe,
                                       ", which is no precision of programs; give --precision, of ",
                                       programs::joined(detail::compiled(&Instance::precision)));
  return path;
}

/// @throws ConfigError  if a run of which a checkpoint was saved, and damaged since, were to begin
///                      again
inline void require_none_damaged(const std::filesystem::path& folder) {
  for (const octavo::ListedCheckpoint& one : octavo::list_checkpoints(folder)) {
    octavo::require<octavo::ConfigError>(
        !one.is_committed, "--resume auto: ", one.path.string(),
        " is damaged, and there is no other checkpoint: ", one.problem,
        "; bring its files back, or remove it, and the run begins again");
  }
}

namespace detail {

/// The names of the whole checkpoints in a folder, of many the newest; "" if there are none.
inline std::string whole_checkpoints(const std::filesystem::path& folder) {
  constexpr std::size_t most = 8;
  std::vector<std::string> names;
  for (const octavo::ListedCheckpoint& one : octavo::list_checkpoints(folder)) {
    if (one.manifest.has_value()) names.push_back(one.path.filename().string());
  }
  const std::size_t older = names.size() > most ? names.size() - most : 0;
  names.erase(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(older));
  return programs::joined(names) + (older == 0 ? "" : octavo::message(" and ", older, " older"));
}

/// Why --resume finds no checkpoint, and what to do.
/// @param named  the path that was looked at
inline std::string nothing_to_resume(const Options& options, const std::filesystem::path& named) {
  namespace fs = std::filesystem;
  const bool in_run = options.resume == "latest" || options.resume == "auto";
  const bool exports = !options.export_hf.empty();
  const std::string advice = in_run && !exports
                                 ? "; give --resume auto to begin then, or another folder"
                                 : "; name the folder of a run, or of a checkpoint";
  const fs::path above = whole_path(named).parent_path();
  const bool is_of_run = above.filename() == checkpoints_name;
  const std::string others = is_of_run ? whole_checkpoints(above) : "";
  const std::string rest = others.empty() ? advice : "; there are " + others;
  std::error_code error;
  if (fs::is_directory(named, error)) {
    return is_of_run ? octavo::message(named.string(), " is not a complete checkpoint", rest)
                     : octavo::message(checkpoints_of(named).string(), looked_for_in(named),
                                       " has no complete checkpoint", advice);
  }
  if (fs::exists(named, error)) return octavo::message(named.string(), " is no folder", rest);
  if (!others.empty()) return octavo::message("there is no such checkpoint", rest);
  const std::string what = in_run ? "folder " + named.string() : "such folder";
  const bool is_word = !in_run && !named.has_parent_path();
  const std::string meant = is_word ? programs::nearest(options.resume, {"latest", "auto"}) : "";
  return octavo::message("there is no ", what, looked_for_in(named),
                         meant.empty() ? advice : "; did you mean '" + meant + "'?");
}

}  // namespace detail

/// The checkpoint that the run goes on from, or "". Warns of incomplete and damaged ones.
/// @param program  for messages
/// @throws ConfigError  if --resume finds none and a run cannot begin, or but damaged ones
inline std::filesystem::path checkpoint_to_resume(const Options& options, const char* program) {
  if (options.resume.empty()) return {};
  const bool in_run = options.resume == "latest" || options.resume == "auto";
  const std::filesystem::path named = in_run ? options.out : options.resume;
  std::filesystem::path newest = checkpoint_in(named, program);
  if (!newest.empty()) return newest;
  const bool may_begin = options.resume == "auto" && options.export_hf.empty();
  octavo::require<octavo::ConfigError>(may_begin, "--resume ", options.resume, ": ",
                                       detail::nothing_to_resume(options, named));
  require_none_damaged(named / detail::checkpoints_name);
  return {};
}

/// The checkpoint that --replay-step begins from: the newest whole one before the step in the run's
/// folder, else the one whose path --resume gives, or "".
/// @throws ConfigError  if that is none, or not of a step before
inline std::filesystem::path checkpoint_to_replay_from(const Options& options,
                                                       const char* program) {
  std::filesystem::path found;
  if (!options.out.empty()) {
    const auto all =
        octavo::list_checkpoints(std::filesystem::path(options.out) / detail::checkpoints_name);
    for (const octavo::ListedCheckpoint& one : all) {  // newest last
      if (one.manifest.has_value() && one.step < options.replay_step) found = one.path;
    }
  }
  const bool is_named =
      !options.resume.empty() && options.resume != "latest" && options.resume != "auto";
  if (!found.empty() || !is_named) return found;
  found = checkpoint_in(options.resume, program);
  octavo::require<octavo::ConfigError>(!found.empty(), "--resume ", options.resume,
                                       ": has no complete checkpoint; name another");
  const octavo::Index step = octavo::detail::read_manifest(found).step;
  octavo::require<octavo::ConfigError>(step < options.replay_step, found.string(), " is of step ",
                                       step, ", and --replay-step ", options.replay_step,
                                       " wants one before it; name an older one, or the run's "
                                       "folder with --out");
  return found;
}

/// Says if a step has other tokens than those of a checkpoint's run, which other ranks shared; ""
/// if as many share it.
inline std::string note_of_ranks(const octavo::CheckpointManifest& manifest,
                                 const octavo::Sharding& here, const Options& options) {
  const octavo::Index before = manifest.ranks / manifest.tensor_ranks;
  const octavo::Index now = here.ranks;
  if (before == now) return {};
  const octavo::Index of_each = options.batch * options.sequence_length * options.micro_batches;
  const octavo::Index micro_batches = options.micro_batches * before;
  return octavo::message(
      "a step has the batches of ", now, " in place of ", before, " ranks: ", of_each * now,
      " tokens, ", of_each * before, " with the same flags on as many as before",
      micro_batches % now != 0
          ? ""
          : octavo::message("; --micro-batches ", micro_batches / now, " has as many here"));
}

/// Says if the algorithms of a session's GEMMs are not all that a checkpoint has; "" if they are.
/// @param here  those of the session that goes on from it
inline std::string note_of_gemm_plans(const octavo::CheckpointManifest& manifest,
                                      const std::vector<octavo::GemmPlanRecord>& here) {
  const auto saved = octavo::read_gemm_plans(manifest.gemm_plans, "GEMM plans of the checkpoint");
  // Times are rounded on their way through text.
  const auto is_used = [&](const octavo::GemmPlanRecord& plan) {
    return std::ranges::any_of(here, [&](const octavo::GemmPlanRecord& own) {
      return own.replaces(plan) && own.algorithm == plan.algorithm;
    });
  };
  const auto used = static_cast<std::size_t>(std::ranges::count_if(saved, is_used));
  if (used < saved.size()) {
    const octavo::GemmLibrary& library = saved.front().library;
    return octavo::message(used, " of the checkpoint's ", saved.size(),
                           " GEMM plans are used here; they are of ", library.card,
                           " with cuBLASLt ", library.version);
  }
  if (used >= here.size()) return {};
  return octavo::message(here.size() - used, " of the ", here.size(),
                         " GEMM plans that are used here are not the checkpoint's, which has ",
                         saved.size(), "; with its own go on without --gemm-plans");
}

/// Says if a session computes with another GPU or other libraries than a checkpoint was saved with,
/// or if that is not known; "" if it does not.
inline std::string note_of_libraries(const octavo::CheckpointManifest& manifest,
                                     const std::string& here) {
  if (manifest.libraries == here) return {};
  return octavo::message(
      "the checkpoint was saved with ",
      manifest.libraries.empty() ? "no GPU, or none that it names" : manifest.libraries,
      "; here there is ", here.empty() ? "no GPU" : here);
}

/// Says if another Octavo has saved a checkpoint, or if its sequences ran in another length than
/// those of a session, or in which is not known; "" if neither.
/// @param run_length  tokens that those of the session run as
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
             ? text + "does not say as how many tokens its sequences ran"
             : octavo::message(text, "is of sequences that ran as ", manifest.run_length,
                               " tokens, and here they run as ", run_length);
}

/// Why steps may not be those of the run that saved a checkpoint; none where all is the same.
inline std::vector<std::string> notes_of(const octavo::CheckpointManifest& manifest,
                                         const octavo::TrainingSession& session) {
  std::vector<std::string> notes{note_of_gemm_plans(manifest, session.gemm_plans()),
                                 note_of_libraries(manifest, session.libraries()),
                                 note_of_octavo(manifest, session.run_shape().tokens)};
  std::erase(notes, "");
  return notes;
}

/// Prints them.
/// @param begin  of each line
inline void print_notes(const char* begin, const octavo::CheckpointManifest& manifest,
                        const octavo::TrainingSession& session) {
  for (const std::string& note : notes_of(manifest, session)) {
    fmt::print("{} | {}: steps may differ from those of the run that saved it\n", begin,
               programs::visible(note));
  }
}

/// Prints what there is in the folder of a run.
/// @throws ConfigError  if the command line names none, or one that is not there
inline void print_checkpoints(const Options& options) {
  octavo::require<octavo::ConfigError>(
      !options.out.empty(), "--list-checkpoints is of the run that --out names; give it");
  octavo::require<octavo::ConfigError>(std::filesystem::is_directory(options.out), "--out ",
                                       options.out, ": there is no such folder",
                                       detail::looked_for_in(options.out),
                                       "; name the folder of a run");
  const std::filesystem::path folder = detail::checkpoints_of(options.out);
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

/// The config.toml of the run that a checkpoint is of; empty if it lies where no run saved it.
inline std::filesystem::path config_of(const std::filesystem::path& checkpoint) {
  std::filesystem::path path = checkpoint.lexically_normal();
  if (path.filename().empty()) path = path.parent_path();
  if (!path.has_parent_path()) path = std::filesystem::absolute(path);
  const std::filesystem::path folder = path.parent_path();
  if (folder.filename() != checkpoints_name) return {};
  return folder.parent_path() / "config.toml";
}

/// What a run's config.toml says of a flag; "" where it says nothing.
inline std::string said_in(const std::filesystem::path& config, const std::string& flag) {
  if (!std::filesystem::exists(config)) return {};
  std::istringstream file(octavo::read_text_file(config));
  for (const CLI::ConfigItem& item : CLI::ConfigTOML().from_config(file)) {
    if (item.name == flag && !item.inputs.empty()) return item.inputs.front();
  }
  return {};
}

}  // namespace detail

/// The model of a checkpoint, with the tokens and positions that its run's config.toml says.
/// @throws ConfigError  if there is no preset of its name
inline octavo::ModelDescription model_of_checkpoint(const std::filesystem::path& checkpoint,
                                                    const std::string& name) {
  const std::filesystem::path config = detail::config_of(checkpoint);
  std::vector<programs::NamedShape> known = programs::presets();
  for (const Instance& instance : instances()) known.push_back({instance.model, instance.shape});
  const auto found = std::ranges::find(known, name, &programs::NamedShape::name);
  octavo::require<octavo::ConfigError>(
      found != known.end(), checkpoint.string(), ": is of the model ", name,
      ", which this program does not know; take the one that trained it");
  octavo::ModelDescription model = found->shape;
  const std::string loaded = detail::said_in(config, "model");
  const std::filesystem::path hf_config =
      std::filesystem::path(loaded.starts_with("hf:") ? loaded.substr(3) : "") / "config.json";
  if (loaded.starts_with("hf:")) {
    octavo::require<octavo::ConfigError>(
        std::filesystem::exists(hf_config), hf_config.string(),
        ": is not there, and what the exported one says is of it: the run's model is ", loaded,
        "; call from the folder that the run was called from, or bring that folder back");
    return octavo::read_hugging_face_config(hf_config);
  }
  const std::string length = detail::said_in(config, "seq-len");
  if (model.positions == 0 && !length.empty()) model.positions = std::stoll(length);
  return model;
}

/// Writes the weights of the checkpoint that --resume names, as --export-hf asks for.
/// @throws ConfigError, IoError  if there is none, or it cannot be read, or the folder not written
inline void export_weights(const Options& options, const char* program) {
  octavo::require<octavo::ConfigError>(
      !options.resume.empty(),
      "--export-hf is of the checkpoint that --resume names; give its path, or that of its run");
  std::filesystem::path checkpoint =
      std::filesystem::absolute(checkpoint_to_resume(options, program)).lexically_normal();
  if (checkpoint.filename().empty()) checkpoint = checkpoint.parent_path();
  const octavo::ListedCheckpoint found = octavo::detail::look_at_checkpoint(checkpoint);
  octavo::require<octavo::IoError>(found.manifest.has_value(), checkpoint.string(),
                                   " is not a complete checkpoint: ", found.problem);
  require_whole_model(checkpoint, *found.manifest);
  octavo::export_checkpoint(checkpoint, model_of_checkpoint(checkpoint, found.manifest->model),
                            options.export_hf);
  fmt::print("weights of step {} | written to {}\n", found.manifest->step,
             programs::visible(options.export_hf));
}

}  // namespace trainer
