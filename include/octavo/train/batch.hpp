/// @file
/// What a session is given: tokens, targets, and where documents begin.
#pragma once

#include <octavo/core/device.hpp>

#include <cstdint>
#include <span>

namespace octavo OCTAVO_ABI {

/// The rows of a step or of an evaluation, in memory of the caller.
struct Batch {
  std::span<const std::int32_t> tokens;   ///< sequences one after another
  std::span<const std::int32_t> targets;  ///< of each token; below 0: ignored
  /// Places in `tokens` at which documents begin, ascending. The first token of a sequence begins
  /// one, listed or not; so none here says that each sequence is one document. Tokens see, and are
  /// placed from, their own document alone.
  std::span<const Index> documents{};
};

}  // namespace octavo
