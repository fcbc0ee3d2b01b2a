/// @file
/// The config.json of a Hugging Face model.
#pragma once

#include <octavo/core/json_fields.hpp>
#include <octavo/core/json_line.hpp>
#include <octavo/data/open_file.hpp>
#include <octavo/models/hugging_face_families.hpp>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace octavo OCTAVO_ABI {

namespace detail {

/// Maximum size of a configuration; reading it takes some hundred bytes of memory per value.
inline constexpr std::uint64_t max_config_bytes = 1'000'000;

}  // namespace detail

/// Reads the config.json of a model of any of `hugging_face_families`.
/// @throws IoError      if the file cannot be read, or is not valid JSON
/// @throws ConfigError  naming the key that is missing, or has an unsupported value: another
///                      family, activation or scaling of positions, a bias, quantisation
[[nodiscard]] inline ModelDescription read_hugging_face_config(const std::filesystem::path& path) {
  const JsonFields fields(read_text_file(path, detail::max_config_bytes), path.string());
  ModelDescription model;
  const std::string type = fields.word("model_type");
  const auto family = std::ranges::find(hugging_face_families, type, &HuggingFaceFamily::name);
  require<ConfigError>(family != hugging_face_families.end(), path.string(), ": model_type is ",
                       type, ", which Octavo does not support; it supports ",
                       hugging_face_family_names());
  model.family = *family;
  require<ConfigError>(
      !fields.has("quantization_config"), path.string(),
      ": its weights are quantised, which Octavo does not read; download them in BF16");
  model.vocabulary = fields.natural("vocab_size");
  model.family->read(fields, model);
  constexpr Index max_layers = 65'536;  // a written file has an entry for each
  require<ConfigError>(model.layers <= max_layers, path.string(),
                       ": the number of layers must be at most ", max_layers, ", but is ",
                       model.layers);
  const std::vector<Index> begin = fields.naturals("bos_token_id");
  if (!begin.empty()) model.begin_of_text = begin.front();
  model.end_of_text = fields.naturals("eos_token_id");
  return model;
}

/// Returns the config.json of a model, as transformers 4 and 5 read it.
/// @param dtype  of its weights, such as "bfloat16"
/// @throws ConfigError  if its family does not have all parts of the model
[[nodiscard]] inline std::string hugging_face_config(const ModelDescription& model,
                                                     std::string_view dtype) {
  JsonLine text;
  text.add("model_type", model.family->name);
  const std::string architecture(model.family->architecture);
  text.add("architectures", std::span<const std::string>(&architecture, 1));
  model.family->write(model, text);
  text.add("vocab_size", model.vocabulary).add("tie_word_embeddings", model.tied_embeddings);
  // Without these, transformers would use the tokens of other models.
  if (model.begin_of_text.has_value()) {
    text.add("bos_token_id", *model.begin_of_text);
  } else {
    text.add("bos_token_id", nullptr);
  }
  if (model.end_of_text.empty()) {
    text.add("eos_token_id", nullptr);
  } else if (model.end_of_text.size() == 1) {
    text.add("eos_token_id", model.end_of_text.front());
  } else {
    text.add("eos_token_id", std::span<const Index>(model.end_of_text));
  }
  text.add("torch_dtype", dtype);
  const JsonFields fields(text.str(), "config.json");
  ModelDescription written{.family = model.family, .vocabulary = model.vocabulary};
  model.family->read(fields, written);
  const std::vector<std::string> lost = differences(written, model);
  require<ConfigError>(lost.empty(), "a ", model.family->name,
                       " cannot describe this model in a config.json: in the file, ",
                       lost.empty() ? "" : lost.front());
  return text.str() + "\n";
}

}  // namespace octavo
