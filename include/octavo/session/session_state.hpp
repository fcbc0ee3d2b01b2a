/// @file
/// Access to the state of a session.
#pragma once

#include <octavo/session/state_entry.hpp>

#include <cstddef>
#include <vector>

namespace octavo OCTAVO_ABI {

/// The state of a session: all data on which later steps depend, except their inputs and the
/// session's options.
class SessionState {
 public:
  SessionState() = default;
  SessionState(const SessionState&) = delete;
  SessionState& operator=(const SessionState&) = delete;
  virtual ~SessionState() = default;

  /// Returns the entries: weights that are not frozen, the optimizer's state and the scaling state.
  /// The random bits of rounding depend on the seed and the number of steps, which are included.
  /// GEMM algorithms belong to a card (`TrainingSession::gemm_plans`); checkpoints store them in
  /// addition to the state. Valid while the session lives; if ranks share weights, the entries must
  /// be read before the next step. See `save_state_sync` and `load_state_sync`.
  [[nodiscard]] virtual std::vector<StateEntry> entries() = 0;

  /// Lets another thread read the last `entries()` (`StateEntry::read_async`) until
  /// `end_reading`. Steps continue, but steps and other writers wait before they change data that
  /// is being read. All ranks call it.
  virtual void begin_reading() {}
  /// Copies all entries to be read, and waits for the copies. Called once for each `begin_reading`,
  /// by the reading thread. On the `Cuda` device, data that is not copied yet when a step would
  /// wait is moved to free device memory, as far as it fits, until it is copied.
  /// @throws CudaError  if some data cannot be read; other code then no longer waits for the copies
  virtual void end_reading() {}
  /// Allocates the host memory to which reading is fastest: pinned on the `Cuda` device, which
  /// takes a while.
  /// @param bytes  more than 0
  /// @throws MemoryError  if the host has too little free memory
  [[nodiscard]] virtual OwnedBytes allocate_for_reading(std::size_t bytes) {
    return allocate_on_host(bytes, Context<Cpu>(1));
  }
};

}  // namespace octavo
