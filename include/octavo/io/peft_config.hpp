/// @file
/// Reading and writing PEFT's adapter_config.json.
#pragma once

#include <octavo/core/json_line.hpp>
#include <octavo/core/json_reader.hpp>
#include <octavo/data/open_file.hpp>
#include <octavo/layers/lora_options.hpp>

#include <algorithm>
#include <array>
#include <filesystem>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace octavo OCTAVO_ABI {

/// The content of an adapter_config.json.
struct PeftConfig {
  LoraOptions lora{};
  std::string base_model{};  ///< folder or name of the model of the adapters; empty: none
};

namespace detail {

/// Keys that do not affect what adapters compute.
inline constexpr std::array<std::string_view, 10> idle_peft_keys{
    "auto_mapping", "inference_mode", "lora_dropout", "loftq_config",      "megatron_core",
    "peft_version", "revision",       "task_type",    "qalora_group_size", "runtime_config"};
/// Values of `init_lora_weights` that do not change the model's weights.
inline constexpr std::array<std::string_view, 3> idle_peft_starts{"gaussian", "orthogonal", "eva"};

/// Reads a value that enables a feature unless it is null, false or empty.
/// @return  whether the feature is disabled
inline bool read_is_disabled(JsonReader& json) {
  bool is_disabled = true;
  switch (json.peek()) {
    case JsonReader::Kind::null:
      json.skip();
      break;
    case JsonReader::Kind::boolean:
      is_disabled = !json.boolean();
      break;
    case JsonReader::Kind::array:
      json.array([&] {
        is_disabled = false;
        json.skip();
      });
      break;
    case JsonReader::Kind::object:
      json.object([&](const std::string&) {
        is_disabled = false;
        json.skip();
      });
      break;
    default:
      is_disabled = false;
      json.skip();
  }
  return is_disabled;
}

/// Reads layer names: an array, or "all-linear".
inline std::vector<std::string> read_target_modules(JsonReader& json) {
  std::vector<std::string> names;
  if (json.peek() == JsonReader::Kind::array) {
    json.array([&] { names.push_back(json.string()); });
  } else {
    names.push_back(json.string());
  }
  return names;
}

}  // namespace detail

/// Reads an adapter_config.json.
/// @throws IoError      if the file cannot be read, or is not valid JSON
/// @throws ConfigError  naming a key that is missing, or that enables an unsupported feature: DoRA,
///                      biases, different ranks per layer, adapters of other kinds or of other
///                      layers. Unknown keys are accepted only if their value does not enable a
///                      feature
[[nodiscard]] inline PeftConfig read_peft_config(const std::filesystem::path& path) {
  const std::string text = read_text_file(path);
  JsonReader json(text, path.string());
  PeftConfig config;
  std::set<std::string> seen;
  std::vector<std::string> targets;
  const auto refuse = [&](const std::string& key, const std::string& why) {
    throw ConfigError(message(path.string(), ": ", key, " ", why));
  };
  const auto require_word = [&](const std::string& key, std::string_view wanted) {
    const std::string word = json.string();
    if (word != wanted) {
      refuse(key, message("is ", word, ", which Octavo's adapters do not support; they support ",
                          wanted));
    }
  };
  json.object([&](const std::string& key) {
    seen.insert(key);
    if (key == "r") {
      config.lora.rank = json.natural();
    } else if (key == "lora_alpha") {
      config.lora.alpha = static_cast<float>(json.number());
    } else if (key == "target_modules") {
      targets = detail::read_target_modules(json);
    } else if (key == "base_model_name_or_path") {
      if (json.peek() == JsonReader::Kind::null) return json.skip();
      config.base_model = json.string();
    } else if (key == "peft_type") {
      require_word(key, "LORA");
    } else if (key == "bias") {
      require_word(key, "none");
    } else if (key == "init_lora_weights") {
      if (json.peek() != JsonReader::Kind::string) return json.skip();
      const std::string start = json.string();
      if (std::ranges::count(detail::idle_peft_starts, start) == 0) {
        refuse(key, "is " + start +
                        ", which also changes the model's weights; save the adapters for the "
                        "unchanged weights");
      }
    } else if (std::ranges::count(detail::idle_peft_keys, key) != 0) {
      json.skip();
    } else if (!detail::read_is_disabled(json)) {
      refuse(key, "is set, which Octavo's adapters do not support");
    }
  });
  json.end();
  for (const char* key : {"peft_type", "r", "lora_alpha", "target_modules"}) {
    if (!seen.contains(key)) refuse(key, "is missing; add it, or use another folder of adapters");
  }
  try {
    set_lora_targets(config.lora, targets);
    detail::check_lora(config.lora);
  } catch (const ConfigError& error) {
    throw ConfigError(message(path.string(), ": ", error.what()));
  }
  return config;
}

/// Returns the adapter_config.json of adapters, as PEFT reads it.
[[nodiscard]] inline std::string peft_config(const PeftConfig& config) {
  const std::vector<std::string> targets = config.lora.target_names();
  JsonLine text;
  text.add("peft_type", "LORA").add("task_type", "CAUSAL_LM");
  if (config.base_model.empty()) {
    text.add("base_model_name_or_path", nullptr);
  } else {
    text.add("base_model_name_or_path", config.base_model);
  }
  text.add("r", config.lora.rank)
      .add("lora_alpha", config.lora.alpha)
      .add("target_modules", std::span<const std::string>(targets))
      .add("bias", "none")
      .add("lora_dropout", 0.0)
      .add("fan_in_fan_out", false)
      .add("init_lora_weights", true)
      .add("use_dora", false)
      .add("use_rslora", false)
      .add("inference_mode", true);
  return text.str() + "\n";
}

}  // namespace octavo
