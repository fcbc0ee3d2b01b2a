/// @file
/// Llama, Mistral, Mixtral, Qwen2, Qwen3 and Qwen3-MoE in Hugging Face folders.
#pragma once

#include <octavo/models/hugging_face_rope.hpp>
#include <octavo/models/hugging_face_tensors.hpp>
#include <octavo/models/llama_config.hpp>

#include <string>
#include <vector>

namespace octavo OCTAVO_ABI {

namespace detail {

/// Adds the tensors of a layer's MLP or experts. In a file, the matrices of each expert are
/// separate tensors.
inline void add_mlp(HuggingFaceTensors& all, const ModelDescription& model,
                    const std::string& theirs, const std::string& ours) {
  const Index hidden = model.hidden;
  if (model.experts == 0) {
    all.add(theirs + "mlp.gate_proj.weight", ours + "gate_up.weight", model.ffn, hidden);
    all.add(theirs + "mlp.up_proj.weight", ours + "gate_up.weight", model.ffn, hidden, model.ffn);
    all.add(theirs + "mlp.down_proj.weight", ours + "down.weight", hidden, model.ffn);
    return;
  }
  const bool is_mixtral = model.family->name == "mixtral";
  const std::string mlp = theirs + (is_mixtral ? "block_sparse_moe." : "mlp.");
  all.add(mlp + "gate.weight", ours + "router.weight", model.experts, hidden);
  for (Index i = 0; i < model.experts; ++i) {
    const std::string expert = message(mlp, "experts.", i, ".");
    const Index first = 2 * i * model.ffn;
    all.add(expert + (is_mixtral ? "w1" : "gate_proj") + ".weight", ours + "experts.gate_up.weight",
            model.ffn, hidden, first);
    all.add(expert + (is_mixtral ? "w3" : "up_proj") + ".weight", ours + "experts.gate_up.weight",
            model.ffn, hidden, first + model.ffn);
    all.add(expert + (is_mixtral ? "w2" : "down_proj") + ".weight", ours + "experts.down.weight",
            hidden, model.ffn, i * hidden);
  }
}

/// Returns the tensors of a Llama, with those of its biases and norms of queries and keys. Source:
/// transformers, modeling_llama.py, modeling_qwen2.py and modeling_qwen3.py.
inline std::vector<HuggingFaceTensor> llama_tensors(const ModelDescription& model) {
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
    if (model.qkv_bias) {
      all.add_vector(attention + "q_proj.bias", ours + "qkv.bias", queries);
      all.add_vector(attention + "k_proj.bias", ours + "qkv.bias", keys, queries);
      all.add_vector(attention + "v_proj.bias", ours + "qkv.bias", keys, queries + keys);
    }
    if (model.qk_norm) {
      all.add_vector(attention + "q_norm.weight", ours + "query_norm.weight", model.head_dim);
      all.add_vector(attention + "k_norm.weight", ours + "key_norm.weight", model.head_dim);
    }
    all.add(attention + "o_proj.weight", ours + "output.weight", hidden, queries);
    all.add_vector(theirs + "post_attention_layernorm.weight", ours + "mlp_norm.weight", hidden);
    add_mlp(all, model, theirs, ours);
  }
  all.add_vector("model.norm.weight", "final_norm.weight", hidden);
  if (!model.tied_embeddings) {
    all.add("lm_head.weight", "head.weight", model.vocabulary, hidden);
  }
  return all.take();
}

inline std::vector<std::string_view> llama_constants() { return {".rotary_emb.inv_freq"}; }

/// The values of keys that a file lacks. Source: transformers, configuration_llama.py and those of
/// the other families.
struct LlamaDefaults {
  Index kv_heads = 0;  ///< 0: one for each head
  Index head_dim = 0;  ///< 0: hidden / heads
  float norm_epsilon = 1e-6f;
  float rope_theta = 10000.0f;
};

/// Reads the keys that all of these families have.
inline void read_llama_shape(const JsonFields& fields, ModelDescription& model,
                             const LlamaDefaults& defaults) {
  model.layers = fields.natural("num_hidden_layers");
  model.hidden = fields.natural("hidden_size");
  model.ffn = fields.natural("intermediate_size");
  model.heads = fields.natural("num_attention_heads");
  model.kv_heads = kv_heads_of(fields, model.heads, defaults.kv_heads);
  const Index share = model.heads > 0 ? model.hidden / model.heads : 0;
  model.head_dim = fields.natural("head_dim", defaults.head_dim == 0 ? share : defaults.head_dim);
  model.norm_epsilon = fields.positive("rms_norm_eps", defaults.norm_epsilon);
  model.tied_embeddings = fields.flag("tie_word_embeddings", false);
  model.positions = fields.natural("max_position_embeddings", 0);
  fields.require_word("hidden_act", {"silu", "swish"});
  read_rope(fields, model, defaults.rope_theta);
}

inline void write_llama_shape(const ModelDescription& model, JsonLine& text) {
  text.add("num_hidden_layers", model.layers)
      .add("hidden_size", model.hidden)
      .add("intermediate_size", model.ffn)
      .add("num_attention_heads", model.heads)
      .add("num_key_value_heads", model.kv_heads)
      .add("head_dim", model.head_dim)
      .add("rms_norm_eps", model.norm_epsilon)
      .add("rope_theta", model.rope_theta)
      .add("hidden_act", "silu");
  write_positions(model, text);
  write_rope_scaling(model.rope_scaling, text);
}

inline void read_llama(const JsonFields& fields, ModelDescription& model) {
  read_llama_shape(fields, model, {});
  fields.require_flag("attention_bias", false);
  fields.require_flag("mlp_bias", false);
}
inline void write_llama(const ModelDescription& model, JsonLine& text) {
  write_llama_shape(model, text);
  text.add("attention_bias", false).add("mlp_bias", false);
}

/// A missing key means a window of 4096 tokens; null means no window.
inline void read_mistral(const JsonFields& fields, ModelDescription& model) {
  read_llama_shape(fields, model, {.kv_heads = 8});
  if (!fields.is_null("sliding_window")) model.window = length_of(fields, "sliding_window", 4096);
}
inline void write_mistral(const ModelDescription& model, JsonLine& text) {
  write_llama_shape(model, text);
  if (model.window == 0) {
    text.add("sliding_window", nullptr);
  } else {
    text.add("sliding_window", model.window);
  }
}

/// Reads the first layer of a Qwen that has a window; all later layers must also have one.
inline void read_qwen_windows(const JsonFields& fields, ModelDescription& model) {
  const std::vector<std::string> kinds = fields.words("layer_types");
  Index first = fields.natural("max_window_layers", 28);
  if (!kinds.empty()) {
    require<ConfigError>(static_cast<Index>(kinds.size()) == model.layers, fields.place(),
                         ": layer_types has ", kinds.size(), " entries, but the model has ",
                         model.layers, " layers");
    first = 0;
    while (first < model.layers && kinds[static_cast<std::size_t>(first)] == "full_attention") {
      ++first;
    }
    for (Index i = first; i < model.layers; ++i) {
      const std::string& kind = kinds[static_cast<std::size_t>(i)];
      require<ConfigError>(kind == "sliding_attention", fields.place(), ": layer_types has ", kind,
                           " in layer ", i, ", but Octavo's models support sliding_attention only ",
                           "from a layer on, after full_attention");
    }
  } else if (!fields.flag("use_sliding_window", false)) {
    first = model.layers;
  }
  if (first >= model.layers || fields.is_null("sliding_window")) return;
  model.window = length_of(fields, "sliding_window", 4096);
  model.first_windowed_layer = first;
}
inline void write_qwen_windows(const ModelDescription& model, JsonLine& text) {
  text.add("use_sliding_window", model.window != 0);
  if (model.window == 0) return;
  text.add("sliding_window", model.window).add("max_window_layers", model.first_windowed_layer);
}

inline void read_qwen2(const JsonFields& fields, ModelDescription& model) {
  read_llama_shape(fields, model, {.kv_heads = 32});
  model.qkv_bias = true;
  read_qwen_windows(fields, model);
}
inline void write_qwen2(const ModelDescription& model, JsonLine& text) {
  write_llama_shape(model, text);
  write_qwen_windows(model, text);
}

inline void read_qwen3_shape(const JsonFields& fields, ModelDescription& model,
                             const LlamaDefaults& defaults) {
  read_llama_shape(fields, model, defaults);
  model.qk_norm = true;
  fields.require_flag("attention_bias", false);
  read_qwen_windows(fields, model);
}
inline void read_qwen3(const JsonFields& fields, ModelDescription& model) {
  read_qwen3_shape(fields, model, {.kv_heads = 32, .head_dim = 128});
}
inline void write_qwen3(const ModelDescription& model, JsonLine& text) {
  write_llama_shape(model, text);
  text.add("attention_bias", false);
  write_qwen_windows(model, text);
}

inline void read_mixtral(const JsonFields& fields, ModelDescription& model) {
  read_llama_shape(fields, model, {.kv_heads = 8, .norm_epsilon = 1e-5f, .rope_theta = 1e6f});
  if (fields.has("sliding_window")) model.window = length_of(fields, "sliding_window");
  model.experts = fields.natural("num_local_experts", 8);
  model.choices = fields.natural("num_experts_per_tok", 2);
  model.balance_coefficient =
      static_cast<float>(fields.number("router_aux_loss_coef", 0, 1e6).value_or(0.001));
}
inline void write_mixtral(const ModelDescription& model, JsonLine& text) {
  write_mistral(model, text);
  text.add("num_local_experts", model.experts)
      .add("num_experts_per_tok", model.choices)
      .add("router_aux_loss_coef", model.balance_coefficient);
}

/// Only models whose layers all have experts are supported.
inline void read_qwen3_moe(const JsonFields& fields, ModelDescription& model) {
  read_qwen3_shape(fields, model, {.kv_heads = 4});
  if (fields.flag("use_sliding_window", false) && !fields.is_null("sliding_window")) {
    model.window = length_of(fields, "sliding_window", 4096);
    model.first_windowed_layer = 0;  // transformers has the window in every layer
  }
  model.ffn = fields.natural("moe_intermediate_size", 768);
  model.experts = fields.has("num_local_experts") ? fields.natural("num_local_experts")
                                                  : fields.natural("num_experts", 128);
  model.choices = fields.natural("num_experts_per_tok", 8);
  model.renormalised = fields.flag("norm_topk_prob", false);
  model.balance_coefficient =
      static_cast<float>(fields.number("router_aux_loss_coef", 0, 1e6).value_or(0.001));
  require<ConfigError>(
      fields.natural("decoder_sparse_step", 1) == 1 && fields.naturals("mlp_only_layers").empty(),
      fields.place(), ": some layers have no experts, which Octavo's models do not support");
}
inline void write_qwen3_moe(const ModelDescription& model, JsonLine& text) {
  write_qwen3(model, text);
  text.add("moe_intermediate_size", model.ffn)
      .add("num_experts", model.experts)
      .add("num_experts_per_tok", model.choices)
      .add("norm_topk_prob", model.renormalised)
      .add("decoder_sparse_step", Index{1})
      .add("router_aux_loss_coef", model.balance_coefficient);
}

}  // namespace detail

