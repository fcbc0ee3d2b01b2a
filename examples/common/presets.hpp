// The presets of the library, by name.
#pragma once

#include <octavo/models/llama_config.hpp>

#include <string>
#include <vector>

namespace programs {

inline std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const octavo::LlamaConfig& config :
       {octavo::llama_tiny, octavo::llama3_small, octavo::llama3_1b, octavo::llama3_8b,
        octavo::llama3_70b}) {
    names.push_back(config.name.text());
  }
  return names;
}

}  // namespace programs
