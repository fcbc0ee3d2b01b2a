/// @file
/// The precision of the products in attention.
#pragma once

#include <octavo/core/device.hpp>

namespace octavo OCTAVO_ABI {

/// The format of the operands of the forward's products. The backward always multiplies in the
/// storage format.
enum class AttentionForward {
  storage,   ///< the format of queries, keys and values
  eight_bit  ///< INT8 and E4M3: see `EightBitForward`
};

/// Attention whose forward multiplies queries and keys in INT8, and probabilities and values in
/// E4M3. Its backward multiplies the same rounded queries, keys and values in the storage format.
///
/// Queries and keys are rotated first: each head is multiplied by a Hadamard matrix, in groups of
/// the largest power of two that divides head_dim. This does not change their products, but spreads
/// the outliers of a few channels over all channels. Queries, keys and values have a scale for each
/// head and each 128 tokens of a sequence: 127 / amax for rotated queries and keys, 448 / amax for
/// values, rounded down to a power of two. So a token affects the rounding of the others, also of
/// earlier ones. INT8 and E4M3 products take equally long, but INT8 codes keep 7 bits of the
/// largest values, and their sums are exact.
///
/// Scales are at least 2^-40, so values above 448 · 2^40 and rotated queries and keys above
/// 127 · 2^40 saturate. Nothing counts them, unlike in casts of linear layers. They do not occur in
/// a model that trains: all three are projections of normalised rows, so a row of weights would
/// need a norm above 10^10. An Inf or NaN does not saturate, but makes the output NaN, so that the
/// step is skipped.
///
/// Probabilities are not normalised before they are rounded. They are scaled by a power of two, so
/// that the largest of their row is between 2^7 and 2^8. After rounding, the output is divided by
/// the sum of the rounded probabilities. Softmax computes in FP32. The backward rotates the
/// gradients of queries and keys back. Evaluation also runs this forward; text generation with a KV
/// cache does not. Do not train models whose keys have biases, such as GPT-2, with it: the loss of
/// GPT-2 124M ended 2.5 % above that of `fp8-delayed` (one run; docs/quality.md). Source: Ashkboos
/// et al. 2024, arXiv 2404.00456; Shah et al. 2024, arXiv 2407.08608; Zhang et al. 2024, arXiv
/// 2410.02367.
struct EightBitForward {
  static constexpr AttentionForward attention_forward = AttentionForward::eight_bit;
};

}  // namespace octavo
