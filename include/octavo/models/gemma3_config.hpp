/// @file
/// The shape of a Gemma 3 as a compile-time value, and presets.
#pragma once

#include <octavo/core/config_name.hpp>
#include <octavo/core/context.hpp>
#include <octavo/models/model.hpp>
#include <octavo/models/rope_scaling.hpp>
#include <octavo/tensor/head_layout.hpp>

#include <numeric>

namespace octavo OCTAVO_ABI {

/// The shape of a Gemma 3 for text. Usable as a template argument, so that a shape that a recipe
/// does not support fails to compile.
struct Gemma3Config {
  ConfigName name = "gemma3";
  int layers = 0;
  int hidden = 0;
  int ffn = 0;
  int heads = 0;
  int kv_heads = 0;
  int head_dim = 256;
  int vocabulary = 0;
  float norm_epsilon = 1e-6f;
  float rope_theta = 1000000.0f;      ///< of global layers
  RopeScaling rope_scaling{};         ///< of global layers
  float local_rope_theta = 10000.0f;  ///< of layers with a window
  int window = 512;                   ///< tokens that a token attends to in local layers
  int global_every = 6;               ///< distance of layers without a window: layers 5, 11, …
  float query_scalar = 256.0f;        ///< scores are divided by its square root

  static constexpr bool tied_embeddings = true;  ///< the head shares the embedding's weight

  [[nodiscard]] constexpr bool is_global(int layer) const {
    return (layer + 1) % global_every == 0;
  }
  /// Returns the rows of the embedding and the head: the vocabulary rounded up to a multiple of
  /// 128, which suits every GEMM of the head. The padding is not visible to callers.
  [[nodiscard]] constexpr int padded_vocabulary() const {
    return static_cast<int>(round_up(vocabulary, 128));
  }
  [[nodiscard]] constexpr int qkv_columns() const {
    return static_cast<int>(HeadLayout{heads, kv_heads, head_dim}.columns());
  }
  [[nodiscard]] constexpr int attention_columns() const { return heads * head_dim; }

  /// Returns a common divisor of all linear layers' feature counts.
  [[nodiscard]] constexpr int feature_divisor() const {
    return std::gcd(std::gcd(hidden, ffn), std::gcd(qkv_columns(), attention_columns()));
  }

  /// Returns the number of trained values, without padding.
  [[nodiscard]] constexpr Index parameters() const {
    const Index block = Index{hidden} * (qkv_columns() + attention_columns()) +
                        Index{3} * hidden * ffn + 4 * hidden + 2 * head_dim;
    return layers * block + hidden + Index{vocabulary} * hidden;
  }

  /// Returns the facts about the model that programs report.
  [[nodiscard]] ModelFacts facts() const {
    Index local = 0;
    for (int layer = 0; layer < layers; ++layer) local += is_global(layer) ? 0 : 1;
    return {name.text(),
            vocabulary,
            parameters(),
            parameters(),
            Index{layers} * attention_columns(),
            0,
            window,
            local * attention_columns()};
  }
};

/// @name Presets
/// Source: Gemma 3 technical report, arXiv 2503.19786, and the configurations on Hugging Face.
/// @{

/// Gemma 3 270M.
inline constexpr Gemma3Config gemma3_270m{.name = "gemma3_270m",
                                          .layers = 18,
                                          .hidden = 640,
                                          .ffn = 2048,
                                          .heads = 4,
                                          .kv_heads = 1,
                                          .vocabulary = 262144};

/// Gemma 3 1B.
inline constexpr Gemma3Config gemma3_1b{.name = "gemma3_1b",
                                        .layers = 26,
                                        .hidden = 1152,
                                        .ffn = 6912,
                                        .heads = 4,
                                        .kv_heads = 1,
                                        .vocabulary = 262144};
/// @}

}  // namespace octavo
