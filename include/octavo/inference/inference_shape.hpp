/// @file
/// The amount of text that an inference session has memory for.
#pragma once

#include <octavo/core/device.hpp>

namespace octavo OCTAVO_ABI {

/// The amount of text that an inference session has memory for.
struct InferenceShape {
  Index longest = 0;  ///< maximum number of tokens of a text
  /// Maximum number of tokens that are processed together: a prompt is processed in such pieces.
  Index piece = 256;
};

}  // namespace octavo
