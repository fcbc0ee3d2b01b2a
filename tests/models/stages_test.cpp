// Stages driven apart compute the bits of a whole micro-batch.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "support/small_model.hpp"

namespace stages_test {

using namespace octavo;

constexpr LlamaConfig tied = [] {
  LlamaConfig config = support::small;
  config.tied_embeddings = true;
  return config;
}();
constexpr LlamaConfig balanced = [] {
  LlamaConfig config = support::small;
  config.experts = {.experts = 4, .choices = 2};
  config.experts.balance_coefficient = 0.1f;
  return config;
}();
constexpr LlamaConfig unbalanced = [] {
  LlamaConfig config = balanced;
  config.experts.balance_coefficient = 0;
  return config;
}();

constexpr BatchShape shape{2, 48};

/// A model in memory of its own, and a batch.
template <class Model>
class Bench {
 public:
  Bench() {
    ModelOptions options;
    {
      Arena<Cpu> measured;
      const Model model(measured, shape, options, context_);
      arena_ = {measured.plan(), context_};
    }
    model_.emplace(arena_, shape, options, context_);
    model_->initialize_sync(7, hooks_, context_);
    batch_ =
        support::make_batch(static_cast<std::size_t>(shape.rows()), support::small.vocabulary, 3);
    losses_.resize(static_cast<std::size_t>(shape.rows()));
    if constexpr (Model::is_frozen) model_->cast_frozen_weights(hooks_, context_);
    model_->template invalidate_weight_copies<Mode::train>(hooks_, context_);
  }

  /// Runs a micro-batch as a whole.
  void train(Accumulation accumulation) { train(accumulation, hooks_); }
  void train(Accumulation accumulation, HooksOf<Model>& hooks) {
    const MicroBatch<Cpu> all = micro_batch(accumulation);
    model_->train_micro_batch({all.tokens, all.targets}, all.losses, all.gradient_scale,
                              accumulation, hooks, context_);
  }
  /// Runs the same in two parts, between which only the residual stream and its gradient pass.
  void train_apart(Accumulation accumulation, std::size_t second) {
    const MicroBatch<Cpu> all = micro_batch(accumulation);
    model_->forward(all, {0, second}, hooks_, context_);
    model_->forward(all, {second, model_->stages()}, hooks_, context_);
    model_->backward(all, {second, model_->stages()}, hooks_, context_);
    model_->backward(all, {0, second}, hooks_, context_);
  }
  void train_forward(Accumulation accumulation, HooksOf<Model>& hooks) {
    model_->forward(micro_batch(accumulation), {0, model_->stages()}, hooks, context_);
  }
  void train_backward(Accumulation accumulation, StageRange range, HooksOf<Model>& hooks) {
    model_->backward(micro_batch(accumulation), range, hooks, context_);
  }
  [[nodiscard]] Model& model() { return *model_; }

  [[nodiscard]] std::vector<std::byte> bits() {
    std::vector<std::byte> bytes;
    model_->visit([&](auto& parameter) {
      if (!parameter.gradient.empty()) support::append_bytes(bytes, parameter.gradient);
    });
    support::append_bytes(bytes, model_->scaling().state());
    support::append_bytes(bytes, TensorView<float, 1, Cpu>{losses_.data(), {shape.rows()}});
    return bytes;
  }

 private:
  [[nodiscard]] MicroBatch<Cpu> micro_batch(Accumulation accumulation) {
    return {shape,
            {batch_.tokens.data(), {shape.rows()}},
            {batch_.targets.data(), {shape.rows()}},
            {losses_.data(), {shape.rows()}},
            {&scale_, {1}},
            accumulation};
  }

  Context<Cpu> context_{2};
  Arena<Cpu> arena_;
  std::optional<Model> model_;
  HooksOf<Model> hooks_;
  support::TokenBatch batch_;
  std::vector<float> losses_;
  float scale_ = 1.0f / static_cast<float>(shape.rows());
};

template <class Model>
void expect_equal_bits() {
  for (std::size_t second = 0; second <= 5; ++second) {
    Bench<Model> whole, apart;
    ASSERT_EQ(whole.model().stages(), 5U) << "the embedding, three blocks and the head";
    for (const bool first : {true, false}) {
      whole.train({.first = first, .last = !first, .share = 0.5f});
      apart.train_apart({.first = first, .last = !first, .share = 0.5f}, second);
      EXPECT_TRUE(whole.bits() == apart.bits()) << second;
    }
  }
}

TEST(Stages, SeparateLlamaStagesMatchWholeModel) { expect_equal_bits<Llama<tied, Bf16, Cpu>>(); }
TEST(Stages, SeparateMixedPrecisionStagesMatchWholeModel) {
  expect_equal_bits<support::SmallModel<support::MixedPrecision>>();
}
TEST(Stages, SeparateStagesWithAdaptersMatchWholeModel) {
  expect_equal_bits<support::SmallModel<Lora<Bf16>>>();
}
TEST(Stages, SeparateStagesWithExpertsMatchWholeModel) {
  expect_equal_bits<Llama<balanced, Bf16, Cpu>>();
}

/// Notes the flat buffers that hooks are called with, by number.
template <class Model>
class NotedHooks : public HooksOf<Model> {
 public:
  using Parameters = typename HooksOf<Model>::Parameters;

