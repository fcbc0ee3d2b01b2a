/// @file
/// A description of a model as run-time values, for reading and comparing.
#pragma once

#include <octavo/core/device.hpp>
#include <octavo/core/error.hpp>
#include <octavo/models/rope_scaling.hpp>

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

namespace octavo OCTAVO_ABI {

struct HuggingFaceFamily;

/// The shape of a model of any family, and the related settings in a file.
struct ModelDescription {
  /// Names the tensors and settings of such models in Hugging Face folders. It does not count as a
  /// part of the shape, because families may share shapes: that of a Mistral without a window is
  /// that of a Llama.
  const HuggingFaceFamily* family = nullptr;
  Index layers = 0;
  Index hidden = 0;
  Index ffn = 0;
  Index heads = 0;
  Index kv_heads = 0;
  Index head_dim = 0;
  Index vocabulary = 0;
  float norm_epsilon = 0;
  float rope_theta = 0;        ///< 0: learned positions
  RopeScaling rope_scaling{};  ///< default-constructed if it is plain
  bool tied_embeddings = false;
  /// Maximum sequence length in tokens. With rotary positions it is not part of the shape, and 0
  /// means unknown.
  Index positions = 0;

  /// @name Composition of a block
  /// @{
  bool layer_norm = false;         ///< LayerNorms with biases instead of RMSNorms
  bool linear_bias = false;        ///< all linear layers have biases
  bool qkv_bias = false;           ///< the projection to queries, keys and values has a bias
  bool qk_norm = false;            ///< queries and keys are normalised
  bool gated_mlp = true;           ///< the MLP has a gate
  Index window = 0;                ///< tokens that a token attends to; 0: all earlier ones
  Index first_windowed_layer = 0;  ///< the layers before it have no window
  Index global_every = 0;          ///< distance of layers without a window; 0: all layers are alike
  float local_rope_theta = 0;      ///< of layers with a window; 0: that of the others
  float query_scalar = 0;         ///< scores are divided by its square root; 0: by that of head_dim
  Index experts = 0;              ///< of each layer; 0: a plain MLP
  Index choices = 0;              ///< number of experts that process a token
  bool renormalised = true;       ///< the weights of a token's experts sum to 1
  bool post_norms = false;        ///< results of attention and MLP are normalised
  bool offset_norms = false;      ///< weights of norms are differences from 1
  bool gelu_gate = false;         ///< the MLP's gate is a GELU instead of a SiLU
  bool scaled_embedding = false;  ///< embeddings are multiplied by √hidden
  /// @}

  /// @name Settings that are not part of the shape
  /// @{
  float balance_coefficient = 0;         ///< of the experts' load-balancing loss
  std::optional<Index> begin_of_text{};  ///< a token ID
  std::vector<Index> end_of_text{};      ///< token IDs
  /// @}

  [[nodiscard]] bool learns_positions() const { return rope_theta == 0; }
  /// Whether ranks can share its layers: see TensorParallel.
  [[nodiscard]] bool can_share_layers() const {
    return !linear_bias && !qkv_bias && !post_norms && experts == 0;
  }
};

/// Returns the name of a kind of frequency scaling, as in a Hugging Face configuration.
[[nodiscard]] constexpr const char* rope_kind_name(RopeKind kind) {
  constexpr std::array names{"default", "linear", "dynamic", "yarn", "llama3"};
  return names[static_cast<std::size_t>(kind)];
}

/// Returns the differences between the shapes of two models, such as "hidden is 64, not 128". Empty
/// if the shapes are equal.
[[nodiscard]] inline std::vector<std::string> differences(const ModelDescription& model,
                                                          const ModelDescription& other) {
  std::vector<std::string> all;
  const auto compare_as = [&](const std::string& name, const auto& value, const auto& wanted) {
    if (value != wanted) all.push_back(message(name, " is ", value, ", not ", wanted));
  };
  const auto compare = [&]<class T>(const std::string& name, T value, T wanted) {
    if constexpr (std::is_same_v<T, bool>) {
      const auto word = [](bool flag) { return std::string(flag ? "true" : "false"); };
      compare_as(name, word(value), word(wanted));
    } else if constexpr (std::is_same_v<T, float>) {
      compare_as(name, static_cast<double>(value), static_cast<double>(wanted));
    } else {
      compare_as(name, value, wanted);
    }
  };
  compare("layers", model.layers, other.layers);
  compare("hidden", model.hidden, other.hidden);
  compare("ffn", model.ffn, other.ffn);
  compare("heads", model.heads, other.heads);
  compare("kv_heads", model.kv_heads, other.kv_heads);
  compare("head_dim", model.head_dim, other.head_dim);
  compare("vocabulary", model.vocabulary, other.vocabulary);
  compare("norm_epsilon", model.norm_epsilon, other.norm_epsilon);
  compare("rope_theta", model.rope_theta, other.rope_theta);
  const RopeScaling& scaling = model.rope_scaling;
  const RopeScaling& wanted = other.rope_scaling;
  compare_as("rope_scaling", std::string(rope_kind_name(scaling.kind)),
             std::string(rope_kind_name(wanted.kind)));
  if (scaling.kind == wanted.kind) {
    const std::string prefix = "rope_scaling.";
    compare(prefix + "factor", scaling.factor, wanted.factor);
    compare(prefix + "low_frequency_factor", scaling.low_frequency_factor,
            wanted.low_frequency_factor);
    compare(prefix + "high_frequency_factor", scaling.high_frequency_factor,
            wanted.high_frequency_factor);
    compare(prefix + "original_length", scaling.original_length, wanted.original_length);
    compare(prefix + "beta_fast", scaling.beta_fast, wanted.beta_fast);
    compare(prefix + "beta_slow", scaling.beta_slow, wanted.beta_slow);
    compare(prefix + "attention_factor", scaling.attention_factor, wanted.attention_factor);
    compare(prefix + "truncate", scaling.truncate, wanted.truncate);
  }
  compare("tied_embeddings", model.tied_embeddings, other.tied_embeddings);
  if (model.learns_positions() && other.learns_positions()) {
    compare("positions", model.positions, other.positions);
  }
  compare("layer_norm", model.layer_norm, other.layer_norm);
  compare("linear_bias", model.linear_bias, other.linear_bias);
  compare("qkv_bias", model.qkv_bias, other.qkv_bias);
  compare("qk_norm", model.qk_norm, other.qk_norm);
  compare("gated_mlp", model.gated_mlp, other.gated_mlp);
  compare("global_every", model.global_every, other.global_every);
  compare("local_rope_theta", model.local_rope_theta, other.local_rope_theta);
  compare("query_scalar", model.query_scalar, other.query_scalar);
  compare("experts", model.experts, other.experts);
  if (model.experts != 0 && other.experts != 0) {
    compare("choices", model.choices, other.choices);
    compare("renormalised", model.renormalised, other.renormalised);
  }
  compare("post_norms", model.post_norms, other.post_norms);
  compare("offset_norms", model.offset_norms, other.offset_norms);
  compare("gelu_gate", model.gelu_gate, other.gelu_gate);
  compare("scaled_embedding", model.scaled_embedding, other.scaled_embedding);
  compare("window", model.window, other.window);
  if (model.window != 0 && other.window != 0) {
    compare("first_windowed_layer", model.first_windowed_layer, other.first_windowed_layer);
  }
  return all;
}

}  // namespace octavo
