/// @file
/// Resuming from a checkpoint.
#pragma once

#include <octavo/checkpoint/all_or_none.hpp>
#include <octavo/checkpoint/checkpoint_conversion.hpp>
#include <octavo/checkpoint/checkpoint_folder.hpp>
#include <octavo/memory/buffer.hpp>
#include <octavo/session/training_session.hpp>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <iterator>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace octavo OCTAVO_ABI {

/// Whether a checkpoint may have another recipe, or other formats of the optimizer's state.
enum class OtherRecipes {
  refused,
  converted  ///< weights, masters and moments are converted; scales are calibrated again
};

/// A checkpoint is incomplete or damaged. Thrown on all ranks, even if only one has found it.
class DamagedCheckpointError : public IoError {
 public:
  using IoError::IoError;
};

namespace detail {

/// Compares a checkpoint with a session.
/// @return whether the checkpoint must be converted
/// @throws StateMismatchError  naming the difference
inline bool require_fits(const CheckpointManifest& manifest, const std::filesystem::path& path,
                         const TrainingSession& session, OtherRecipes others) {
  const auto same = [&](const char* subject, const char* what, const auto& saved, const auto& here,
                        const char* advice = "") {
    if (saved == here) return;
    throw StateMismatchError(
        message(path.string(), ": its ", what, " is ", saved, ", but that of this run is ", here,
                "; resume with the same", advice),
        subject, message(saved));
  };
  same("model", "model", manifest.model, session.facts().name);
  if (others == OtherRecipes::converted) {
    const bool converts = manifest.recipe != session.facts().precision ||
                          manifest.optimizer != session.facts().optimizer;
    if (converts) {
      same("tensor_parallel", "number of ranks that share each layer", manifest.tensor_ranks,
           session.facts().sharding.tensor_ranks,
           ", or in the same recipe with the same optimizer");
    }
    return converts;
  }
  const char* advice = ", or convert it";
  same("recipe", "recipe", manifest.recipe, session.facts().precision, advice);
  same("optimizer", "optimizer", manifest.optimizer, session.facts().optimizer, advice);
  return false;
}

/// Verifies this rank's share of the files of a checkpoint.
/// @param context  whose threads read them
/// @throws IoError  naming a damaged file
inline void verify_files(const CheckpointManifest& manifest, const std::filesystem::path& path,
                         const Sharding& ranks, const Context<Cpu>& context) {
  const auto every = static_cast<std::size_t>(ranks.world_size());
  for (auto i = static_cast<std::size_t>(ranks.world_rank()); i < manifest.files.size();
       i += every) {
    const CheckpointFile& file = manifest.files[i];
    verify_file(path / file.name, file.digest, context, ReadFrom::anywhere,
                "the checkpoint is damaged; use another one");
  }
}

/// Runs each rank's check of a checkpoint's files.
/// @param check  throws IoError for an incomplete or damaged checkpoint
/// @throws DamagedCheckpointError  on all ranks, if it did so on one
template <class Check>
void require_undamaged(TrainingSession& session, const Check& check) {
  const auto found = all_or_none(session, "check of a checkpoint's files", [&]() -> std::string {
    try {
      check();
    } catch (const IoError& error) {
      return error.what();
    }
    return {};
  });
  for (const std::string& damage : found) require<DamagedCheckpointError>(damage.empty(), damage);
}

/// Allocates memory for one entry at a time: pinned memory if the device uses it and some is free,
/// else ordinary memory.
inline OwnedBytes memory_for_entries(TrainingSession& session, std::size_t bytes) {
  if (bytes == 0) return {};
  try {
    return session.state().allocate_for_reading(bytes);
  } catch (const MemoryError&) {
    return allocate_on_host(bytes, Context<Cpu>(1));
  }
}

/// Counts, for each text in lines of "text\tname", its distinct names.
inline std::vector<std::string> counted(const std::vector<std::string>& texts) {
  std::set<std::string> lines;
  for (const std::string& text : texts) {
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t end = text.find('\n', at);
      lines.insert(text.substr(at, end - at));
      at = end + 1;
    }
  }
  std::vector<std::string> result;
  for (auto line = lines.begin(); line != lines.end();) {
    const std::string text = line->substr(0, line->find('\t'));
    Index count = 0;
    for (; line != lines.end() && line->starts_with(text + '\t'); ++line) ++count;
    result.push_back(message(count, ' ', text));
  }
  return result;
}

/// Returns a '1' for each name that is one of the entries, and a '0' for each other name.
inline std::string marks_of_known(const std::vector<std::string>& names,
                                  const std::vector<StateEntry>& entries) {
  std::string marks(names.size(), '0');
  for (std::size_t i = 0; i < names.size(); ++i) {
    const auto is_it = [&](const StateEntry& entry) { return entry.name == names[i]; };
    if (std::ranges::any_of(entries, is_it)) marks[i] = '1';
  }
  return marks;
}

