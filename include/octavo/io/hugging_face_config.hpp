/// @file
/// The config.json of a Hugging Face model.
#pragma once

#include <octavo/core/json_reader.hpp>
#include <octavo/data/open_file.hpp>
#include <octavo/io/json_line.hpp>
#include <octavo/models/model_description.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace octavo OCTAVO_ABI {

namespace detail {

/// Maximum size of a configuration; reading it takes some hundred bytes of memory per value.
inline constexpr std::uint64_t most_config_bytes = 1'000'000;

/// The keys and values of a JSON object; those of nested objects are called "outer.inner".
class JsonFields {
 public:
  JsonFields(std::string_view text, std::string place) : place_(std::move(place)) {
    JsonReader json(text, place_);
    read_object(json, "");
    json.end();
  }

  /// Returns whether the key exists and is not null.
  [[nodiscard]] bool has(const std::string& key) const { return find(key) != nullptr; }

  /// Returns a whole number. `otherwise` is the value of a missing key; without it, the key must
  /// exist.
  [[nodiscard]] Index natural(const std::string& key, std::optional<Index> otherwise = {}) const {
    const Field* field = found(key, otherwise.has_value());
    return field == nullptr ? *otherwise : natural_of(key, *field);
  }
  [[nodiscard]] float positive(const std::string& key, std::optional<float> otherwise = {}) const {
    const Field* field = found(key, otherwise.has_value());
    if (field == nullptr) return *otherwise;
    const auto value = static_cast<float>(field->number);
    require_value(key, *field,
                  field->kind == JsonReader::Kind::number && value > 0 && std::isfinite(value),
                  "a positive number in the range of FP32");
    return value;
  }
  /// Returns a number from `least` to `most`; none if the key is missing.
  [[nodiscard]] std::optional<double> number(const std::string& key, double least,
                                             double most) const {
    const Field* field = find(key);
    if (field == nullptr) return std::nullopt;
    const double value = field->number;
    require_value(key, *field,
                  field->kind == JsonReader::Kind::number && value >= least && value <= most,
                  message("a number from ", least, " to ", most));
    return value;
  }
  [[nodiscard]] std::string word(const std::string& key,
                                 std::optional<std::string> otherwise = {}) const {
    const Field* field = found(key, otherwise.has_value());
    if (field == nullptr) return *otherwise;
    require_value(key, *field, field->kind == JsonReader::Kind::string, "a string");
    return field->text;
  }
  [[nodiscard]] bool flag(const std::string& key, bool otherwise) const {
    const Field* field = find(key);
    if (field == nullptr) return otherwise;
    require_value(key, *field, field->kind == JsonReader::Kind::boolean, "true or false");
    return field->number != 0;
  }
  /// Returns whole numbers: those of an array, a single one, or none.
  [[nodiscard]] std::vector<Index> naturals(const std::string& key) const {
    std::vector<Index> all;
    const Field* field = find(key);
    if (field == nullptr) return all;
    if (field->kind != JsonReader::Kind::array) return {natural_of(key, *field)};
    for (const Field& element : field->elements) all.push_back(natural_of(key, element));
    return all;
  }

  /// @throws ConfigError  if the key has a value other than the only supported one
  void require_flag(const std::string& key, bool wanted) const {
    require<ConfigError>(flag(key, wanted) == wanted, place_, ": ", key, " is ",
                         wanted ? "false" : "true", ", which Octavo's models do not support");
  }
  void require_word(const std::string& key, const std::vector<std::string>& served) const {
    const std::string value = word(key, served.front());
    for (const std::string& each : served) {
      if (value == each) return;
    }
    throw ConfigError(message(place_, ": ", key, " is ", value, ", which Octavo's ",
                              "models do not support; they support ", served.front()));
  }
  /// Requires every element of an array of strings to be this one.
  void require_all(const std::string& key, std::string_view wanted) const {
    const Field* field = find(key);
    if (field == nullptr) return;
    require_value(key, *field, field->kind == JsonReader::Kind::array, "an array");
    for (const Field& element : field->elements) {
      require<ConfigError>(element.text == wanted, place_, ": ", key, " has ", element.text,
                           ", which Octavo's models do not support; they support ", wanted);
    }
  }

