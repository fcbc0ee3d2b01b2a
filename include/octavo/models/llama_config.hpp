/// @file
/// The shape of a Llama as a compile-time value, and the presets.
#pragma once

#include <octavo/core/context.hpp>

#include <cstddef>
#include <cstdint>
#include <string>

namespace octavo {

/// How rotary frequencies are scaled beyond the length that a model was first trained at.
enum class RopeKind { plain, llama3 };

/// Parameters of the `llama3` frequency scaling; ignored for `plain`.
/// Source: Llama 3.1 as published on Hugging Face (`rope_scaling` of its configuration).
struct RopeScaling {
  RopeKind kind = RopeKind::plain;
  float factor = 1.0f;
  float low_frequency_factor = 1.0f;
  float high_frequency_factor = 4.0f;
  int original_length = 8192;
};

/// A name that can be part of a template argument: at most 31 characters, in words of eight. They
/// are no array, because nvcc writes template arguments back as source, and cannot write arrays.
struct ConfigName {
  std::uint64_t word0 = 0;
  std::uint64_t word1 = 0;
  std::uint64_t word2 = 0;
  std::uint64_t word3 = 0;

  constexpr ConfigName(std::uint64_t w0, std::uint64_t w1, std::uint64_t w2, std::uint64_t w3)
      : word0(w0), word1(w1), word2(w2), word3(w3) {}

  template <std::size_t N>
  constexpr ConfigName(const char (&name)[N])  // NOLINT: a literal is a name
      : word0(word(name, 0)), word1(word(name, 8)), word2(word(name, 16)), word3(word(name, 24)) {
    static_assert(N <= 32, "ConfigName: a preset's name has at most 31 characters; shorten it");
  }

  [[nodiscard]] std::string text() const {
    std::string characters;
    for (const std::uint64_t eight : {word0, word1, word2, word3}) {
      for (int i = 0; i < 8; ++i) {
        const auto character = static_cast<char>(eight >> (8 * i) & 0xff);
        if (character != 0) characters.push_back(character);
      }
    }
    return characters;
  }

 private:
  template <std::size_t N>
  static constexpr std::uint64_t word(const char (&name)[N], std::size_t begin) {
    std::uint64_t eight = 0;
    for (std::size_t i = begin; i < N && i < begin + 8; ++i) {
      eight |= std::uint64_t{static_cast<unsigned char>(name[i])} << (8 * (i - begin));
    }
    return eight;
  }
};

/// The shape of a Llama. Usable as a template argument, so that a shape that a recipe cannot serve
/// does not compile.
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

  /// Rows of the embedding and the head: the vocabulary rounded up to a multiple of 128, so that
  /// every GEMM of the head fits. The padding is invisible outside.
  [[nodiscard]] constexpr int padded_vocabulary() const {
    return static_cast<int>(round_up(vocabulary, 128));
  }
  /// Columns of fused queries, keys and values.
  [[nodiscard]] constexpr int qkv_columns() const { return (heads + 2 * kv_heads) * head_dim; }
  /// Columns of the attention's output.
  [[nodiscard]] constexpr int attention_columns() const { return heads * head_dim; }

  /// Number of trained values, without padding.
  [[nodiscard]] constexpr Index parameters() const {
    const Index block = Index{hidden} * (qkv_columns() + attention_columns()) +
                        Index{3} * hidden * ffn + 2 * hidden + (qk_norm ? 2 * head_dim : 0);
    const Index table = Index{vocabulary} * hidden;
    return layers * block + hidden + table * (tied_embeddings ? 1 : 2);
  }
};

/// Floating-point operations of one training token: 6 for each weight that multiplies, and causal
/// attention over a sequence of this many tokens.
constexpr double training_flops_per_token(const LlamaConfig& config, Index sequence) {
  const Index table = Index{config.vocabulary} * config.hidden;
  const Index multiplying = config.parameters() - (config.tied_embeddings ? 0 : table);
  return 6.0 * static_cast<double>(multiplying) +
         6.0 * config.layers * static_cast<double>(sequence) * config.attention_columns();
}

/// @name Presets
/// @{

/// Trains on bytes within seconds on a plain machine; every recipe can serve its shape.
inline constexpr LlamaConfig llama_tiny{.name = "llama_tiny",
                                        .layers = 4,
                                        .hidden = 128,
                                        .ffn = 384,
                                        .heads = 4,
                                        .kv_heads = 2,
                                        .head_dim = 32,
                                        .vocabulary = 256,
                                        .rope_theta = 10000.0f};

/// A model of 1 GPU with Llama 3's vocabulary.
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
/// @}

}  // namespace octavo
