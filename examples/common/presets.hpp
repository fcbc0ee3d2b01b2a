// The library's presets by name.
#pragma once

#include <octavo/models/hugging_face_families.hpp>

#include <string>
#include <utility>
#include <vector>

namespace programs {

/// A name and the shape of its model.
struct NamedShape {
  std::string name;
  octavo::ModelDescription shape;
};

inline std::vector<NamedShape> presets() {
  using namespace octavo;
  std::vector<NamedShape> all;
  const auto add = [&](const auto&... configs) {
    (all.push_back({configs.name.text(), description_of(configs)}), ...);
  };
  add(llama_tiny, llama3_small, llama3_1b, llama3_8b, llama3_70b, mistral_7b, mixtral_8x7b,
      qwen3_30b_a3b, qwen2_5_0_5b, qwen2_5_7b, qwen3_0_6b, qwen3_8b, gemma3_270m, gemma3_1b,
      gpt2_tiny, gpt2_124m, gpt2_1558m);
  return all;
}

inline std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (NamedShape& preset : presets()) names.push_back(std::move(preset.name));
  return names;
}

}  // namespace programs
