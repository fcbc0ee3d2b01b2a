// Ranks on the Cuda device that share a model's layers take the step of one on the Cpu. They are
// threads of one program on one GPU, whose operations wait and cannot be recorded: so each session
// takes one step, which is not.
#include <octavo/train/data_parallel.hpp>

#include "support/cuda_sessions.cuh"
#include "support/on_gpu.cuh"
#include "support/thread_ranks.hpp"

namespace octavo::tensor_parallel_cuda_test {

constexpr LlamaConfig config{.name = "shared",
                             .layers = 2,
                             .hidden = 128,
                             .ffn = 256,
                             .heads = 4,
                             .kv_heads = 2,
                             .head_dim = 64,
                             .vocabulary = 200,
                             .rope_theta = 10000.0f};

/// What a rank knows after a step.
struct Outcome {
  StepResult step;
  double validation = 0;
  std::vector<float> logits;
};

template <class Precision, int Degree, Device D>
std::vector<Outcome> train(int ranks, Zero zero) {
  std::vector<Outcome> outcomes(static_cast<std::size_t>(ranks));
  const int groups = ranks / Degree;
  ::support::on_ranks<D>(ranks, [&](auto& communicator) {
    Context<D> context(std::is_same_v<D, Cuda> ? 0 : 1);
    SessionOptions options;
    options.batch = {2, 64};
    options.seed = 7;
    options.micro_batches = 2 / groups;
    options.sharding.zero = zero;
    using Model = Llama<config, Precision, D, StorageOf<Precision>, TensorParallel<Degree>>;
    ModelSession<Model, AdamW<>, DataParallel<>> session(options, context, communicator);
    const int group = communicator.rank() / Degree;
    ::support::TokenBatch batch;
    for (int m = 0; m < options.micro_batches; ++m) {
      const auto number = static_cast<unsigned>(10 + group * options.micro_batches + m);
      const auto one = ::support::make_batch(128, config.vocabulary, number);
      batch.tokens.insert(batch.tokens.end(), one.tokens.begin(), one.tokens.end());
      batch.targets.insert(batch.targets.end(), one.targets.begin(), one.targets.end());
    }
    Outcome& outcome = outcomes[static_cast<std::size_t>(communicator.rank())];
    outcome.step = session.step({batch.tokens, batch.targets}, 1e-3);
    const auto validation = ::support::make_batch(128, config.vocabulary, 7);
    outcome.validation = session.evaluate({validation.tokens, validation.targets}).mean();
    outcome.logits.resize(config.vocabulary);
    session.next_token_logits(std::span(validation.tokens).first(5), outcome.logits);
  });
  return outcomes;
}

template <class Precision>
void compare(int ranks, Zero zero, double allowed) {
  const Outcome one = train<Precision, 1, Cpu>(1, Zero::optimizer)[0];
  const auto outcomes = train<Precision, 2, Cuda>(ranks, zero);
  for (const Outcome& outcome : outcomes) {
    EXPECT_FALSE(outcome.step.skipped);
    EXPECT_NEAR(outcome.step.loss, one.step.loss, allowed * one.step.loss);
    EXPECT_NEAR(outcome.step.gradient_norm, one.step.gradient_norm,
                10 * allowed * one.step.gradient_norm);
    EXPECT_NEAR(outcome.validation, one.validation, allowed * one.validation);
    EXPECT_EQ(outcome.validation, outcomes[0].validation);
    EXPECT_EQ(outcome.logits, outcomes[0].logits);
  }
}

class TensorParallelOnCuda : public support::OnGpu {};

TEST_F(TensorParallelOnCuda, TwoRanksTakeTheStepOfOneOnTheCpu) {
  compare<Bf16>(2, Zero::optimizer, 2e-3);
  compare<Fp8Recipe<Delayed>>(2, Zero::optimizer, 5e-3);
}

TEST_F(TensorParallelOnCuda, TwoGroupsTakeTheStepOfOneOnTheCpu) {
  compare<Bf16>(4, Zero::weights, 2e-3);
}

}  // namespace octavo::tensor_parallel_cuda_test
