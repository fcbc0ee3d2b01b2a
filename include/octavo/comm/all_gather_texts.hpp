/// @file
/// All-gather of texts.
#pragma once

#include <octavo/core/version.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace octavo OCTAVO_ABI {

/// Returns the texts of all ranks, in rank order. Waits for the other ranks.
/// @tparam Ranks  a `Communicator`, or a type with its `size` and `all_gather_host_sync`
template <class Ranks>
std::vector<std::string> all_gather_texts(Ranks& communicator, const std::string& text,
                                          const char* what) {
  const auto ranks = static_cast<std::size_t>(communicator.size());
  const std::uint64_t length = text.size();
  std::vector<std::uint64_t> lengths(ranks);
  communicator.all_gather_host_sync(std::as_bytes(std::span(&length, 1)),
                                    std::as_writable_bytes(std::span(lengths)), what);
  const std::uint64_t longest = *std::max_element(lengths.begin(), lengths.end());
  std::string part = text;
  part.resize(longest);
  std::string whole(longest * ranks, '\0');
  communicator.all_gather_host_sync(std::as_bytes(std::span(part)),
                                    std::as_writable_bytes(std::span(whole)), what);
  std::vector<std::string> texts;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    texts.push_back(whole.substr(rank * longest, lengths[rank]));
  }
  return texts;
}

}  // namespace octavo