inline constexpr HuggingFaceFamily llama_in_hugging_face{.name = "llama",
                                                         .architecture = "LlamaForCausalLM",
                                                         .read = detail::read_llama,
                                                         .write = detail::write_llama,
                                                         .tensors = detail::llama_tensors,
                                                         .constants = detail::llama_constants};
inline constexpr HuggingFaceFamily mistral_in_hugging_face{.name = "mistral",
                                                           .architecture = "MistralForCausalLM",
                                                           .read = detail::read_mistral,
                                                           .write = detail::write_mistral,
                                                           .tensors = detail::llama_tensors,
                                                           .constants = detail::llama_constants};
inline constexpr HuggingFaceFamily qwen2_in_hugging_face{.name = "qwen2",
                                                         .architecture = "Qwen2ForCausalLM",
                                                         .read = detail::read_qwen2,
                                                         .write = detail::write_qwen2,
                                                         .tensors = detail::llama_tensors,
                                                         .constants = detail::llama_constants};
inline constexpr HuggingFaceFamily qwen3_in_hugging_face{.name = "qwen3",
                                                         .architecture = "Qwen3ForCausalLM",
                                                         .read = detail::read_qwen3,
                                                         .write = detail::write_qwen3,
                                                         .tensors = detail::llama_tensors,
                                                         .constants = detail::llama_constants};
