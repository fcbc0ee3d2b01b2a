/// @file
/// The state of a checkpoint, put together for whatever ranks a session has.
#pragma once

#include <octavo/train/checkpoint_file.hpp>
#include <octavo/train/checkpoint_manifest.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace octavo::inline OCTAVO_ABI::detail {

/// "bf16 [64, 256]".
inline std::string entry_text(const StateEntry& entry) {
  if (entry.whole.empty()) return entry.format;
  std::string text = entry.format + " [";
  for (std::size_t i = 0; i < entry.whole.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(entry.whole[i]);
  }
  return text + "]";
}

/// Rows and columns of an entry that is whole.
inline Array<Index, 2> matrix_of(const StateEntry& entry) {
  const Index columns = entry.shape.size() == 2 ? entry.shape[1] : elements_of(entry.shape);
  return {columns == 0 ? 0 : elements_of(entry.shape) / columns, columns};
}

/// What the files of a checkpoint have of each entry. Ranks that shared the work wrote a part each,
/// and the ranks of a session need others: a part is made of those that it overlaps.
class CheckpointPieces {
 public:
  /// Reads what files say of their entries, not the entries.
  /// @throws IoError  naming the file that is not what a checkpoint has
  CheckpointPieces(const std::filesystem::path& folder, const CheckpointManifest& manifest) {
    for (const CheckpointFile& file : manifest.files) {
      files_.push_back(std::make_unique<StateFile>(folder / file.name));
      const std::vector<StateEntry>& entries = files_.back()->entries();
      for (std::size_t i = 0; i < entries.size(); ++i) {
        pieces_[entries[i].name].push_back({files_.back().get(), i, &entries[i]});
      }
    }
  }

  /// Every name once, sorted: the same on all ranks.
  [[nodiscard]] std::vector<std::string> names() const {
    std::vector<std::string> result;
    result.reserve(pieces_.size());
    for (const auto& [name, pieces] : pieces_) result.push_back(name);
    return result;
  }

  /// @throws StateMismatchError  if the checkpoint has no such entry, or in another format or shape
  /// @throws ConfigError         if it has not all of it
  void require_has(const StateEntry& wanted) const { (void)copies(wanted); }

  /// What one of the files says of an entry; null: none has it.
  [[nodiscard]] const StateEntry* find(const std::string& name) const {
    const auto found = pieces_.find(name);
    return found == pieces_.end() ? nullptr : found->second.front().entry;
  }

  /// What there is of a name, whole: an entry, or one for each part that ranks had who shared the
  /// layers. Without what reads and writes it.
  [[nodiscard]] std::vector<StateEntry> parts(const std::string& name) const {
    std::vector<StateEntry> result;
    const auto found = pieces_.find(name);
    if (found == pieces_.end()) return result;
    for (const Piece& piece : found->second) {
      StateEntry entry = *piece.entry;
      const auto count = static_cast<std::size_t>(elements_of(entry.shape));
      const auto has_part = [&](const StateEntry& other) { return other.part == entry.part; };
      if (count == 0 || std::ranges::any_of(result, has_part)) continue;
      entry.bytes = entry.bytes / count * static_cast<std::size_t>(elements_of(entry.whole));
      entry.shape = entry.whole;
      entry.begin = 0;
      result.push_back(std::move(entry));
    }
    return result;
  }

  /// Reads an entry, or neighbouring elements of it.
  /// @param bytes    `wanted.bytes` of them
  /// @param context  whose threads read
  /// @throws ConfigError  see `require_has`
  /// @throws IoError      naming the file, if it cannot be read
  void read(const StateEntry& wanted, std::span<std::byte> bytes,
            const Context<Cpu>& context = Context<Cpu>(1)) const {
    for (const Copy& copy : copies(wanted)) {
      copy.from->file->read(copy.from->number, copy.begin, bytes.subspan(copy.to, copy.bytes),
                            context);
    }
  }

  /// Reads an entry, and writes it to where it belongs.
  /// @param memory  for its bytes, made larger where that is needed
  /// @throws IoError  naming the file, if it cannot be read
  void load_sync(const StateEntry& wanted, std::vector<std::byte>& memory) const {
    if (memory.size() < wanted.bytes) memory.resize(wanted.bytes);
    read(wanted, std::span(memory).first(wanted.bytes));
    wanted.write_sync(memory.data());
  }

 private:
  /// What one of the files has of an entry.
  struct Piece {
    const StateFile* file;
    std::size_t number;
    const StateEntry* entry;
  };
  /// Bytes of a piece, and their place in what is wanted.
  struct Copy {
    const Piece* from;
    std::uint64_t begin;
    std::size_t to;
    std::size_t bytes;
  };

  [[nodiscard]] std::vector<Copy> copies(const StateEntry& wanted) const {
    const char* advice = entry_advice(wanted.name);
    const auto found = pieces_.find(wanted.name);
    if (found == pieces_.end()) {
      throw StateMismatchError(message("the checkpoint has no ", wanted.name, advice), wanted.name,
                               "");
    }
    std::vector<const Piece*> parts;
    for (const Piece& piece : found->second) {
      const StateEntry& entry = *piece.entry;
      if (entry.format != wanted.format || entry.whole != wanted.whole) {
        throw StateMismatchError(
            message(entry_is(wanted.name), entry_text(entry), " in the checkpoint, but ",
                    entry_text(wanted), " here", advice),
            wanted.name, entry_text(entry));
      }
      if (entry.part == wanted.part) parts.push_back(&piece);
    }
    const auto begin_of = [](const Piece* piece) { return piece->entry->begin; };
    std::ranges::sort(parts, {}, begin_of);
    const Index end = wanted.begin + elements_of(wanted.shape);
    std::vector<Copy> result;
    Index at = wanted.begin;
    for (const Piece* piece : parts) {
      const StateEntry& entry = *piece->entry;
      const Index count = elements_of(entry.shape);
      const Index last = std::min(end, entry.begin + count);
      if (entry.bytes == 0 || entry.begin > at || last <= at) continue;
      const std::uint64_t element = entry.bytes / static_cast<std::uint64_t>(count);
      const std::uint64_t wanted_element =
          wanted.bytes / static_cast<std::uint64_t>(elements_of(wanted.shape));
      require<IoError>(
          element == wanted_element && entry.bytes == element * static_cast<std::uint64_t>(count),
          wanted.name, ": its elements have ", element, " bytes in the checkpoint, but ",
          wanted_element, " here; it is damaged, take another checkpoint");
      const auto bytes_of = [element](Index elements) {
        return static_cast<std::size_t>(element * static_cast<std::uint64_t>(elements));
      };
      result.push_back(
          {piece, bytes_of(at - entry.begin), bytes_of(at - wanted.begin), bytes_of(last - at)});
      at = last;
    }
    const std::size_t bytes = result.empty() ? 0 : result.back().to + result.back().bytes;
    require<ConfigError>((at == end || wanted.bytes == 0) && bytes == wanted.bytes, wanted.name,
                         ": of its elements ", wanted.begin, " to ", end,
                         " the checkpoint has none from ", at,
                         " on; a file is missing in it: take another checkpoint");
    return result;
  }

  std::vector<std::unique_ptr<StateFile>> files_;
  std::map<std::string, std::vector<Piece>> pieces_;
};

}  // namespace octavo::inline OCTAVO_ABI::detail