  [[nodiscard]] const std::string& place() const { return place_; }

 private:
  static constexpr std::size_t longest_key = 256;

  struct Field {
    JsonReader::Kind kind = JsonReader::Kind::null;
    std::string text{};
    double number = 0;  ///< or 1 for true
    std::vector<Field> elements{};

    [[nodiscard]] std::string shown() const {
      switch (kind) {
        case JsonReader::Kind::object:
          return "an object";
        case JsonReader::Kind::array:
          return "an array";
        case JsonReader::Kind::string:
          return "the string " + JsonReader::excerpt(text);
        case JsonReader::Kind::number:
          return shortest_text(number);
        case JsonReader::Kind::boolean:
          return number != 0 ? "true" : "false";
        case JsonReader::Kind::null:
          break;
      }
      return "null";
    }
  };

  [[nodiscard]] const Field* find(const std::string& key) const {
    const auto found = fields_.find(key);
    if (found == fields_.end() || found->second.kind == JsonReader::Kind::null) return nullptr;
    return &found->second;
  }
  [[nodiscard]] const Field* found(const std::string& key, bool may_be_missing) const {
    const Field* field = find(key);
    require<ConfigError>(field != nullptr || may_be_missing, place_, ": ", key,
                         " is missing; add it, or use the folder of another model");
    return field;
  }
  void require_value(const std::string& key, const Field& field, bool is_right,
                     std::string_view wanted) const {
    require<ConfigError>(is_right, place_, ": ", key, " must be ", wanted, ", but is ",
                         field.shown(), "; correct it, or use the folder of another model");
  }
  [[nodiscard]] Index natural_of(const std::string& key, const Field& field) const {
    require_value(key, field,
                  field.kind == JsonReader::Kind::number && field.number >= 0 &&
                      field.number < 0x1p53 && field.number == std::floor(field.number),
                  "a whole number of at least 0");
    return static_cast<Index>(field.number);
  }

  void read_object(JsonReader& json, const std::string& prefix) {
    json.object([&](const std::string& key) {
      // Keys of inner objects repeat those of outer ones.
      if (prefix.size() + key.size() > longest_key)
        json.fail(message("a key has more than ", longest_key, " bytes, including its outer keys"));
      Field field = read(json, prefix + key);
      fields_[prefix + key] = std::move(field);
    });
  }
  Field read(JsonReader& json, const std::string& key) {
    Field field{.kind = json.peek()};
    switch (field.kind) {
      case JsonReader::Kind::object:
        read_object(json, key + ".");
        break;
      case JsonReader::Kind::array:
        json.array([&] { field.elements.push_back(read(json, key)); });
        break;
      case JsonReader::Kind::string:
        field.text = json.string();
        break;
      case JsonReader::Kind::number:
        field.number = json.number();
        break;
      case JsonReader::Kind::boolean:
        field.number = json.boolean() ? 1 : 0;
        break;
      case JsonReader::Kind::null:
        json.skip();
        break;
    }
    return field;
  }

