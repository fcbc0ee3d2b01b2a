/// @file
/// Loading only the weights of a checkpoint.
#pragma once

#include <octavo/checkpoint/checkpoint_load.hpp>
#include <octavo/io/float_elements.hpp>

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

/// Reads the weights of a checkpoint as numbers, from all of its files and parts.
class CheckpointWeights {
 public:
  /// @throws IoError  naming a file that does not belong to a checkpoint
  CheckpointWeights(const std::filesystem::path& folder, const CheckpointManifest& manifest)
      : pieces_(folder, manifest) {}

  /// @throws ConfigError  if elements of a weight are missing, or are neither FP32 nor BF16
  void require_has(const WeightInfo& weight) {
    const std::vector<StateEntry>& parts = parts_of(weight.name);
    Index elements = 0;
    for (const StateEntry& part : parts) {
      require<ConfigError>(part.format == "fp32" || part.format == "bf16", part.name, " is ",
                           entry_text(part), " in the checkpoint; weights are FP32 or BF16");
      require<ConfigError>(part.part.degree == static_cast<int>(parts.size()),
                           "the checkpoint has ", parts.size(), " of the ", part.part.degree,
                           " parts of ", weight.name, "; use another checkpoint");
      pieces_.require_has(part);
      elements += elements_of(part.shape);
    }
    // The checkpoint may also have the padding of the last rows.
    require<ConfigError>(elements >= weight.rows * weight.columns, weight.name, " has ",
                         weight.rows, " x ", weight.columns, " elements, but there are ", elements,
                         " in the checkpoint; it belongs to another model");
  }

  /// Reads FP32 masters if the run had them, else the weights. Several threads may call it at the
  /// same time, for weights that were passed to `require_has`.
  /// @param begin  of the whole weight's elements
  /// @throws IoError  naming the file, if it cannot be read
  void read(const std::string& name, Index begin, std::span<float> values) const {
    const Index end = begin + static_cast<Index>(values.size());
    for (const StateEntry& part : parts_.at(name)) {
      const auto copy = [&](Index place, Index whole_begin, Index count) {
        const Index first = std::max(begin, whole_begin);
        const Index last = std::min(end, whole_begin + count);
        if (first >= last) return;
        read(part, place + first - whole_begin,
             values.subspan(static_cast<std::size_t>(first - begin),
                            static_cast<std::size_t>(last - first)));
      };
      part.part.for_each_stripe(matrix_of(part), copy);
    }
  }

  /// Reads an entry that is not sharded into the session.
  /// @throws ConfigError  if the checkpoint has no entry of this name and shape
  void load_sync(const StateEntry& wanted) { pieces_.load_sync(wanted, bytes_); }

 private:
  const std::vector<StateEntry>& parts_of(const std::string& name) {
    std::vector<StateEntry>& parts = parts_[name];
    for (const char* prefix : {"optimizer.master.", "model."}) {
      if (parts.empty()) parts = pieces_.parts(prefix + name);
    }
    require<ConfigError>(!parts.empty(), "the checkpoint has no ", name,
                         "; it belongs to another model");
    return parts;
  }

  /// Reads consecutive elements of a part.
  void read(const StateEntry& part, Index begin, std::span<float> values) const {
    StateEntry some = part;
    some.bytes = part.bytes / static_cast<std::size_t>(elements_of(part.shape)) * values.size();
    some.shape = {static_cast<Index>(values.size())};
    some.begin = begin;
    std::vector<std::byte> bytes(some.bytes);
    pieces_.read(some, bytes);
    to_floats(part.format == "bf16" ? "BF16" : "F32", bytes, values);
  }

  CheckpointPieces pieces_;
  std::map<std::string, std::vector<StateEntry>> parts_;  ///< of weights passed to `require_has`
  std::vector<std::byte> bytes_;                          ///< read by `load_sync`
};

}  // namespace detail

/// Loads the weights of a checkpoint into a session, for evaluation. The session may have another
/// recipe or optimizer, and any number of ranks: weights are rounded from the run's FP32 masters,
/// if it had them. Delayed scales are loaded if the recipe is the same; otherwise they must be
/// calibrated. Every file is read and its checksum verified before the session is changed. All
/// ranks call it together.
/// @param path  of the checkpoint; rank 0's is used
/// @throws ConfigError  for a checkpoint of another model
/// @throws IoError      naming the file, for an incomplete or damaged checkpoint
inline CheckpointManifest load_checkpoint_weights(const std::filesystem::path& path,
                                                  TrainingSession& session) {
  const std::string place = std::filesystem::absolute(path).string();
  const std::filesystem::path folder = session.ranks().texts(place, "path of a checkpoint").front();
  CheckpointManifest manifest;
  std::unique_ptr<detail::CheckpointWeights> saved;
  detail::all_or_none(session, "check of a checkpoint", [&] {
    ListedCheckpoint found = detail::inspect_checkpoint(folder);
    require<IoError>(found.manifest.has_value(), folder.string(),
                     " is not a complete checkpoint: ", found.problem);
    manifest = std::move(*found.manifest);
    require<ConfigError>(manifest.model == session.facts().name, folder.string(), ": its model is ",
                         manifest.model, ", but that of the session is ", session.facts().name);
    detail::verify_files(manifest, folder, session.facts().sharding, Context<Cpu>(0));
    saved = std::make_unique<detail::CheckpointWeights>(folder, manifest);
    for (const WeightInfo& weight : session.weights().list()) saved->require_has(weight);
    return std::string();
  });
  detail::all_or_none(session, "load of a checkpoint", [&] {
    for (const WeightInfo& weight : session.weights().list()) {
      session.weights().set(weight.name, [&](Index begin, std::span<float> values) {
        saved->read(weight.name, begin, values);
      });
    }
    return std::string();
  });
  // These entries are not sharded, but listing them is a collective call.
  const std::vector<StateEntry> state = session.state().entries();
  detail::all_or_none(session, "load of scales", [&] {
    if (manifest.recipe != session.facts().precision) return std::string();
    for (const StateEntry& entry : state) {
      if (entry.name.starts_with("scaling.") || entry.name == "session.must_calibrate")
        saved->load_sync(entry);
    }
    return std::string();
  });
  return manifest;
}

}  // namespace octavo
