#pragma once

#include <octavo/session/state.hpp>

#include <gtest/gtest.h>

#include <cstddef>
#include <string>
#include <vector>

/// What the ranks of a run have saved, as one state.
namespace support {

/// The bytes of a piece of state, put together from the ranks' parts where each has one.
/// @param ranks  each with a `state`
template <class Outcome>
std::vector<std::byte> gather_entry(const std::vector<Outcome>& ranks, const std::string& name) {
  std::vector<std::byte> bytes;
  for (const Outcome& rank : ranks) {
    const auto found = rank.state.find(name);
    if (found == rank.state.end()) continue;
    const octavo::SavedEntry& entry = found->second;
    if (entry.whole == entry.shape) return entry.bytes;
    bytes.insert(bytes.end(), entry.bytes.begin(), entry.bytes.end());
  }
  return bytes;
}

/// Expects that two runs have the same state, however it is divided among their ranks.
template <class Outcome>
void expect_same_state(const std::vector<Outcome>& some, const std::vector<Outcome>& others) {
  for (const Outcome& rank : some) {
    for (const auto& one : rank.state) {
      EXPECT_TRUE(gather_entry(some, one.first) == gather_entry(others, one.first)) << one.first;
    }
  }
}

}  // namespace support
