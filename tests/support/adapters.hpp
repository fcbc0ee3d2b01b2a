#pragma once

#include <octavo/layers/lora_options.hpp>
#include <octavo/models/llama_config.hpp>

#include <cstddef>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "llama_weights.hpp"

/// What adapters are, in double precision, by Hugging Face's names of the layers that have them.
namespace support {

/// One layer's adapter, and where its matrices are in the library's parameters.
struct AdapterPlace {
  std::string module;             ///< such as "model.layers.0.self_attn.q_proj"
  std::string layer;              ///< such as "blocks.0.qkv"
  octavo::Index number = 0;       ///< of the layer's adapters that there are before it
  octavo::Index rows_before = 0;  ///< of their matrices B
  octavo::Index in = 0;
  octavo::Index out = 0;
};

/// The adapters of a model, in the order of the layers.
inline std::vector<AdapterPlace> adapter_places(const octavo::LlamaConfig& config,
                                                const octavo::LoraOptions& options) {
  std::vector<AdapterPlace> places;
  const octavo::Index queries = config.heads * config.head_dim;
  const octavo::Index keys = config.kv_heads * config.head_dim;
  for (int i = 0; i < config.layers; ++i) {
    const std::string theirs = "model.layers." + std::to_string(i) + ".";
    const std::string ours = "blocks." + std::to_string(i) + ".";
    std::string last;
    octavo::Index number = 0;
    octavo::Index rows = 0;
    const auto add = [&](octavo::LoraTarget target, const char* name, const char* layer,
                         octavo::Index in, octavo::Index out) {
      if (!options.has(target)) return;
      if (layer != last) number = rows = 0;
      last = layer;
      places.push_back({theirs + name, ours + layer, number++, rows, in, out});
      rows += out;
    };
    using octavo::LoraTarget;
    add(LoraTarget::q_proj, "self_attn.q_proj", "qkv", config.hidden, queries);
    add(LoraTarget::k_proj, "self_attn.k_proj", "qkv", config.hidden, keys);
    add(LoraTarget::v_proj, "self_attn.v_proj", "qkv", config.hidden, keys);
    add(LoraTarget::o_proj, "self_attn.o_proj", "output", queries, config.hidden);
    add(LoraTarget::gate_proj, "mlp.gate_proj", "gate_up", config.hidden, config.ffn);
    add(LoraTarget::up_proj, "mlp.up_proj", "gate_up", config.hidden, config.ffn);
    add(LoraTarget::down_proj, "mlp.down_proj", "down", config.ffn, config.hidden);
  }
  return places;
}

/// Matrices A, [rank, in], and B, [out, rank], as "MODULE.lora_A" and "MODULE.lora_B".
/// @param parameters  the library's, by their names, without rows that pad them
inline reference::Weights adapters_by_module(
    const std::map<std::string, std::vector<double>>& parameters, const octavo::LlamaConfig& config,
    const octavo::LoraOptions& options) {
  reference::Weights result;
  for (const AdapterPlace& place : adapter_places(config, options)) {
    const auto part = [&](const char* matrix, octavo::Index begin, octavo::Index count) {
      const auto from = parameters.at(place.layer + matrix).begin() + begin;
      result[place.module + matrix] = {from, from + count};
    };
    part(".lora_A", place.number * options.rank * place.in, options.rank * place.in);
    part(".lora_B", place.rows_before * options.rank, place.out * options.rank);
  }
  return result;
}

/// W + alpha / rank · B · A of every layer that has an adapter, and the other weights.
inline reference::Weights merged(reference::Weights weights, const reference::Weights& adapters,
                                 const octavo::LlamaConfig& config,
                                 const octavo::LoraOptions& options) {
  const double scale = static_cast<double>(options.alpha) / static_cast<double>(options.rank);
  for (const AdapterPlace& place : adapter_places(config, options)) {
    std::vector<double>& weight = weights.at(place.module + ".weight");
    const std::vector<double>& a = adapters.at(place.module + ".lora_A");
    const std::vector<double>& b = adapters.at(place.module + ".lora_B");
    for (octavo::Index row = 0; row < place.out; ++row) {
      for (octavo::Index column = 0; column < place.in; ++column) {
        double sum = 0;
        for (octavo::Index k = 0; k < options.rank; ++k) {
          sum += b.at(static_cast<std::size_t>(row * options.rank + k)) *
                 a.at(static_cast<std::size_t>(k * place.in + column));
        }
        weight.at(static_cast<std::size_t>(row * place.in + column)) += scale * sum;
      }
    }
  }
  return weights;
}

/// Gives matrices B, which start at zero, values that matter.
template <class Session>
void set_nontrivial_adapters(Session& session, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, 0.1f);
  for (const octavo::WeightInfo& weight : session.weights().list()) {
    if (!weight.is_adapter || !weight.name.ends_with("lora_B")) continue;
    std::vector<float> values(static_cast<std::size_t>(weight.rows * weight.columns));
    for (float& value : values) value = normal(random);
    session.weights().set(weight.name, values);
  }
}

/// All weights of a session, or of its model's gradients what `tensor_of` gives, by the library's
/// names, without rows that pad them.
template <class Session, class TensorOf>
std::map<std::string, std::vector<double>> values_by_parameter(Session& session,
                                                               const TensorOf& tensor_of) {
  std::map<std::string, std::vector<double>> result;
  session.model().visit([&](auto& parameter) {
    const auto tensor = tensor_of(parameter);
    std::vector<double>& values = result[parameter.name];
    const octavo::Index live = tensor.empty() ? 0 : parameter.full_size();
    for (octavo::Index i = 0; i < live; ++i) {
      values.push_back(static_cast<double>(static_cast<float>(tensor.data()[i])));
    }
  });
  return result;
}

/// The weights of the model itself, by Hugging Face's names.
template <class Session>
reference::Weights base_weights(Session& session, const octavo::LlamaConfig& config) {
  reference::Weights result;
  const auto all = values_by_parameter(session, [](auto& of) { return of.weight; });
  session.model().visit([&](auto& parameter) {
    if (parameter.is_adapter) return;
    const octavo::Index columns = parameter.weight.extent(1);
    for (const Slice& slice : slices(parameter.name, config)) {
      const auto from = all.at(parameter.name).begin() + slice.begin * columns;
      result[slice.name] = {from, from + slice.rows * columns};
    }
  });
  return result;
}

}  // namespace support
