/// @file
/// The shape and the options of attention.
#pragma once

#include <octavo/precision/attention_forward.hpp>
#include <octavo/tensor/head_layout.hpp>

#include <algorithm>
#include <cmath>

namespace octavo OCTAVO_ABI {

/// Options of one layer's attention.
struct AttentionOptions {
  /// Sliding window: the number of tokens that a token attends to, including itself; 0: no limit.
  /// The same as `sliding_window` of transformers.
  Index window = 0;
  float scale = 0.0f;  ///< factor of the scores Q · Kᵀ; 0: 1 / √head_dim
  AttentionForward forward = AttentionForward::storage;

  /// Returns the first position that the window of a position contains.
  [[nodiscard]] constexpr Index first_visible(Index position) const {
    return window == 0 ? 0 : std::max<Index>(position - window + 1, 0);
  }
  /// Returns the mean number of tokens that a token of a sequence attends to, for counts of
  /// floating-point operations: without a window, half of the sequence.
  [[nodiscard]] constexpr double mean_visible(Index tokens) const {
    const double all = static_cast<double>(tokens) / 2.0;
    if (window == 0 || window >= tokens) return all;
    const auto seen = static_cast<double>(window);
    return seen - seen / static_cast<double>(tokens) * seen / 2.0;
  }
  /// Returns the factor of scores for heads of this dimension.
  [[nodiscard]] float scale_for(Index head_dim) const {
    return scale > 0.0f ? scale : 1.0f / std::sqrt(static_cast<float>(head_dim));
  }
};

/// The division of fused rows of queries, keys and values into sequences and heads.
struct AttentionShape {
  Index sequences = 0;
  Index tokens = 0;  ///< per sequence
  HeadLayout heads;
  Index most_documents = 0;  ///< see `BatchShape`
  /// Whether the shape is used once, as in text generation; preparing a library for it is then not
  /// worthwhile.
  bool once = false;
  AttentionOptions options{};

  [[nodiscard]] Index rows() const { return sequences * tokens; }
  /// Returns the window if it is shorter than a sequence, or 0.
  [[nodiscard]] Index window() const { return options.window < tokens ? options.window : 0; }
};

/// The two passes of attention.
enum class AttentionPass { forward, backward };

}  // namespace octavo
