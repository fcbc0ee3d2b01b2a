/// @file
/// State that lives in the host's memory and passes through the device's.
#pragma once

#include <octavo/core/device.hpp>
#include <octavo/memory/buffer.hpp>

#include <array>
#include <cstddef>

namespace octavo OCTAVO_ABI {

/// What of a session lives in the host's memory, which on the `Cuda` device is pinned. No bit of a
/// result depends on it.
struct Offload {
  /// Parameters, and so shards of ranks, begin at multiples of so many elements.
  static constexpr Index multiple = allocation_alignment;

  /// Masters and moments. On the device there are only buffers of three chunks of them: while one
  /// chunk is updated, the next one comes in and the last one goes out. All of it crosses the bus
  /// once in each direction a step.
  bool optimizer = false;
  /// Elements of a chunk: of `multiple`.
  Index chunk = Index{1} << 23;
};

namespace detail {

/// Buffers of the device that chunks pass through by turns.
inline constexpr std::size_t offload_buffers = 3;

/// The two ways between the host's memory and the device's, which copies of both directions share,
/// and what was enqueued on them for each of the buffers.
/// @tparam L  a `Lane`
template <class L>
struct OffloadLanes {
  /// @param main  see Lane
  template <class Main>
  explicit OffloadLanes(const Main& main) : to_device(main), to_host(main) {}

  L to_device;
  L to_host;
  std::array<typename L::Mark, offload_buffers> fetched{};  ///< behind the last fetch into a buffer
  std::array<typename L::Mark, offload_buffers> stored{};   ///< behind the last store of one
};

/// Calls `work(i)` for every chunk, in order, on the main context, while chunk i lies in buffer
/// i mod 3: after `fetch(i)` on the way to the device, and before `store(i)` on the way to the
/// host. Chunk i + 1 may be fetched, and i − 1 stored, while chunk i is worked on. What the main
/// context is given afterwards comes after all of it.
/// @param fetches  false: nothing is fetched, because `work` reads nothing of the chunk
/// @note enqueues; does not synchronise
template <class L, class Fetch, class Work, class Store>
void pass_through_device(OffloadLanes<L>& lanes, std::size_t chunks, bool fetches,
                         const Fetch& fetch, const Work& work, const Store& store) {
  constexpr std::size_t buffers = offload_buffers;
  const auto prepare = [&](std::size_t i) {
    if (i >= chunks) return;
    // The main context waits for the chunk that the buffer had, and the fetch for the main context.
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
