// Which flags make a run fit the checkpoint, or the adapters, that it is to go on with.
#pragma once

#include <octavo/octavo.hpp>
#include <train_llama/checkpoints.hpp>
#include <train_llama/options.hpp>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

namespace trainer {

namespace detail {

/// Of what octavo::LoraOptions::text says of them.
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

/// Such as " --lora 8 --lora-targets q_proj,v_proj": what of the run is another.
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

/// Of a recipe's name; "" where no precision is called so.
inline std::string flags_of_recipe(std::string recipe) {
  if (recipe.ends_with(octavo::lora_suffix)) {
    recipe.resize(recipe.size() - std::string_view(octavo::lora_suffix).size());
  }
  std::string flags;
  const auto look_at = [&](auto named) {
    if (octavo::precision_name<typename decltype(named)::Precision>() == recipe) {
      flags = octavo::message(" --precision ", named.name);
    }
  };
  std::apply([&](auto... named) { (look_at(named), ...); }, octavo::named_precisions);
  return flags;
}

/// Of an optimizer's name, such as "AdamW with fp32 master weights and 8-bit moments".
inline std::string flags_of_optimizer(const std::string& optimizer) {
  const auto has = [&](const std::string& words) {
    return optimizer.find(words) != std::string::npos;
  };
  std::string flags;
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

/// The flags with which the run fits, each behind a space; "" where none is known to make it.
/// @param adapters  of the run
/// @param config    of the run that was saved; need not be there
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
    const std::string named = detail::said_in(config, "model");  // may be hf:FOLDER
    return " --model " + (named.empty() ? error.saved() : named);
  }
  return {};
}

/// @throws ConfigError  that says, too, which flags make the run fit its checkpoint
[[noreturn]] inline void throw_with_flags(const octavo::StateMismatchError& error,
                                          const std::optional<octavo::LoraOptions>& adapters,
                                          const std::filesystem::path& checkpoint) {
  const std::filesystem::path config = detail::config_of(checkpoint);
  const std::string flags = fitting_flags(error, adapters, config);
  const bool can_be_converted = error.subject() == "recipe" || error.subject() == "optimizer";
  std::string advice;
  if (!flags.empty()) {
    advice =
        "; it fits with" + flags + (can_be_converted ? ", and --convert has it converted" : "");
  } else if (std::filesystem::exists(config)) {
    advice = "; the flags of the run that saved it stand in " + config.string();
  }
  throw octavo::ConfigError(error.what() + advice);
}

}  // namespace trainer