/// Reads all entries of a session, and writes them to it.
/// @param conversion  null: entries are written as they are saved
/// @return what was converted, in lines of "text\tname"
inline std::string load_entries(const std::vector<StateEntry>& entries,
                                const CheckpointPieces& pieces,
                                const CheckpointConversion* conversion, TrainingSession& session) {
  std::string changes;
  std::size_t most = 0;
  for (const StateEntry& entry : entries) most = std::max(most, entry.bytes);
  const OwnedBytes memory = memory_for_entries(session, most);
  const Context<Cpu> host(0);
  for (const StateEntry& entry : entries) {
    const std::span<std::byte> bytes(memory.get(), entry.bytes);
    if (conversion != nullptr && conversion->converts_entry(entry)) {
      conversion->make(entry, bytes);
    } else {
      pieces.read(entry, bytes, host);
    }
    entry.write_sync(bytes.data());
    if (conversion != nullptr) changes += conversion->text(entry);
  }
  return changes;
}

}  // namespace detail

/// Resumes a session from a checkpoint, with bitwise the saved state. The session may have another
/// number of ranks, ZeRO stage and tensor-parallel degree. With the same number of ranks,
/// micro-batches and ZeRO stage, later steps on `Cpu` are also bitwise identical. On `Cuda` this
/// requires a deterministic context, and the same kind of card with the same CUDA, cuBLASLt and
/// cuDNN (the manifest's `libraries`). Before the next step, pass the manifest's algorithms, and no
/// others, to the context (`take_gemm_plans`). Every file is read and its checksum verified before
/// the session is changed. All ranks call it together.
///
/// A checkpoint of another recipe or optimizer can be converted: each weight is kept or, if the
/// formats differ and an FP32 master exists, rounded from the master; masters are kept or, if there
/// are none, copied from the weights; moments are rounded to the nearest number of their format.
/// With another recipe, scales and histories are reset, and the next step calibrates them. With the
/// same recipe and another optimizer, they are kept.
/// @param path    of the checkpoint; rank 0's is used
/// @param more    entries that the program saved in addition to the session's state
/// @param others  whether the recipe or optimizer may differ
/// @return the manifest; if the recipe or optimizer differs, it also lists this conversion, as the
///         last
/// @throws StateMismatchError  naming the difference, for another model, recipe, optimizer or other
///                             adapters, or if it must be converted and the tensor-parallel degree
///                             differs; the session is unchanged then
/// @throws DamagedCheckpointError  naming the file, on all ranks, for an incomplete or damaged
///                             checkpoint; the session is unchanged then
inline CheckpointManifest load_checkpoint(const std::filesystem::path& path,
                                          TrainingSession& session,
                                          std::vector<StateEntry> more = {},
                                          OtherRecipes others = OtherRecipes::refused) {
  const std::string place = std::filesystem::absolute(path).string();
  const std::filesystem::path folder = session.ranks().texts(place, "path of a checkpoint").front();
  std::vector<StateEntry> wanted = session.state().entries();
  wanted.insert(wanted.end(), std::make_move_iterator(more.begin()),
                std::make_move_iterator(more.end()));
  CheckpointManifest manifest;
  std::optional<detail::CheckpointPieces> pieces;
  std::optional<detail::CheckpointConversion> conversion;
  std::vector<std::string> names;
  bool converts = false;
  detail::require_undamaged(session, [&] {
    ListedCheckpoint found = detail::inspect_checkpoint(folder);
    require<IoError>(found.manifest.has_value(), folder.string(),
                     " is not a complete checkpoint: ", found.problem);
    manifest = std::move(*found.manifest);
    converts = detail::require_fits(manifest, folder, session, others);
    detail::verify_files(manifest, folder, session.facts().sharding, Context<Cpu>(0));
  });
  const std::vector<std::string> known = detail::all_or_none(session, "check of a checkpoint", [&] {
    pieces.emplace(folder, manifest);
    if (converts) conversion.emplace(*pieces, manifest.recipe == session.facts().precision, wanted);
    for (const StateEntry& entry : wanted) {
      if (!conversion || !conversion->converts_entry(entry)) pieces->require_has(entry);
    }
    names = pieces->names();
    return detail::marks_of_known(names, wanted);
  });
  std::string changes;  // in lines of "text\tname"
  for (std::size_t i = 0; i < names.size(); ++i) {
    const auto is_used = [i](const std::string& text) { return text.at(i) == '1'; };
    if (std::ranges::any_of(known, is_used)) continue;
    require<ConfigError>(conversion && detail::CheckpointConversion::is_dropped(names[i]),
                         folder.string(), ": has ", names[i],
                         ", which this run does not have; it belongs to another program");
    changes += detail::CheckpointConversion::dropped_text(names[i]);
  }
  const auto texts = detail::all_or_none(session, "load of a checkpoint", [&] {
    return changes +
           detail::load_entries(wanted, *pieces, conversion ? &*conversion : nullptr, session);
  });
  if (conversion) {
    manifest.conversions.push_back(
        {manifest.step, manifest.recipe, manifest.optimizer, detail::counted(texts)});
  }
  return manifest;
}

}  // namespace octavo
