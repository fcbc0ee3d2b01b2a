// What a run keeps of its weights: as it was told, or as the run that it goes on with was.
#pragma once

#include <CLI/CLI.hpp>
#include <octavo/data/open_file.hpp>
#include <octavo/octavo.hpp>
#include <octavo/train/checkpoint_folder.hpp>
#include <train_llama/checkpoints.hpp>
#include <train_llama/options.hpp>

#include <array>
#include <filesystem>
#include <map>
#include <sstream>
#include <string>
#include <system_error>

namespace trainer {

namespace detail {

/// The flags that say how a run is saved.
inline constexpr std::array flags_of_saves{"checkpoint-every", "keep-last", "keep-every",
                                           "keep-best"};

/// What a run's configuration says of these flags.
/// @param whole  becomes whether it has all of them, and none that is cut off
inline std::map<std::string, std::string> saves_in(const std::string& configuration, bool& whole) {
  std::map<std::string, std::string> saves;
  std::istringstream text(configuration);
  for (std::string line; std::getline(text, line);) {
    std::istringstream one(line);
    for (const char* name : flags_of_saves) {
      if (!line.starts_with(std::string(name) + " =")) continue;
      for (const CLI::ConfigItem& item : CLI::ConfigTOML().from_config(one)) {
        if (!item.inputs.empty()) saves[name] = item.inputs.front();
      }
    }
  }
  whole = configuration.ends_with('\n') && saves.size() == flags_of_saves.size();
  return saves;
}

/// Gives a flag the value that a run's configuration has.
/// @throws ConfigError  naming the file and the value, if the flag does not take it
inline void take_from(const std::filesystem::path& config, CLI::Option& option,
                      const std::string& value) {
  const std::string name = option.get_single_name();
  octavo::require<octavo::ConfigError>(option.get_items_expected_max() > 0 || value == "true",
                                       config.string(), ": ", name, " is '", value,
                                       "'; write true or false");
  try {
    option.add_result(value);
    option.run_callback();
  } catch (const CLI::Error& error) {
    throw octavo::ConfigError(
        octavo::message(config.string(), ": ", programs::without_dashes(error.what())));
  }
}

}  // namespace detail

/// Has --checkpoint-every 0 of the command line go before what a configuration file says of the
/// checkpoints that stay.
inline void drop_flags_of_saves(CLI::App& app, Options& options) {
  const bool is_in_command =
      app.count("--checkpoint-every") != 0 && detail::place_of(app, "--checkpoint-every").empty();
  if (options.checkpoint_every != 0 || !is_in_command) return;
  const auto drop = [&](const char* flag, auto& value, auto none) {
    if (detail::place_of(app, flag).empty()) return;
    app.get_option(flag)->clear();
    value = none;
  };
  const octavo::CheckpointsToKeep none;
  drop("--keep-last", options.keep.last, none.last);
  drop("--keep-every", options.keep.every, none.every);
  drop("--keep-best", options.keep.best, none.best);
}

/// Has a run that goes on in its folder be saved as it was: what is not given of --checkpoint-every
/// and of the flags that say which checkpoints stay is what its config.toml says. That goes to
/// `saved_as_before`, such as " --checkpoint-every 50 --keep-best", and to `saves_in_doubt`, if
/// there are checkpoints beside a config.toml that does not say all of it.
/// @throws ConfigError  naming that file, if it has a value that the flag does not take
inline void take_flags_of_saves(CLI::App& app, Options& options) {
  if (options.resume.empty() || options.out.empty() || options.replay_step != 0) return;
  const std::filesystem::path config = std::filesystem::path(options.out) / "config.toml";
  std::error_code error;
  if (!std::filesystem::exists(config, error)) return;
  std::string damage;
  std::map<std::string, std::string> saves;
  try {
    bool whole = false;
    saves = detail::saves_in(octavo::read_text_file(config), whole);
    if (!whole) damage = config.string() + " is cut off, and says not all of how the run is saved";
  } catch (const octavo::IoError& unreadable) {
    damage = unreadable.what();
  }
  if (!damage.empty() && !octavo::list_checkpoints(detail::checkpoints_of(options.out)).empty()) {
    options.saves_in_doubt = damage +
                             "; what is not given of --checkpoint-every, --keep-last, --keep-every "
                             "and --keep-best is as in a new run";
  }
  for (const std::string name : detail::flags_of_saves) {
    CLI::Option* option = app.get_option("--" + name);
    const std::string value = saves[name];
    const bool is_default = value == option->get_default_str() || value == "false";
    if (option->count() == 0 && !value.empty() && !is_default) {
      detail::take_from(config, *option, value);
      options.saved_as_before += " --" + name + (value == "true" ? "" : ' ' + value);
    }
    if (options.checkpoint_every == 0) break;  // then there is nothing that could stay
  }
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
