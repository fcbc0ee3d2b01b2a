/// @file
/// The precision of the products in attention.
#pragma once

#include <octavo/core/device.hpp>

namespace octavo OCTAVO_ABI {

/// The format of the operands of the forward's products. The backward always multiplies in the
/// storage format.
enum class AttentionForward {
  storage,  ///< the format of queries, keys and values
  fp8       ///< E4M3: see `Fp8Forward`
};

/// Attention whose forward multiplies in E4M3; its backward multiplies the same rounded queries,
/// keys and values in the storage format.
///
/// Queries, keys and values have a scale for each head and each 128 tokens of a sequence: 448 /
/// amax rounded down to a power of two. Probabilities are not normalised before they are rounded.
/// They are scaled by a power of two, so that the largest of their row is between 2^7 and 2^8.
/// After rounding, the output is divided by the sum of the rounded probabilities. Softmax computes
/// in FP32. Evaluation also runs this forward; text generation with a KV cache does not.
struct Fp8Forward {
  static constexpr AttentionForward attention_forward = AttentionForward::fp8;
};

}  // namespace octavo
