/// @file
/// State and activations that are kept in host memory and pass through device memory.
#pragma once

#include <octavo/core/device.hpp>
#include <octavo/memory/buffer.hpp>
#include <octavo/memory/offload_lanes.hpp>

#include <cstddef>

namespace octavo OCTAVO_ABI {

/// Which state and activations of a session are kept in host memory, pinned on the `Cuda` device.
/// Results are bitwise independent of it.
struct Offload {
  /// Parameters, and therefore shards of ranks, begin at multiples of this number of elements.
  static constexpr Index multiple = allocation_alignment;

  /// Whether master weights and moments are offloaded. The device then has only buffers for three
  /// chunks of them: while one chunk is updated, the next is fetched and the previous one is
  /// stored. All of the state crosses the bus once in each direction per step.
  bool optimizer = false;
  /// Whether activations are offloaded: see `ModelOptions::offload_activations`.
  bool activations = false;
  /// Elements of a chunk, a multiple of `multiple`.
  Index chunk = Index{1} << 23;
};

namespace detail {

/// Orders the copies of chunks that pass through device memory, and the work on them. The caller
/// enqueues the work on chunk i on the main context, between `begin(i)` and `end(i)`, for every
/// chunk in order. During that work, chunk i is in buffer i mod 3, chunk i + 1 may be fetched, and
/// chunk i − 1 may be stored. Work enqueued on the main context after the last `end` comes after
/// all of it. Enqueues; does not synchronise.
template <class L>
class DevicePass {
 public:
  /// @param fetches  false: nothing is fetched, because the work does not read the chunks' state
  DevicePass(OffloadLanes<L>& lanes, std::size_t chunks, bool fetches)
      : lanes_(lanes), chunks_(chunks), fetches_(fetches) {}

  /// @param fetch  `fetch(i)` enqueues the copy of chunk i on the lane to the device
  template <class Fetch>
  void begin(std::size_t i, const Fetch& fetch) {
    if (i == 0) prepare(0, fetch);
    if (i + 1 < chunks_) prepare(i + 1, fetch);
    if (fetches_) lanes_.to_device.wait(lanes_.fetched[i % offload_buffers]);
  }

  /// @param store  `store(i)` enqueues the copy of chunk i on the lane to the host
  template <class Store>
  void end(std::size_t i, const Store& store) {
    lanes_.to_host.fork();
    store(i);
    lanes_.to_host.mark(lanes_.stored[i % offload_buffers]);
    if (i + 1 == chunks_) lanes_.to_host.join();
  }

 private:
  /// The main context waits for the buffer's previous chunk, and the fetch waits for the main
  /// context.
  template <class Fetch>
  void prepare(std::size_t i, const Fetch& fetch) {
    const std::size_t buffer = i % offload_buffers;
    if (i >= offload_buffers) lanes_.to_host.wait(lanes_.stored[buffer]);
    if (!fetches_) return;
    lanes_.to_device.fork();
    fetch(i);
    lanes_.to_device.mark(lanes_.fetched[buffer]);
  }

  OffloadLanes<L>& lanes_;
  std::size_t chunks_;
  bool fetches_;
};

}  // namespace detail
}  // namespace octavo