  std::string place_;
  std::map<std::string, Field> fields_;
};

/// Returns the scaling of rotary positions at `key`, which older files call rope_scaling and newer
/// ones rope_parameters.
inline RopeScaling rope_scaling_of(const JsonFields& fields, const std::string& key) {
  RopeScaling scaling;
  if (!fields.has(key)) return scaling;
  const std::string prefix = key + ".";
  const std::string older = fields.word(prefix + "type", "default");
  const std::string kind = fields.word(prefix + "rope_type", older);
  require<ConfigError>(fields.positive(prefix + "partial_rotary_factor", 1.0f) == 1.0f,
                       fields.place(), ": ", prefix,
                       "partial_rotary_factor is not 1: Octavo's models rotate whole heads");
  if (kind == "default") {
    require<ConfigError>(!fields.has(prefix + "factor"), fields.place(), ": ", key,
                         " has a factor, but no rope_type; add one");
    return scaling;
  }
  require<ConfigError>(kind == "llama3", fields.place(), ": ", prefix, "rope_type is ", kind,
                       ", which Octavo's models do not support; they support default and llama3");
  scaling.kind = RopeKind::llama3;
  scaling.factor = fields.positive(prefix + "factor");
  scaling.low_frequency_factor = fields.positive(prefix + "low_freq_factor");
  scaling.high_frequency_factor = fields.positive(prefix + "high_freq_factor");
  const Index length = fields.natural(prefix + "original_max_position_embeddings");
  require<ConfigError>(length <= std::numeric_limits<int>::max(), fields.place(), ": ", prefix,
                       "original_max_position_embeddings is ", length,
                       ", which is not a valid length; set at most ",
                       std::numeric_limits<int>::max());
  scaling.original_length = static_cast<int>(length);
  require<ConfigError>(scaling.low_frequency_factor < scaling.high_frequency_factor, fields.place(),
                       ": ", prefix, "low_freq_factor must be below ", "high_freq_factor");
  return scaling;
}

inline void read_rope(const JsonFields& fields, ModelDescription& model) {
  constexpr const char* older = "rope_scaling";
  constexpr const char* newer = "rope_parameters";
  const bool has_newer = fields.has(newer);
  model.rope_scaling = rope_scaling_of(fields, has_newer ? newer : older);
  if (has_newer && fields.has(older)) {
    ModelDescription other = model;
    other.rope_scaling = rope_scaling_of(fields, older);
    const std::vector<std::string> differing = differences(other, model);
    require<ConfigError>(
        differing.empty(), fields.place(),
        ": rope_scaling and rope_parameters differ: ", differing.empty() ? "" : differing.front());
  }
  const std::string theta = "rope_parameters.rope_theta";
  if (has_newer && (fields.has(theta) || !fields.has("rope_theta"))) {
    model.rope_theta = fields.positive(theta);
  } else {
    model.rope_theta = fields.positive("rope_theta", 10000.0f);
  }
}

inline void read_llama(const JsonFields& fields, ModelDescription& model) {
  model.layers = fields.natural("num_hidden_layers");
  model.hidden = fields.natural("hidden_size");
  model.ffn = fields.natural("intermediate_size");
  model.heads = fields.natural("num_attention_heads");
  model.kv_heads = fields.natural("num_key_value_heads", model.heads);
  const bool is_qwen3 = model.family == ModelFamily::qwen3;
  const Index share = model.heads > 0 ? model.hidden / model.heads : 0;
  model.head_dim = fields.natural("head_dim", is_qwen3 ? 128 : share);
  model.norm_epsilon = fields.positive("rms_norm_eps", 1e-6f);
  model.tied_embeddings = fields.flag("tie_word_embeddings", false);
  model.positions = fields.natural("max_position_embeddings", 0);
  fields.require_word("hidden_act", {"silu", "swish"});
  fields.require_flag("attention_bias", false);
  fields.require_flag("mlp_bias", false);
  fields.require_flag("use_sliding_window", false);
  fields.require_all("layer_types", "full_attention");
  require<ConfigError>(fields.positive("partial_rotary_factor", 1.0f) == 1.0f, fields.place(),
                       ": partial_rotary_factor is not 1: Octavo's models rotate whole heads");
  read_rope(fields, model);
}

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
  fields.require_word("activation_function", {"gelu_new", "gelu_pytorch_tanh"});
  fields.require_flag("scale_attn_weights", true);
  fields.require_flag("scale_attn_by_inverse_layer_idx", false);
  fields.require_flag("add_cross_attention", false);
}

}  // namespace detail

