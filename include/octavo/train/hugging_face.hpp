/// @file
/// A session's weights from a Hugging Face folder, and to one.
#pragma once

#include <octavo/io/hugging_face_weights.hpp>
#include <octavo/io/hugging_face_writer.hpp>
#include <octavo/train/training_session.hpp>

#include <filesystem>
#include <string>
#include <vector>

namespace octavo::inline OCTAVO_ABI {

/// Sets all weights of a session, and their masters, to those of a Hugging Face folder. Files are
/// read a piece at a time, and by each rank what it has; nothing is set before config.json and the
/// headers of all files were found right. With several ranks each of them calls it.
/// @param session  of a model that is `model`, such as `description_of(llama3_8b)`
/// @throws ConfigError  if config.json is of another model, naming each difference; tensors are
///                      missing, too many or misshapen; or a weight is not finite: then those
///                      before it are set
/// @throws IoError      for files that are missing, damaged or cannot be read
inline void load_hugging_face(TrainingSession& session, const ModelDescription& model,
                              const std::filesystem::path& folder) {
  const std::filesystem::path config = folder / "config.json";
  const std::vector<std::string> differing = differences(read_hugging_face_config(config), model);
  std::string text;
  for (const std::string& difference : differing) text += (text.empty() ? "" : "; ") + difference;
  require<ConfigError>(differing.empty(), config.string(), ": is of another model than ",
                       session.facts().name, ": ", text);
  const HuggingFaceWeights weights(folder, model);
  for (const WeightInfo& weight : session.weights()) {
    session.set_weight(weight.name, [&](Index begin, std::span<float> values) {
      weights.read(weight.name, begin, values);
    });
  }
}

/// Writes the weights of a session as a Hugging Face folder that transformers opens: config.json
/// and model.safetensors, or several files and their index. Weights have the format that the
/// session stores them in. The folder appears whole or not at all. With several ranks all of them
/// call it, and one writes.
/// @param model   that the session's is, and the tokens and positions that config.json is to say
/// @param writes  whether this rank writes the folder
/// @throws IoError      if the folder has files already, or cannot be written
/// @throws ConfigError  if the model is not of the family's parts, or ranks share its layers
inline void save_hugging_face(TrainingSession& session, const ModelDescription& model,
                              const std::filesystem::path& folder,
                              const HuggingFaceOptions& options = {}, bool writes = true) {
  if (!writes) return session.read_weights_sync({});
  const std::string format = session.weights().front().format;
  HuggingFaceWriter writer(folder, model, format == "bf16" ? "BF16" : "F32", options);
  session.read_weights_sync(
      [&](const WeightInfo& weight, Index begin, std::span<const float> values) {
        writer.write(weight.name, begin, values);
      });
  writer.commit();
}

}  // namespace octavo
