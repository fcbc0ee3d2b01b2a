/// @file
/// Work that is enqueued repeatedly in the same shape.
#pragma once

#include <octavo/core/context.hpp>

#include <cstdint>

namespace octavo OCTAVO_ABI {

/// How often a body was called directly, how often it was called while being recorded, and how
/// often its recording was launched.
struct ReplayCounts {
  std::uint64_t runs = 0;
  std::uint64_t recordings = 0;
  std::uint64_t launches = 0;
};

/// Runs a body of launches. On a device that can record them, the first call runs the body, the
/// second records it, and later calls launch the recording without further work on the host. A call
/// that throws does not count: the next call starts at the same point. Specialised for each device.
template <Device D>
class Replay : DeviceNotIncluded<D> {};

/// The `Cpu` device has nothing to record.
template <>
class Replay<Cpu> {
 public:
  template <class Body>
  void run(const Context<Cpu>&, const Body& body) {
    run_once(body);
  }
  /// Runs a body directly, for example one with additional work; the next call of `run`
  /// continues as before.
  template <class Body>
  void run_once(const Body& body) {
    body();
    ++counts_.runs;
  }

  [[nodiscard]] const ReplayCounts& counts() const { return counts_; }

 private:
  ReplayCounts counts_;
};

}  // namespace octavo
