/// @file
/// Lanes for copies between host and device memory.
#pragma once

#include <octavo/core/version.hpp>

#include <array>
#include <cstddef>

namespace octavo OCTAVO_ABI::detail {

/// Maximum number of device buffers that offloaded data uses in turn.
inline constexpr std::size_t offload_buffers = 3;

/// The two lanes for copies between host and device memory, one for each direction, and marks of
/// the work enqueued on them for each buffer.
/// @tparam L  a `Lane`
template <class L>
struct OffloadLanes {
  /// @param main  see Lane
  template <class Main>
  explicit OffloadLanes(const Main& main) : to_device(main), to_host(main) {}

  L to_device;
  L to_host;
  std::array<typename L::Mark, offload_buffers> fetched{};  ///< after the last fetch into a buffer
  std::array<typename L::Mark, offload_buffers> stored{};   ///< after the last store from a buffer
};

}  // namespace octavo OCTAVO_ABI::detail
