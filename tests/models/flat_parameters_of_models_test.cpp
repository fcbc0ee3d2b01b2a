// The parameters of a block lie side by side: weights in one run of memory, gradients in another.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "support/small_model.hpp"
#include "support/test_types.hpp"

namespace flat_parameters_of_models_test {

using namespace octavo;
using support::small;

/// One run: the names of its parameters, and what they take.
struct Run {
  std::vector<std::string> names;
  Index elements = 0;  ///< of the parameters alone
  Index size = 0;
};

/// The runs of a model, whose parameters are where the runs say.
template <class Model>
std::vector<Run> runs_of(Model& model) {
  std::vector<Run> runs;
  for (const auto& [of_model, parameters] : model.parameters()) {
    const auto& run = *of_model;
    Run& found = runs.emplace_back();
    found.size = run.size();
    EXPECT_EQ(run.gradients().size(), run.size());
    Index end = 0;
    for (const auto* parameter : parameters) {
      found.names.push_back(parameter->name);
      found.elements += parameter->weight.size();
      EXPECT_GE(parameter->offset, end) << parameter->name;
      EXPECT_EQ(parameter->offset % run.alignment, 0) << parameter->name;
      EXPECT_EQ(parameter->weight.data(), run.weights().data() + parameter->offset);
      EXPECT_EQ(parameter->gradient.data(), run.gradients().data() + parameter->offset);
      end = parameter->offset + parameter->weight.size();
    }
    EXPECT_LE(end, run.size());
  }
  return runs;
}

template <class Precision>
class FlatParametersOfModels : public testing::Test {};
using Precisions = support::TestTypes<Bf16, Fp8Recipe<Delayed>, support::MixedPrecision>;
TYPED_TEST_SUITE(FlatParametersOfModels, Precisions);

TYPED_TEST(FlatParametersOfModels, AreGroupedByEmbeddingBlockAndHead) {
  for (const Index micro_batches : {1, 2}) {  // with 1, gradients share memory
    SessionOptions options = support::small_options();
    options.micro_batches = micro_batches;
    Context<Cpu> context(1);
    support::SmallSession<TypeParam> session(options, context);
    const std::vector<Run> runs = runs_of(session.model());
    ASSERT_EQ(runs.size(), static_cast<std::size_t>(small.layers) + 2);
    EXPECT_EQ(runs.front().names, std::vector<std::string>{"embedding.weight"});
    EXPECT_EQ(runs.back().names, (std::vector<std::string>{"final_norm.weight", "head.weight"}));
    for (std::size_t i = 1; i + 1 < runs.size(); ++i) {
      ASSERT_EQ(runs[i].names.size(), 6u);
      for (const std::string& name : runs[i].names) {
        EXPECT_TRUE(name.starts_with("blocks." + std::to_string(i - 1) + ".")) << name;
      }
      EXPECT_EQ(runs[i].size, runs[1].size);
      EXPECT_LT(runs[i].size - runs[i].elements, 6 * allocation_alignment);
    }
  }
}

// Norms' gradients are added to, so they are zeroed: as wide as gradients are, not weights.
TEST(FlatParametersOfModels, WideGradientsStartEachStepAtZero) {
  using Model = Llama<small, Bf16, Cpu, float>;
  for (const Index micro_batches : {1, 2}) {
    SessionOptions options = support::small_options();
    options.micro_batches = micro_batches;
    Context<Cpu> context(1);
    ModelSession<Model> session(options, context);
    ModelSession<Model> fresh(options, context);
    const support::TokenBatch first = support::step_batch(options, 0);
    const support::TokenBatch second = support::step_batch(options, 1);
    (void)session.step({first.tokens, first.targets}, 0.0);
    (void)session.step({second.tokens, second.targets}, 0.0);
    (void)fresh.step({second.tokens, second.targets}, 0.0);
    EXPECT_TRUE(support::weight_gradients(session) == support::weight_gradients(fresh))
        << micro_batches;
  }
}

/// A Qwen3 in which no parameter's size but the embedding's is a multiple of the alignment.
constexpr LlamaConfig odd{.name = "odd",
                          .layers = 2,
                          .hidden = 40,
                          .ffn = 20,
                          .heads = 2,
                          .kv_heads = 1,
                          .head_dim = 20,
                          .vocabulary = 96,
                          .rope_theta = 10000.0f,
                          .qk_norm = true};

/// Bytes between parameters, and behind the last, that are not zero.
template <class Stage, class View>
Index bytes_between(const Stage& stage, const View& view) {
  std::vector<std::byte> bytes(view.bytes());
  std::memcpy(bytes.data(), view.data(), view.bytes());
  const std::size_t element = bytes.size() / static_cast<std::size_t>(stage.flat->size());
  for (const auto* parameter : stage.parameters) {
    std::memset(bytes.data() + static_cast<std::size_t>(parameter->offset) * element, 0,
                static_cast<std::size_t>(parameter->weight.size()) * element);
  }
  return static_cast<Index>(bytes.size()) - std::count(bytes.begin(), bytes.end(), std::byte{0});
}

/// Looks at a run's gradients when they are final.
struct BetweenGradients {
  template <class W, class G, Device D>
  class For : public SingleRank::For<W, G, D> {
   public:
    using SingleRank::For<W, G, D>::For;

    void gradients_final(const FlatParameters<W, G, D>& run, const Context<D>&) override {
      for (const StageParameters<W, G, D>& stage : this->parameters()) {
        if (stage.flat != &run) continue;
        ++looked_at;
        EXPECT_EQ(bytes_between(stage, run.gradients()), 0) << "run " << looked_at;
      }
    }

    int looked_at = 0;
  };
};

TEST(ParameterPadding, FinalGradientsAreZero) {
  using Model = Qwen3<odd, Bf16, Cpu>;
  for (const Index micro_batches : {1, 2}) {
    SessionOptions options = support::small_options();
    options.micro_batches = micro_batches;
    Context<Cpu> context(1);
    ModelSession<Model, AdamW<>, BetweenGradients> session(options, context);
    Index between = 0;
    for (const auto& stage : session.model().parameters()) {
      std::fill_n(stage.flat->gradients().data(), stage.flat->size(), Bf16(NAN));
      between += bytes_between(stage, stage.flat->gradients());
    }
    EXPECT_GT(between, 0) << "the test needs a shape that leaves some";
    for (unsigned i = 0; i < 2; ++i) {
      const support::TokenBatch batch = support::step_batch(options, i);
      EXPECT_FALSE(session.step({batch.tokens, batch.targets}, 1e-3).skipped);
    }
    EXPECT_EQ(session.collectives().looked_at, 2 * (odd.layers + 2));
  }
}

TEST(ParameterPadding, WeightsAreZeroInUninitialisedMemory) {
  using Model = Qwen3<odd, Bf16, Cpu>;
  constexpr BatchShape shape{1, 16};
  Context<Cpu> context(1);
  Arena<Cpu> arena;
  {
    const Model measured(arena, shape, {}, {});
  }
  arena = {arena.plan(), context};
  std::memset(arena.memory().data(), 0xff, arena.memory().size());
  Model model(arena, shape, {}, {});
  HooksOf<Model> hooks;
  model.initialize_sync(7, hooks, context);
  for (const auto& stage : model.parameters())
    EXPECT_EQ(bytes_between(stage, stage.flat->weights()), 0);
}

}  // namespace flat_parameters_of_models_test
