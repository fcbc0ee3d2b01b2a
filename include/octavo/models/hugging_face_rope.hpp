/// @file
/// Rotary positions in the config.json of a Hugging Face model.
#pragma once

#include <octavo/models/hugging_face_family.hpp>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace octavo OCTAVO_ABI::detail {

/// Reads a sequence length that must be at least 1.
inline int length_of(const JsonFields& fields, const std::string& key,
                     std::optional<Index> otherwise = {}) {
  const Index length = fields.natural(key, otherwise);
  require<ConfigError>(length >= 1 && length <= std::numeric_limits<int>::max(), fields.place(),
                       ": ", key, " is ", length, ", which is not a valid length; set 1 to ",
                       std::numeric_limits<int>::max());
  return static_cast<int>(length);
}

/// Reads the parameters of YaRN that have defaults. Source: transformers, modeling_rope_utils.py.
inline void read_yarn(const JsonFields& fields, const std::string& prefix, RopeScaling& scaling) {
  scaling.beta_fast = fields.positive(prefix + "beta_fast", 32.0f);
  scaling.beta_slow = fields.positive(prefix + "beta_slow", 1.0f);
  scaling.truncate = fields.flag(prefix + "truncate", true);
  if (fields.has(prefix + "attention_factor")) {
    scaling.attention_factor = fields.positive(prefix + "attention_factor");
  } else if (fields.has(prefix + "mscale") && fields.has(prefix + "mscale_all_dim")) {
    const auto magnitude = [&](const char* key) {
      const double growth = std::log(static_cast<double>(scaling.factor));
      const double times = *fields.number(prefix + key, 0, 1e6);
      return growth <= 0 ? 1 : 0.1 * times * growth + 1;
    };
    scaling.attention_factor =
        static_cast<float>(magnitude("mscale") / magnitude("mscale_all_dim"));
  }
}

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
  constexpr std::array scaled{RopeKind::linear, RopeKind::dynamic, RopeKind::yarn,
                              RopeKind::llama3};
  for (const RopeKind each : scaled) {
    if (kind == rope_kind_name(each)) scaling.kind = each;
  }
  require<ConfigError>(scaling.kind != RopeKind::plain, fields.place(), ": ", prefix,
                       "rope_type is ", kind, ", which Octavo's models do not support; they ",
                       "support default, linear, dynamic, yarn and llama3");
  scaling.factor = fields.positive(prefix + "factor");
  const std::string original = prefix + "original_max_position_embeddings";
  const auto trained_length = [&] {
    return fields.has("max_position_embeddings") ? length_of(fields, "max_position_embeddings")
                                                 : length_of(fields, original);
  };
  switch (scaling.kind) {
    case RopeKind::dynamic:
      scaling.original_length = trained_length();
      break;
    case RopeKind::yarn:
      scaling.original_length =
          fields.has(original) ? length_of(fields, original) : trained_length();
      read_yarn(fields, prefix, scaling);
      break;
    case RopeKind::llama3:
      scaling.low_frequency_factor = fields.positive(prefix + "low_freq_factor");
      scaling.high_frequency_factor = fields.positive(prefix + "high_freq_factor");
      scaling.original_length = length_of(fields, original);
      require<ConfigError>(scaling.low_frequency_factor < scaling.high_frequency_factor,
                           fields.place(), ": ", prefix,
                           "low_freq_factor must be below high_freq_factor");
      break;
    default:
      break;
  }
  return scaling;
}

/// @throws ConfigError  if only a part of each head is rotated
inline void require_whole_rotation(const JsonFields& fields) {
  require<ConfigError>(fields.positive("partial_rotary_factor", 1.0f) == 1.0f, fields.place(),
                       ": partial_rotary_factor is not 1: Octavo's models rotate whole heads");
}

/// Reads the base and the scaling of a model with one rotation.
/// @param base  if the file has none
inline void read_rope(const JsonFields& fields, ModelDescription& model, float base) {
  require_whole_rotation(fields);
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
    model.rope_theta = fields.positive("rope_theta", base);
  }
}

/// Adds the maximum sequence length: that of the original training if frequencies depend on it.
inline void write_positions(const ModelDescription& model, JsonLine& text) {
  const RopeScaling& scaling = model.rope_scaling;
  const bool is_dynamic = scaling.kind == RopeKind::dynamic;
  const Index positions = is_dynamic ? scaling.original_length : model.positions;
  if (positions != 0) text.add("max_position_embeddings", positions);
}

/// Adds the parameters of a scaling, if there is one, as transformers 4 and 5 read them.
inline void write_rope_scaling(const RopeScaling& scaling, JsonLine& text) {
  if (scaling.kind == RopeKind::plain) return;
  JsonLine parameters;
  parameters.add("rope_type", rope_kind_name(scaling.kind)).add("factor", scaling.factor);
  const auto add_original = [&] {
    parameters.add("original_max_position_embeddings", scaling.original_length);
  };
  if (scaling.kind == RopeKind::llama3) {
    parameters.add("low_freq_factor", scaling.low_frequency_factor)
        .add("high_freq_factor", scaling.high_frequency_factor);
    add_original();
  } else if (scaling.kind == RopeKind::yarn) {
    parameters.add("beta_fast", scaling.beta_fast).add("beta_slow", scaling.beta_slow);
    if (scaling.attention_factor != 0) {
      parameters.add("attention_factor", scaling.attention_factor);
    }
    if (!scaling.truncate) parameters.add("truncate", false);
    add_original();
  }
  text.add("rope_scaling", parameters);
}

}  // namespace octavo::detail
