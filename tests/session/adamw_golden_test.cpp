// Twenty training steps under FP32 against PyTorch's: learning rate, clipping, decay, ignored
// targets, and every weight.
#include <octavo/optim/schedule.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "support/golden_agreement.hpp"
#include "support/llama_weights.hpp"
#include "support/small_model.hpp"
#include "support/training_golden.hpp"

namespace adamw_golden_test {

using octavo::Index;
using reference::TrainingGolden;

constexpr octavo::LlamaConfig llama_adamw{.name = "llama_adamw",
                                          .layers = 2,
                                          .hidden = 16,
                                          .ffn = 40,
                                          .heads = 4,
                                          .kv_heads = 2,
                                          .head_dim = 8,
                                          .vocabulary = 32,
                                          .norm_epsilon = 1e-5f,
                                          .rope_theta = 500.0f};

constexpr octavo::LlamaConfig qwen3_adamw{.name = "qwen3_adamw",
                                          .layers = 1,
                                          .hidden = 24,
                                          .ffn = 32,
                                          .heads = 3,
                                          .kv_heads = 1,
                                          .head_dim = 8,
                                          .vocabulary = 40,
                                          .norm_epsilon = 1e-6f,
                                          .rope_theta = 100.0f,
                                          .tied_embeddings = true,
                                          .qk_norm = true};

octavo::SessionOptions session_options(const TrainingGolden& golden, Index micro_batches) {
  octavo::SessionOptions options;
  options.batch = {golden.batch / micro_batches, golden.sequence_length};
  options.micro_batches = micro_batches;
  options.optimizer =
      octavo::AdamWSettings{.beta1 = static_cast<float>(golden.beta1),
                            .beta2 = static_cast<float>(golden.beta2),
                            .epsilon = static_cast<float>(golden.epsilon),
                            .weight_decay = static_cast<float>(golden.weight_decay)};
  options.max_gradient_norm = static_cast<float>(golden.max_norm);
  return options;
}

/// The learning rates of the run, which the file has from PyTorch's schedulers.
octavo::Schedule schedule(const TrainingGolden& golden) {
  return {.learning_rate = golden.learning_rate,
          .final_fraction = golden.final_fraction,
          .warmup_steps = golden.warmup,
          .steps = golden.steps};
}

/// The file exercises what it is for.
void expect_a_telling_run(const TrainingGolden& golden) {
  const auto clipped = std::count_if(golden.gradient_norms.begin(), golden.gradient_norms.end(),
                                     [&](double norm) { return norm > golden.max_norm; });
  EXPECT_GE(clipped, golden.steps / 4);
  EXPECT_LE(clipped, golden.steps * 3 / 4);
  const auto ignored = std::count_if(golden.targets.begin(), golden.targets.end(),
                                     [](std::int32_t target) { return target < 0; });
  EXPECT_GT(ignored, std::ssize(golden.targets) / 5);
  EXPECT_LT(ignored, std::ssize(golden.targets) / 2);
}

/// Bound of a weight's error after `steps` steps. Each rounds the weight a few times, to 2^-24 of
/// itself, and moves it by the learning rate times m̂ / (√v̂ + epsilon). Gradients are off by 1e-7 to
/// 1e-6 of a tensor's largest, which is below 0.6; divided by epsilon, which is 1e-3, that is how
/// far the ratio may be off where the gradient itself is small.
double weight_bound(const TrainingGolden& golden, int steps, double largest) {
  constexpr double rounding = 0x1p-23;
  constexpr double ratio_error = 3e-7 * 0.6 / 1e-3;
  return steps * (rounding * largest + golden.learning_rate * ratio_error);
}

void expect_weights(const TrainingGolden& golden, int steps, const reference::Weights& computed) {
  const reference::Weights& expected = golden.weights.at(steps);
  ASSERT_EQ(computed.size(), expected.size());
  for (const auto& [name, values] : expected) {
    const std::vector<double>& own = computed.at(name);
    ASSERT_EQ(own.size(), values.size()) << name;
    double error = 0;
    double largest = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      error = std::max(error, std::abs(own[i] - values[i]));
      largest = std::max(largest, std::abs(values[i]));
    }
    EXPECT_LE(error, weight_bound(golden, steps, largest)) << name << " after step " << steps;
  }
}

template <octavo::LlamaConfig Config>
void expect_agreement(const std::string& file, Index micro_batches) {
  SCOPED_TRACE(std::to_string(micro_batches) + " micro-batches");
  using Model = octavo::Llama<Config, octavo::Fp32, octavo::Cpu>;
  const TrainingGolden golden = reference::read_training_golden(reference::golden_path(file));
  support::expect_same_shape(support::reference_config(Config), golden.config);
  expect_a_telling_run(golden);
  octavo::Context<octavo::Cpu> context{1};
  const octavo::SessionOptions options = session_options(golden, micro_batches);
  octavo::ModelSession<Model> session(options, context);
  support::load_weights(session.model(), golden.weights.at(0));
  const auto rows =
      static_cast<std::size_t>(golden.batch) * static_cast<std::size_t>(golden.sequence_length);
  for (int step = 1; step <= golden.steps; ++step) {
    SCOPED_TRACE("step " + std::to_string(step));
    const auto index = static_cast<std::size_t>(step - 1);
    const double rate = schedule(golden).at(step);
    EXPECT_NEAR(rate, golden.learning_rates[index], 1e-6 * rate);
    const octavo::StepResult result =
        session.step({std::span(golden.tokens).subspan(index * rows, rows),
                      std::span(golden.targets).subspan(index * rows, rows)},
                     rate);
    EXPECT_FALSE(result.skipped);
    // The gradient answers an error of the weights, 1e-6 of them, with several times as much.
    EXPECT_NEAR(result.loss, golden.losses[index], 5e-6 * golden.losses[index]);
    EXPECT_NEAR(result.gradient_norm, golden.gradient_norms[index],
                3e-5 * golden.gradient_norms[index]);
    if (golden.weights.contains(step)) {
      expect_weights(golden, step, support::weight_values(session.model()));
    }
  }
}

TEST(AdamWGolden, Llama) {
  for (const Index micro_batches : {1, 4}) {
    expect_agreement<llama_adamw>("llama_adamw.golden", micro_batches);
  }
}

TEST(AdamWGolden, Qwen3WithTiedEmbeddings) {
  for (const Index micro_batches : {1, 4}) {
    expect_agreement<qwen3_adamw>("qwen3_adamw.golden", micro_batches);
  }
}

}  // namespace adamw_golden_test
