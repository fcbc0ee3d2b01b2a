/// @file
/// Names and layout of a model's adapter tensors in PEFT files.
#pragma once

#include <octavo/layers/lora_options.hpp>
#include <octavo/models/hugging_face_tensors.hpp>

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace octavo OCTAVO_ABI {

/// A tensor of a Hugging Face model that has an adapter: W + scale · B · A.
struct AdaptedTensor {
  HuggingFaceTensor weight;  ///< [out, in], such as "model.layers.0.self_attn.q_proj.weight"
  HuggingFaceTensor a;       ///< [rank, in], of the parameter "blocks.0.qkv.lora_A"
  HuggingFaceTensor b;       ///< [out, rank], of the parameter "blocks.0.qkv.lora_B"
};

/// Returns all adapted tensors, in layer order. In a file, an adapter is named after its layer,
/// between the prefix "base_model.model." and the suffix ".lora_A.weight" or ".lora_B.weight".
/// Source: PEFT, utils/save_and_load.py and tuners/lora/layer.py.
/// @throws ConfigError  if the model's layers do not support adapters
[[nodiscard]] inline std::vector<AdaptedTensor> adapted_tensors(const ModelDescription& model,
                                                                const LoraOptions& options) {
  require<ConfigError>(model.family->supports_adapters, "models of the family ", model.family->name,
                       " do not support adapters; choose a model without them, such as a Llama");
  constexpr std::string_view ending = ".weight";
  const std::vector<std::string> targets = options.target_names();
  std::map<std::string, Index> adapters;  // number of adapters of each parameter so far
  std::map<std::string, Index> rows;      // number of rows of their B
  std::vector<AdaptedTensor> all;
  for (const HuggingFaceTensor& weight : hugging_face_tensors(model)) {
    const std::string layer = weight.name.substr(0, weight.name.size() - ending.size());
    const auto is_of_layer = [&](const std::string& target) {
      return layer.ends_with("." + target);
    };
    const bool is_of_expert = weight.parameter.find(".experts.") != std::string::npos;
    if (is_of_expert || std::none_of(targets.begin(), targets.end(), is_of_layer)) continue;
    const std::string parameter =
        weight.parameter.substr(0, weight.parameter.size() - ending.size());
    const std::string name = "base_model.model." + layer;
    all.push_back(
        {weight,
         {name + ".lora_A.weight", parameter + ".lora_A",
          adapters[parameter]++ * options.rank * weight.columns, options.rank, weight.columns},
         {name + ".lora_B.weight", parameter + ".lora_B", rows[parameter] * options.rank,
          weight.rows, options.rank}});
    rows[parameter] += weight.rows;
  }
  return all;
}

}  // namespace octavo
