// What transformers 4 and 5 wrote is understood, what no model here serves is refused by name, and
// what is written says the same when it is read again.
#include <octavo/io/hugging_face_config.hpp>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "support/golden.hpp"
#include "support/temporary_folder.hpp"

namespace hugging_face_config_test {

using octavo::ModelDescription;
using octavo::RopeKind;

/// The config.json that transformers saved; see tests/golden/make_hugging_face_configs.py.
std::string golden(const std::string& name) {
  return reference::golden_path("hugging_face/" + name + ".json");
}

class HuggingFaceConfig : public support::TemporaryFolder {
 protected:
  ModelDescription read(const nlohmann::json& config) {
    const std::filesystem::path path = folder_ / "config.json";
    std::ofstream(path) << config;
    return octavo::read_hugging_face_config(path);
  }
  /// Whether a ConfigError says so of the configuration, after its file's name.
  void expect_refused(const nlohmann::json& config, std::string_view why) {
    try {
      (void)read(config);
      ADD_FAILURE() << "taken, though: " << why;
    } catch (const octavo::ConfigError& error) {
      EXPECT_NE(std::string(error.what()).find("config.json: " + std::string(why)),
                std::string::npos)
          << error.what();
    }
  }
  static nlohmann::json json_of(const std::string& name) {
    return nlohmann::json::parse(std::ifstream(golden(name)));
  }
};

TEST_F(HuggingFaceConfig, RejectsZeroSlidingWindowPattern) {
  auto config =
      nlohmann::json::parse(std::ifstream(reference::golden_path("families/gemma3/config.json")));
  config.erase("layer_types");
  config["sliding_window_pattern"] = 1;
  EXPECT_EQ(read(config).global_every, 1);
  config["sliding_window_pattern"] = 0;
  expect_refused(config, "sliding_window_pattern must be at least 1, but is 0");
}

TEST_F(HuggingFaceConfig, RejectsGemmaThatOctavoWouldComputeDifferently) {
  const auto refused = [&](const nlohmann::json& change, std::string_view why) {
    auto config =
        nlohmann::json::parse(std::ifstream(reference::golden_path("families/gemma3/config.json")));
    config.update(change);
    expect_refused(config, why);
  };
  refused({{"sliding_window", nullptr}}, "sliding_window is null, but Gemma 3 has a window");
  refused({{"partial_rotary_factor", 0.5}}, "partial_rotary_factor is not 1");
}

TEST_F(HuggingFaceConfig, WritesGemmaWithOnlyWindowedLayers) {
  auto config =
      nlohmann::json::parse(std::ifstream(reference::golden_path("families/gemma3/config.json")));
  config.erase("layer_types");
  config["sliding_window_pattern"] = 6;  // of 3 layers
  const ModelDescription of_file = read(config);
  const ModelDescription compiled =
      octavo::description_of(octavo::Gemma3Config{.layers = 3, .hidden = 32, .global_every = 6});
  EXPECT_EQ(of_file.global_every, compiled.global_every);
  const auto written = nlohmann::json::parse(octavo::hugging_face_config(of_file, "float32"));
  EXPECT_EQ(written.at("layer_types"),
            nlohmann::json(std::vector<std::string>(3, "sliding_attention")));
}

TEST_F(HuggingFaceConfig, ReadsLlama) {
  for (const char* name : {"llama.4", "llama.5"}) {
    const ModelDescription model = octavo::read_hugging_face_config(golden(name));
    EXPECT_EQ(model.family->name, "llama") << name;
    EXPECT_EQ(model.layers, 2);
    EXPECT_EQ(model.hidden, 64);
    EXPECT_EQ(model.ffn, 128);
    EXPECT_EQ(model.heads, 4);
    EXPECT_EQ(model.kv_heads, 2);
    EXPECT_EQ(model.head_dim, 16);
    EXPECT_EQ(model.vocabulary, 96);
    EXPECT_EQ(model.norm_epsilon, 1e-5f);
    EXPECT_EQ(model.rope_theta, 500000.0f) << name;
    EXPECT_EQ(model.rope_scaling.kind, RopeKind::plain);
    EXPECT_FALSE(model.tied_embeddings);
    EXPECT_EQ(model.positions, 512);
    EXPECT_EQ(model.begin_of_text, 1);
    EXPECT_EQ(model.end_of_text, (std::vector<octavo::Index>{2, 3}));
  }
}

TEST_F(HuggingFaceConfig, ReadsLlamaWithScaledRope) {
  for (const char* name : {"llama_scaled.4", "llama_scaled.5"}) {
    const ModelDescription model = octavo::read_hugging_face_config(golden(name));
    EXPECT_EQ(model.head_dim, 32);
    EXPECT_EQ(model.rope_theta, 500000.0f) << name;
    EXPECT_EQ(model.rope_scaling.kind, RopeKind::llama3) << name;
    EXPECT_EQ(model.rope_scaling.factor, 32.0f);
    EXPECT_EQ(model.rope_scaling.low_frequency_factor, 1.0f);
    EXPECT_EQ(model.rope_scaling.high_frequency_factor, 4.0f);
    EXPECT_EQ(model.rope_scaling.original_length, 8192);
    EXPECT_TRUE(model.tied_embeddings);
    EXPECT_FALSE(model.begin_of_text.has_value());
    EXPECT_TRUE(model.end_of_text.empty());
  }
}

TEST_F(HuggingFaceConfig, ReadsQwen3) {
  for (const char* name : {"qwen3.4", "qwen3.5"}) {
    const ModelDescription model = octavo::read_hugging_face_config(golden(name));
    EXPECT_EQ(model.family->name, "qwen3") << name;
    EXPECT_EQ(model.head_dim, 32);
    EXPECT_EQ(model.norm_epsilon, 1e-6f);
    EXPECT_EQ(model.rope_theta, 1e6f) << name;
    EXPECT_TRUE(model.tied_embeddings);
    EXPECT_EQ(model.end_of_text, std::vector<octavo::Index>{5});
  }
}

TEST_F(HuggingFaceConfig, ReadsGpt2) {
  for (const char* name : {"gpt2.4", "gpt2.5"}) {
    const ModelDescription model = octavo::read_hugging_face_config(golden(name));
    EXPECT_EQ(model.family->name, "gpt2") << name;
    EXPECT_EQ(model.layers, 2);
    EXPECT_EQ(model.hidden, 48);
    EXPECT_EQ(model.ffn, 192);
    EXPECT_EQ(model.heads, 3);
    EXPECT_EQ(model.kv_heads, 3);
    EXPECT_EQ(model.head_dim, 16);
    EXPECT_EQ(model.vocabulary, 70);
    EXPECT_EQ(model.positions, 64);
    EXPECT_EQ(model.norm_epsilon, 1e-5f);
    EXPECT_EQ(model.rope_theta, 0.0f);
    EXPECT_TRUE(model.tied_embeddings);
  }
}

TEST_F(HuggingFaceConfig, AppliesDefaultsForMissingKeys) {
  nlohmann::json config = json_of("llama.4");
  for (const char* key : {"num_key_value_heads", "head_dim", "rope_theta", "rms_norm_eps",
                          "tie_word_embeddings", "rope_scaling", "hidden_act", "attention_bias"}) {
    config.erase(key);
  }
  const ModelDescription model = read(config);
  EXPECT_EQ(model.kv_heads, 4);   // as heads
  EXPECT_EQ(model.head_dim, 16);  // hidden / heads
  EXPECT_EQ(model.rope_theta, 10000.0f);
  EXPECT_EQ(model.norm_epsilon, 1e-6f);
  EXPECT_FALSE(model.tied_embeddings);
  for (const char* key : {"hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size",
                          "num_attention_heads", "model_type"}) {
    nlohmann::json lacking = config;
    lacking.erase(key);
    expect_refused(lacking, std::string(key) + " is missing");
  }
}

// The expected values are those of transformers 5.24.0: configuration_mistral.py and so on.
TEST_F(HuggingFaceConfig, AppliesDefaultsOfEachFamily) {
  struct Expected {
    const char* type;
    octavo::Index kv_heads;
    octavo::Index head_dim;
    float norm_epsilon;
    float rope_theta;
  };
  nlohmann::json config{{"num_hidden_layers", 2},  {"hidden_size", 1024},
                        {"intermediate_size", 96}, {"num_attention_heads", 64},
                        {"vocab_size", 96},        {"max_position_embeddings", 64}};
  for (const Expected& expected : {Expected{"llama", 64, 16, 1e-6f, 1e4f},
                                   {"mistral", 8, 16, 1e-6f, 1e4f},
                                   {"mixtral", 8, 16, 1e-5f, 1e6f},
                                   {"qwen2", 32, 16, 1e-6f, 1e4f},
                                   {"qwen3", 32, 128, 1e-6f, 1e4f},
                                   {"qwen3_moe", 4, 16, 1e-6f, 1e4f},
                                   {"gemma3_text", 4, 256, 1e-6f, 1e6f}}) {
    SCOPED_TRACE(expected.type);
    config["model_type"] = expected.type;
    const ModelDescription model = read(config);
    EXPECT_EQ(model.kv_heads, expected.kv_heads);
    EXPECT_EQ(model.head_dim, expected.head_dim);
    EXPECT_EQ(model.norm_epsilon, expected.norm_epsilon);
    EXPECT_EQ(model.rope_theta, expected.rope_theta);
    nlohmann::json with_null = config;
    with_null["num_key_value_heads"] = nullptr;
    EXPECT_EQ(read(with_null).kv_heads, 64);
    if (expected.kv_heads == 64) continue;
    nlohmann::json odd = config;
    odd["num_attention_heads"] = 6;
    expect_refused(odd, "num_key_value_heads is missing, and its default in transformers");
    odd["num_key_value_heads"] = 3;
    EXPECT_EQ(read(odd).kv_heads, 3);
  }
}

TEST_F(HuggingFaceConfig, RejectsUnsupportedModels) {
  const auto changed = [&](const char* name, const nlohmann::json& change) {
    nlohmann::json config = json_of(name);
    config.merge_patch(change);
    return config;
  };
  const auto refused = [&](const nlohmann::json& change, std::string_view why) {
    expect_refused(changed("llama.4", change), why);
  };
  refused({{"model_type", "phi3"}}, "model_type is phi3");
  refused({{"hidden_act", "gelu"}}, "hidden_act is gelu");
  refused({{"attention_bias", true}}, "attention_bias is true");
  refused({{"mlp_bias", true}}, "mlp_bias is true");
  refused({{"quantization_config", {{"bits", 4}}}}, "its weights are quantised");
  refused({{"rope_scaling", {{"rope_type", "longrope"}, {"factor", 2.0}}}},
          "rope_scaling.rope_type is longrope");
  refused({{"rope_scaling", {{"type", "su"}, {"factor", 2.0}}}}, "rope_scaling.rope_type is su");
  refused({{"rope_scaling", {{"rope_type", "linear"}}}}, "rope_scaling.factor is missing");
  refused({{"rope_scaling", {{"factor", 2.0}}}}, "rope_scaling has a factor, but no rope_type");
  refused({{"rope_scaling", {{"rope_type", "llama3"}, {"factor", 8.0}}}},
          "rope_scaling.low_freq_factor is missing");
  refused({{"partial_rotary_factor", 0.5}}, "partial_rotary_factor is not 1");
  refused({{"num_hidden_layers", 65'537}},
          "the number of layers must be at most 65536, but is 65537");
  refused({{"hidden_size", -64}}, "hidden_size must be a whole number of at least 0, but is -64; ");
  refused({{"hidden_size", 64.5}},
          "hidden_size must be a whole number of at least 0, but is 64.5; ");
  refused({{"hidden_size", 4096.0001}},
          "hidden_size must be a whole number of at least 0, but is 4096.0001; ");
  refused({{"hidden_size", "64"}},
          "hidden_size must be a whole number of at least 0, but is the string 64; correct it");
  refused({{"hidden_size", {{"a", 1}}}},
          "hidden_size must be a whole number of at least 0, but is an object; ");
  refused({{"rms_norm_eps", 0}},
          "rms_norm_eps must be a positive number in the range of FP32, but is 0");
  refused({{"tie_word_embeddings", 1}}, "tie_word_embeddings must be true or false, but is 1; ");
  refused({{"model_type", true}}, "model_type must be a string, but is true; ");
  expect_refused(changed("llama.5", {{"rope_parameters", {{"rope_theta", nullptr}}}}),
                 "rope_parameters.rope_theta is missing");
  expect_refused(changed("llama.5", {{"rope_parameters", {{"rope_type", "longrope"}}}}),
                 "rope_parameters.rope_type is longrope");
  expect_refused(changed("llama_scaled.5", {{"rope_scaling", {{"type", "default"}}}}),
                 "rope_scaling and rope_parameters differ");
  expect_refused(changed("qwen3.5", {{"layer_types", {"sliding_attention", "full_attention"}}}),
                 "layer_types has full_attention in layer 1");
  expect_refused(changed("qwen3.5", {{"layer_types", {"full_attention"}}}),
                 "layer_types has 1 entries, but the model has 2 layers");
  expect_refused(changed("qwen3.5", {{"layer_types", "sliding_attention"}}),
                 "layer_types must be an array, but is the string sliding_attention");
  expect_refused(changed("gpt2.5", {{"activation_function", "gelu"}}),
                 "activation_function is gelu");
  expect_refused(changed("gpt2.5", {{"scale_attn_weights", false}}), "scale_attn_weights is false");
  expect_refused(changed("gpt2.5", {{"scale_attn_by_inverse_layer_idx", true}}),
                 "scale_attn_by_inverse_layer_idx is true");
  expect_refused(changed("gpt2.5", {{"add_cross_attention", true}}), "add_cross_attention is true");
}

TEST_F(HuggingFaceConfig, AcceptsBothNamesOfRopeType) {
  nlohmann::json config = json_of("llama_scaled.4");
  config["rope_scaling"]["type"] = config["rope_scaling"]["rope_type"];
  config["rope_scaling"].erase("rope_type");
  EXPECT_EQ(read(config).rope_scaling.kind, RopeKind::llama3);
}

TEST_F(HuggingFaceConfig, RejectsMissingFilesAndInvalidJson) {
  EXPECT_THROW((void)octavo::read_hugging_face_config(folder_ / "missing"), octavo::IoError);
  EXPECT_THROW((void)octavo::read_hugging_face_config(folder_), octavo::IoError);
  std::ofstream(folder_ / "config.json") << "{\"model_type\": \"llama\"";
  EXPECT_THROW((void)octavo::read_hugging_face_config(folder_ / "config.json"), octavo::IoError);
}

TEST_F(HuggingFaceConfig, WrittenConfigMatchesOriginal) {
  for (const char* name : {"llama.4", "llama_scaled.5", "qwen3.5", "gpt2.5"}) {
    const ModelDescription model = octavo::read_hugging_face_config(golden(name));
    const nlohmann::json written =
        nlohmann::json::parse(octavo::hugging_face_config(model, "bfloat16"));
    const nlohmann::json original = json_of(name);
    for (const auto& [key, value] : written.items()) {
      if (key == "rope_theta" && original.contains("rope_parameters")) {
        EXPECT_EQ(value, original["rope_parameters"][key]) << name;
      } else if (key == "rope_scaling" && original.contains("rope_parameters")) {
        nlohmann::json expected = original["rope_parameters"];
        expected.erase("rope_theta");
        EXPECT_EQ(value, expected) << name;
      } else if (key == "n_inner") {
        EXPECT_EQ(value, 4 * original["n_embd"].get<int>());
      } else if (key == "torch_dtype") {
        EXPECT_EQ(value, "bfloat16");
      } else if (key == "architectures") {
        EXPECT_EQ(value.size(), 1u);
      } else {
        EXPECT_EQ(value, original.at(key)) << name << " " << key;
      }
    }
    const ModelDescription again = read(written);
    EXPECT_EQ(differences(again, model), std::vector<std::string>{}) << name;
    EXPECT_EQ(again.positions, model.positions);
    EXPECT_EQ(again.begin_of_text, model.begin_of_text);
    EXPECT_EQ(again.end_of_text, model.end_of_text);
  }
}

TEST(ModelDescriptions, ReportDifferencesFromPresets) {
  using namespace octavo;
  ModelDescription llama = description_of(llama3_1b);
  EXPECT_EQ(llama.family->name, "llama");
  EXPECT_EQ(differences(llama, description_of(llama3_1b)), std::vector<std::string>{});
  llama.hidden = 64;
  llama.rope_scaling.factor = 8.0f;
  llama.tied_embeddings = false;
  EXPECT_EQ(differences(llama, description_of(llama3_1b)),
            (std::vector<std::string>{"hidden is 64, not 2048", "rope_scaling.factor is 8, not 32",
                                      "tied_embeddings is false, not true"}));
  EXPECT_EQ(description_of(qwen3_0_6b).family->name, "qwen3");
  ModelDescription gpt2 = description_of(gpt2_124m);
  gpt2.positions = 512;
  EXPECT_EQ(differences(gpt2, description_of(gpt2_124m)),
            std::vector<std::string>{"positions is 512, not 1024"});
}

// Each number of a shape makes a difference of its own.
TEST(ModelDescriptions, DifferencesCoverEachField) {
  using octavo::differences;
  const ModelDescription model = octavo::description_of(octavo::llama3_1b);
  const auto changed = [&](auto change) {
    ModelDescription other = model;
    change(other);
    return differences(other, model).size();
  };
  EXPECT_EQ(changed([](auto& m) { m.family = &octavo::mistral_in_hugging_face; }), 0u);
  EXPECT_EQ(changed([](auto& m) { m.qk_norm = true; }), 1u);
  EXPECT_EQ(changed([](auto& m) { m.qkv_bias = true; }), 1u);
  EXPECT_EQ(changed([](auto& m) { m.linear_bias = true; }), 1u);
  EXPECT_EQ(changed([](auto& m) { m.layer_norm = true; }), 1u);
  EXPECT_EQ(changed([](auto& m) { m.gated_mlp = false; }), 1u);
  EXPECT_EQ(changed([](auto& m) { m.window = 8; }), 1u);
  EXPECT_EQ(changed([](auto& m) { ++m.layers; }), 1u);
  EXPECT_EQ(changed([](auto& m) { ++m.ffn; }), 1u);
  EXPECT_EQ(changed([](auto& m) { ++m.heads; }), 1u);
  EXPECT_EQ(changed([](auto& m) { ++m.kv_heads; }), 1u);
  EXPECT_EQ(changed([](auto& m) { ++m.head_dim; }), 1u);
  EXPECT_EQ(changed([](auto& m) { ++m.vocabulary; }), 1u);
  EXPECT_EQ(changed([](auto& m) { m.norm_epsilon = 1e-6f; }), 1u);
  EXPECT_EQ(changed([](auto& m) { m.rope_theta = 1e4f; }), 1u);
  EXPECT_EQ(changed([](auto& m) { m.rope_scaling = {}; }), 1u);
  EXPECT_EQ(changed([](auto& m) { ++m.rope_scaling.original_length; }), 1u);
  EXPECT_EQ(changed([](auto& m) { m.rope_scaling.low_frequency_factor = 2; }), 1u);
  EXPECT_EQ(changed([](auto& m) { m.rope_scaling.high_frequency_factor = 2; }), 1u);
  EXPECT_EQ(changed([](auto& m) { m.positions = 7; }), 0u);
  EXPECT_EQ(changed([](auto& m) { m.end_of_text = {7}; }), 0u);
}

}  // namespace hugging_face_config_test
