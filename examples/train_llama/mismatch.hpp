// Compares the flags of a run with those of other ranks, and of the run that it resumes from.
#pragma once

#include <octavo/comm/same_on_all_ranks.hpp>
#include <octavo/data/open_file.hpp>
#include <octavo/octavo.hpp>
#include <octavo/precision/named_precisions.hpp>
#include <train_llama/checkpoints.hpp>
#include <train_llama/options.hpp>

#include <algorithm>
#include <filesystem>
#include <istream>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

namespace trainer {

namespace detail {

/// Values by flag, separated by spaces.
using Flags = std::map<std::string, std::string>;

/// Parses the configuration that a run wrote.
inline Flags flags_in(std::istream& configuration) {
  Flags flags;
  for (const CLI::ConfigItem& item : CLI::ConfigTOML().from_config(configuration)) {
    std::string values;
    for (const std::string& value : item.inputs) values += (values.empty() ? "" : " ") + value;
    flags[item.name] = values;
  }
  return flags;
}

/// Parses the text of octavo::LoraOptions::text.
inline octavo::LoraOptions adapters_of(std::string text) {
  octavo::LoraOptions options;
  std::ranges::replace(text, ',', ' ');
  std::istringstream words(text);
  std::vector<std::string> names;
  std::string word;
  words >> word >> options.rank >> word >> options.alpha;
  while (words >> word) names.push_back(word);
  octavo::set_lora_targets(options, names);
  return options;
}

/// Returns the flags that differ, such as " --lora 8 --lora-targets q_proj,v_proj".
inline std::string flags_of_adapters(const octavo::LoraOptions& saved,
                                     const octavo::LoraOptions& here) {
  std::string flags;
  if (saved.rank != here.rank) flags += octavo::message(" --lora ", saved.rank);
  if (saved.alpha != here.alpha) flags += " --lora-alpha " + octavo::shortest_text(saved.alpha);
  if (saved.targets == here.targets) return flags;
  std::string names;
  for (const std::string& name : saved.target_names()) names += (names.empty() ? "" : ",") + name;
  return flags + " --lora-targets " + names;
}

/// Returns the flag of a recipe's name, or "" if no precision has this name.
inline std::string flags_of_recipe(std::string recipe) {
  if (recipe.ends_with(octavo::lora_suffix)) {
    recipe.resize(recipe.size() - std::string_view(octavo::lora_suffix).size());
  }
  std::string flags;
  octavo::named_precisions.for_each([&]<class P>(octavo::NamedPrecision<P> named) {
    if (octavo::precision_name<P>() == recipe) {
      flags = octavo::message(" --precision ", named.name);
    }
  });
  return flags;
}

/// Returns the flags of an optimizer's name, such as "AdamW with fp32 master weights and 8-bit
/// moments".
inline std::string flags_of_optimizer(const std::string& optimizer) {
  const auto has = [&](const std::string& words) {
    return optimizer.find(words) != std::string::npos;
  };
  std::string flags;
  if (has("Muon")) flags += " --optimizer muon";
  if (has("AdamW")) flags += " --optimizer adamw";
  for (const std::string format : {"fp32", "bf16"}) {
    if (has(format + " master weights")) flags += " --master-weights " + format;
  }
  for (const auto& [name, flag] :
       {std::pair{"fp32", "fp32"}, {"bf16", "bf16"}, {"8-bit", "8bit"}}) {
    if (has(std::string(name) + " moments")) flags += std::string(" --moments ") + flag;
  }
  return flags;
}

}  // namespace detail

/// Returns the flags whose values must be equal on all ranks: all except --gpu, because each rank
/// may choose a GPU of its host.
/// @param configuration  configuration of this rank, as in its config.toml
inline std::vector<octavo::RankFact> flags_of_all_ranks(const std::string& configuration) {
  std::vector<octavo::RankFact> facts;
  std::istringstream text(configuration);
  for (const auto& [name, value] : detail::flags_in(text)) {
    if (name != "gpu") facts.push_back({"--" + name, value});
  }
  return facts;
}

/// Returns the flags with which the run fits, each after a space, or "" if none are known.
/// @param adapters  adapters of this run
/// @param config    configuration of the saved run; need not exist
inline std::string fitting_flags(const octavo::StateMismatchError& error,
                                 const std::optional<octavo::LoraOptions>& adapters,
                                 const std::filesystem::path& config = {}) {
  const std::string& subject = error.subject();
  if (subject == "session.lora" && !error.saved().empty() && adapters.has_value()) {
    return detail::flags_of_adapters(detail::adapters_of(error.saved()), *adapters);
  }
  if (subject == "recipe") return detail::flags_of_recipe(error.saved());
  if (subject == "optimizer") return detail::flags_of_optimizer(error.saved());
  if (subject == "tensor_parallel") return " --tensor-parallel " + error.saved();
  if (subject == "model") {
    const std::string named = detail::configured_flag(config, "model");  // may be hf:FOLDER
    return " --model " + (named.empty() ? error.saved() : named);
  }
  return {};
}

/// Returns the flags that affect the order of tokens and differ from the saved run, such as
/// "--seq-len is 32, the run had 64".
/// @param config         configuration of the saved run
/// @param configuration  configuration of this run, as in its config.toml
inline std::string other_flags_of_data(const std::filesystem::path& config,
                                       const std::string& configuration) {
  std::istringstream file(octavo::read_text_file(config));
  std::istringstream text(configuration);
  const detail::Flags saved = detail::flags_in(file);
  const detail::Flags here = detail::flags_in(text);
  const auto both_have = [&](const char* name) {
    return saved.contains(name) && here.contains(name);
  };
  std::string others;
  const auto compare = [&](const std::string& name) {
    const auto in_run = saved.find(name);
    const auto now = here.find(name);
    const std::string had = in_run == saved.end() ? "none" : in_run->second;
    const std::string is = now == here.end() ? "not set" : now->second;
    if (in_run == saved.end() && now == here.end()) return;
    if (had != is)
      others +=
          (others.empty() ? "" : ", and ") + ("--" + name + " is ") + is + ", the run had " + had;
  };
  // If validation has separate data, training uses all of --data.
  const bool has_separate_validation =
      both_have("validation-data") || both_have("validation-chats");
  const auto either = [&](const char* name) { return saved.contains(name) != here.contains(name); };
  const bool separation_changes = either("validation-data") || either("validation-chats");
  for (const char* name : {"data", "chats", "chat-template", "tokenizer", "long-chats",
                           "last-turn-only", "most-chats", "document-end", "seq-len", "seed"}) {
    compare(name);
  }
  if (separation_changes) {
    compare("validation-data");
    compare("validation-chats");
  } else if (!has_separate_validation) {
    compare("validation-fraction");
  }
  return others;
}

/// Returns the flags that are not set and whose defaults differ from the run that is resumed, such
/// as "--steps is 500, the run had 300".
/// @param config         configuration of the saved run; need not exist or be complete
/// @param configuration  configuration of this run, as in its config.toml
inline std::string flags_left_out(const CLI::App& app, const std::filesystem::path& config,
                                  const std::string& configuration) {
  std::istringstream text(configuration);
  const detail::Flags here = detail::flags_in(text);
  std::string others;
  try {
    std::istringstream file(octavo::read_text_file(config));
    for (const auto& [name, had] : detail::flags_in(file)) {
      const auto now = here.find(name);
      const CLI::Option* option = app.get_option_no_throw("--" + name);
      const bool is_kept = now == here.end() || now->second == had;
      const bool is_save_flag =
          std::ranges::find(detail::save_flags, name) != detail::save_flags.end();
      if (is_kept || is_save_flag || option == nullptr || option->count() != 0) continue;
      others += octavo::message(others.empty() ? "" : ", ", "--", name, " is ", now->second,
                                ", the run had ", had);
    }
  } catch (const octavo::IoError&) {
    return {};
  } catch (const CLI::Error&) {
    return {};
  }
  return others;
}

/// @param configuration  configuration of the run to resume
/// @throws ConfigError  with the flags that make the run fit its checkpoint
[[noreturn]] inline void throw_with_flags(const octavo::StateMismatchError& error,
                                          const std::optional<octavo::LoraOptions>& adapters,
                                          const std::filesystem::path& checkpoint,
                                          const std::string& configuration) {
  const std::filesystem::path config = detail::config_of(checkpoint);
  if (error.subject().starts_with("data.") && std::filesystem::exists(config)) {
    const std::string others = other_flags_of_data(config, configuration);
    octavo::require<octavo::ConfigError>(others.empty(), checkpoint.string(),
                                         ": the run that saved it used different batches: ", others,
                                         "; use the same data");
    throw octavo::ConfigError(octavo::message(
        checkpoint.string(),
        ": the run that saved it used different batches, although its flags are the same: a file "
        "changed, or a path is relative to another folder; use the same data"));
  }
  if (error.subject() == "model.base") {  // its value is a list of checksums
    const std::string named = detail::configured_flag(config, "model");
    throw octavo::ConfigError(octavo::message(
        "--model must have the weights with which the adapters of ", checkpoint.string(),
        " were trained, but its weights differ; pass ",
        named.empty() ? "the run's --model" : "--model " + named, ", with unchanged files"));
  }
  const std::string flags = fitting_flags(error, adapters, config);
  const bool can_be_converted = error.subject() == "recipe" || error.subject() == "optimizer";
  const std::string what = error.what();
  if (!flags.empty()) {  // instead of the library's advice
    throw octavo::ConfigError(
        what.substr(0, what.rfind(';')) + "; it fits with" + flags +
        (can_be_converted ? ", or pass --convert to convert the checkpoint" : ""));
  }
  throw octavo::ConfigError(what +
                            (std::filesystem::exists(config)
                                 ? "; the flags of the run that saved it are in " + config.string()
                                 : ""));
}

}  // namespace trainer
