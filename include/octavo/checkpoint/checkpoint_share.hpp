/// @file
/// Which rank writes which part of a checkpoint.
#pragma once

#include <octavo/checkpoint/checkpoint_file.hpp>
#include <octavo/session/training_session.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <set>
#include <span>
#include <string>
#include <vector>

namespace octavo OCTAVO_ABI::detail {

/// Returns a key of an entry: entries of different ranks with equal keys have equal bytes.
inline std::uint64_t key_of(const StateEntry& entry) {
  // FNV-1a, 64 bits: collisions between the entries of all ranks are negligible.
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char character : message(entry.name, '/', entry.part.degree, '/', entry.part.rank, '/',
                                      entry.begin, '/', elements_of(entry.shape))) {
    hash = (hash ^ static_cast<unsigned char>(character)) * 0x100000001b3u;
  }
  return hash;
}

/// Determines which entries this rank writes. If several ranks have an entry, the first of them
/// writes it.
struct CheckpointShare {
  std::vector<bool> writes;  ///< for each entry
  std::uint64_t bytes = 0;   ///< that all ranks write

  /// Called by all ranks together.
  CheckpointShare(std::span<const StateEntry> entries, TrainingSession& session) {
    struct Item {
      std::uint64_t key;
      std::uint64_t bytes;
    };
    std::string own(entries.size() * sizeof(Item), '\0');
    for (std::size_t i = 0; i < entries.size(); ++i) {
      const Item item{key_of(entries[i]), entries[i].bytes};
      std::memcpy(own.data() + i * sizeof(Item), &item, sizeof(Item));
    }
    const auto texts = session.ranks().texts(own, "entries of a checkpoint");
    const auto rank = static_cast<std::size_t>(session.facts().sharding.world_rank());
    std::set<std::uint64_t> seen;
    for (std::size_t other = 0; other < texts.size(); ++other) {
      for (std::size_t at = 0; at < texts[other].size(); at += sizeof(Item)) {
        Item item{};
        std::memcpy(&item, texts[other].data() + at, sizeof(Item));
        const bool is_first = seen.insert(item.key).second;
        if (is_first) bytes += item.bytes;
        if (other == rank) writes.push_back(is_first);
      }
    }
  }
};

}  // namespace octavo OCTAVO_ABI::detail
