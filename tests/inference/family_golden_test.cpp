// Every family against folders that transformers saved, and what it computed from them: the shape,
// logits, loss and every gradient, text generation with a KV cache, and the folder written again.
#include <octavo/checkpoint/hugging_face.hpp>
#include <octavo/inference/hugging_face.hpp>
#include <octavo/inference/session.hpp>
#include <octavo/models/models.hpp>
#include <octavo/session/session.hpp>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "support/golden.hpp"
#include "support/golden_agreement.hpp"
#include "support/hugging_face_folder.hpp"
#include "support/temporary_folder.hpp"

namespace family_golden_test {

using namespace octavo;

constexpr LlamaConfig shape{.name = "shape",
                            .layers = 2,
                            .hidden = 32,
                            .ffn = 48,
                            .heads = 4,
                            .kv_heads = 2,
                            .head_dim = 16,
                            .vocabulary = 72};
constexpr LlamaConfig mistral = [] {
  LlamaConfig config = shape;
  config.rope_theta = 500.0f;
  config.rope_scaling = {.kind = RopeKind::linear, .factor = 2.0f};
  config.window = 12;
  return config;
}();
constexpr LlamaConfig qwen2 = [] {
  LlamaConfig config = shape;
  config.head_dim = 8;
  config.norm_epsilon = 1e-6f;
  config.rope_theta = 1000.0f;
  config.rope_scaling = {.kind = RopeKind::yarn, .factor = 4.0f, .original_length = 16};
  config.tied_embeddings = true;
  config.qkv_bias = true;
  config.window = 9;
  config.first_windowed_layer = 1;
  return config;
}();

constexpr LlamaConfig mixtral = [] {
  LlamaConfig config = shape;
  config.rope_theta = 500.0f;
  config.experts = {.experts = 4, .choices = 2};
  config.experts.balance_coefficient = 0.5f;
  return config;
}();
constexpr LlamaConfig qwen3_moe = [] {
  LlamaConfig config = shape;
  config.ffn = 24;
  config.norm_epsilon = 1e-6f;
  config.rope_theta = 500.0f;
  config.qk_norm = true;
  config.experts = {.experts = 8, .choices = 3};
  config.experts.balance_coefficient = 0.25f;
  return config;
}();
constexpr Gemma3Config gemma3{.name = "gemma3",
                              .layers = 3,
                              .hidden = 32,
                              .ffn = 48,
                              .heads = 4,
                              .kv_heads = 2,
                              .head_dim = 16,
                              .vocabulary = 72,
                              .rope_theta = 2000.0f,
                              .rope_scaling = {.kind = RopeKind::linear, .factor = 4.0f},
                              .local_rope_theta = 100.0f,
                              .window = 7,
                              .global_every = 3,
                              .query_scalar = 20.0f};

std::string bytes_of(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

std::vector<std::int32_t> tokens_of(const std::vector<int>& values) {
  return {values.begin(), values.end()};
}

/// The gradients by Hugging Face name.
template <class Model>
reference::Weights named_gradients(Model& model, const ModelDescription& described) {
  std::map<std::string, std::vector<double>> whole;
  model.visit([&](const auto& parameter) {
    const auto* values = parameter.gradient.data();
    whole[parameter.name].assign(values, values + parameter.gradient.size());
  });
  reference::Weights named;
  for (const HuggingFaceTensor& tensor : hugging_face_tensors(described)) {
    const auto begin = whole.at(tensor.parameter).begin() + tensor.first;
    named[tensor.name].assign(begin, begin + tensor.rows * tensor.columns);
  }
  return named;
}

class FamilyGolden : public support::TemporaryFolder {};

template <auto Config>
void expect_agreement(const std::string& name, const std::filesystem::path& scratch) {
  const std::filesystem::path folder = reference::golden_path("families/" + name);
  const reference::Golden golden = reference::read_golden((folder / "expected.golden").string());
  const ModelDescription described = read_hugging_face_config(folder / "config.json");
  EXPECT_EQ(differences(described, description_of(Config)), std::vector<std::string>{});
  EXPECT_EQ(described.family->name, description_of(Config).family->name);

  Context<Cpu> context{2};
  SessionOptions options;
  options.batch = {golden.batch, golden.sequence_length};
  ModelSession<PresetModel<Config, Fp32, Cpu>> session(options, context);
  load_hugging_face(session, described, folder);

  const std::vector<std::int32_t> tokens = tokens_of(golden.tokens);
  const auto length = static_cast<std::size_t>(golden.sequence_length);
  std::vector<float> row(static_cast<std::size_t>(Config.vocabulary));
  std::vector<double> logits;
  session.begin_evaluation();
  for (std::size_t begin = 0; begin < tokens.size(); begin += length) {
    for (std::size_t count = 1; count <= length; ++count) {
      session.next_token_logits(std::span(tokens).subspan(begin, count), row);
      logits.insert(logits.end(), row.begin(), row.end());
    }
  }
  EXPECT_LE(support::relative_error(logits, golden.logits), 1e-4);

  InferenceSession<PresetFamily<Config>, Fp32, Cpu> inference({.longest = golden.sequence_length},
                                                              context);
  load_hugging_face(inference, described, folder);
  std::vector<double> cached;
  for (std::size_t begin = 0; begin < tokens.size(); begin += length) {
    inference.truncate(0);
    std::size_t count = 0;
    const auto append = [&](std::size_t piece) {
      inference.append(std::span(tokens).subspan(begin + count, piece), row);
      count += piece;
    };
    append(1);
    append(17);
    while (count < length) append(1);
    cached.insert(cached.end(), row.begin(), row.end());
  }
  const auto last_rows = [&] {
    std::vector<double> rows;
    for (std::size_t end = length; end <= tokens.size(); end += length) {
      const auto from = golden.logits.begin() + static_cast<std::ptrdiff_t>((end - 1) * row.size());
      rows.insert(rows.end(), from, from + static_cast<std::ptrdiff_t>(row.size()));
    }
    return rows;
  }();
  EXPECT_LE(support::relative_error(cached, last_rows), 1e-4);

  save_hugging_face(session, described, scratch / name);
  EXPECT_TRUE(support::tensor_bytes(bytes_of(scratch / name / "model.safetensors")) ==
              support::tensor_bytes(bytes_of(folder / "model.safetensors")));
  const ModelDescription again = read_hugging_face_config(scratch / name / "config.json");
  EXPECT_EQ(differences(again, described), std::vector<std::string>{});
  EXPECT_EQ(again.family, described.family);
  EXPECT_EQ(again.positions, described.positions);
  EXPECT_EQ(again.end_of_text, described.end_of_text);

  const StepResult result = session.step({tokens, tokens_of(golden.targets)}, 0.0);
  EXPECT_FALSE(result.skipped);
  EXPECT_NEAR(result.loss, golden.loss, 1e-5 * golden.loss);
  const reference::Weights gradients = named_gradients(session.model(), described);
  EXPECT_EQ(gradients.size(), golden.gradients.size());
  for (const auto& [tensor, gradient] : golden.gradients) {
    ASSERT_TRUE(gradients.contains(tensor)) << tensor;
    EXPECT_LE(support::relative_error(gradients.at(tensor), gradient), 2e-4) << tensor;
  }
}

TEST_F(FamilyGolden, MistralWithAWindowAndLinearRope) {
  expect_agreement<mistral>("mistral", folder_);
}

TEST_F(FamilyGolden, Qwen2WithBiasesYarnAndLastLayerWindow) {
  expect_agreement<qwen2>("qwen2", folder_);
}

TEST_F(FamilyGolden, Gemma3WithLocalAndGlobalLayersAndPostNorms) {
  expect_agreement<gemma3>("gemma3", folder_);
}

TEST_F(FamilyGolden, MixtralWithItsLoadBalancingLoss) {
  expect_agreement<mixtral>("mixtral", folder_);
}
TEST_F(FamilyGolden, Qwen3MoeWithItsLoadBalancingLoss) {
  expect_agreement<qwen3_moe>("qwen3_moe", folder_);
}

// A Mistral without a window is a Llama of another name.
TEST_F(FamilyGolden, LoadsOtherFamilyOfSameShape) {
  LlamaConfig plain = mistral;
  plain.window = 0;
  nlohmann::json config =
      nlohmann::json::parse(bytes_of(reference::golden_path("families/mistral/config.json")));
  config["sliding_window"] = nullptr;
  std::ofstream(folder_ / "config.json") << config;
  const ModelDescription described = read_hugging_face_config(folder_ / "config.json");
  EXPECT_EQ(differences(described, description_of(plain)), std::vector<std::string>{});
  config.erase("sliding_window");
  std::ofstream(folder_ / "config.json") << config;
  EXPECT_EQ(read_hugging_face_config(folder_ / "config.json").window, 4096);
}

// What a family's file cannot say is an error, not another model.
TEST(FamilyFiles, RejectModelsTheyCannotDescribe) {
  LlamaConfig late = mistral;
  late.first_windowed_layer = 1;
  LlamaConfig other_weights = mixtral;
  other_weights.experts.renormalised = false;
  for (const LlamaConfig& config : {late, other_weights}) {
    EXPECT_THROW((void)hugging_face_config(description_of(config), "bfloat16"), ConfigError);
  }
  LlamaConfig dynamic = shape;
  dynamic.rope_scaling = {.kind = RopeKind::dynamic, .factor = 2.0f, .original_length = 4096};
  ModelDescription trained = description_of(dynamic);
  trained.positions = 512;  // of a run with shorter sequences
  EXPECT_NO_THROW((void)hugging_face_config(trained, "bfloat16"));
}

// Rotary frequencies of every scaling, as transformers computes them.
TEST(RopeScalings, MatchTransformers) {
  const auto cases = nlohmann::json::parse(bytes_of(reference::golden_path("families/rope.json")));
  ASSERT_GE(cases.size(), 7u);
  for (const nlohmann::json& one : cases) {
    nlohmann::json config =
        nlohmann::json::parse(bytes_of(reference::golden_path("hugging_face/llama.4.json")));
    for (const char* key : {"rope_scaling", "rope_theta", "head_dim", "max_position_embeddings"}) {
      config[key] = one[key];
    }
    JsonFields fields(config.dump(), "config.json");
    ModelDescription model;
    llama_in_hugging_face.read(fields, model);
    const RopeFrequencies frequencies{static_cast<double>(model.rope_theta), model.head_dim,
                                      model.rope_scaling, one["length"].get<Index>()};
    EXPECT_NEAR(frequencies.magnitude(), one["magnitude"].get<double>(), 1e-6) << one;
    for (Index j = 0; j < model.head_dim / 2; ++j) {
      const double expected = one["frequencies"][static_cast<std::size_t>(j)];
      EXPECT_NEAR(frequencies(j), expected, 2e-6 * expected) << one["rope_scaling"] << j;
    }
    // What is written describes the same scaling.
    JsonLine text;
    model.family = &llama_in_hugging_face;
    llama_in_hugging_face.write(model, text);
    JsonFields written(text.str(), "config.json");
    ModelDescription again;
    llama_in_hugging_face.read(written, again);
    EXPECT_EQ(differences(again, model), std::vector<std::string>{}) << one;
  }
}

}  // namespace family_golden_test