inline constexpr HuggingFaceFamily mixtral_in_hugging_face{.name = "mixtral",
                                                           .architecture = "MixtralForCausalLM",
                                                           .read = detail::read_mixtral,
                                                           .write = detail::write_mixtral,
                                                           .tensors = detail::llama_tensors,
                                                           .constants = detail::llama_constants};
inline constexpr HuggingFaceFamily qwen3_moe_in_hugging_face{.name = "qwen3_moe",
                                                             .architecture = "Qwen3MoeForCausalLM",
                                                             .read = detail::read_qwen3_moe,
                                                             .write = detail::write_qwen3_moe,
                                                             .tensors = detail::llama_tensors,
                                                             .constants = detail::llama_constants};

/// Returns the description of a preset. Its family is the first that has all of its parts.
[[nodiscard]] inline ModelDescription description_of(const LlamaConfig& config) {
  const HuggingFaceFamily* family = &llama_in_hugging_face;
  if (config.window > 0) family = &mistral_in_hugging_face;
  if (config.qkv_bias) family = &qwen2_in_hugging_face;
  if (config.qk_norm) family = &qwen3_in_hugging_face;
  if (config.experts.experts > 0) {
    family = config.qk_norm ? &qwen3_moe_in_hugging_face : &mixtral_in_hugging_face;
  }
  const RopeScaling& scaling = config.rope_scaling;
  return {.family = family,
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
          .tied_embeddings = config.tied_embeddings,
          .qkv_bias = config.qkv_bias,
          .qk_norm = config.qk_norm,
          .window = config.window,
          .first_windowed_layer = config.first_windowed_layer,
          .experts = config.experts.experts,
          .choices = config.experts.choices,
          .renormalised = config.experts.experts == 0 || config.experts.renormalised,
          .balance_coefficient = config.experts.balance_coefficient};
}

}  // namespace octavo
