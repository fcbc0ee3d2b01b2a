/// @file
/// Shapes that layers take as template arguments.
#pragma once

#include <octavo/attention/attention.hpp>
#include <octavo/core/device.hpp>
#include <octavo/kernels/initialize.hpp>
#include <octavo/precision/activation_input.hpp>
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
  bool bias = false;       ///< all linear layers have biases
  bool qkv_bias = false;   ///< the projection to queries, keys and values has a bias
  float norm_offset = 0;   ///< added to the weights of norms: see NormWeight
  bool post_norm = false;  ///< results of attention and MLP are normalised before they are added
  int rotation = 0;        ///< index of the table of rotations: see `RoPE`
  /// Number of tokens that a token attends to, including itself; 0: all earlier ones.
  int window = 0;
  float score_scale = 0;  ///< factor of the attention's scores; 0: 1 / √head_dim
  AttentionForward attention_forward = AttentionForward::storage;
  ActivationInput activation_input = ActivationInput::storage;  ///< of the MLP
  /// Number of ranks that share each layer: `ffn`, `heads` and `kv_heads` are then those of one
  /// rank.
  int tensor_parallel = 1;

  [[nodiscard]] constexpr HeadLayout head_layout() const { return {heads, kv_heads, head_dim}; }
  [[nodiscard]] constexpr int qkv_columns() const {
    return static_cast<int>(head_layout().columns());
  }
  [[nodiscard]] constexpr int attention_columns() const { return heads * head_dim; }
  /// Whether the last GEMM of attention and MLP adds the residual.
  [[nodiscard]] constexpr bool adds_residual() const { return tensor_parallel == 1 && !post_norm; }
  [[nodiscard]] constexpr AttentionOptions attention_options() const {
    return {window, score_scale, attention_forward};
  }
  /// Returns the same shape with another forward of attention.
  [[nodiscard]] constexpr BlockShape with(AttentionForward forward) const {
    BlockShape shape = *this;
    shape.attention_forward = forward;
    return shape;
  }
  /// Returns the same shape with another input of the activation.
  [[nodiscard]] constexpr BlockShape with(ActivationInput input) const {
    BlockShape shape = *this;
    shape.activation_input = input;
    return shape;
  }
};

/// The experts of a block; `BlockShape::ffn` is that of one expert.
struct ExpertShape {
  int experts = 0;
  int choices = 0;           ///< number of experts that process each token
  bool renormalised = true;  ///< the weights of a token's experts sum to 1
  /// Coefficient of the load-balancing loss, which training adds to the loss (`ExpertLoss`).
  float balance_coefficient = 0;
};

/// Returns the shape of a block's attention for a batch.
constexpr AttentionShape attention_shape(const BlockShape& block, BatchShape batch) {
  return {.sequences = batch.sequences,
          .tokens = batch.tokens,
          .heads = block.head_layout(),
          .most_documents = batch.most_documents,
          .options = block.attention_options()};
}

/// Initial values of a block's parameters.
struct BlockInitial {
  Initial inner{};  ///< linear layers that read the residual stream
  Initial outer{};  ///< linear layers that write to it
  float norm_epsilon = 1e-5f;
};

}  // namespace octavo
