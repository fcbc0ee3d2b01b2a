// Gradients of GPT-2 and Qwen3 add up over the micro-batches of a step, and over nothing else.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "support/gradients.hpp"
#include "support/small_model.hpp"

namespace accumulation_test {

using namespace octavo;

constexpr Gpt2Config small_gpt2{.name = "small_gpt2",
                                .layers = 2,
                                .hidden = 128,
                                .heads = 2,
                                .vocabulary = 96,
                                .positions = 16};
constexpr LlamaConfig small_qwen3 = [] {
  LlamaConfig config = support::small;
  config.layers = 2;
  config.tied_embeddings = true;
  config.qk_norm = true;
  return config;
}();

template <class Model>
class AccumulatedGradients : public testing::Test {};
using Models = testing::Types<Gpt2<small_gpt2, Fp32, Cpu>, Qwen3<small_qwen3, Fp32, Cpu>>;
TYPED_TEST_SUITE(AccumulatedGradients, Models);

SessionOptions in_micro_batches(Index micro_batches) {
  SessionOptions options = support::small_options();
  options.batch = {2 / micro_batches, 16};
  options.micro_batches = micro_batches;
  return options;
}

/// @return  what the step said
template <class Session>
StepResult take_step(Session& session, const support::TokenBatch& batch) {
  const StepResult result = session.step({batch.tokens, batch.targets}, 0.0);
  EXPECT_FALSE(result.skipped);
  return result;
}

// In each step, against a new session, which has no gradients of a step before.
TYPED_TEST(AccumulatedGradients, TwoMicroBatchesEqualOneBatchOfBoth) {
  Context<Cpu> context{2};
  ModelSession<TypeParam> parts(in_micro_batches(2), context);
  support::set_nontrivial_weights(parts.model(), 3, context);
  for (unsigned i = 0; i < 2; ++i) {
    ModelSession<TypeParam> whole(in_micro_batches(1), context);
    support::set_nontrivial_weights(whole.model(), 3, context);
    support::TokenBatch batch = support::step_batch(in_micro_batches(1), i);
    // Parts with unequal numbers of targets still weigh every target alike.
    std::fill(batch.targets.begin(), batch.targets.begin() + 5, -1);
    const StepResult expected = take_step(whole, batch);
    const StepResult result = take_step(parts, batch);
    EXPECT_NEAR(result.loss, expected.loss, 1e-6 * expected.loss);
    EXPECT_NEAR(result.gradient_norm, expected.gradient_norm, 1e-5 * expected.gradient_norm);
    for (const support::Distance& one :
         support::distances(support::gradients(parts.model()), support::gradients(whole.model()))) {
      EXPECT_LE(one.error, 1e-5) << one.name << ", step " << i;
    }
  }
}

// At a learning rate of 0 the second step of a session is the first of another, to the bit.
TYPED_TEST(AccumulatedGradients, StepIsIndependentOfEarlierSteps) {
  for (const Index micro_batches : {1, 2}) {
    Context<Cpu> context{2};
    ModelSession<TypeParam> session(in_micro_batches(micro_batches), context);
    ModelSession<TypeParam> fresh(in_micro_batches(micro_batches), context);
    support::set_nontrivial_weights(session.model(), 3, context);
    support::set_nontrivial_weights(fresh.model(), 3, context);
    take_step(session, support::step_batch(in_micro_batches(1), 0));
    take_step(session, support::step_batch(in_micro_batches(1), 1));
    take_step(fresh, support::step_batch(in_micro_batches(1), 1));
    EXPECT_TRUE(support::weight_gradients(session) == support::weight_gradients(fresh))
        << micro_batches;
  }
}

}  // namespace accumulation_test
