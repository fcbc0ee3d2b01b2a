/// @file
/// Exporting the weights of a checkpoint as a Hugging Face folder, without a session.
#pragma once

#include <octavo/checkpoint/checkpoint_load.hpp>
#include <octavo/io/float_elements.hpp>
#include <octavo/io/hugging_face_writer.hpp>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace octavo OCTAVO_ABI {

namespace detail {

/// The weights that `export_checkpoint` reads, checked against a model.
class ExportedWeights {
 public:
  ExportedWeights(const std::filesystem::path& folder, const CheckpointManifest& manifest,
                  const ModelDescription& model)
      : folder_(folder), bytes_(manifest.bytes()), pieces_(folder, manifest) {
    for (const HuggingFaceTensor& tensor : hugging_face_tensors(model)) {
      elements_[tensor.parameter] += tensor.rows * tensor.columns;
    }
    for (const auto& [parameter, elements] : elements_) check(parameter, elements);
  }

  /// Returns the safetensors dtype.
  [[nodiscard]] const char* dtype() const { return format_ == "bf16" ? "BF16" : "F32"; }

  /// Passes all weights to the writer, one parameter at a time.
  void write_to(HuggingFaceWriter& writer) const {
    std::vector<std::byte> bytes;
    std::vector<float> values;
    for (const auto& entry : elements_) {
      const std::string& parameter = entry.first;
      for (const StateEntry& part : pieces_.parts("model." + parameter)) {
        bytes.resize(part.bytes);
        pieces_.read(part, bytes);
        const std::size_t size = part.bytes / static_cast<std::size_t>(elements_of(part.shape));
        const auto copy = [&](Index begin, Index whole_begin, Index count) {
          for (Index done = 0; done < count; done += weights_at_once) {
            values.resize(static_cast<std::size_t>(std::min(count - done, weights_at_once)));
            const auto place = static_cast<std::size_t>(begin + done) * size;
            to_floats(dtype(), std::span(bytes).subspan(place, values.size() * size), values);
            writer.write(parameter, whole_begin + done, values);
          }
        };
        part.part.for_each_stripe(matrix_of(part), copy);
      }
    }
  }

 private:
  /// @throws ConfigError  if part of a parameter is missing
  void check(const std::string& parameter, Index elements) {
    const std::vector<StateEntry> parts = pieces_.parts("model." + parameter);
    const auto advice = "; name the checkpoint's own model";
    require<ConfigError>(!parts.empty(), folder_.string(), ": has no ", parameter, advice);
    Index found = 0;
    for (const StateEntry& part : parts) {
      if (format_.empty()) format_ = part.format;
      require<ConfigError>(part.format == format_ && (format_ == "bf16" || format_ == "fp32"),
                           folder_.string(), ": ", parameter, " is in ", part.format,
                           "; only weights that are all in bf16, or all in fp32, can be exported");
      // Before any allocation of that size.
      require<ConfigError>(static_cast<std::uint64_t>(elements_of(part.shape)) <= bytes_,
                           folder_.string(), ": ", parameter, " is incomplete");
      require<ConfigError>(part.part.degree == static_cast<int>(parts.size()), folder_.string(),
                           ": has ", parts.size(), " of the ", part.part.degree, " parts of ",
                           parameter, "; use another checkpoint");
      pieces_.require_has(part);
      found += elements_of(part.shape);
    }
    // The file may also have the padding of the last rows.
    require<ConfigError>(found >= elements, folder_.string(), ": ", parameter, " has ", found,
                         " elements, but ", elements, " are needed", advice);
  }

  std::filesystem::path folder_;
  std::uint64_t bytes_;
  CheckpointPieces pieces_;
  std::map<std::string, Index> elements_;  ///< of each parameter, without padding
  std::string format_;
};

}  // namespace detail

/// Writes the weights of a checkpoint, from any number of ranks, as a Hugging Face folder: the same
/// files as `save_hugging_face` writes for a session that resumes from it. It needs neither a
/// session nor a GPU. The checkpoint is verified first.
/// @param model   of the checkpoint, with the vocabulary and positions for config.json
/// @throws IoError      if the checkpoint is incomplete or damaged, or the folder is not empty or
///                      cannot be written
/// @throws ConfigError  if the checkpoint is of another model
inline void export_checkpoint(const std::filesystem::path& checkpoint,
                              const ModelDescription& model, const std::filesystem::path& folder,
                              const HuggingFaceOptions& options = {}) {
  HuggingFaceWriter::require_free(folder);
  const ListedCheckpoint found = detail::inspect_checkpoint(checkpoint);
  require<IoError>(found.manifest.has_value(), checkpoint.string(),
                   " is not a complete checkpoint: ", found.problem);
  detail::verify_files(*found.manifest, checkpoint, Sharding{}, Context<Cpu>(0));
  const detail::ExportedWeights weights(checkpoint, *found.manifest, model);
  HuggingFaceWriter writer(folder, model, weights.dtype(), options);
  weights.write_to(writer);
  writer.commit();
}

}  // namespace octavo
