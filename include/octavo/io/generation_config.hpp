/// @file
/// Reading a model's generation_config.json: where generated text ends and how tokens are sampled.
#pragma once

#include <octavo/core/device.hpp>
#include <octavo/core/error.hpp>
#include <octavo/data/open_file.hpp>
#include <octavo/io/hugging_face_config.hpp>

#include <array>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

namespace octavo OCTAVO_ABI {

/// The defaults of a generation_config.json. A value that the file does not have is empty.
struct GenerationConfig {
  std::vector<Index> end_of_text{};      ///< tokens that end a text
  std::optional<double> temperature{};   ///< 0 if do_sample is false
  std::optional<Index> top_k{};          ///< 0: no limit
  std::optional<double> top_p{};         ///< 1: no limit
  std::vector<std::string> unsupported;  ///< keys of other sampling options, which are ignored
};

/// Reads a generation_config.json.
/// @return an empty configuration if the file does not exist
/// @throws IoError      if the file cannot be read or is not valid JSON
/// @throws ConfigError  naming the key whose value is not valid
/// Source: https://huggingface.co/docs/transformers/main_classes/text_generation
[[nodiscard]] inline GenerationConfig read_generation_config(const std::filesystem::path& path) {
  GenerationConfig config;
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return config;
  const JsonFields fields(read_text_file(path, detail::max_config_bytes), path.string());
  config.end_of_text = fields.naturals("eos_token_id");
  config.temperature = fields.number("temperature", 0, 1e6);
  if (!fields.flag("do_sample", true)) config.temperature = 0;
  if (fields.has("top_k")) config.top_k = fields.natural("top_k");
  config.top_p = fields.number("top_p", 1e-9, 1);
  constexpr std::array<std::pair<const char*, double>, 6> neutral{{{"repetition_penalty", 1},
                                                                   {"min_p", 0},
                                                                   {"typical_p", 1},
                                                                   {"no_repeat_ngram_size", 0},
                                                                   {"penalty_alpha", 0},
                                                                   {"num_beams", 1}}};
  for (const auto& [key, value] : neutral) {
    if (fields.number(key, -1e6, 1e6).value_or(value) != value)
      config.unsupported.emplace_back(key);
  }
  return config;
}

}  // namespace octavo