/// Reads the config.json of a Llama, a Qwen3 or a GPT-2.
/// @throws IoError      if the file cannot be read, or is not valid JSON
/// @throws ConfigError  naming the key that is missing, or has an unsupported value: another
///                      family, activation or scaling of positions, a bias, quantisation
[[nodiscard]] inline ModelDescription read_hugging_face_config(const std::filesystem::path& path) {
  const detail::JsonFields fields(read_text_file(path, detail::most_config_bytes), path.string());
  ModelDescription model;
  const std::string type = fields.word("model_type");
  const auto* family = std::find(model_family_names.begin(), model_family_names.end(), type);
  require<ConfigError>(family != model_family_names.end(), path.string(), ": model_type is ", type,
                       ", which Octavo does not support; it supports llama, qwen3 and gpt2");
  model.family = static_cast<ModelFamily>(family - model_family_names.begin());
  require<ConfigError>(
      !fields.has("quantization_config"), path.string(),
      ": its weights are quantised, which Octavo does not read; download them in BF16");
  model.vocabulary = fields.natural("vocab_size");
  if (model.family == ModelFamily::gpt2) {
    detail::read_gpt2(fields, model);
  } else {
    detail::read_llama(fields, model);
  }
  const std::vector<Index> begin = fields.naturals("bos_token_id");
  if (!begin.empty()) model.begin_of_text = begin.front();
  model.end_of_text = fields.naturals("eos_token_id");
  return model;
}

/// Returns the config.json of a model, as transformers 4 and 5 read it.
/// @param dtype  of its weights, such as "bfloat16"
[[nodiscard]] inline std::string hugging_face_config(const ModelDescription& model,
                                                     std::string_view dtype) {
  JsonLine text;
  const auto architectures = [&](std::string name) {
    text.add("architectures", std::span<const std::string>(&name, 1));
  };
  const auto family = static_cast<std::size_t>(model.family);
  text.add("model_type", model_family_names[family]);
  if (model.family == ModelFamily::gpt2) {
    architectures("GPT2LMHeadModel");
    text.add("n_layer", model.layers)
        .add("n_embd", model.hidden)
        .add("n_inner", model.ffn)
        .add("n_head", model.heads)
        .add("n_positions", model.positions)
        .add("layer_norm_epsilon", model.norm_epsilon)
        .add("activation_function", "gelu_new");
  } else {
    architectures(model.family == ModelFamily::qwen3 ? "Qwen3ForCausalLM" : "LlamaForCausalLM");
    text.add("num_hidden_layers", model.layers)
        .add("hidden_size", model.hidden)
        .add("intermediate_size", model.ffn)
        .add("num_attention_heads", model.heads)
        .add("num_key_value_heads", model.kv_heads)
        .add("head_dim", model.head_dim)
        .add("rms_norm_eps", model.norm_epsilon)
        .add("rope_theta", model.rope_theta)
        .add("hidden_act", "silu")
        .add("attention_bias", false);
    if (model.family == ModelFamily::llama) text.add("mlp_bias", false);
    if (model.positions != 0) text.add("max_position_embeddings", model.positions);
    const RopeScaling& scaling = model.rope_scaling;
    if (scaling.kind == RopeKind::llama3) {
      text.add("rope_scaling",
               JsonLine{}
                   .add("rope_type", "llama3")
                   .add("factor", scaling.factor)
                   .add("low_freq_factor", scaling.low_frequency_factor)
                   .add("high_freq_factor", scaling.high_frequency_factor)
                   .add("original_max_position_embeddings", scaling.original_length));
    }
  }
  text.add("vocab_size", model.vocabulary).add("tie_word_embeddings", model.tied_embeddings);
  // Without these, transformers would use the tokens of other models.
  if (model.begin_of_text.has_value()) {
    text.add("bos_token_id", *model.begin_of_text);
  } else {
    text.add("bos_token_id", nullptr);
  }
  if (model.end_of_text.empty()) {
    text.add("eos_token_id", nullptr);
  } else if (model.end_of_text.size() == 1) {
    text.add("eos_token_id", model.end_of_text.front());
  } else {
    text.add("eos_token_id", std::span<const Index>(model.end_of_text));
  }
  text.add("torch_dtype", dtype);
  return text.str() + "\n";
}

}  // namespace octavo
