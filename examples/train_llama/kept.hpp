// Determines which weights and checkpoints a run keeps: as its flags say, or as before if it
// resumes.
#pragma once

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <octavo/checkpoint/checkpoints.hpp>
#include <octavo/data/open_file.hpp>
#include <octavo/octavo.hpp>
#include <train_llama/checkpoints.hpp>
#include <train_llama/options.hpp>

#include <toml++/toml.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace trainer {

namespace detail {

/// Returns a value as it would be on the command line.
inline std::string text_of(const toml::node& node) {
  if (const auto text = node.value_exact<std::string>()) return *text;
  if (const auto whole = node.value_exact<std::int64_t>()) return std::to_string(*whole);
  if (const auto number = node.value_exact<double>()) return fmt::format("{:.17g}", *number);
  std::ostringstream text;
  text << toml::toml_formatter(node);
  return text.str();
}

/// Returns the values of these flags in a run's configuration.
/// @param problem  set if the file is not valid TOML; single lines are then parsed
/// @throws IoError  if the file cannot be read
inline std::map<std::string, std::string> read_save_flags(const std::filesystem::path& config,
                                                          std::string& problem) {
  const std::string configuration = octavo::read_text_file(config);
  std::map<std::string, std::string> saves;
  try {
    const toml::table table = toml::parse(configuration);
    for (const char* name : save_flags) {
      if (const toml::node* node = table.get(name)) saves[name] = text_of(*node);
    }
    return saves;
  } catch (const toml::parse_error& error) {
    problem = octavo::message(config.string(), ":", error.source().begin.line, ": ",
                              error.description(), "; the file may be truncated there");
  }
  std::istringstream text(configuration);
  for (std::string line; std::getline(text, line);) {
    std::istringstream one(line);
    for (const char* name : save_flags) {
      if (!line.starts_with(std::string(name) + " =")) continue;
      for (const CLI::ConfigItem& item : CLI::ConfigTOML().from_config(one)) {
        if (!item.inputs.empty()) saves[name] = item.inputs.front();
      }
    }
  }
  return saves;
}

/// Sets a flag to its value in a run's configuration.
/// @throws ConfigError  naming the file and the value, if the flag does not accept it
inline void set_from_config(const std::filesystem::path& config, CLI::Option& option,
                            const std::string& value) {
  const std::string name = option.get_single_name();
  octavo::require<octavo::ConfigError>(option.get_items_expected_max() > 0 || value == "true",
                                       config.string(), ": ", name, " is '", value,
                                       "'; set true or false");
  try {
    option.add_result(value);
    option.run_callback();
  } catch (const CLI::Error& error) {
    throw octavo::ConfigError(
        octavo::message(config.string(), ": ", programs::without_dashes(error.what())));
  }
}

}  // namespace detail

/// Sets the save flags of a run that resumes in its folder: those that were not set get their
/// values from its config.toml. Lists these in `restored_save_flags`, such as " --keep-best". If
/// there are checkpoints, names in `save_flags_warning` the flags that neither the command line nor
/// config.toml sets.
/// @throws ConfigError  naming that file, if it contains a value that the flag does not accept
inline void restore_save_flags(CLI::App& app, Options& options) {
  if (options.resume.empty() || options.out.empty() || options.replay_step != 0) return;
  const std::filesystem::path config = std::filesystem::path(options.out) / "config.toml";
  std::string problem = config.string() + " does not set all flags for saving the run";
  std::map<std::string, std::string> saves;
  try {
    saves = detail::read_save_flags(config, problem);
  } catch (const octavo::IoError& error) {  // for example, if there is none
    problem = error.what();
  }
  std::vector<std::string> unset_flags;
  for (const std::string name : detail::save_flags) {
    if (app.count("--" + name) == 0 && !saves.contains(name)) unset_flags.push_back("--" + name);
  }
  const bool disables_checkpoints =
      app.count("--checkpoint-every") != 0 && options.checkpoint_every == 0;
  if (!unset_flags.empty() && !disables_checkpoints &&
      !octavo::list_checkpoints(detail::checkpoints_of(options.out)).empty()) {
    options.save_flags_warning = octavo::message(
        problem, "; set to their defaults, unless passed: ", programs::joined(unset_flags));
  }
  for (const std::string name : detail::save_flags) {
    CLI::Option* option = app.get_option("--" + name);
    const std::string value = saves[name];
    const bool is_default = value == option->get_default_str() || value == "false";
    if (option->count() == 0 && !value.empty() && !is_default) {
      detail::set_from_config(config, *option, value);
      options.restored_save_flags += " --" + name + (value == "true" ? "" : ' ' + value);
    }
    if (options.checkpoint_every == 0) break;  // then there are no checkpoints to keep
  }
}

/// Returns a warning if a run does not keep the weights that it trains, otherwise "".
inline std::string note_of_no_weights(const Options& options) {
  if (options.checkpoint_every != 0 || !options.save_hf.empty() || !options.save_adapters.empty()) {
    return {};
  }
  return octavo::message("the trained weights are not kept: pass ",
                         options.no_out ? "" : "--checkpoint-every N or ", "--save-hf FOLDER",
                         options.lora == 0 ? "" : " or --save-adapters FOLDER");
}

/// Warns if the disk lacks room for the run's next checkpoints. All ranks must call it.
/// @param checkpoints  null if the run saves none
/// @param taken        steps that the run has already taken
inline void warn_of_little_room(octavo::Checkpoints* checkpoints, const Options& options,
                                octavo::Index taken) {
  if (checkpoints == nullptr || taken >= options.steps) return;
  const octavo::Index every = options.checkpoint_every;
  const octavo::Index after_the_last = options.steps % every == 0 ? 0 : 1;
  checkpoints->warn_of_little_room(options.steps / every - taken / every + after_the_last);
}

}  // namespace trainer
