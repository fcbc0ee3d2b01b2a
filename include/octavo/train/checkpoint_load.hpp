/// @file
/// Going on from a checkpoint.
#pragma once

#include <octavo/train/checkpoint_folder.hpp>
#include <octavo/train/checkpoint_pieces.hpp>
#include <octavo/train/training_session.hpp>

#include <cstddef>
#include <exception>
#include <filesystem>
#include <functional>
#include <iterator>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace octavo::inline OCTAVO_ABI {

namespace detail {

/// Ranks go on together: each does its part, and if one fails, all throw.
/// @param part  what this rank does; gives a text for the others
/// @return      the texts of all, in the order of ranks
/// @throws      what `part` threw; ConfigError, naming the rank, where only another's threw
inline std::vector<std::string> all_or_none(TrainingSession& session, const char* what,
                                            const std::function<std::string()>& part) {
  std::string text;
  std::exception_ptr own;
  try {
    text = '+' + part();
  } catch (const CommError&) {
    throw;
  } catch (const std::exception& error) {
    text = std::string("-") + error.what();
    own = std::current_exception();
  }
  std::vector<std::string> texts = session.texts_of_ranks(text, what);
  if (own != nullptr) std::rethrow_exception(own);
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    const bool is_well = texts[rank].starts_with('+');
    texts[rank].erase(0, 1);
    require<ConfigError>(is_well, "rank ", rank, ": ", texts[rank]);
  }
  return texts;
}

/// @throws ConfigError  naming what of the run is another
inline void require_fits(const CheckpointManifest& manifest, const std::filesystem::path& path,
                         const TrainingSession& session) {
  const auto same = [&](const char* what, const auto& saved, const auto& here) {
    require<ConfigError>(saved == here, path.string(), ": its ", what, " is ", saved,
                         ", but that of this run is ", here, "; resume with the same");
  };
  same("model", manifest.model, session.facts().name);
  same("recipe", manifest.recipe, session.precision());
  same("optimizer", manifest.optimizer, session.optimizer());
  same("number of ranks that share each layer", manifest.tensor_ranks,
       session.sharding().tensor_ranks);
}

/// Reads every so-many-th file whole.
/// @param context  whose threads do
/// @throws IoError  naming one that is not as it was written
inline void verify_files(const CheckpointManifest& manifest, const std::filesystem::path& path,
                         const Sharding& ranks, const Context<Cpu>& context) {
  const auto every = static_cast<std::size_t>(ranks.world_size());
  for (auto i = static_cast<std::size_t>(ranks.world_rank()); i < manifest.files.size();
       i += every) {
    const CheckpointFile& file = manifest.files[i];
    const FileDigest found = digest_of_file(path / file.name, context);
    require<IoError>(found == file.digest, (path / file.name).string(), ": has ", found.bytes,
                     " bytes of checksum ", checksum_text(found.checksum),
                     ", but was written with ", file.digest.bytes, " of ",
                     checksum_text(file.digest.checksum),
                     "; it is damaged: resume from another checkpoint");
  }
}

}  // namespace detail

/// Makes a session go on as the one that saved a checkpoint: to the bit, whatever numbers of ranks
/// and stages of ZeRO the two have. Every file is read whole and held to its checksum before
/// anything is written into the session. All ranks call it together.
/// @param path  of the checkpoint; that of rank 0 counts
/// @param more  what the program has saved beside the session's state
/// @throws ConfigError  for a checkpoint of another model, recipe, optimizer or tensor-parallel
///                      degree, naming what is another; nothing is written then
/// @throws IoError      for one that is not whole, naming the file; likewise
inline CheckpointManifest load_checkpoint(const std::filesystem::path& path,
                                          TrainingSession& session,
                                          std::vector<StateEntry> more = {}) {
  const std::string place = std::filesystem::absolute(path).string();
  const std::filesystem::path folder =
      session.texts_of_ranks(place, "path of a checkpoint").front();
  std::vector<StateEntry> wanted = session.state();
  wanted.insert(wanted.end(), std::make_move_iterator(more.begin()),
                std::make_move_iterator(more.end()));
  CheckpointManifest manifest;
  std::optional<detail::CheckpointPieces> pieces;
  std::vector<std::string> names;
  const std::vector<std::string> known = detail::all_or_none(session, "check of a checkpoint", [&] {
    ListedCheckpoint found = detail::look_at_checkpoint(folder);
    require<IoError>(found.manifest.has_value(), folder.string(),
                     " is no whole checkpoint: ", found.problem);
    manifest = std::move(*found.manifest);
    detail::require_fits(manifest, folder, session);
    detail::verify_files(manifest, folder, session.sharding(), Context<Cpu>(0));
    pieces.emplace(folder, manifest);
    for (const StateEntry& entry : wanted) pieces->require_has(entry);
    names = pieces->names();
    std::string is_known(names.size(), '0');
    for (std::size_t i = 0; i < names.size(); ++i) {
      const auto is_it = [&](const StateEntry& entry) { return entry.name == names[i]; };
      if (std::ranges::any_of(wanted, is_it)) is_known[i] = '1';
    }
    return is_known;
  });
  for (std::size_t i = 0; i < names.size(); ++i) {
    const auto knows = [i](const std::string& text) { return text.at(i) == '1'; };
    require<ConfigError>(std::ranges::any_of(known, knows), folder.string(), ": has ", names[i],
                         ", which is nothing of this run; it is of another program");
  }
  detail::all_or_none(session, "load of a checkpoint", [&] {
    std::vector<std::byte> memory;
    for (const StateEntry& entry : wanted) pieces->load_sync(entry, memory);
    return std::string();
  });
  return manifest;
}

}  // namespace octavo
