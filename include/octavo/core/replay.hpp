/// @file
/// Work that is enqueued repeatedly in the same shape.
#pragma once

#include <octavo/core/context.hpp>

#include <cstdint>

namespace octavo OCTAVO_ABI {

/// How often work was enqueued directly, how often it was enqueued to be recorded, and how often
/// its recording was launched.
struct ReplayCounts {
  std::uint64_t runs = 0;
  std::uint64_t recordings = 0;
  std::uint64_t launches = 0;
};

/// Runs the same work in several turns. On a device that can record work, the first turn runs it
/// directly, the second records it, and later turns launch the recording without further work
/// on the host. A turn that throws does not count: the next turn starts at the same point.
/// Specialised for each device.
///
///     typename Replay<D>::Turn turn(replay, context);
///     if (turn.enqueues()) enqueue_the_work(context);
///     turn.finish();
template <Device D>
class Replay : DeviceNotIncluded<D> {};

/// The `Cpu` device has nothing to record.
template <>
class Replay<Cpu> {
 public:
  /// One turn; the caller ends it with `finish`.
  class Turn {
   public:
    /// @param records  false: the work is run directly, for example because it contains additional
    ///                 work; the next turn continues as before
    Turn(Replay& replay, const Context<Cpu>&, bool records = true) : replay_(replay) {
      (void)records;
    }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

    /// Returns whether the caller must enqueue the work.
    [[nodiscard]] bool enqueues() const { return true; }
    void finish() { ++replay_.counts_.runs; }

   private:
    Replay& replay_;
  };

  /// Runs a turn of the work that `body()` enqueues.
  template <class Body>
  void run(const Context<Cpu>& context, const Body& body) {
    Turn turn(*this, context);
    if (turn.enqueues()) body();
    turn.finish();
  }

  [[nodiscard]] const ReplayCounts& counts() const { return counts_; }

 private:
  ReplayCounts counts_;
};

}  // namespace octavo
