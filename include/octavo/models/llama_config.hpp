/// @file
/// The shape of a Llama, a Mistral, a Qwen2 or a Qwen3 as a compile-time value, and presets.
#pragma once

#include <octavo/core/config_name.hpp>
#include <octavo/core/context.hpp>
#include <octavo/layers/shapes.hpp>
#include <octavo/models/model.hpp>
#include <octavo/models/rope_scaling.hpp>
#include <octavo/tensor/head_layout.hpp>

#include <numeric>

namespace octavo OCTAVO_ABI {

/// The shape of a Llama, a Mistral, a Qwen2 or a Qwen3. Usable as a template argument, so that a
/// shape that a recipe does not support fails to compile.
struct LlamaConfig {
  ConfigName name = "llama";
  int layers = 0;
  int hidden = 0;
  int ffn = 0;
  int heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int vocabulary = 0;
  float norm_epsilon = 1e-5f;
  float rope_theta = 500000.0f;
  RopeScaling rope_scaling{};
  bool tied_embeddings = false;  ///< the head shares the embedding's weight
  bool qk_norm = false;          ///< queries and keys are normalised before RoPE
  bool qkv_bias = false;         ///< the projection to queries, keys and values has a bias
  /// Number of tokens that a token attends to, including itself; 0: all earlier ones.
  int window = 0;
  int first_windowed_layer = 0;  ///< the layers before it attend to all earlier tokens
  /// A mixture of experts in place of each MLP, if `experts` is not 0; `ffn` is then the width of
  /// one expert.
  ExpertShape experts{};

  /// Returns the rows of the embedding and the head: the vocabulary rounded up to a multiple of
  /// 128, which suits every GEMM of the head. The padding is not visible to callers.
  [[nodiscard]] constexpr int padded_vocabulary() const {
    return static_cast<int>(round_up(vocabulary, 128));
  }
  /// Returns the number of columns of the fused queries, keys and values.
  [[nodiscard]] constexpr int qkv_columns() const {
    return static_cast<int>(HeadLayout{heads, kv_heads, head_dim}.columns());
  }
  /// Returns the number of columns of the attention's output.
  [[nodiscard]] constexpr int attention_columns() const { return heads * head_dim; }

  /// Returns a common divisor of all linear layers' feature counts.
  [[nodiscard]] constexpr int feature_divisor() const {
    return std::gcd(std::gcd(hidden, ffn), std::gcd(qkv_columns(), attention_columns()));
  }

  /// Returns the number of trained values, without padding.
  [[nodiscard]] constexpr Index parameters() const {
    const Index block = Index{hidden} * (qkv_columns() + attention_columns()) +
                        mlp_parameters(experts.experts) + 2 * hidden +
                        (qk_norm ? 2 * head_dim : 0) + (qkv_bias ? qkv_columns() : 0);
    const Index table = Index{vocabulary} * hidden;
    return layers * block + hidden + table * (tied_embeddings ? 1 : 2);
  }

  /// Returns the number of parameters of an MLP, or of a router and `count` experts.
  [[nodiscard]] constexpr Index mlp_parameters(Index count) const {
    const Index of_one = Index{3} * hidden * ffn;
    return experts.experts == 0 ? of_one : count * of_one + Index{hidden} * experts.experts;
  }

