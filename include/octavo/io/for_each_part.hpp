/// @file
/// Processing a range of bytes in parts, on several threads.
#pragma once

#include <octavo/core/context.hpp>

#include <algorithm>
#include <cstddef>
#include <exception>
#include <vector>

namespace octavo OCTAVO_ABI {

namespace detail {

/// Bytes of each part except the last.
inline constexpr std::size_t part_bytes = std::size_t{1} << 23;

}  // namespace detail

/// Calls `body(begin, size)` for every part of a range of bytes, on a context's threads. If parts
/// throw, the exception of the first of them is rethrown after all have ended.
template <class Body>
void for_each_part(std::size_t bytes, const Context<Cpu>& context, const Body& body) {
  using detail::part_bytes;
  const std::size_t parts = (bytes + part_bytes - 1) / part_bytes;
  std::vector<std::exception_ptr> errors(parts);
  parallel_for(static_cast<Index>(parts), many_elements, context, [&](Index i) {
    const std::size_t begin = static_cast<std::size_t>(i) * part_bytes;
    try {
      body(begin, std::min(part_bytes, bytes - begin));
    } catch (...) {
      errors[static_cast<std::size_t>(i)] = std::current_exception();
    }
  });
  for (const std::exception_ptr& error : errors) {
    if (error != nullptr) std::rethrow_exception(error);
  }
}

}  // namespace octavo
