// What a run keeps of its weights: as it was told, or as the run that it goes on with was.
#pragma once

#include <CLI/CLI.hpp>
#include <octavo/octavo.hpp>
#include <train_llama/checkpoints.hpp>
#include <train_llama/options.hpp>

#include <filesystem>
#include <string>

namespace trainer {

/// Has a run that goes on in its folder be saved as it was: what is not given of --checkpoint-every
/// and of the flags that say which checkpoints stay is what its config.toml says.
/// @return  such as " --checkpoint-every 50 --keep-best": what that was
inline std::string take_flags_of_saves(CLI::App& app, const Options& options) {
  if (options.resume.empty() || options.out.empty() || options.replay_step != 0) return {};
  const std::filesystem::path config = std::filesystem::path(options.out) / "config.toml";
  std::string taken;
  for (const std::string name : {"checkpoint-every", "keep-last", "keep-every", "keep-best"}) {
    CLI::Option* option = app.get_option("--" + name);
    const std::string value = detail::said_in(config, name);
    const bool is_default = value == option->get_default_str() || value == "false";
    if (option->count() == 0 && !value.empty() && !is_default) {
      option->add_result(value);
      option->run_callback();
      taken += " --" + name + (value == "true" ? "" : ' ' + value);
    }
    if (options.checkpoint_every == 0) break;  // then there is nothing that could stay
  }
  return taken;
}

/// Throws if checkpoints are to stay of a run that saves none.
/// @throws ConfigError  naming the flag
inline void require_checkpoints_to_keep(const CLI::App& app, const Options& options) {
  if (options.checkpoint_every != 0) return;
  const octavo::CheckpointsToKeep none;
  const char* flag = options.keep.best                  ? "--keep-best"
                     : options.keep.every != none.every ? "--keep-every"
                     : options.keep.last != none.last   ? "--keep-last"
                                                        : nullptr;
  octavo::require<octavo::ConfigError>(
      flag == nullptr, flag == nullptr ? "" : detail::place_of(app, flag) + flag,
      " says which checkpoints stay, and there are none; give --checkpoint-every, too");
}

/// What is said of a run that trains weights which nothing keeps; "" where something does.
inline std::string note_of_no_weights(const Options& options) {
  if (options.checkpoint_every != 0 || !options.save_hf.empty() || !options.save_adapters.empty()) {
    return {};
  }
  return octavo::message("no weights are kept: give ",
                         options.no_out ? "" : "--checkpoint-every N or ", "--save-hf FOLDER",
                         options.lora == 0 ? "" : " or --save-adapters FOLDER");
}

}  // namespace trainer
