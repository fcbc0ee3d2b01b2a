// Exporting the weights of a checkpoint, for --export-hf.
#pragma once

#include <common/text.hpp>
#include <common/tokenizer.hpp>
#include <octavo/checkpoint/checkpoint_export.hpp>
#include <octavo/checkpoint/checkpoint_folder.hpp>
#include <octavo/octavo.hpp>
#include <train_llama/checkpoints.hpp>
#include <train_llama/options.hpp>
#include <train_llama/resume.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

namespace trainer {

/// Returns the model of a checkpoint, with the vocabulary and positions of its run's config.toml.
/// @throws ConfigError  if there is no preset with its name
inline octavo::ModelDescription model_of_checkpoint(const std::filesystem::path& checkpoint,
                                                    const std::string& name) {
  const std::filesystem::path config = detail::config_of(checkpoint);
  std::vector<programs::NamedShape> known = programs::presets();
  for (const Instance& instance : instances()) known.push_back({instance.model, instance.shape});
  const auto found = std::ranges::find(known, name, &programs::NamedShape::name);
  octavo::require<octavo::ConfigError>(
      found != known.end(), checkpoint.string(), ": contains the model ", name,
      ", which this program does not know; use the program that trained it");
  octavo::ModelDescription model = found->shape;
  const std::string loaded = detail::configured_flag(config, "model");
  const std::filesystem::path hf_config =
      std::filesystem::path(loaded.starts_with("hf:") ? loaded.substr(3) : "") / "config.json";
  if (loaded.starts_with("hf:")) {
    octavo::require<octavo::ConfigError>(
        std::filesystem::exists(hf_config), hf_config.string(),
        ": does not exist, but the export needs it: the run's model is ", loaded,
        "; run this command in the folder in which the run was started, or restore that folder");
    return octavo::read_hugging_face_config(hf_config);
  }
  const std::string length = detail::configured_flag(config, "seq-len");
  if (model.positions == 0 && !length.empty()) model.positions = std::stoll(length);
  return model;
}

/// Returns the tokenizer of a checkpoint's run, as --save-hf copies it: the folder of --model
/// hf:FOLDER, or the file of --tokenizer, or "".
inline std::filesystem::path tokenizer_of_checkpoint(const std::filesystem::path& checkpoint) {
  const std::filesystem::path config = detail::config_of(checkpoint);
  const std::string loaded = detail::configured_flag(config, "model");
  if (loaded.starts_with("hf:")) return loaded.substr(3);
  const std::string tokenizer = detail::configured_flag(config, "tokenizer");
  return tokenizer == "bytes" ? "" : tokenizer;
}

/// Writes the weights of the checkpoint that --resume names, for --export-hf.
/// @throws ConfigError, IoError  if the checkpoint does not exist or cannot be read, or the folder
///                      cannot be written
inline void export_weights(const Options& options, const char* program) {
  octavo::require<octavo::ConfigError>(
      !options.resume.empty(),
      "--export-hf needs a checkpoint; pass --resume with its path or the folder of its run");
  std::filesystem::path checkpoint =
      std::filesystem::absolute(checkpoint_to_resume(options, program)).lexically_normal();
  if (checkpoint.filename().empty()) checkpoint = checkpoint.parent_path();
  const octavo::ListedCheckpoint found = octavo::detail::inspect_checkpoint(checkpoint);
  octavo::require<octavo::IoError>(found.manifest.has_value(), checkpoint.string(),
                                   " is not a complete checkpoint: ", found.problem);
  require_full_model(checkpoint, *found.manifest);
  const octavo::ModelDescription model = model_of_checkpoint(checkpoint, found.manifest->model);
  octavo::export_checkpoint(checkpoint, model, options.export_hf,
                            {.tokenizer_of = tokenizer_of_checkpoint(checkpoint)});
  fmt::print("weights of step {} | written to {}\n", found.manifest->step,
             programs::visible(options.export_hf));
  const std::string note = programs::note_of_no_tokenizer(options.export_hf, model.vocabulary);
  if (!note.empty()) fmt::print("weights | {}\n", note);
}

}  // namespace trainer