  /// Returns the facts about the model that programs report.
  [[nodiscard]] ModelFacts facts() const {
    // Tokens are looked up in the table, and not multiplied by experts that they did not choose.
    const Index unused = mlp_parameters(experts.experts) - mlp_parameters(experts.choices);
    const Index looked_up = (tied_embeddings ? 0 : Index{vocabulary} * hidden) + layers * unused;
    return {name.text(),
            vocabulary,
            parameters(),
            parameters() - looked_up,
            Index{layers} * attention_columns(),
            0,
            window,
            window == 0 ? 0 : Index{layers - first_windowed_layer} * attention_columns()};
  }
};

/// @name Presets
/// @{

/// Trains on bytes within seconds on an ordinary machine; every recipe supports its shape.
inline constexpr LlamaConfig llama_tiny{.name = "llama_tiny",
                                        .layers = 4,
                                        .hidden = 128,
                                        .ffn = 384,
                                        .heads = 4,
                                        .kv_heads = 2,
                                        .head_dim = 32,
                                        .vocabulary = 256,
                                        .rope_theta = 10000.0f};

/// A model that fits one GPU, with Llama 3's vocabulary.
inline constexpr LlamaConfig llama3_small{.name = "llama3_small",
                                          .layers = 12,
                                          .hidden = 2048,
                                          .ffn = 5504,
                                          .heads = 16,
                                          .kv_heads = 4,
                                          .head_dim = 128,
                                          .vocabulary = 128256};

/// Llama 3.2 1B.
inline constexpr LlamaConfig llama3_1b{.name = "llama3_1b",
                                       .layers = 16,
                                       .hidden = 2048,
                                       .ffn = 8192,
                                       .heads = 32,
                                       .kv_heads = 8,
                                       .head_dim = 64,
                                       .vocabulary = 128256,
                                       .rope_scaling = {.kind = RopeKind::llama3, .factor = 32.0f},
                                       .tied_embeddings = true};

/// Llama 3 8B.
inline constexpr LlamaConfig llama3_8b{.name = "llama3_8b",
                                       .layers = 32,
                                       .hidden = 4096,
                                       .ffn = 14336,
                                       .heads = 32,
                                       .kv_heads = 8,
                                       .head_dim = 128,
                                       .vocabulary = 128256};

/// Llama 3 70B.
inline constexpr LlamaConfig llama3_70b{.name = "llama3_70b",
                                        .layers = 80,
                                        .hidden = 8192,
                                        .ffn = 28672,
                                        .heads = 64,
                                        .kv_heads = 8,
                                        .head_dim = 128,
                                        .vocabulary = 128256};

/// Mistral 7B v0.1, with a window of 4096 tokens.
inline constexpr LlamaConfig mistral_7b{.name = "mistral_7b",
                                        .layers = 32,
                                        .hidden = 4096,
                                        .ffn = 14336,
                                        .heads = 32,
                                        .kv_heads = 8,
                                        .head_dim = 128,
                                        .vocabulary = 32000,
                                        .rope_theta = 10000.0f,
                                        .window = 4096};

/// Mixtral 8x7B v0.1: 8 experts in each layer, of which 2 process a token.
inline constexpr LlamaConfig mixtral_8x7b{
    .name = "mixtral_8x7b",
    .layers = 32,
    .hidden = 4096,
    .ffn = 14336,
    .heads = 32,
    .kv_heads = 8,
    .head_dim = 128,
    .vocabulary = 32000,
    .rope_theta = 1000000.0f,
    .experts = {.experts = 8, .choices = 2, .balance_coefficient = 0.02f}};

/// Qwen2.5 0.5B.
inline constexpr LlamaConfig qwen2_5_0_5b{.name = "qwen2_5_0_5b",
                                          .layers = 24,
                                          .hidden = 896,
                                          .ffn = 4864,
                                          .heads = 14,
                                          .kv_heads = 2,
                                          .head_dim = 64,
                                          .vocabulary = 151936,
                                          .norm_epsilon = 1e-6f,
                                          .rope_theta = 1000000.0f,
                                          .tied_embeddings = true,
                                          .qkv_bias = true};

/// Qwen2.5 7B.
inline constexpr LlamaConfig qwen2_5_7b{.name = "qwen2_5_7b",
                                        .layers = 28,
                                        .hidden = 3584,
                                        .ffn = 18944,
                                        .heads = 28,
                                        .kv_heads = 4,
                                        .head_dim = 128,
                                        .vocabulary = 152064,
                                        .norm_epsilon = 1e-6f,
                                        .rope_theta = 1000000.0f,
                                        .qkv_bias = true};

/// Qwen3 0.6B.
inline constexpr LlamaConfig qwen3_0_6b{.name = "qwen3_0_6b",
                                        .layers = 28,
                                        .hidden = 1024,
                                        .ffn = 3072,
                                        .heads = 16,
                                        .kv_heads = 8,
                                        .head_dim = 128,
                                        .vocabulary = 151936,
                                        .norm_epsilon = 1e-6f,
                                        .rope_theta = 1000000.0f,
                                        .tied_embeddings = true,
                                        .qk_norm = true};

/// Qwen3 30B-A3B: 128 experts in each layer, of which 8 process a token.
inline constexpr LlamaConfig qwen3_30b_a3b{
    .name = "qwen3_30b_a3b",
    .layers = 48,
    .hidden = 2048,
    .ffn = 768,
    .heads = 32,
    .kv_heads = 4,
    .head_dim = 128,
    .vocabulary = 151936,
    .norm_epsilon = 1e-6f,
    .rope_theta = 1000000.0f,
    .qk_norm = true,
    .experts = {.experts = 128, .choices = 8, .balance_coefficient = 0.001f}};

/// Qwen3 8B.
inline constexpr LlamaConfig qwen3_8b{.name = "qwen3_8b",
                                      .layers = 36,
                                      .hidden = 4096,
                                      .ffn = 12288,
                                      .heads = 32,
                                      .kv_heads = 8,
                                      .head_dim = 128,
                                      .vocabulary = 151936,
                                      .norm_epsilon = 1e-6f,
                                      .rope_theta = 1000000.0f,
                                      .qk_norm = true};
/// @}

}  // namespace octavo
