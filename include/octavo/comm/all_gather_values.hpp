/// @file
/// All-gather of values in host memory.
#pragma once

#include <octavo/core/version.hpp>

#include <cstddef>
#include <type_traits>
#include <vector>

namespace octavo OCTAVO_ABI {

/// Returns the values of all ranks, in rank order. Waits for the other ranks.
/// @tparam Ranks  a `Communicator`, or a type with its `size` and `all_gather_host_sync`
/// @param what  names the exchange in errors; must stay valid until the program ends
template <class T, class Ranks>
std::vector<T> all_gather_values(Ranks& communicator, const T& own, const char* what) {
  static_assert(std::is_trivially_copyable_v<T>, "all_gather_values sends the bytes of a value");
  std::vector<T> all(static_cast<std::size_t>(communicator.size()));
  communicator.all_gather_host_sync(
      {reinterpret_cast<const std::byte*>(&own), sizeof(T)},
      {reinterpret_cast<std::byte*>(all.data()), all.size() * sizeof(T)}, what);
  return all;
}

}  // namespace octavo
