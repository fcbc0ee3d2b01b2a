#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "reference_llama.hpp"

/// Compares the library with a golden file.
namespace support {

inline void expect_same_shape(const reference::ReferenceConfig& ours,
                              const reference::ReferenceConfig& golden) {
  EXPECT_EQ(ours.layers, golden.layers);
  EXPECT_EQ(ours.hidden, golden.hidden);
  EXPECT_EQ(ours.ffn, golden.ffn);
  EXPECT_EQ(ours.heads, golden.heads);
  EXPECT_EQ(ours.kv_heads, golden.kv_heads);
  EXPECT_EQ(ours.head_dim, golden.head_dim);
  EXPECT_EQ(ours.vocabulary, golden.vocabulary);
  EXPECT_NEAR(ours.norm_epsilon, golden.norm_epsilon, 1e-12);
  EXPECT_EQ(ours.rope_theta, golden.rope_theta);
  EXPECT_EQ(ours.llama3_rope, golden.llama3_rope);
  if (golden.llama3_rope) {
    EXPECT_EQ(ours.rope_factor, golden.rope_factor);
    EXPECT_EQ(ours.rope_low, golden.rope_low);
    EXPECT_EQ(ours.rope_high, golden.rope_high);
    EXPECT_EQ(ours.rope_original_length, golden.rope_original_length);
  }
  EXPECT_EQ(ours.tied_embeddings, golden.tied_embeddings);
  EXPECT_EQ(ours.qk_norm, golden.qk_norm);
}

/// Largest error over largest magnitude.
inline double relative_error(const std::vector<double>& computed,
                             const std::vector<double>& golden) {
  double error = computed.size() == golden.size() ? 0.0 : INFINITY;
  double magnitude = 0;
  for (std::size_t i = 0; i < std::min(computed.size(), golden.size()); ++i) {
    const double difference = std::abs(computed[i] - golden[i]);
    error = difference <= error ? error : difference;  // a NaN becomes the error
    magnitude = std::max(magnitude, std::abs(golden[i]));
  }
  return error / magnitude;
}

}  // namespace support
