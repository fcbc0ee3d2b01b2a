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

/// Calls `work(i)` for every chunk, in order, on the main context, while chunk i is in buffer i mod
/// 3: after `fetch(i)` on the lane to the device, and before `store(i)` on the lane to the host.
/// Chunk i + 1 may be fetched, and chunk i − 1 stored, during the work on chunk i. Work enqueued on
/// the main context afterwards comes after all of it.
/// @param fetches  false: nothing is fetched, because `work` does not read the chunk's state
/// @note enqueues; does not synchronise
template <class L, class Fetch, class Work, class Store>
void pass_through_device(OffloadLanes<L>& lanes, std::size_t chunks, bool fetches,
                         const Fetch& fetch, const Work& work, const Store& store) {
  constexpr std::size_t buffers = offload_buffers;
  const auto prepare = [&](std::size_t i) {
    if (i >= chunks) return;
    // The main context waits for the buffer's previous chunk, and the fetch waits for the main
    // context.
    if (i >= buffers) lanes.to_host.wait(lanes.stored[i % buffers]);
    if (!fetches) return;
    lanes.to_device.fork();
    fetch(i);
    lanes.to_device.mark(lanes.fetched[i % buffers]);
  };
  if (chunks == 0) return;
  prepare(0);
  for (std::size_t i = 0; i < chunks; ++i) {
    prepare(i + 1);
    if (fetches) lanes.to_device.wait(lanes.fetched[i % buffers]);
    work(i);
    lanes.to_host.fork();
    store(i);
    lanes.to_host.mark(lanes.stored[i % buffers]);
  }
  lanes.to_host.join();
}

}  // namespace detail
}  // namespace octavo
