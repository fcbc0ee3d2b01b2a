/// @file
/// Copies of the named state of a training run, for saving, resuming and moving between devices.
#pragma once

#include <octavo/core/error.hpp>
#include <octavo/session/state_entry.hpp>

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace octavo OCTAVO_ABI {

/// A copy of one entry in host memory.
struct SavedEntry {
  std::string format;
  std::vector<Index> shape;
  std::vector<std::byte> bytes;
  std::vector<Index> whole = {};  ///< see StateEntry
  Index begin = 0;
  ParameterPart part = {};

  friend bool operator==(const SavedEntry&, const SavedEntry&) = default;
};

/// A copy of a state in host memory, by name, independent of any device.
using SavedState = std::map<std::string, SavedEntry>;

/// Copies a state to host memory, and waits for it.
/// @param entries  such as a session's `state()`
[[nodiscard]] inline SavedState save_state_sync(std::span<const StateEntry> entries) {
  SavedState saved;
  for (const StateEntry& entry : entries) {
    SavedEntry copy{entry.format, entry.shape, std::vector<std::byte>(entry.bytes),
                    entry.whole,  entry.begin, entry.part};
    entry.read_sync(copy.bytes.data());
    const bool is_new = saved.emplace(entry.name, std::move(copy)).second;
    require<UsageError>(is_new, "two parts of the state are called ", entry.name,
                        "; name each parameter and layer once");
  }
  return saved;
}

/// Copies a saved state into the session of the entries, and waits for it. The session then
/// continues as the saved one. Nothing is written unless all entries match.
/// @throws StateMismatchError, ConfigError  naming the first entry that one side lacks, or whose
///                                          format, shape or number of bytes differs
inline void load_state_sync(const SavedState& saved, std::span<const StateEntry> entries) {
  const auto text = [](const std::string& format, const std::vector<Index>& shape) {
    if (shape.empty()) return format;
    std::string result = format + " [";
    for (std::size_t i = 0; i < shape.size(); ++i) {
      result += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
    }
    return result + "]";
  };
  for (const StateEntry& entry : entries) {
    const auto found = saved.find(entry.name);
    const char* advice = detail::entry_advice(entry.name);
    if (found == saved.end()) {
      throw StateMismatchError(message("the saved state has no ", entry.name, advice), entry.name,
                               "");
    }
    const SavedEntry& copy = found->second;
    if (copy.format != entry.format || copy.shape != entry.shape) {
      const std::string there = text(copy.format, copy.shape);
      throw StateMismatchError(
          message(detail::entry_is(entry.name), there, " in the saved state, but ",
                  text(entry.format, entry.shape), " here", advice),
          entry.name, there);
    }
    require<ConfigError>(copy.whole == entry.whole && copy.begin == entry.begin, entry.name,
                         " is the part from element ", copy.begin, " on of ",
                         text(copy.format, copy.whole), " in the saved state, but from ",
                         entry.begin, " on of ", text(entry.format, entry.whole),
                         " here; it belongs to another rank, or to another number of ranks");
    require<ConfigError>(copy.part == entry.part, entry.name, " is part ", copy.part.rank, " of ",
                         copy.part.degree, " in the saved state, but part ", entry.part.rank,
                         " of ", entry.part.degree,
                         " here; it belongs to another rank, or to another TensorParallel");
    require<ConfigError>(copy.bytes.size() == entry.bytes, entry.name, " has ", copy.bytes.size(),
                         " bytes in the saved state, but ", entry.bytes,
                         " are needed; it is damaged, use another");
  }
  if (saved.size() != entries.size()) {
    SavedState rest = saved;
    for (const StateEntry& entry : entries) rest.erase(entry.name);
    throw ConfigError(message(
        "the saved state has ", rest.begin()->first,
        ", which this session does not have; it is of a different model, recipe or optimizer"));
  }
  for (const StateEntry& entry : entries) entry.write_sync(saved.at(entry.name).bytes.data());
}

}  // namespace octavo
