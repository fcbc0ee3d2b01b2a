// The shape of a model, known only at run time, and the sizes of its parts on one rank.
#pragma once

#include <octavo/models/hugging_face_families.hpp>

#include <algorithm>
#include <numeric>
#include <string>

namespace planner {

using octavo::Index;

/// The model to plan memory for.
struct Shape {
  std::string name;
  octavo::ModelDescription model{};

  /// Returns the columns of the fused queries, keys and values.
  [[nodiscard]] Index qkv_columns() const {
    return (model.heads + 2 * model.kv_heads) * model.head_dim;
  }
  [[nodiscard]] Index attention_columns() const { return model.heads * model.head_dim; }

  /// Returns the largest supported tensor-parallel degree; its divisors are also supported. 1 means
  /// that the layers cannot be shared.
  [[nodiscard]] Index shared_by() const {
    if (!model.can_share_layers()) return 1;
    return std::gcd(std::gcd(model.heads, model.kv_heads), model.ffn);
  }

  [[nodiscard]] octavo::ModelFacts facts() const;
};

/// Sizes of a block, those of one rank with tensor parallelism.
struct BlockSizes {
  BlockSizes(const Shape& shape, Index ranks)
      : hidden(shape.model.hidden),
        ffn(shape.model.ffn / ranks),
        heads(shape.model.heads / ranks),
        kv_heads(shape.model.kv_heads / ranks),
        head_dim(shape.model.head_dim),
        layer_norm(shape.model.layer_norm),
        linear_bias(shape.model.linear_bias),
        qkv_bias(shape.model.linear_bias || shape.model.qkv_bias),
        qk_norm(shape.model.qk_norm),
        gated_mlp(shape.model.gated_mlp),
        post_norms(shape.model.post_norms),
        experts(shape.model.experts),
        choices(shape.model.choices),
        balance_coefficient(shape.model.balance_coefficient),
        degree(ranks) {}

  /// Returns the shape that determines the attention's workspace.
  /// @param window  tokens that a token attends to; 0: all earlier ones
  [[nodiscard]] octavo::BlockShape block_shape(Index window = 0) const {
    return {.heads = static_cast<int>(heads),
            .kv_heads = static_cast<int>(kv_heads),
            .head_dim = static_cast<int>(head_dim),
            .window = static_cast<int>(window)};
  }
  [[nodiscard]] Index qkv_columns() const { return block_shape().head_layout().columns(); }
  [[nodiscard]] Index attention_columns() const { return heads * head_dim; }
  /// Returns the columns of the MLP's first projection: gate and up, or only up.
  [[nodiscard]] Index wide_columns() const { return (gated_mlp ? 2 : 1) * ffn; }
  /// Returns the FP32 values per token that a norm saves for the backward.
  [[nodiscard]] Index statistics() const { return layer_norm ? 2 : 1; }

  Index hidden;
  Index ffn;
  Index heads;
  Index kv_heads;
  Index head_dim;
  bool layer_norm;
  bool linear_bias;
  bool qkv_bias;
  bool qk_norm;
  bool gated_mlp;
  bool post_norms;
  Index experts;  ///< 0: a plain MLP
  Index choices;  ///< number of experts that process a token
  float balance_coefficient;
  Index degree;  ///< tensor-parallel degree
};

inline octavo::ModelFacts Shape::facts() const {
  octavo::ModelFacts facts;
  if (model.learns_positions()) {
    facts = octavo::Gpt2Config{.layers = static_cast<int>(model.layers),
                               .hidden = static_cast<int>(model.hidden),
                               .heads = static_cast<int>(model.heads),
                               .vocabulary = static_cast<int>(model.vocabulary),
                               .positions = static_cast<int>(model.positions)}
                .facts();
  } else if (model.post_norms) {
    facts = octavo::Gemma3Config{.layers = static_cast<int>(model.layers),
                                 .hidden = static_cast<int>(model.hidden),
                                 .ffn = static_cast<int>(model.ffn),
                                 .heads = static_cast<int>(model.heads),
                                 .kv_heads = static_cast<int>(model.kv_heads),
                                 .head_dim = static_cast<int>(model.head_dim),
                                 .vocabulary = static_cast<int>(model.vocabulary),
                                 .window = static_cast<int>(model.window),
                                 .global_every = static_cast<int>(model.global_every)}
                .facts();
  } else {
    facts =
        octavo::LlamaConfig{.layers = static_cast<int>(model.layers),
                            .hidden = static_cast<int>(model.hidden),
                            .ffn = static_cast<int>(model.ffn),
                            .heads = static_cast<int>(model.heads),
                            .kv_heads = static_cast<int>(model.kv_heads),
                            .head_dim = static_cast<int>(model.head_dim),
                            .vocabulary = static_cast<int>(model.vocabulary),
                            .tied_embeddings = model.tied_embeddings,
                            .qk_norm = model.qk_norm,
                            .qkv_bias = model.qkv_bias,
                            .window = static_cast<int>(model.window),
                            .first_windowed_layer = static_cast<int>(model.first_windowed_layer),
                            .experts = {.experts = static_cast<int>(model.experts),
                                        .choices = static_cast<int>(model.choices)}}
            .facts();
  }
  facts.name = name;
  return facts;
}

/// @throws ConfigError  if the library has no model of this shape
inline void require_possible(const Shape& shape) {
  using octavo::ConfigError;
  using octavo::require;
  const octavo::ModelDescription& model = shape.model;
  require<ConfigError>(std::min({model.layers, model.hidden, model.ffn, model.heads, model.kv_heads,
                                 model.head_dim, model.vocabulary}) > 0,
                       shape.name, ": every size of the model must be at least 1");
  require<ConfigError>(model.experts >= 0 && (model.experts == 0 || model.choices >= 1) &&
                           model.choices <= model.experts,
                       shape.name, ": a token must choose 1 to ", model.experts,
                       " experts, but chooses ", model.choices);
  // These limits keep products of sizes far below 2^64.
  require<ConfigError>(std::max({model.hidden, model.ffn, model.experts, model.experts * model.ffn,
                                 model.vocabulary, model.heads * model.head_dim,
                                 model.kv_heads * model.head_dim}) < (Index{1} << 24) &&
                           model.layers <= 4096,
                       shape.name, ": a size of the model is too large for planning");
  require<ConfigError>(model.heads % model.kv_heads == 0, shape.name,
                       ": the number of heads must be a multiple of the ", model.kv_heads,
                       " KV heads, but is ", model.heads);
  require<ConfigError>(model.head_dim % 2 == 0, shape.name, ": head_dim must be even, but is ",
                       model.head_dim);
  if (!shape.model.learns_positions()) return;
  require<ConfigError>(model.hidden == model.heads * model.head_dim && model.positions > 1,
                       shape.name, ": hidden must be a multiple of ", model.heads,
                       " heads, but is ", model.hidden);
}

}  // namespace planner
