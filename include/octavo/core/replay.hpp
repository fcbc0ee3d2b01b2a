/// @file
/// Work that is enqueued again and again in the same shape.
#pragma once

#include <octavo/core/context.hpp>

#include <cstdint>

namespace octavo OCTAVO_ABI {

/// How often a body was called as it is, how often while it was recorded, and how often its record
/// was launched.
struct ReplayCounts {
  std::uint64_t runs = 0;
  std::uint64_t recordings = 0;
  std::uint64_t launches = 0;
};

/// Runs a body of launches. Where a device can record them, the first call runs the body, the
/// second records it, and later calls launch the record without the host's work. A call that throws
/// counts for nothing: the next one starts where it did. Specialised for each device.
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
  /// Runs a body as it is, such as one that does more than others; the next call of `run` goes on.
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
