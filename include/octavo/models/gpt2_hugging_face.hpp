/// @file
/// GPT-2 in Hugging Face folders.
#pragma once

#include <octavo/models/gpt2_config.hpp>
#include <octavo/models/hugging_face_tensors.hpp>

#include <string>
#include <vector>

namespace octavo OCTAVO_ABI {

namespace detail {

/// Returns the tensors of a GPT-2, whose linear layers are stored as [in, out]. Source:
/// transformers, modeling_gpt2.py and Conv1D.
inline std::vector<HuggingFaceTensor> gpt2_tensors(const ModelDescription& model) {
  HuggingFaceTensors all;
  const Index hidden = model.hidden;
  const auto add_norm = [&](const std::string& theirs, const std::string& ours) {
    all.add_vector(theirs + ".weight", ours + ".weight", hidden);
    all.add_vector(theirs + ".bias", ours + ".bias", hidden);
  };
  const auto add_linear = [&](const std::string& theirs, const std::string& ours, Index out,
                              Index in) {
    all.add_transposed(theirs + ".weight", ours + ".weight", out, in);
    all.add_vector(theirs + ".bias", ours + ".bias", out);
  };
  all.add("transformer.wte.weight", "embedding.weight", model.vocabulary, hidden);
  all.add("transformer.wpe.weight", "positions.weight", model.positions, hidden);
  for (Index i = 0; i < model.layers; ++i) {
    const std::string theirs = message("transformer.h.", i, ".");
    const std::string ours = message("blocks.", i, ".");
    add_norm(theirs + "ln_1", ours + "attention_norm");
    add_linear(theirs + "attn.c_attn", ours + "qkv", 3 * hidden, hidden);
    add_linear(theirs + "attn.c_proj", ours + "output", hidden, hidden);
    add_norm(theirs + "ln_2", ours + "mlp_norm");
    add_linear(theirs + "mlp.c_fc", ours + "up", model.ffn, hidden);
    add_linear(theirs + "mlp.c_proj", ours + "down", hidden, model.ffn);
  }
  add_norm("transformer.ln_f", "final_norm");
  return all.take();
}

inline std::vector<std::string_view> gpt2_constants() { return {".attn.bias", ".masked_bias"}; }

inline void read_gpt2(const JsonFields& fields, ModelDescription& model) {
  model.layers = fields.natural("n_layer");
  model.hidden = fields.natural("n_embd");
  model.heads = fields.natural("n_head");
  model.kv_heads = model.heads;
  model.head_dim = model.heads > 0 ? model.hidden / model.heads : 0;
  model.ffn = fields.natural("n_inner", 4 * model.hidden);
  model.positions = fields.natural("n_positions");
  model.norm_epsilon = fields.positive("layer_norm_epsilon", 1e-5f);
  model.tied_embeddings = fields.flag("tie_word_embeddings", true);
  model.layer_norm = true;
  model.linear_bias = true;
  model.gated_mlp = false;
  fields.require_word("activation_function", {"gelu_new", "gelu_pytorch_tanh"});
  fields.require_flag("scale_attn_weights", true);
  fields.require_flag("scale_attn_by_inverse_layer_idx", false);
  fields.require_flag("add_cross_attention", false);
}
inline void write_gpt2(const ModelDescription& model, JsonLine& text) {
  text.add("n_layer", model.layers)
      .add("n_embd", model.hidden)
      .add("n_inner", model.ffn)
      .add("n_head", model.heads)
      .add("n_positions", model.positions)
      .add("layer_norm_epsilon", model.norm_epsilon)
      .add("activation_function", "gelu_new");
}

}  // namespace detail

inline constexpr HuggingFaceFamily gpt2_in_hugging_face{.name = "gpt2",
                                                        .architecture = "GPT2LMHeadModel",
                                                        .read = detail::read_gpt2,
                                                        .write = detail::write_gpt2,
                                                        .tensors = detail::gpt2_tensors,
                                                        .constants = detail::gpt2_constants,
                                                        .optional_prefix = "transformer.",
                                                        .supports_adapters = false};

/// Returns the description of a preset.
[[nodiscard]] inline ModelDescription description_of(const Gpt2Config& config) {
  return {.family = &gpt2_in_hugging_face,
          .layers = config.layers,
          .hidden = config.hidden,
          .ffn = config.ffn(),
          .heads = config.heads,
          .kv_heads = config.heads,
          .head_dim = config.head_dim(),
          .vocabulary = config.vocabulary,
          .norm_epsilon = config.norm_epsilon,
          .tied_embeddings = Gpt2Config::tied_embeddings,
          .positions = config.positions,
          .layer_norm = true,
          .linear_bias = true,
          .gated_mlp = false};
}

}  // namespace octavo
