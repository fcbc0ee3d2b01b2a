// The library under FP32 against what PyTorch and Hugging Face transformers computed.
#include <octavo/checkpoint/hugging_face.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "support/golden.hpp"
#include "support/golden_agreement.hpp"
#include "support/hugging_face_folder.hpp"
#include "support/llama_weights.hpp"
#include "support/small_model.hpp"
#include "support/temporary_folder.hpp"

namespace golden_test {

using octavo::Index;
using reference::Golden;

constexpr octavo::LlamaConfig llama_small{.name = "llama_small",
                                          .layers = 2,
                                          .hidden = 64,
                                          .ffn = 128,
                                          .heads = 4,
                                          .kv_heads = 2,
                                          .head_dim = 16,
                                          .vocabulary = 96,
                                          .norm_epsilon = 1e-5f,
                                          .rope_theta = 500.0f,
                                          .rope_scaling = {.kind = octavo::RopeKind::llama3,
                                                           .factor = 8.0f,
                                                           .low_frequency_factor = 1.0f,
                                                           .high_frequency_factor = 4.0f,
                                                           .original_length = 32}};

constexpr octavo::LlamaConfig qwen3_small{.name = "qwen3_small",
                                          .layers = 1,
                                          .hidden = 32,
                                          .ffn = 48,
                                          .heads = 4,
                                          .kv_heads = 1,
                                          .head_dim = 16,
                                          .vocabulary = 40,
                                          .norm_epsilon = 1e-6f,
                                          .rope_theta = 10000.0f,
                                          .tied_embeddings = true,
                                          .qk_norm = true};

constexpr octavo::Gpt2Config gpt2_small{.name = "gpt2_small",
                                        .layers = 2,
                                        .hidden = 48,
                                        .heads = 3,
                                        .vocabulary = 70,
                                        .positions = 64,
                                        .norm_epsilon = 1e-5f};

void expect_shape(const octavo::LlamaConfig& config, const reference::ReferenceConfig& golden) {
  support::expect_same_shape(support::reference_config(config), golden);
}
void expect_shape(const octavo::Gpt2Config& config, const reference::ReferenceConfig& golden) {
  EXPECT_EQ(config.layers, golden.layers);
  EXPECT_EQ(config.hidden, golden.hidden);
  EXPECT_EQ(config.ffn(), golden.ffn);
  EXPECT_EQ(config.heads, golden.heads);
  EXPECT_EQ(config.vocabulary, golden.vocabulary);
  EXPECT_NEAR(config.norm_epsilon, golden.norm_epsilon, 1e-12);
}

template <class Model>
std::vector<double> logits(octavo::ModelSession<Model>& session, const Golden& golden) {
  const auto length = static_cast<std::size_t>(golden.sequence_length);
  const std::vector<std::int32_t> tokens(golden.tokens.begin(), golden.tokens.end());
  std::vector<float> row(static_cast<std::size_t>(golden.config.vocabulary));
  std::vector<double> all;
  session.begin_evaluation();
  for (std::size_t begin = 0; begin < tokens.size(); begin += length) {
    for (std::size_t count = 1; count <= length; ++count) {
      session.next_token_logits(std::span(tokens).subspan(begin, count), row);
      all.insert(all.end(), row.begin(), row.end());
    }
  }
  return all;
}

/// A session gets the weights from a folder of Hugging Face's names and layouts, too.
template <auto Config, class Session>
void expect_loaded(Session& expected, const Golden& golden, const std::filesystem::path& folder) {
  octavo::Context<octavo::Cpu> context{1};
  octavo::SessionOptions options;
  options.batch = {golden.batch, golden.sequence_length};
  Session session(options, context);
  support::write_hugging_face_folder(
      folder, octavo::description_of(Config),
      support::hugging_face_tensors(session.model(), "F32",
                                    [&](const std::string& name, octavo::Index) {
                                      const std::vector<double>& values = golden.weights.at(name);
                                      return std::vector<float>(values.begin(), values.end());
                                    }));
  octavo::load_hugging_face(session, octavo::description_of(Config), folder);
  EXPECT_TRUE(support::weights(session) == support::weights(expected));
  octavo::save_hugging_face(session, octavo::description_of(Config), folder / "again");
  const auto bytes = [](const std::filesystem::path& in) {
    std::ostringstream text;
    text << std::ifstream(in / "model.safetensors", std::ios::binary).rdbuf();
    return support::tensor_bytes(text.str());
  };
  EXPECT_TRUE(bytes(folder / "again") == bytes(folder));
}

class GoldenFile : public support::TemporaryFolder {};

template <auto Config>
void expect_agreement(const std::string& file, const std::filesystem::path& folder) {
  using Model = octavo::PresetModel<Config, octavo::Fp32, octavo::Cpu>;
  const Golden golden = reference::read_golden(reference::golden_path(file));
  expect_shape(Config, golden.config);
  octavo::Context<octavo::Cpu> context{2};
  octavo::SessionOptions options;
  options.batch = {golden.batch, golden.sequence_length};
  octavo::ModelSession<Model> session(options, context);
  support::load_weights(session.model(), golden.weights);

  expect_loaded<Config>(session, golden, folder);

  EXPECT_LE(support::relative_error(logits(session, golden), golden.logits), 1e-4);
  const octavo::StepResult result =
      session.step({std::vector<std::int32_t>(golden.tokens.begin(), golden.tokens.end()),
                    std::vector<std::int32_t>(golden.targets.begin(), golden.targets.end())},
                   0.0);
  EXPECT_FALSE(result.skipped);
  EXPECT_NEAR(result.loss, golden.loss, 1e-5 * golden.loss);
  const reference::Weights gradients = support::gradients(session.model());
  EXPECT_EQ(gradients.size(), golden.gradients.size());
  double squared_norm = 0;
  for (const auto& [name, gradient] : golden.gradients) {
    ASSERT_TRUE(gradients.contains(name)) << name;
    EXPECT_LE(support::relative_error(gradients.at(name), gradient), 1e-4) << name;
    for (const double value : gradient) squared_norm += value * value;
  }
  EXPECT_NEAR(result.gradient_norm, std::sqrt(squared_norm), 1e-4 * std::sqrt(squared_norm));
}

TEST_F(GoldenFile, LlamaWithScaledRopeAndGroupedQueries) {
  expect_agreement<llama_small>("llama_small.golden", folder_);
}

TEST_F(GoldenFile, Gpt2WithLayerNormBiasesAndLearnedPositions) {
  expect_agreement<gpt2_small>("gpt2_small.golden", folder_);
}

TEST_F(GoldenFile, Qwen3WithNormalisedQueriesAndTiedEmbeddings) {
  expect_agreement<qwen3_small>("qwen3_small.golden", folder_);
}

}  // namespace golden_test
