/// @file
/// A description of a model as run-time values, for reading and comparing.
#pragma once

#include <octavo/models/gpt2_config.hpp>
#include <octavo/models/llama_config.hpp>

#include <array>
#include <optional>
#include <string>
#include <vector>

namespace octavo OCTAVO_ABI {

/// Families whose weights have published names.
enum class ModelFamily { llama, qwen3, gpt2 };
inline constexpr std::array model_family_names{"llama", "qwen3", "gpt2"};

/// The shape of a model of any family, and the related settings in a file.
struct ModelDescription {
  ModelFamily family = ModelFamily::llama;
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

  /// @name Settings that are not part of the shape
  /// @{
  std::optional<Index> begin_of_text{};  ///< a token ID
  std::vector<Index> end_of_text{};      ///< token IDs
  /// @}
};

/// Returns the description of a preset.
[[nodiscard]] inline ModelDescription description_of(const LlamaConfig& config) {
  return {.family = config.qk_norm ? ModelFamily::qwen3 : ModelFamily::llama,
          .layers = config.layers,
          .hidden = config.hidden,
          .ffn = config.ffn,
          .heads = config.heads,
          .kv_heads = config.kv_heads,
          .head_dim = config.head_dim,
          .vocabulary = config.vocabulary,
          .norm_epsilon = config.norm_epsilon,
          .rope_theta = config.rope_theta,
          .rope_scaling =
              config.rope_scaling.kind == RopeKind::plain ? RopeScaling{} : config.rope_scaling,
          .tied_embeddings = config.tied_embeddings};
}
[[nodiscard]] inline ModelDescription description_of(const Gpt2Config& config) {
  return {.family = ModelFamily::gpt2,
          .layers = config.layers,
          .hidden = config.hidden,
          .ffn = config.ffn(),
          .heads = config.heads,
          .kv_heads = config.heads,
          .head_dim = config.head_dim(),
          .vocabulary = config.vocabulary,
          .norm_epsilon = config.norm_epsilon,
          .tied_embeddings = Gpt2Config::tied_embeddings,
          .positions = config.positions};
}

/// Returns the differences between the shapes of two models, such as "hidden is 64, not 128". Empty
/// if the shapes are equal.
[[nodiscard]] inline std::vector<std::string> differences(const ModelDescription& model,
                                                          const ModelDescription& other) {
  std::vector<std::string> all;
  const auto compare = [&](const char* name, auto value, auto wanted) {
    if (value != wanted) all.push_back(message(name, " is ", value, ", not ", wanted));
  };
  const auto family = [](const ModelDescription& of) {
    return std::string(model_family_names[static_cast<std::size_t>(of.family)]);
  };
  const auto rope = [](const ModelDescription& of) {
    return std::string(of.rope_scaling.kind == RopeKind::plain ? "plain" : "llama3");
  };
  const auto real = [](float value) { return static_cast<double>(value); };
  compare("family", family(model), family(other));
  compare("layers", model.layers, other.layers);
  compare("hidden", model.hidden, other.hidden);
  compare("ffn", model.ffn, other.ffn);
  compare("heads", model.heads, other.heads);
  compare("kv_heads", model.kv_heads, other.kv_heads);
  compare("head_dim", model.head_dim, other.head_dim);
  compare("vocabulary", model.vocabulary, other.vocabulary);
  compare("norm_epsilon", real(model.norm_epsilon), real(other.norm_epsilon));
  compare("rope_theta", real(model.rope_theta), real(other.rope_theta));
  compare("rope_scaling", rope(model), rope(other));
  const RopeScaling& scaling = model.rope_scaling;
  const RopeScaling& wanted = other.rope_scaling;
  if (scaling.kind == RopeKind::llama3 && wanted.kind == RopeKind::llama3) {
    compare("rope_scaling.factor", real(scaling.factor), real(wanted.factor));
    compare("rope_scaling.low_frequency_factor", real(scaling.low_frequency_factor),
            real(wanted.low_frequency_factor));
    compare("rope_scaling.high_frequency_factor", real(scaling.high_frequency_factor),
            real(wanted.high_frequency_factor));
    compare("rope_scaling.original_length", scaling.original_length, wanted.original_length);
  }
  const auto yes = [](bool value) { return std::string(value ? "true" : "false"); };
  compare("tied_embeddings", yes(model.tied_embeddings), yes(other.tied_embeddings));
  if (model.family == ModelFamily::gpt2 && other.family == ModelFamily::gpt2) {
    compare("positions", model.positions, other.positions);
  }
  return all;
}

}  // namespace octavo
