/// @file
/// Options of low-rank adapters: target layers, rank and alpha.
#pragma once

#include <octavo/core/device.hpp>
#include <octavo/core/error.hpp>

#include <array>
#include <cmath>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace octavo OCTAVO_ABI {

/// The linear layers of a Llama's block, as named by Hugging Face; each has a separate adapter.
enum class LoraTarget { q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj };
inline constexpr std::array lora_target_names{"q_proj",    "k_proj",  "v_proj",   "o_proj",
                                              "gate_proj", "up_proj", "down_proj"};

/// Adapter options of a model in precision `Lora<…>`.
struct LoraOptions {
  Index rank = 8;    ///< rows of A, columns of B
  float alpha = 16;  ///< an adapter's result is multiplied by alpha / rank
  /// Whether each LoraTarget has an adapter; all do by default.
  std::array<bool, lora_target_names.size()> targets{true, true, true, true, true, true, true};

  [[nodiscard]] bool has(LoraTarget target) const {
    return targets[static_cast<std::size_t>(target)];
  }
  [[nodiscard]] float scale() const { return alpha / static_cast<float>(rank); }
  /// Returns the layers' names, in the order of LoraTarget.
  [[nodiscard]] std::vector<std::string> target_names() const {
    std::vector<std::string> names;
    for (std::size_t i = 0; i < targets.size(); ++i) {
      if (targets[i]) names.emplace_back(lora_target_names[i]);
    }
    return names;
  }
  /// Returns a description such as "rank 8, alpha 16, q_proj, v_proj".
  [[nodiscard]] std::string text() const {
    std::string text = message("rank ", rank, ", alpha ", shortest_text(alpha));
    for (const std::string& name : target_names()) text += ", " + name;
    return text;
  }

  friend bool operator==(const LoraOptions&, const LoraOptions&) = default;
};

/// Sets the layers that have adapters.
/// @param names  such as {"q_proj", "v_proj"}, or {"all-linear"} for all
/// @throws ConfigError  naming an unknown layer
inline void set_lora_targets(LoraOptions& options, const std::vector<std::string>& names) {
  const bool all = names.size() == 1 && names.front() == "all-linear";
  options.targets.fill(all);
  for (const std::string& name : names) {
    std::size_t i = 0;
    while (i < lora_target_names.size() && name != lora_target_names[i]) ++i;
    require<ConfigError>(
        all || i < lora_target_names.size(), "'", name,
        "' is not a linear layer that can have an adapter; choose from q_proj, k_proj, v_proj, "
        "o_proj, gate_proj, up_proj, down_proj, and all-linear for all");
    if (!all) options.targets[i] = true;
  }
}

namespace detail {

/// @throws ConfigError  if the options are invalid
inline void check_lora(const LoraOptions& options) {
  require<ConfigError>(options.rank > 0 && options.rank <= 4096,
                       "the LoRA rank must be from 1 to 4096, but is ", options.rank,
                       "; set it to a value such as 8");
  require<ConfigError>(options.alpha > 0 && std::isfinite(options.alpha),
                       "the LoRA alpha must be positive, but is ", options.alpha,
                       "; set it to a value such as 16");
  require<ConfigError>(!options.target_names().empty(),
                       "no layer is selected for adapters; name some, such as q_proj and v_proj");
}

/// Throws unless the options leave the experts of a block without adapters.
/// @throws ConfigError  naming a selected layer of experts
inline void check_lora_of_experts(const std::string& block, const LoraOptions& lora) {
  const bool is_all = lora.targets == LoraOptions().targets;
  for (const LoraTarget target :
       {LoraTarget::gate_proj, LoraTarget::up_proj, LoraTarget::down_proj}) {
    require<ConfigError>(is_all || !lora.has(target), "LoRA: the experts of ", block,
                         " cannot have adapters, but ",
                         lora_target_names[static_cast<std::size_t>(target)],
                         " is selected; choose from q_proj, k_proj, v_proj and o_proj, or "
                         "all-linear for these four");
  }
}

}  // namespace detail
}  // namespace octavo
