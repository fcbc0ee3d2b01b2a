/// @file
/// A session's access to its weights and its state, and the exchanges between ranks for them.
#pragma once

#include <octavo/session/session_core.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace octavo OCTAVO_ABI::detail {

template <Device D>
std::vector<StateEntry> SessionCore<D>::state() {
  collectives().gather_weights(context_);
  communicator_.wait_sync(context_, "weights of a state");
  if (reader_ == nullptr) reader_ = std::make_unique<StateReader<D>>(context_);
  StateCollector<D> collector(context_, *reader_);
  collector.say("session.recipe", precision());
  if (const std::optional<LoraOptions> adapters = lora()) {
    collector.say("session.lora", adapters->text());
  }
  visit_weights(collector);
  scaling().visit_state(collector);
  updater().visit_state(collector);
  collector("session.must_calibrate", must_calibrate_);
  std::vector<StateEntry> entries = collector.take();
  if (options_.sharding.tensor_ranks > 1) note_parts(entries);
  for (StateEntry& entry : entries) {
    entry.write_sync = [this, write = std::move(entry.write_sync)](const std::byte* source) {
      note_new_state();
      write(source);
    };
  }
  return entries;
}

template <Device D>
void SessionCore<D>::note_parts(std::vector<StateEntry>& entries) const {
  for (const ParameterFacts& parameter : parameters_) {
    for (StateEntry& entry : entries) {
      const bool is_of =
          entry.name == "model." + parameter.name ||
          (entry.name.starts_with("optimizer.") && entry.name.ends_with("." + parameter.name));
      if (is_of) entry.part = parameter.part;
    }
  }
}

template <Device D>
std::vector<WeightInfo> SessionCore<D>::weights() const {
  std::vector<WeightInfo> all;
  for (const ParameterFacts& parameter : parameters_) {
    const Index columns = parameter.columns;
    all.push_back({parameter.name, parameter.format, parameter.elements / columns, columns,
                   parameter.is_adapter});
  }
  return all;
}

template <Device D>
void SessionCore<D>::read_weights_sync(const WeightSink& sink) {
  try {
    give_weights_sync(sink);
  } catch (...) {
    settle();
    throw;
  }
}

template <Device D>
std::uint64_t SessionCore<D>::hash_weights_sync() {
  std::uint64_t own = 0;
  Index number = 0;
  visit_updated_weights([&](TensorView<const std::byte, 1, D> bytes) {
    std::uint64_t hash = 0;
    hash_bytes(bytes, buffers_.hash, context_);
    copy_to_host_sync(&hash, buffers_.hash.data(), sizeof(hash), context_);
    own += mixed_word(hash, number++);
  });
  std::uint64_t total = 0;
  number = 0;
  for (const std::uint64_t hash : of_all_ranks(own, "hashes of weights")) {
    total += mixed_word(hash, number++);
  }
  return total;
}

template <Device D>
LossSum SessionCore<D>::sum_over_ranks(const LossSum& own) {
  LossSum total;
  const std::vector<LossSum> all = of_all_ranks(own, "sums of losses");
  const auto degree = static_cast<std::size_t>(options_.sharding.tensor_ranks);
  for (std::size_t rank = 0; rank < all.size(); rank += degree) {
    total.sum += all[rank].sum;
    total.tokens += all[rank].tokens;
  }
  return total;
}

}  // namespace octavo OCTAVO_ABI::detail
