// Weights that exist only where the hooks say that they are read: every loss, logit and weight has
// the bits of a session whose weights are always there.
#include "support/gathered_weights.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <span>
#include <vector>

#include "support/small_model.hpp"
#include "support/test_types.hpp"

namespace gathered_weights_test {

using namespace octavo;
using support::TokenBatch;

/// What a training, and evaluations on its way, came to.
struct Trace {
  std::vector<double> losses;
  std::vector<float> logits;
  std::vector<std::byte> weights, scaling;
  bool operator==(const Trace&) const = default;
};

template <class Model, class Ranks>
Trace train(const SessionOptions& options) {
  Context<Cpu> context{1};
  ModelSession<Model, AdamW<>, Ranks> session(options, context);
  Trace trace;
  for (unsigned i = 0; i < 3; ++i) {
    const TokenBatch batch = support::step_batch(options, i);
    const StepResult result = session.step({batch.tokens, batch.targets}, 1e-3);
    EXPECT_FALSE(result.skipped);
    trace.losses.insert(trace.losses.end(), {result.loss, result.gradient_norm});
    if (i == 1) continue;  // a step right after a step, and one after an evaluation
    session.begin_evaluation();
    const TokenBatch other = support::make_batch(48, support::small.vocabulary, i);
    trace.losses.push_back(session.evaluate({other.tokens, other.targets}).sum);
    std::vector<float> logits(static_cast<std::size_t>(support::small.vocabulary));
    session.next_token_logits(std::span(other.tokens).first(20), logits);
    trace.logits.insert(trace.logits.end(), logits.begin(), logits.end());
  }
  if constexpr (requires { session.collectives().gather_all(); })
    session.collectives().gather_all();
  trace.weights = support::weights(session);
  trace.scaling = support::scaling_state(session);
  return trace;
}

/// A precision, and whether the head shares the embedding's table.
template <class Of, bool Tied>
struct Case {
  static constexpr LlamaConfig config = [] {
    LlamaConfig config = support::small;
    config.tied_embeddings = Tied;
    return config;
  }();
  using Model = Llama<config, Of, Cpu>;
};

template <class Of>
class GatheredWeights : public testing::Test {};
using HeadInFp8 = Layerwise<Fp8Recipe<Tensorwise>, Head<Fp8Recipe<Delayed>>>;
using Cases =
    support::TestTypes<Case<Fp32, false>, Case<Fp32, true>,  //
                       Case<Fp8Recipe<Tensorwise>, false>, Case<Fp8Recipe<Tensorwise>, true>,
                       Case<Fp8Recipe<Delayed>, false>, Case<Fp8Recipe<Delayed>, true>,
                       Case<HeadInFp8, false>, Case<HeadInFp8, true>>;
TYPED_TEST_SUITE(GatheredWeights, Cases);

TYPED_TEST(GatheredWeights, AreBitwiseEqualToResidentWeights) {
  using Model = typename TypeParam::Model;
  for (const WeightCopies copies : {WeightCopies::kept, WeightCopies::remade}) {
    for (const Index micro_batches : {1, 2}) {
      SessionOptions options = support::small_options();
      options.batch = {1, 48};
      options.micro_batches = micro_batches;
      options.model.weight_copies = copies;
      options.model.recompute = micro_batches == 1 ? Recompute::none : Recompute::block;
      EXPECT_TRUE((train<Model, support::GatheredWeights>(options)) ==
                  (train<Model, SingleRank>(options)))
          << micro_batches << " micro-batches, copies " << static_cast<int>(copies);
    }
  }
}

}  // namespace gathered_weights_test
