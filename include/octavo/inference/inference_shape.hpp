/// @file
/// How much text an inference has memory for.
#pragma once

#include <octavo/core/device.hpp>

namespace octavo OCTAVO_ABI {

/// What an inference has memory for.
struct InferenceShape {
  Index longest = 0;  ///< tokens of a text, at most
  /// Tokens that are worked on together, at most: those of a prompt, a piece after the other.
  Index piece = 256;
};

}  // namespace octavo
