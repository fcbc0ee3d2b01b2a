/// @file
/// Loading the weights of an inference session from a checkpoint.
#pragma once

#include <octavo/checkpoint/checkpoint_weights.hpp>
#include <octavo/inference/inferring.hpp>

#include <filesystem>

namespace octavo OCTAVO_ABI {

/// Sets all weights of an inference session to those of a checkpoint: to the FP32 master weights if
/// the run had them. Verifies the checksum of every file before it sets any weight.
/// @throws ConfigError  if the checkpoint is of another model
/// @throws IoError      naming the file, if the checkpoint is not complete
inline void load_checkpoint_weights(const std::filesystem::path& path, Inferring& session) {
  const ListedCheckpoint found = detail::inspect_checkpoint(path);
  require<IoError>(found.manifest.has_value(), path.string(),
                   " is not a complete checkpoint: ", found.problem);
  const CheckpointManifest& manifest = *found.manifest;
  require<ConfigError>(manifest.model == session.facts().name, path.string(), ": its model is ",
                       manifest.model, ", but that of the session is ", session.facts().name);
  detail::verify_files(manifest, path, {}, Context<Cpu>(0));
  detail::CheckpointWeights saved(path, manifest);
  for (const WeightInfo& weight : session.weights()) saved.require_has(weight);
  session.load_sync([&](const WeightInfo& weight, Index begin, std::span<float> values) {
    saved.read(weight.name, begin, values);
  });
}

}  // namespace octavo
