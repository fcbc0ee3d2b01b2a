/// @file
/// Which linear layers have adapters, and of what rank.
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

/// The linear layers of a Llama's block, each with its own adapter, as Hugging Face calls them.
enum class LoraTarget { q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj };
inline constexpr std::array lora_target_names{"q_proj",    "k_proj",  "v_proj",   "o_proj",
                                              "gate_proj", "up_proj", "down_proj"};

/// What the adapters of a model in precision `Lora<…>` are.
struct LoraOptions {
  Index rank = 8;    ///< rows of A, columns of B
  float alpha = 16;  ///< what an adapter gives is multiplied by alpha / rank
  /// By LoraTarget: the layers that have one. All unless said.
  std::array<bool, lora_target_names.size()> targets{true, true, true, true, true, true, true};

  [[nodiscard]] bool has(LoraTarget target) const {
    return targets[static_cast<std::size_t>(target)];
  }
  [[nodiscard]] float scale() const { return alpha / static_cast<float>(rank); }
  /// The layers' names, in the order of LoraTarget.
  [[nodiscard]] std::vector<std::string> target_names() const {
    std::vector<std::string> names;
    for (std::size_t i = 0; i < targets.size(); ++i) {
      if (targets[i]) names.emplace_back(lora_target_names[i]);
    }
    return names;
  }
  /// Such as "rank 8, alpha 16, q_proj, v_proj".
  [[nodiscard]] std::string text() const {
    std::string text = message("rank ", rank, ", alpha ", shortest_text(alpha));
    for (const std::string& name : target_names()) text += ", " + name;
    return text;
  }

  friend bool operator==(const LoraOptions&, const LoraOptions&) = default;
};

/// Sets the layers that have adapters.
/// @param names  such as {"q_proj", "v_proj"}; the only one "all-linear" stands for all
/// @throws ConfigError  naming what is no such layer
inline void set_lora_targets(LoraOptions& options, const std::vector<std::string>& names) {
  const bool all = names.size() == 1 && names.front() == "all-linear";
  options.targets.fill(all);
  for (const std::string& name : names) {
    std::size_t i = 0;
    while (i < lora_target_names.size() && name != lora_target_names[i]) ++i;
    require<ConfigError>(all || i < lora_target_names.size(), "'", name,
                         "' is no linear layer that can have an adapter; known are q_proj, k_proj, "
                         "v_proj, o_proj, gate_proj, up_proj, down_proj, and all-linear for all");
    if (!all) options.targets[i] = true;
  }
}

namespace detail {

/// @throws ConfigError  for adapters that no model can have
inline void check_lora(const LoraOptions& options) {
  require<ConfigError>(options.rank > 0 && options.rank <= 4096, "the rank of LoRA is ",
                       options.rank, "; give a number from 1 to 4096, such as 8");
  require<ConfigError>(options.alpha > 0 && std::isfinite(options.alpha), "LoRA's alpha is ",
                       options.alpha, "; give a number above 0, such as 16");
  require<ConfigError>(!options.target_names().empty(),
                       "no layer is to have an adapter; name some, such as q_proj and v_proj");
}

}  // namespace detail
}  // namespace octavo
