/// @file
/// Repeats a step of a run from one state, to check whether its bits are always the same.
#pragma once

#include <octavo/kernels/hash.hpp>
#include <octavo/run/training_run.hpp>
#include <octavo/session/state.hpp>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace octavo OCTAVO_ABI {

/// The result of a replayed step, the same on all ranks.
struct StepReplay {
  StepRecord record;  ///< with the hash of the weights after the step
  /// Hash of the optimizer state after it: moments, and masters if there are any.
  std::uint64_t optimizer_hash = 0;
  /// For each rank, the first entry of its state that differs from the first replay, such as
  /// "optimizer.first_moment.blocks.0.qkv.weight"; empty: none.
  std::vector<std::string> differs{};

  /// Whether it has the same bits as the first replay.
  [[nodiscard]] bool equals(const StepReplay& first) const {
    const auto bits = [](double value) { return std::bit_cast<std::uint64_t>(value); };
    const StepResult& own = record.result;
    const StepResult& other = first.record.result;
    return bits(own.loss) == bits(other.loss) &&
           bits(own.gradient_norm) == bits(other.gradient_norm) && own.skipped == other.skipped &&
           record.weights_hash == first.record.weights_hash &&
           optimizer_hash == first.optimizer_hash &&
           std::ranges::all_of(differs, [](const std::string& name) { return name.empty(); });
  }
};

namespace detail {

struct EntryHash {
  std::string name;
  std::uint64_t hash;
};

/// Hashes a state's bytes, an entry at a time, on the host.
inline std::vector<EntryHash> hash_entries_sync(std::span<const StateEntry> entries) {
  const Context<Cpu> host(0);
  std::vector<std::byte> bytes;
  std::vector<EntryHash> hashes;
  for (const StateEntry& entry : entries) {
    bytes.assign(static_cast<std::size_t>(round_up(static_cast<Index>(entry.bytes), Index{16})),
                 std::byte{0});
    entry.read_sync(bytes.data());
    EntryHash& own = hashes.emplace_back(EntryHash{entry.name, 0});
    hash_bytes<Cpu>({bytes.data(), {static_cast<Index>(bytes.size())}}, {&own.hash, {1}}, host);
  }
  return hashes;
}

/// Computes the result of a replay, on all ranks.
/// @param entries  of this rank's state after the step
/// @param first    their hashes after the first replay; empty if this is the first one
inline StepReplay evaluate_replay(TrainingSession& session, const StepRecord& record,
                                  std::span<const StateEntry> entries,
                                  std::vector<EntryHash>& first) {
  StepReplay replay{.record = record};
  if (!replay.record.weights_hash) replay.record.weights_hash = session.weights().hash_sync();
  const std::vector<EntryHash> hashes = hash_entries_sync(entries);
  if (first.empty()) first = hashes;
  std::string own(sizeof(std::uint64_t), '\0');
  std::uint64_t optimizer = 0;
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    if (hashes[i].name.starts_with("optimizer.")) {
      optimizer += mixed_word(hashes[i].hash, static_cast<Index>(i));
    }
    const bool is_first = own.size() == sizeof(optimizer);
    if (is_first && hashes[i].hash != first[i].hash) own += hashes[i].name;
  }
  std::memcpy(own.data(), &optimizer, sizeof(optimizer));
  Index rank = 0;
  for (std::string& text : session.ranks().texts(own, "hashes of a replayed step")) {
    std::memcpy(&optimizer, text.data(), sizeof(optimizer));
    replay.optimizer_hash += mixed_word(optimizer, rank++);
    replay.differs.push_back(text.substr(sizeof(optimizer)));
  }
  return replay;
}

}  // namespace detail

/// Runs the steps of a run up to a given one, and then that step several times, each time from the
/// same state, which is kept in host memory. Nothing is saved and the model is not evaluated,
/// because neither changes a step. All ranks call it.
/// @param options  those of the run
/// @param totals    of the earlier steps: a new run's, or those returned by `resume`
/// @param step     to be replayed, after those of the totals
/// @param replays  number of replays, at least 2
/// @param tell     called for each step before it
/// @throws ConfigError  for an invalid step or number, or if an earlier step was a spike after
/// which the run stopped or rolled back
template <class Batches>
[[nodiscard]] std::vector<StepReplay> replay_step(
    TrainingSession& session, Batches& batches, const RunOptions& options, RunTotals& totals,
    Index step, Index replays, const std::function<void(const StepRecord&)>& tell) {
  require<ConfigError>(step > totals.steps() && step <= options.schedule.steps, "step ", step,
                       " cannot be replayed after step ", totals.steps(), " of a run of ",
                       options.schedule.steps, " steps; pass a step from ", totals.steps() + 1,
                       " to ", options.schedule.steps);
  require<ConfigError>(
      replays >= 2,
      "the number of replays must be at least 2, so that they can be compared, but is ", replays);
  const auto take = [&] {
    return detail::take_step(session, batches, options, detail::SpikeLimits(options.spikes, totals),
                             totals);
  };
  const auto state = [&] {
    std::vector<StateEntry> entries = session.state().entries();
    for (StateEntry& entry : detail::run_state(batches, totals))
      entries.push_back(std::move(entry));
    return entries;
  };
  while (totals.steps() + 1 < step) {
    const StepRecord record = take();
    require<ConfigError>(
        !record.result.is_above_limits || options.spikes.action == OnSpike::skip, "step ",
        record.step, " is a spike, at which the run stopped or rolled back, so step ", step,
        " did not follow from it; replay that step, or start from a checkpoint after it");
    tell(record);
  }
  const SavedState before = save_state_sync(state());
  std::vector<StepReplay> all;
  std::vector<detail::EntryHash> first;
  for (Index number = 0; number < replays; ++number) {
    if (number > 0) load_state_sync(before, state());
    const StepRecord record = take();  // before the state is listed
    all.push_back(detail::evaluate_replay(session, record, state(), first));
  }
  return all;
}

}  // namespace octavo
