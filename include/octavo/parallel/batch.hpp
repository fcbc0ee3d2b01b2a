/// @file
/// The input of a session: tokens, targets, and the beginnings of documents.
#pragma once

#include <octavo/core/device.hpp>

#include <cstdint>
#include <span>

namespace octavo OCTAVO_ABI {

/// The rows of a step or of an evaluation, in memory of the caller.
struct Batch {
  std::span<const std::int32_t> tokens;   ///< consecutive sequences
  std::span<const std::int32_t> targets;  ///< of each token; ignored if negative
  /// Positions in `tokens` at which documents begin, ascending. The first token of a sequence
  /// always begins one, whether listed or not, so an empty list means that each sequence is one
  /// document. Tokens attend only to their own document, and their positions are relative to it.
  std::span<const Index> documents{};
};

}  // namespace octavo
