/// @file
/// All-gather of texts.
#pragma once

#include <octavo/comm/all_gather_values.hpp>
#include <octavo/core/version.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace octavo OCTAVO_ABI {

/// Returns the texts of all ranks, in rank order. Waits for the other ranks.
/// @tparam Ranks  a `Communicator`, or a type with its `size` and `all_gather_host_sync`
template <class Ranks>
std::vector<std::string> all_gather_texts(Ranks& communicator, const std::string& text,
                                          const char* what) {
  const auto lengths = all_gather_values<std::uint64_t>(communicator, text.size(), what);
  const std::uint64_t longest = *std::max_element(lengths.begin(), lengths.end());
  std::string part = text;
  part.resize(longest);
  std::string whole(longest * lengths.size(), '\0');
  communicator.all_gather_host_sync({reinterpret_cast<const std::byte*>(part.data()), part.size()},
                                    {reinterpret_cast<std::byte*>(whole.data()), whole.size()},
                                    what);
  std::vector<std::string> texts;
  for (std::size_t rank = 0; rank < lengths.size(); ++rank) {
    texts.push_back(whole.substr(rank * longest, lengths[rank]));
  }
  return texts;
}

}  // namespace octavo
