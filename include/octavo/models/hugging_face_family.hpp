/// @file
/// How a family's models are stored in Hugging Face folders.
#pragma once

#include <octavo/core/json_fields.hpp>
#include <octavo/core/json_line.hpp>
#include <octavo/models/model_description.hpp>

#include <string>
#include <string_view>
#include <vector>

namespace octavo OCTAVO_ABI {

/// A tensor of a Hugging Face model and its location in a parameter: `rows` whole rows. A parameter
/// that fuses matrices contains the rows of several tensors.
struct HuggingFaceTensor {
  std::string name{};       ///< such as "model.layers.0.self_attn.k_proj.weight"
  std::string parameter{};  ///< such as "blocks.0.qkv.weight"
  Index first = 0;          ///< its first element in the parameter
  Index rows = 0;
  Index columns = 0;
  bool is_vector = false;      ///< its shape is [columns] instead of [rows, columns]
  bool is_transposed = false;  ///< its shape is [columns, rows]

  [[nodiscard]] std::vector<Index> shape() const {
    if (is_vector) return {columns};
    return is_transposed ? std::vector{columns, rows} : std::vector{rows, columns};
  }
};

/// Reads and writes a family's settings, and names its tensors. A family has one constant of this
/// type, which `hugging_face_families` lists.
struct HuggingFaceFamily {
  std::string_view name{};          ///< its `model_type`, such as "llama"
  std::string_view architecture{};  ///< such as "LlamaForCausalLM"
  /// Reads the family's keys of a config.json; the caller reads those of all families.
  /// @throws ConfigError  naming a key that is missing or has a value that the models do not
  ///                      support
  void (*read)(const JsonFields& fields, ModelDescription& model) = nullptr;
  /// Writes the same keys.
  void (*write)(const ModelDescription& model, JsonLine& text) = nullptr;
  /// Returns all tensors of a model; those in one parameter are in the order of its rows. A tied
  /// head has no tensor.
  std::vector<HuggingFaceTensor> (*tensors)(const ModelDescription& model) = nullptr;
  /// Endings of the names of constant tensors, which older versions of transformers stored.
  std::vector<std::string_view> (*constants)() = nullptr;
  /// A prefix that the tensors of some folders lack, such as "transformer."; may be empty.
  std::string_view optional_prefix{};
  bool supports_adapters = true;  ///< layers can have adapters: see Lora
};

namespace detail {

/// Reads the number of KV heads; null means one for each head.
/// @param otherwise  the default of transformers, if the key is missing; 0: one for each head
inline Index kv_heads_of(const JsonFields& fields, Index heads, Index otherwise = 0) {
  const std::string key = "num_key_value_heads";
  if (otherwise == 0 || fields.has(key) || fields.is_null(key)) return fields.natural(key, heads);
  require<ConfigError>(heads % otherwise == 0, fields.place(), ": ", key,
                       " is missing, and its default in transformers, ", otherwise,
                       ", does not divide num_attention_heads, which is ", heads, "; add it");
  return otherwise;
}

}  // namespace detail

}  // namespace octavo
