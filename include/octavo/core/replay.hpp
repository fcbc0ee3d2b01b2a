/// @file
/// Work that is enqueued again and again in the same shape.
#pragma once

#include <octavo/core/context.hpp>

namespace octavo {

/// Runs a body of launches. Where a device can record them, the first call runs the body, the
/// second records it, and later calls replay the record without the host's work. Specialised for
/// each device.
template <Device D>
class Replay;

/// The `Cpu` device has nothing to record.
template <>
class Replay<Cpu> {
 public:
  /// Calls `body()`. The number is whatever the body's launches depend on: where a device records,
  /// another number records anew.
  template <class Body>
  void run(float, const Context<Cpu>&, const Body& body) {
    body();
  }
};

}  // namespace octavo
