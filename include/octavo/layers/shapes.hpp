/// @file
/// Shapes that layers take as template arguments.
#pragma once

#include <octavo/core/device.hpp>
#include <octavo/kernels/initialize.hpp>
#include <octavo/tensor/batch.hpp>
#include <octavo/tensor/head_layout.hpp>

namespace octavo OCTAVO_ABI {

/// The shape of a transformer block.
struct BlockShape {
  int hidden = 0;
  int ffn = 0;
  int heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  float norm_epsilon = 1e-5f;
  bool bias = false;  ///< linear layers have biases
  /// Number of ranks that share each layer: `ffn`, `heads` and `kv_heads` are then those of one
  /// rank.
  int tensor_parallel = 1;
  int window = 0;                ///< sliding window of attention in tokens; 0: no limit
  float attention_scale = 0.0f;  ///< factor of attention's scores; 0: 1 / √head_dim

  [[nodiscard]] constexpr HeadLayout head_layout() const { return {heads, kv_heads, head_dim}; }
  [[nodiscard]] constexpr int qkv_columns() const {
    return static_cast<int>(head_layout().columns());
  }
  [[nodiscard]] constexpr int attention_columns() const { return heads * head_dim; }
};

/// The experts of a block; `BlockShape::ffn` is that of one expert.
struct ExpertShape {
  int experts = 0;
  int choices = 0;           ///< number of experts that process each token
  bool renormalised = true;  ///< the weights of a token's experts sum to 1
};

/// Initial values of a block's parameters.
struct BlockInitial {
  Initial inner{};  ///< linear layers that read the residual stream
  Initial outer{};  ///< linear layers that write to it
  float norm_epsilon = 1e-5f;
};

}  // namespace octavo
