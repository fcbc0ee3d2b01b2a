/// @file
/// Gemma 3 for text in Hugging Face folders.
#pragma once

#include <octavo/models/gemma3_config.hpp>
#include <octavo/models/hugging_face_rope.hpp>
#include <octavo/models/hugging_face_tensors.hpp>

#include <algorithm>
#include <string>
#include <vector>

namespace octavo OCTAVO_ABI {

namespace detail {

/// Source: transformers, modeling_gemma3.py.
inline std::vector<HuggingFaceTensor> gemma3_tensors(const ModelDescription& model) {
  HuggingFaceTensors all;
  const Index hidden = model.hidden;
  const Index queries = model.heads * model.head_dim;
  const Index keys = model.kv_heads * model.head_dim;
  all.add("model.embed_tokens.weight", "embedding.weight", model.vocabulary, hidden);
  for (Index i = 0; i < model.layers; ++i) {
    const std::string theirs = message("model.layers.", i, ".");
    const std::string ours = message("blocks.", i, ".");
    const std::string attention = theirs + "self_attn.";
    all.add_vector(theirs + "input_layernorm.weight", ours + "attention_norm.weight", hidden);
    all.add(attention + "q_proj.weight", ours + "qkv.weight", queries, hidden);
    all.add(attention + "k_proj.weight", ours + "qkv.weight", keys, hidden, queries);
    all.add(attention + "v_proj.weight", ours + "qkv.weight", keys, hidden, queries + keys);
    all.add_vector(attention + "q_norm.weight", ours + "query_norm.weight", model.head_dim);
    all.add_vector(attention + "k_norm.weight", ours + "key_norm.weight", model.head_dim);
    all.add(attention + "o_proj.weight", ours + "output.weight", hidden, queries);
    all.add_vector(theirs + "post_attention_layernorm.weight", ours + "attention_post_norm.weight",
                   hidden);
    all.add_vector(theirs + "pre_feedforward_layernorm.weight", ours + "mlp_norm.weight", hidden);
    all.add(theirs + "mlp.gate_proj.weight", ours + "gate_up.weight", model.ffn, hidden);
    all.add(theirs + "mlp.up_proj.weight", ours + "gate_up.weight", model.ffn, hidden, model.ffn);
    all.add(theirs + "mlp.down_proj.weight", ours + "down.weight", hidden, model.ffn);
    all.add_vector(theirs + "post_feedforward_layernorm.weight", ours + "mlp_post_norm.weight",
                   hidden);
  }
  all.add_vector("model.norm.weight", "final_norm.weight", hidden);
  return all.take();
}

inline std::vector<std::string_view> gemma3_constants() { return {".inv_freq"}; }

/// Reads the distance between layers without a window: `layers` + 1 if all have one.
inline Index read_global_every(const JsonFields& fields, Index layers) {
  const std::vector<std::string> kinds = fields.words("layer_types");
  if (kinds.empty()) {
    const Index pattern = fields.natural("sliding_window_pattern", 6);
    require<ConfigError>(pattern >= 1, fields.place(),
                         ": sliding_window_pattern must be at least 1, but is ", pattern);
    return std::min(pattern, layers + 1);
  }
  require<ConfigError>(static_cast<Index>(kinds.size()) == layers, fields.place(),
                       ": layer_types has ", kinds.size(), " entries, but the model has ", layers,
                       " layers");
  Index every = 1;
  while (every <= layers && kinds[static_cast<std::size_t>(every - 1)] != "full_attention") ++every;
  for (Index i = 0; i < layers; ++i) {
    const std::string wanted = (i + 1) % every == 0 ? "full_attention" : "sliding_attention";
    const std::string& kind = kinds[static_cast<std::size_t>(i)];
    require<ConfigError>(kind == wanted, fields.place(), ": layer_types has ", kind, " in layer ",
                         i, ", but Octavo's models support full_attention only at equal distances");
  }
  return every;
}

inline void read_gemma3(const JsonFields& fields, ModelDescription& model) {
  model.layers = fields.natural("num_hidden_layers");
  model.hidden = fields.natural("hidden_size");
  model.ffn = fields.natural("intermediate_size");
  model.heads = fields.natural("num_attention_heads");
  model.kv_heads = kv_heads_of(fields, model.heads, 4);
  model.head_dim = fields.natural("head_dim", 256);
  model.norm_epsilon = fields.positive("rms_norm_eps", 1e-6f);
  model.positions = fields.natural("max_position_embeddings", 131072);
  fields.require_flag("tie_word_embeddings", true);
  fields.require_word("hidden_activation", {"gelu_pytorch_tanh", "gelu_new"});
  fields.require_flag("attention_bias", false);
  fields.require_flag("use_bidirectional_attention", false);
  for (const char* key : {"final_logit_softcapping", "attn_logit_softcapping"}) {
    require<ConfigError>(!fields.has(key), fields.place(), ": ", key,
                         " is set, which Octavo's models do not support");
  }
  model.tied_embeddings = true;
  model.qk_norm = true;
  model.post_norms = true;
  model.offset_norms = true;
  model.gelu_gate = true;
  model.scaled_embedding = true;
  model.query_scalar = fields.positive("query_pre_attn_scalar", 256.0f);
  require<ConfigError>(!fields.is_null("sliding_window"), fields.place(),
                       ": sliding_window is null, but Gemma 3 has a window; set its length");
  model.window = length_of(fields, "sliding_window", 4096);
  model.global_every = read_global_every(fields, model.layers);
  require_whole_rotation(fields);
  const std::string global = "rope_parameters.full_attention";
  const std::string local = "rope_parameters.sliding_attention";
  const bool has_newer = fields.has(global) || fields.has(local);
  model.rope_scaling = rope_scaling_of(fields, has_newer ? global : "rope_scaling");
  require<ConfigError>(rope_scaling_of(fields, local).kind == RopeKind::plain, fields.place(), ": ",
                       local, ".rope_type must be default");
  model.rope_theta =
      fields.positive(global + ".rope_theta", fields.positive("rope_theta", 1000000.0f));
  model.local_rope_theta =
      fields.positive(local + ".rope_theta", fields.positive("rope_local_base_freq", 10000.0f));
}

inline void write_gemma3(const ModelDescription& model, JsonLine& text) {
  text.add("num_hidden_layers", model.layers)
      .add("hidden_size", model.hidden)
      .add("intermediate_size", model.ffn)
      .add("num_attention_heads", model.heads)
      .add("num_key_value_heads", model.kv_heads)
      .add("head_dim", model.head_dim)
      .add("rms_norm_eps", model.norm_epsilon)
      .add("hidden_activation", "gelu_pytorch_tanh")
      .add("attention_bias", false)
      .add("query_pre_attn_scalar", model.query_scalar)
      .add("sliding_window", model.window)
      .add("rope_theta", model.rope_theta)
      .add("rope_local_base_freq", model.local_rope_theta);
  write_positions(model, text);
  std::vector<std::string> kinds;
  for (Index i = 0; i < model.layers; ++i) {
    kinds.emplace_back((i + 1) % model.global_every == 0 ? "full_attention" : "sliding_attention");
  }
  text.add("layer_types", std::span<const std::string>(kinds));
  write_rope_scaling(model.rope_scaling, text);
}

}  // namespace detail

inline constexpr HuggingFaceFamily gemma3_in_hugging_face{.name = "gemma3_text",
                                                          .architecture = "Gemma3ForCausalLM",
                                                          .read = detail::read_gemma3,
                                                          .write = detail::write_gemma3,
                                                          .tensors = detail::gemma3_tensors,
                                                          .constants = detail::gemma3_constants};

/// Returns the description of a preset.
[[nodiscard]] inline ModelDescription description_of(const Gemma3Config& config) {
  const RopeScaling& scaling = config.rope_scaling;
  return {.family = &gemma3_in_hugging_face,
          .layers = config.layers,
          .hidden = config.hidden,
          .ffn = config.ffn,
          .heads = config.heads,
          .kv_heads = config.kv_heads,
          .head_dim = config.head_dim,
          .vocabulary = config.vocabulary,
          .norm_epsilon = config.norm_epsilon,
          .rope_theta = config.rope_theta,
          .rope_scaling = scaling.kind == RopeKind::plain ? RopeScaling{} : scaling,
          .tied_embeddings = Gemma3Config::tied_embeddings,
          .qk_norm = true,
          .window = config.window,
          .global_every = std::min(config.global_every, config.layers + 1),
          .local_rope_theta = config.local_rope_theta,
          .query_scalar = config.query_scalar,
          .post_norms = true,
          .offset_norms = true,
          .gelu_gate = true,
          .scaled_embedding = true};
}

}  // namespace octavo