  explicit NotedHooks(const Model& model) {
    for (const auto& stage : model.parameters()) parameters_.push_back(stage.flat);
  }
  void before_forward(const Parameters& flat, const Context<Cpu>&) override {
    note("forward ", flat);
  }
  void before_backward(const Parameters& flat, const Context<Cpu>&) override {
    note("backward ", flat);
  }
  void announce(const Parameters& next, const Context<Cpu>&) override { note("next ", next); }

  std::string lines;

 private:
  void note(const char* hook, const Parameters& flat) {
    const auto number =
        std::find(parameters_.begin(), parameters_.end(), &flat) - parameters_.begin();
    lines += hook + std::to_string(number) + '|';
  }
  std::vector<const Parameters*> parameters_;
};

// Also if the head reads the embedding's table between the other stages.
TEST(Stages, AnnounceNextStage) {
  using Model = Llama<tied, Bf16, Cpu>;
  Bench<Model> bench;
  NotedHooks<Model> hooks(bench.model());
  bench.train({}, hooks);
  EXPECT_EQ(hooks.lines,
            "forward 0|next 1|forward 1|next 2|forward 2|next 3|forward 3|next 4|"
            "forward 0|forward 4|backward 4|backward 0|next 3|"
            "backward 3|next 2|backward 2|next 1|backward 1|next 0|backward 0|");
}

/// Records the flat buffers whose gradients are final.
template <class Model>
class FinalGradients : public HooksOf<Model> {
 public:
  using Parameters = typename HooksOf<Model>::Parameters;
  void gradients_final(const Parameters& flat, const Context<Cpu>&) override {
    runs.push_back(&flat);
  }

  std::vector<const Parameters*> runs;
};

// Only adapters have gradients, and all stages add to them.
TEST(Stages, AdapterGradientsAreFinalAtEnd) {
  using Model = support::SmallModel<Lora<Bf16>>;
  Bench<Model> bench;
  FinalGradients<Model> hooks;
  bench.train_forward({.last = false}, hooks);
  bench.train_backward({.last = false}, {0, bench.model().stages()}, hooks);
  EXPECT_TRUE(hooks.runs.empty());
  bench.train_forward({.first = false}, hooks);
  bench.train_backward({.first = false}, {2, bench.model().stages()}, hooks);
  EXPECT_TRUE(hooks.runs.empty());
  bench.train_backward({.first = false}, {0, 2}, hooks);
  ASSERT_EQ(hooks.runs.size(), 1U);
  EXPECT_FALSE(hooks.runs.front()->is_frozen());
}

/// Returns the gradient of a block's router in a micro-batch with a share of one half. All tokens
/// are equal, all routers choose experts 0 and 1, and the other losses have no gradient.
template <class Model>
std::vector<float> router_gradient(const std::string& block) {
  Bench<Model> bench;
  std::vector<float> gradient;
  bench.model().visit([](auto& parameter) {
    const bool is_one = !parameter.is_matrix() || parameter.name == "embedding.weight";
    std::fill_n(parameter.weight.data(), parameter.weight.size(), is_one ? 1.0f : 0.0f);
  });
  bench.train({.share = 0.5f});
  bench.model().visit([&](auto& parameter) {
    if (parameter.name != block + ".router.weight") return;
    gradient.assign(parameter.gradient.data(),
                    parameter.gradient.data() + parameter.gradient.size());
  });
  return gradient;
}

// All n tokens of all layers choose experts 0 and 1, so each of these has a count of n. The 4
// probabilities are 1 / 4, so the loss, coefficient · 4 / n² · Σ counts · probabilities, has the
// derivatives coefficient · (±n / 2) / n² with respect to a token's logits. Inputs of routers
// are 1.
TEST(Stages, BalanceExpertsOverAllLayers) {
  constexpr double expected = 0.5 * 0.1 / (2 * 3);
  for (const char* block : {"blocks.0", "blocks.2"}) {
    const auto gradient = router_gradient<Llama<balanced, Fp32, Cpu>>(block);
    ASSERT_EQ(gradient.size(), 4U * 128U);
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      ASSERT_NEAR(static_cast<double>(gradient[i]), i < 2 * 128 ? expected : -expected,
                  1e-4 * expected)
          << i;
    }
    for (const float value : router_gradient<Llama<unbalanced, Fp32, Cpu>>(block)) {
      ASSERT_EQ(value, 0.0f);
    }
  }
}

TEST(Stages, RejectsRoutersWithUnequalSettings) {
  ExpertLoss<Cpu> loss;
  loss.add_router(8, 0.1f);
  EXPECT_NO_THROW(loss.add_router(8, 0.1f));
  EXPECT_THROW(loss.add_router(8, 0.2f), UsageError);
  EXPECT_THROW(loss.add_router(4, 0.1f), UsageError);
}

}  // namespace stages_test
