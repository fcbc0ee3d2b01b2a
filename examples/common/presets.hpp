// The presets of the library, by name.
#pragma once

#include <octavo/models/gpt2_config.hpp>
#include <octavo/models/llama_config.hpp>

#include <string>
#include <vector>

namespace programs {

inline std::vector<std::string> preset_names() {
  using namespace octavo;
  std::vector<std::string> names;
  const auto add = [&](const auto&... configs) { (names.push_back(configs.name.text()), ...); };
  add(llama_tiny, llama3_small, llama3_1b, llama3_8b, llama3_70b, qwen3_0_6b, qwen3_8b, gpt2_tiny,
      gpt2_124m, gpt2_1558m);
  return names;
}

}  // namespace programs
