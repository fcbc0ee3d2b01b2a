/// @file
/// The shape of a GPT-2 as a compile-time value, and presets.
#pragma once

#include <octavo/core/config_name.hpp>
#include <octavo/core/context.hpp>
#include <octavo/models/model.hpp>

namespace octavo OCTAVO_ABI {

/// The shape of a GPT-2. Usable as a template argument, so that a shape that a recipe does not
/// support fails to compile.
struct Gpt2Config {
  ConfigName name = "gpt2";
  int layers = 0;
  int hidden = 0;  ///< a multiple of `heads`
  int heads = 0;
  int vocabulary = 50257;
  int positions = 1024;  ///< maximum sequence length in tokens
  float norm_epsilon = 1e-5f;

  static constexpr bool tied_embeddings = true;  ///< the head shares the embedding's weight

  [[nodiscard]] constexpr int ffn() const { return 4 * hidden; }
  [[nodiscard]] constexpr int head_dim() const { return hidden / heads; }
  /// Returns the rows of the embedding and the head: the vocabulary rounded up to a multiple of
  /// 128, which suits every GEMM of the head. The padding is not visible to callers.
  [[nodiscard]] constexpr int padded_vocabulary() const {
    return static_cast<int>(round_up(vocabulary, 128));
  }

  /// Returns a common divisor of all linear layers' feature counts.
  [[nodiscard]] constexpr int feature_divisor() const { return hidden; }

  /// Returns the number of trained values, without padding.
  [[nodiscard]] constexpr Index parameters() const {
    const Index weights = Index{hidden} * (4 * hidden + 2 * ffn());
    const Index biases = Index{5} * hidden + ffn();
    const Index norm = Index{2} * hidden;
    return layers * (weights + biases + 2 * norm) + norm + (Index{vocabulary} + positions) * hidden;
  }

  /// Returns the facts about the model that programs report.
  [[nodiscard]] ModelFacts facts() const {
    return {name.text(), vocabulary, parameters(), parameters() - Index{positions} * hidden,
            Index{layers} * hidden};
  }
};

/// @name Presets
/// Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", as published
/// on Hugging Face (`gpt2` and `gpt2-xl`).
/// @{

/// Trains on bytes within seconds on an ordinary machine; every recipe supports its shape.
inline constexpr Gpt2Config gpt2_tiny{.name = "gpt2_tiny",
                                      .layers = 4,
                                      .hidden = 128,
                                      .heads = 4,
                                      .vocabulary = 256,
                                      .positions = 256};

/// GPT-2, 124 million parameters.
inline constexpr Gpt2Config gpt2_124m{
    .name = "gpt2_124m", .layers = 12, .hidden = 768, .heads = 12};

/// GPT-2 XL, 1558 million parameters.
inline constexpr Gpt2Config gpt2_1558m{
    .name = "gpt2_1558m", .layers = 48, .hidden = 1600, .heads = 25};
/// @}

}  // namespace octavo
