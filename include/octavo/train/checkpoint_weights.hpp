/// @file
/// The weights of a checkpoint without the rest of its run.
#pragma once

#include <octavo/formats/formats.hpp>
#include <octavo/train/checkpoint_load.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace octavo::inline OCTAVO_ABI {

namespace detail {

/// Elements of a checkpoint's weights as numbers, whichever of its files they are in.
class CheckpointWeights {
 public:
  /// @throws IoError  naming the file that is not what a checkpoint has
  CheckpointWeights(const std::filesystem::path& folder, const CheckpointManifest& manifest) {
    for (const CheckpointFile& file : manifest.files) {
      files_.push_back(std::make_unique<StateFile>(folder / file.name));
      const std::vector<StateEntry>& entries = files_.back()->entries();
      for (std::size_t i = 0; i < entries.size(); ++i) {
        if (entries[i].bytes != 0) pieces_[entries[i].name].push_back({files_.back().get(), i});
      }
    }
    for (auto& [name, pieces] : pieces_) {
      std::ranges::sort(pieces, {}, [](const Piece& piece) { return piece.entry().begin; });
    }
  }

  /// @throws ConfigError  unless the checkpoint has so many elements of a weight, in FP32 or BF16
  void require_has(const WeightInfo& weight) const {
    Index elements = 0;
    for (const Piece& piece : pieces_of(weight.name)) {
      const StateEntry& entry = piece.entry();
      const Index end = entry.begin + elements_of(entry.shape);
      const std::size_t width = entry.format == "fp32" ? 4 : entry.format == "bf16" ? 2 : 0;
      require<ConfigError>(
          width != 0 && entry.bytes == width * static_cast<std::size_t>(end - entry.begin),
          entry.name, " is ", entry_text(entry), " in the checkpoint; weights are FP32 or BF16");
      if (entry.begin <= elements) elements = std::max(elements, end);
    }
    require<ConfigError>(elements >= weight.rows * weight.columns, weight.name, " has ",
                         weight.rows, " x ", weight.columns, " elements, but the checkpoint ",
                         elements, " of them; it is of another model");
  }

  /// FP32 masters where the run had such, else the weights.
  /// @throws IoError  naming the file, if it cannot be read
  void read(const std::string& name, Index begin, std::span<float> values) const {
    for (const Piece& piece : pieces_of(name)) {
      const StateEntry& entry = piece.entry();
      const Index first = std::max(begin, entry.begin);
      const Index end = std::min(begin + static_cast<Index>(values.size()),
                                 entry.begin + elements_of(entry.shape));
      if (first >= end) continue;
      const auto target = values.subspan(static_cast<std::size_t>(first - begin),
                                         static_cast<std::size_t>(end - first));
      const auto place = static_cast<std::uint64_t>(first - entry.begin);
      if (entry.format == "fp32") {
        piece.file->read(piece.number, 4 * place, std::as_writable_bytes(target));
      } else {
        std::vector<Bf16> narrow(target.size());
        piece.file->read(piece.number, 2 * place, std::as_writable_bytes(std::span(narrow)));
        std::ranges::transform(narrow, target.begin(),
                               [](Bf16 value) { return static_cast<float>(value); });
      }
    }
  }

  /// Reads an entry that each rank has whole, and writes it to where it belongs.
  /// @throws ConfigError  if the checkpoint has none of this name and size
  void load_sync(const StateEntry& wanted) const {
    const auto found = pieces_.find(wanted.name);
    require<ConfigError>(
        found != pieces_.end() && found->second.front().entry().bytes == wanted.bytes,
        "the checkpoint has no ", wanted.name, " of ", wanted.bytes,
        " bytes; it is of another recipe");
    std::vector<std::byte> bytes(wanted.bytes);
    found->second.front().file->read(found->second.front().number, 0, bytes);
    wanted.write_sync(bytes.data());
  }

 private:
  struct Piece {
    const StateFile* file;
    std::size_t number;

    [[nodiscard]] const StateEntry& entry() const { return file->entries()[number]; }
  };

  [[nodiscard]] const std::vector<Piece>& pieces_of(const std::string& name) const {
    for (const char* prefix : {"optimizer.master.", "model."}) {
      const auto found = pieces_.find(prefix + name);
      if (found != pieces_.end()) return found->second;
    }
    throw ConfigError(message("the checkpoint has no ", name, "; it is of another model"));
  }

  std::vector<std::unique_ptr<StateFile>> files_;
  std::map<std::string, std::vector<Piece>> pieces_;
};

}  // namespace detail

/// Sets a session's weights to those of a checkpoint, for an evaluation. The session may be of
/// another recipe or optimizer, and of any number of ranks: weights are made of the run's FP32
/// masters, where it had such. Delayed scales go on where the recipe is the run's; in another they
/// are to be calibrated. Every file is read whole and held to its checksum before anything is
/// written into the session. All ranks call it together.
/// @param path  of the checkpoint; that of rank 0 counts
/// @throws ConfigError  for a checkpoint of another model, or of ranks that shared layers
/// @throws IoError      for one that is not whole, naming the file
inline CheckpointManifest load_checkpoint_weights(const std::filesystem::path& path,
                                                  TrainingSession& session) {
  const std::string place = std::filesystem::absolute(path).string();
  const std::filesystem::path folder =
      session.texts_of_ranks(place, "path of a checkpoint").front();
  CheckpointManifest manifest;
  std::unique_ptr<detail::CheckpointWeights> saved;
  detail::all_or_none(session, "check of a checkpoint", [&] {
    ListedCheckpoint found = detail::look_at_checkpoint(folder);
    require<IoError>(found.manifest.has_value(), folder.string(),
                     " is no whole checkpoint: ", found.problem);
    manifest = std::move(*found.manifest);
    require<ConfigError>(manifest.model == session.facts().name, folder.string(), ": its model is ",
                         manifest.model, ", but that of the session is ", session.facts().name);
    require<ConfigError>(manifest.tensor_ranks == 1, folder.string(), ": its weights are those of ",
                         manifest.tensor_ranks,
                         " ranks that share each layer, which are not put together");
    detail::verify_files(manifest, folder, session.sharding(), Context<Cpu>(0));
    saved = std::make_unique<detail::CheckpointWeights>(folder, manifest);
    for (const WeightInfo& weight : session.weights()) saved->require_has(weight);
    return std::string();
  });
  detail::all_or_none(session, "load of a checkpoint", [&] {
    for (const WeightInfo& weight : session.weights()) {
      session.set_weight(weight.name, [&](Index begin, std::span<float> values) {
        saved->read(weight.name, begin, values);
      });
    }
    return std::string();
  });
  // Ranks have these whole; to list them all take part.
  const std::vector<StateEntry> state = session.state();
  detail::all_or_none(session, "load of scales", [&] {
    if (manifest.recipe != session.precision()) return std::string();
    for (const StateEntry& entry : state) {
      if (entry.name.starts_with("scaling.") || entry.name == "session.must_calibrate")
        saved->load_sync(entry);
    }
    return std::string();
  });
  return manifest;
}

}  // namespace octavo
