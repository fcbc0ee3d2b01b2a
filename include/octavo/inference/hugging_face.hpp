/// @file
/// Loading the weights of an inference session from a Hugging Face folder.
#pragma once

#include <octavo/checkpoint/hugging_face.hpp>
#include <octavo/inference/inferring.hpp>

#include <filesystem>

namespace octavo OCTAVO_ABI {

/// Sets all weights of an inference session to those of a Hugging Face folder, which it reads in
/// pieces. Verifies config.json and the headers of all files before it sets any weight.
/// @param model  description of the session's model, such as `description_of(llama3_8b)`
/// @throws UsageError, ConfigError, IoError  as `load_hugging_face` of a TrainingSession
inline void load_hugging_face(Inferring& session, const ModelDescription& model,
                              const std::filesystem::path& folder) {
  const HuggingFaceWeights weights =
      detail::open_weights(session.facts().name, session.weights(), model, folder);
  session.load_sync([&](const WeightInfo& weight, Index begin, std::span<float> values) {
    weights.read(weight.name, begin, values);
  });
}

}  // namespace octavo
