// Adapters of the attention of models with experts: router and experts are frozen.
#include <octavo/models/adapter_tensors.hpp>
#include <octavo/parallel/data_parallel.hpp>
#include <octavo/session/session.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "support/adapters.hpp"
#include "support/small_model.hpp"
#include "support/test_types.hpp"

namespace lora_experts_test {

using namespace octavo;

constexpr LlamaConfig small = [] {
  LlamaConfig config = support::small;
  config.layers = 2;
  config.experts = {.experts = 4, .choices = 2};
  config.experts.balance_coefficient = 0.5f;
  return config;
}();
constexpr Index rank = 4;

template <class Precision>
using Session = ModelSession<Llama<small, Precision, Cpu>, AdamW<>, DataParallel<>>;
using Values = std::map<std::string, std::vector<double>>;

SessionOptions small_options() {
  SessionOptions options = support::small_options();
  options.model.lora = {.rank = rank, .alpha = 8};
  return options;
}

double step(TrainingSession& session, unsigned number, double learning_rate) {
  const support::TokenBatch batch = support::step_batch(support::small_options(), number);
  return session.step({batch.tokens, batch.targets}, learning_rate).loss;
}

template <class AnySession>
Values values_of(AnySession& session) {
  return support::values_by_parameter(session, [](auto& parameter) { return parameter.weight; });
}
template <class AnySession>
Values gradients_of(AnySession& session) {
  return support::values_by_parameter(session, [](auto& parameter) { return parameter.gradient; });
}

/// An adapted layer with the rows of its parts.
struct Adapted {
  std::string layer;
  std::vector<Index> parts;
};
std::vector<Adapted> adapted_layers() {
  std::vector<Adapted> all;
  for (int i = 0; i < small.layers; ++i) {
    const std::string block = "blocks." + std::to_string(i) + ".";
    const Index keys = small.kv_heads * small.head_dim;
    all.push_back({block + "qkv", {small.heads * small.head_dim, keys, keys}});
    all.push_back({block + "output", {small.hidden}});
  }
  return all;
}

/// Calls `body(row, column, k, element of A, element of B)` for all terms of B · A.
template <class Body>
void for_each_term(const Adapted& adapted, Index columns, const Body& body) {
  Index begin = 0;
  for (std::size_t part = 0; part < adapted.parts.size(); ++part) {
    for (Index row = begin; row < begin + adapted.parts[part]; ++row) {
      for (Index column = 0; column < columns; ++column) {
        for (Index k = 0; k < rank; ++k) {
          const Index of_a = (static_cast<Index>(part) * rank + k) * columns + column;
          body(static_cast<std::size_t>(row * columns + column), static_cast<std::size_t>(of_a),
               static_cast<std::size_t>(row * rank + k));
        }
      }
    }
    begin += adapted.parts[part];
  }
}

// A model with merged weights learns dW, from which the gradients of A and B follow.
TEST(ExpertLora, GradientsMatchMergedWeights) {
  constexpr double scale = 2.0;  // alpha / rank
  Context<Cpu> context{2};
  for (const Recompute recompute : {Recompute::none, Recompute::block}) {
    SessionOptions options = small_options();
    options.model.recompute = recompute;
    Session<Lora<Fp32>> session(options, context);
    support::set_nontrivial_adapters(session, 5);
    const Values weights = values_of(session);
    Session<Fp32> plain(small_options(), context);
    for (const WeightInfo& weight : plain.weights().list()) {
      const std::vector<double>& values = weights.at(weight.name);
      plain.weights().set(weight.name, std::vector<float>(values.begin(), values.end()));
    }
    for (const Adapted& adapted : adapted_layers()) {
      std::vector<double> merged = weights.at(adapted.layer + ".weight");
      const auto& a = weights.at(adapted.layer + ".lora_A");
      const auto& b = weights.at(adapted.layer + ".lora_B");
      for_each_term(adapted, small.hidden, [&](std::size_t w, std::size_t of_a, std::size_t of_b) {
        merged[w] += scale * a[of_a] * b[of_b];
      });
      plain.weights().set(adapted.layer + ".weight",
                          std::vector<float>(merged.begin(), merged.end()));
    }
    EXPECT_NEAR(step(session, 3, 0.0), step(plain, 3, 0.0), 1e-5);
    const Values found = gradients_of(session);
    const Values whole = gradients_of(plain);
    for (const Adapted& adapted : adapted_layers()) {
      const auto& gradient = whole.at(adapted.layer + ".weight");
      const auto& a = weights.at(adapted.layer + ".lora_A");
      const auto& b = weights.at(adapted.layer + ".lora_B");
      std::vector<double> of_a(a.size());
      std::vector<double> of_b(b.size());
      for_each_term(adapted, small.hidden, [&](std::size_t w, std::size_t i, std::size_t j) {
        of_a[i] += scale * b[j] * gradient[w];
        of_b[j] += scale * a[i] * gradient[w];
      });
      const auto expect_near = [&](const std::string& name, const std::vector<double>& expected) {
        const std::vector<double>& values = found.at(name);
        ASSERT_EQ(values.size(), expected.size()) << name;
        double largest = 0;
        for (const double value : expected) largest = std::max(largest, std::abs(value));
        EXPECT_GT(largest, 0.0) << name;
        for (std::size_t i = 0; i < values.size(); ++i) {
          ASSERT_NEAR(values[i], expected[i], 1e-4 * largest) << name << ' ' << i;
        }
      };
      expect_near(adapted.layer + ".lora_A", of_a);
      expect_near(adapted.layer + ".lora_B", of_b);
    }
  }
}

template <class Precision>
class ExpertLoraPrecisions : public testing::Test {};
using Precisions = support::TestTypes<Fp8Recipe<Tensorwise>, Fp8Recipe<Delayed>>;
TYPED_TEST_SUITE(ExpertLoraPrecisions, Precisions);

TYPED_TEST(ExpertLoraPrecisions, FrozenExpertsMatchTrainedExperts) {
  Context<Cpu> context{2};
  Session<TypeParam> plain(small_options(), context);
  Session<Lora<TypeParam>> frozen(small_options(), context);
  for (TrainingSession* session :
       {static_cast<TrainingSession*>(&plain), static_cast<TrainingSession*>(&frozen)}) {
    step(*session, 0, 0.0);  // computes delayed scales
  }
  const support::TokenBatch batch = support::step_batch(support::small_options(), 50);
  const double bound = std::is_same_v<TypeParam, Fp8Recipe<Delayed>> ? 1e-3 : 0.0;
  const double expected = plain.evaluate({batch.tokens, batch.targets}).sum;
  EXPECT_NEAR(frozen.evaluate({batch.tokens, batch.targets}).sum, expected, bound * expected);
}

TYPED_TEST(ExpertLoraPrecisions, OnlyAdaptersLearnWithAnyRecomputation) {
  Context<Cpu> context{2};
  std::vector<double> expected;
  for (const Recompute recompute : {Recompute::none, Recompute::ffn, Recompute::block}) {
    SessionOptions options = small_options();
    options.model.recompute = recompute;
    if (recompute == Recompute::ffn) options.model.weight_copies = WeightCopies::remade;
    Session<Lora<TypeParam>> session(options, context);
    const Values before = values_of(session);
    std::vector<double> losses;
    for (unsigned i = 0; i < 3; ++i) losses.push_back(step(session, i, 3e-3));
    if (expected.empty()) expected = losses;
    EXPECT_EQ(losses, expected) << static_cast<int>(recompute);
    for (const auto& [name, values] : values_of(session)) {
      const bool is_adapter = name.find("lora_") != std::string::npos;
      EXPECT_EQ(values != before.at(name), is_adapter) << name;
    }
  }
}

TEST(ExpertLora, FilesContainOnlyAttentionAdapters) {
  LlamaConfig qwen3 = small;  // its experts are named like layers that can have adapters
  qwen3.qk_norm = true;
  const std::vector<AdaptedTensor> all = adapted_tensors(description_of(qwen3), LoraOptions());
  ASSERT_EQ(all.size(), 8U);
  for (const AdaptedTensor& tensor : all) {
    EXPECT_NE(tensor.weight.name.find(".self_attn."), std::string::npos) << tensor.weight.name;
  }
}

TEST(ExpertLora, RejectsAdaptersOfExperts) {
  Context<Cpu> context{1};
  SessionOptions options = small_options();
  set_lora_targets(options.model.lora, {"q_proj", "down_proj"});
  try {
    const Session<Lora<Fp32>> session(options, context);
    ADD_FAILURE() << "it was created";
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(),
                 "LoRA: the experts of blocks.0 cannot have adapters, but down_proj is selected; "
                 "choose from q_proj, k_proj, v_proj and o_proj, or all-linear for these four");
  }
}

}  // namespace lora_experts_test
