/// @file
/// The state of a session in device memory.
#pragma once

#include <octavo/session/session_state.hpp>
#include <octavo/session/state_reader.hpp>
#include <octavo/session/weights_on_device.hpp>

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace octavo OCTAVO_ABI::detail {

template <Device D>
class SessionCore;

/// The state of a session in device memory.
template <Device D>
class StateOnDevice final : public SessionState {
 public:
  /// @param session  the owner of this
  explicit StateOnDevice(SessionCore<D>& session) : session_(session) {}

  [[nodiscard]] std::vector<StateEntry> entries() override {
    const Context<D>& context = session_.context_;
    session_.collectives().gather_weights(context);
    session_.communicator_.wait_sync(context, "weights of a state");
    if (reader_ == nullptr) reader_ = std::make_unique<StateReader<D>>(context);
    StateCollector<D> collector(context, *reader_);
    collector.say("session.recipe", session_.facts_.precision);
    if (session_.facts_.lora) collector.say("session.lora", session_.facts_.lora->text());
    session_.parts_.weights->visit_state(collector);
    session_.scaling().visit_state(collector);
    session_.optimizer().visit_state(collector);
    collector("session.must_calibrate", session_.must_calibrate_);
    std::vector<StateEntry> entries = collector.take();
    if (session_.options_.sharding.tensor_ranks > 1) note_parts(entries);
    for (StateEntry& entry : entries) {
      entry.write_sync = [this, write = std::move(entry.write_sync)](const std::byte* source) {
        session_.note_new_state();
        write(source);
      };
    }
    return entries;
  }

  void begin_reading() override {
    reader_->begin();
    was_read_ = true;
  }
  void end_reading() override { reader_->finish(); }
  [[nodiscard]] OwnedBytes allocate_for_reading(std::size_t bytes) override {
    return allocate_on_host(bytes, session_.context_);
  }

  /// Waits until no other thread reads the state.
  void wait() noexcept {
    if (reader_ != nullptr) reader_->wait();
  }
  /// Returns whether another thread began to read the state since the last call. The same on all
  /// ranks.
  [[nodiscard]] bool take_was_read() { return std::exchange(was_read_, false); }

 private:
  /// Sets in each entry which part of a parameter it contains.
  void note_parts(std::vector<StateEntry>& entries) const {
    for (const ParameterFacts& parameter : session_.parts_.weights->parameters()) {
      for (StateEntry& entry : entries) {
        const bool is_of =
            entry.name == "model." + parameter.name ||
            (entry.name.starts_with("optimizer.") && entry.name.ends_with("." + parameter.name));
        if (is_of) entry.part = parameter.part;
      }
    }
  }

  SessionCore<D>& session_;
  std::unique_ptr<StateReader<D>> reader_;  ///< exists once the state has been read
  bool was_read_ = false;
};

}  // namespace octavo OCTAVO_ABI::detail
