#pragma once

#include <octavo/models/gemma3_config.hpp>
#include <octavo/models/gpt2_config.hpp>
#include <octavo/models/llama_config.hpp>

#include <cstddef>
#include <string>
#include <vector>

#include "reference_llama.hpp"

/// Carries weights and gradients between a model of the library and the reference, which uses
/// Hugging Face's names and keeps fused matrices apart.
namespace support {

/// Rows of a parameter that are a tensor of their own for Hugging Face.
struct Slice {
  std::string name;
  octavo::Index begin = 0;
  octavo::Index rows = 0;
};

/// The tensors that the parameter called `name` holds; rows beyond them pad it.
inline std::vector<Slice> slices(const std::string& name, const octavo::LlamaConfig& config) {
  if (name == "embedding.weight") return {{"model.embed_tokens.weight", 0, config.vocabulary}};
  if (name == "head.weight") return {{"lm_head.weight", 0, config.vocabulary}};
  if (name == "final_norm.weight") return {{"model.norm.weight", 0, 1}};
  const std::size_t dot = name.find('.', 7);  // after "blocks."
  const std::string part = name.substr(dot + 1);
  const std::string layer = "model.layers." + name.substr(7, dot - 7) + ".";
  const octavo::Index queries = config.heads * config.head_dim;
  const octavo::Index keys = config.kv_heads * config.head_dim;
  if (part == "attention_norm.weight") return {{layer + "input_layernorm.weight", 0, 1}};
  if (part == "mlp_norm.weight") return {{layer + "post_attention_layernorm.weight", 0, 1}};
  if (part == "query_norm.weight") return {{layer + "self_attn.q_norm.weight", 0, 1}};
  if (part == "key_norm.weight") return {{layer + "self_attn.k_norm.weight", 0, 1}};
  if (part == "output.weight") return {{layer + "self_attn.o_proj.weight", 0, config.hidden}};
  if (part == "down.weight") return {{layer + "mlp.down_proj.weight", 0, config.hidden}};
  if (part == "gate_up.weight") {
    return {{layer + "mlp.gate_proj.weight", 0, config.ffn},
            {layer + "mlp.up_proj.weight", config.ffn, config.ffn}};
  }
  if (part == "qkv.weight") {
    return {{layer + "self_attn.q_proj.weight", 0, queries},
            {layer + "self_attn.k_proj.weight", queries, keys},
            {layer + "self_attn.v_proj.weight", queries + keys, keys}};
  }
  const octavo::Index experts = config.experts.experts;
  if (part == "router.weight") return {{layer + "mlp.gate.weight", 0, experts}};
  if (part == "experts.gate_up.weight") {  // all experts at once
    return {{layer + "mlp.experts.gate_up_proj", 0, 2 * experts * config.ffn}};
  }
  if (part == "experts.down.weight") {
    return {{layer + "mlp.experts.down_proj", 0, experts * config.hidden}};
  }
  if (part == "qkv.bias") return {{layer + "self_attn.qkv_proj.bias", 0, 1}};  // fused here
  throw std::invalid_argument("no Hugging Face name for the parameter " + name);
}

/// The same of a Gemma 3, which has more norms.
inline std::vector<Slice> slices(const std::string& name, const octavo::Gemma3Config& config) {
  const std::size_t dot = name.find('.', 7);  // after "blocks."
  const std::string layer =
      name.starts_with("blocks.") ? "model.layers." + name.substr(7, dot - 7) + "." : "";
  if (name.ends_with(".attention_post_norm.weight")) {
    return {{layer + "post_attention_layernorm.weight", 0, 1}};
  }
  if (name.ends_with(".mlp_norm.weight")) {
    return {{layer + "pre_feedforward_layernorm.weight", 0, 1}};
  }
  if (name.ends_with(".mlp_post_norm.weight")) {
    return {{layer + "post_feedforward_layernorm.weight", 0, 1}};
  }
  const octavo::LlamaConfig llama{.hidden = config.hidden,
                                  .ffn = config.ffn,
                                  .heads = config.heads,
                                  .kv_heads = config.kv_heads,
                                  .head_dim = config.head_dim,
                                  .vocabulary = config.vocabulary};
  return slices(name, llama);
}

/// The same of a GPT-2, whose fused projection is one tensor there, too. Weights are [out, in].
inline std::vector<Slice> slices(const std::string& name, const octavo::Gpt2Config& config) {
  if (name == "embedding.weight") return {{"transformer.wte.weight", 0, config.vocabulary}};
  if (name == "positions.weight") return {{"transformer.wpe.weight", 0, config.positions}};
  const std::size_t dot = name.rfind('.');
  const std::string kind = name.substr(dot);  // ".weight" or ".bias"
  if (name.starts_with("final_norm")) return {{"transformer.ln_f" + kind, 0, 1}};
  const std::size_t part_begin = name.find('.', 7) + 1;  // after "blocks."
  const std::string part = name.substr(part_begin, dot - part_begin);
  const std::string layer = "transformer.h." + name.substr(7, part_begin - 7);
  const auto named = [&](const char* hugging_face, octavo::Index rows) -> std::vector<Slice> {
    return {{layer + hugging_face + kind, 0, kind == ".bias" ? 1 : rows}};
  };
  if (part == "attention_norm") return named("ln_1", 1);
  if (part == "mlp_norm") return named("ln_2", 1);
  if (part == "qkv") return named("attn.c_attn", 3 * config.hidden);
  if (part == "output") return named("attn.c_proj", config.hidden);
  if (part == "up") return named("mlp.c_fc", config.ffn());
  if (part == "down") return named("mlp.c_proj", config.hidden);
  throw std::invalid_argument("no Hugging Face name for the parameter " + name);
}

/// The reference's shape for a shape of the library.
inline reference::ReferenceConfig reference_config(const octavo::LlamaConfig& config) {
  reference::ReferenceConfig result;
  result.layers = config.layers;
  result.hidden = config.hidden;
  result.ffn = config.ffn;
  result.heads = config.heads;
  result.kv_heads = config.kv_heads;
  result.head_dim = config.head_dim;
  result.vocabulary = config.vocabulary;
  result.norm_epsilon = static_cast<double>(config.norm_epsilon);
  result.rope_theta = static_cast<double>(config.rope_theta);
  result.llama3_rope = config.rope_scaling.kind == octavo::RopeKind::llama3;
  result.rope_factor = static_cast<double>(config.rope_scaling.factor);
  result.rope_low = static_cast<double>(config.rope_scaling.low_frequency_factor);
  result.rope_high = static_cast<double>(config.rope_scaling.high_frequency_factor);
  result.rope_original_length = config.rope_scaling.original_length;
  result.tied_embeddings = config.tied_embeddings;
  result.qk_norm = config.qk_norm;
  return result;
}

/// Sets every weight of a model in FP32; padding rows become `padding`.
template <class Model>
void load_weights(Model& model, const reference::Weights& weights, float padding = 0.0f) {
  model.visit([&](auto& parameter) {
    const octavo::Index columns = parameter.weight.extent(1);
    for (octavo::Index i = 0; i < parameter.weight.size(); ++i) {
      parameter.weight.data()[i] = padding;
    }
    for (const Slice& slice : slices(parameter.name, Model::config)) {
      const std::vector<double>& values = weights.at(slice.name);
      float* to = parameter.weight.data() + slice.begin * columns;
      if (values.size() != static_cast<std::size_t>(slice.rows * columns)) {
        throw std::invalid_argument("the reference has another shape for " + slice.name);
      }
      for (std::size_t i = 0; i < values.size(); ++i) to[i] = static_cast<float>(values[i]);
    }
  });
}

/// Tensors of all parameters by Hugging Face name, without padding rows.
/// @param tensor_of  gives the view of a parameter's tensor
template <class Model, class TensorOf>
reference::Weights named_tensors(Model& model, const TensorOf& tensor_of) {
  reference::Weights result;
  model.visit([&](auto& parameter) {
    const auto tensor = tensor_of(parameter);
    for (const Slice& slice : slices(parameter.name, Model::config)) {
      const auto* from = tensor.row(slice.begin);
      std::vector<double>& values = result[slice.name];
      for (octavo::Index i = 0; i < slice.rows * tensor.extent(1); ++i) {
        values.push_back(static_cast<double>(static_cast<float>(from[i])));
      }
    }
  });
  return result;
}

/// The gradients of the last step by Hugging Face name, without padding rows.
template <class Model>
reference::Weights gradients(Model& model) {
  return named_tensors(model, [](auto& parameter) { return parameter.gradient; });
}

/// The weights by Hugging Face name, without padding rows.
template <class Model>
reference::Weights weight_values(Model& model) {
  return named_tensors(model, [](auto& parameter) { return parameter.weight; });
}

}  // namespace support
