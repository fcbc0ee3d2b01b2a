// Gradients of a whole model under FP32 against central differences of the double reference.
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "support/llama_weights.hpp"
#include "support/small_model.hpp"

namespace gradient_test {

/// Untied embeddings and scaled RoPE: wavelengths 6, 30, 140 and 664 lie below 48 / 3, between that
/// and 48, and above, so that each of the three branches has a pair.
constexpr octavo::LlamaConfig untied{.name = "untied",
                                     .layers = 2,
                                     .hidden = 24,
                                     .ffn = 40,
                                     .heads = 4,
                                     .kv_heads = 2,
                                     .head_dim = 8,
                                     .vocabulary = 30,
                                     .rope_theta = 500.0f,
                                     .rope_scaling = {.kind = octavo::RopeKind::llama3,
                                                      .factor = 4.0f,
                                                      .low_frequency_factor = 1.0f,
                                                      .high_frequency_factor = 3.0f,
                                                      .original_length = 48}};

constexpr octavo::LlamaConfig tied{.name = "tied",
                                   .layers = 2,
                                   .hidden = 16,
                                   .ffn = 24,
                                   .heads = 3,
                                   .kv_heads = 1,
                                   .head_dim = 6,
                                   .vocabulary = 20,
                                   .norm_epsilon = 0.1f,
                                   .rope_theta = 100.0f,
                                   .tied_embeddings = true,
                                   .qk_norm = true};

constexpr int sequences = 2;
constexpr int tokens = 12;

/// Weights of about the size where each of a layer's parts matters to the loss.
template <class Model>
reference::Weights random_weights(Model& model, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  reference::Weights weights;
  model.visit([&](auto& parameter) {
    const octavo::Index columns = parameter.weight.extent(1);
    const double deviation = 1.0 / std::sqrt(static_cast<double>(columns));
    for (const support::Slice& slice : support::slices(parameter.name, Model::config)) {
      std::vector<double>& values = weights[slice.name];
      for (octavo::Index i = 0; i < slice.rows * columns; ++i) {
        const double value =
            parameter.is_matrix() ? deviation * normal(random) : 1.0 + 0.3 * normal(random);
        // The reference then starts from the same numbers as the model.
        values.push_back(static_cast<double>(static_cast<float>(value)));
      }
    }
  });
  return weights;
}

double root_mean_square(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value * value;
  return std::sqrt(sum / static_cast<double>(values.size()));
}

/// Compares `samples` elements of each tensor, chosen at random.
/// @return  the number of compared elements
template <octavo::LlamaConfig Config>
int compare_gradients(int samples, unsigned seed) {
  octavo::Context<octavo::Cpu> context{2};
  octavo::SessionOptions options;
  options.batch = {sequences, tokens};
  octavo::ModelSession<octavo::Llama<Config, octavo::Fp32, octavo::Cpu>> session(options, context);
  const reference::Weights weights = random_weights(session.model(), seed);
  support::load_weights(session.model(), weights);
  const support::TokenBatch batch =
      support::make_batch(sequences * tokens, Config.vocabulary, seed + 1);
  const octavo::StepResult result = session.step({batch.tokens, batch.targets}, 0.0);
  const reference::ReferenceConfig config = support::reference_config(Config);
  const std::vector<int> inputs(batch.tokens.begin(), batch.tokens.end());
  const std::vector<int> targets(batch.targets.begin(), batch.targets.end());
  EXPECT_NEAR(result.loss,
              reference::mean_cross_entropy(config, weights, inputs, targets, sequences, tokens),
              1e-5 * result.loss);

  const reference::Weights gradients = support::gradients(session.model());
  std::mt19937 random(seed + 2);
  int compared = 0;
  for (const auto& [name, gradient] : gradients) {
    const double typical = root_mean_square(gradient);
    EXPECT_GT(typical, 1e-5) << name << ": nothing to compare";
    for (int i = 0; i < samples; ++i, ++compared) {
      const std::size_t index = random() % gradient.size();
      const double expected = reference::central_difference(config, weights, name, index, 1e-4,
                                                            inputs, targets, sequences, tokens);
      EXPECT_LE(std::abs(gradient[index] - expected), 1e-4 * std::max(std::abs(expected), typical))
          << name << " element " << index << ": " << gradient[index] << ", but the difference is "
          << expected;
    }
  }
  return compared;
}

// 2 blocks of 9 tensors, embedding, final norm, head.
TEST(Gradient, UntiedModelWithScaledRope) { EXPECT_EQ(compare_gradients<untied>(12, 1), 252); }

// 2 blocks of 11 tensors, embedding, final norm.
TEST(Gradient, TiedModelWithNormalisedQueriesAndKeys) {
  EXPECT_EQ(compare_gradients<tied>(10, 2), 240);
}

}  // namespace gradient_test
