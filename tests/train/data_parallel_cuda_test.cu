// Ranks on the Cuda device take the step of the Cpu's. They are threads of one program on one GPU,
// whose operations wait and cannot be recorded: so each session takes one step, which is not.
#include <octavo/train/data_parallel.hpp>

#include "support/cuda_sessions.cuh"
#include "support/on_gpu.cuh"
#include "support/thread_ranks.hpp"

namespace octavo::data_parallel_cuda_test {

/// What a rank knows after a step.
struct Outcome {
  StepResult step;
  double validation = 0;
};

template <class Precision, class Reduce, class Gather, Device D>
std::vector<Outcome> train(int ranks, Zero zero) {
  std::vector<Outcome> outcomes(static_cast<std::size_t>(ranks));
  ::support::on_ranks<D>(ranks, [&](auto& communicator) {
    Context<D> context(std::is_same_v<D, Cuda> ? 0 : 1);
    SessionOptions options = ::support::small_options();
    options.batch = {2, 64};
    options.micro_batches = 4 / ranks;
    options.sharding.zero = zero;
    ModelSession<Llama<::support::small, Precision, D>, AdamW<>, DataParallel<Reduce, Gather>>
        session(options, context, communicator);
    const auto rank = static_cast<unsigned>(communicator.rank());
    ::support::TokenBatch batch;
    for (unsigned m = 0; m < 4 / static_cast<unsigned>(ranks); ++m) {
      const auto one = ::support::make_batch(128, ::support::small.vocabulary,
                                             10 + rank * 4 / static_cast<unsigned>(ranks) + m);
      batch.tokens.insert(batch.tokens.end(), one.tokens.begin(), one.tokens.end());
      batch.targets.insert(batch.targets.end(), one.targets.begin(), one.targets.end());
    }
    Outcome& outcome = outcomes[rank];
    outcome.step = session.step({batch.tokens, batch.targets}, 1e-3);
    const auto validation = ::support::make_batch(128, ::support::small.vocabulary, 7);
    outcome.validation = session.evaluate({validation.tokens, validation.targets}).mean();
  });
  return outcomes;
}

class DataParallelOnCuda : public support::OnGpu, public testing::WithParamInterface<Zero> {};
INSTANTIATE_TEST_SUITE_P(Stages, DataParallelOnCuda,
                         testing::Values(Zero::optimizer, Zero::gradients, Zero::weights));

template <class Precision, class Reduce, class Gather = GatherIn<>>
void compare(Zero zero, double allowed) {
  const Outcome one = train<Precision, Reduce, GatherIn<>, Cpu>(1, zero)[0];
  const auto outcomes = train<Precision, Reduce, Gather, Cuda>(2, zero);
  for (const Outcome& outcome : outcomes) {
    EXPECT_FALSE(outcome.step.skipped);
    EXPECT_NEAR(outcome.step.loss, one.step.loss, allowed * one.step.loss);
    EXPECT_NEAR(outcome.step.gradient_norm, one.step.gradient_norm,
                10 * allowed * one.step.gradient_norm);
    EXPECT_NEAR(outcome.validation, one.validation, allowed * one.validation);
    EXPECT_EQ(outcome.validation, outcomes[0].validation);
  }
}

TEST_P(DataParallelOnCuda, TwoRanksTakeTheStepOfOneOnTheCpu) {
  compare<Bf16, ReduceIn<>>(GetParam(), 2e-3);
  compare<Fp8Recipe<Delayed>, ReduceIn<>>(GetParam(), 5e-3);
}

TEST_P(DataParallelOnCuda, GradientsTravelInOtherFormats) {
  compare<Bf16, ReduceIn<Fp32>>(GetParam(), 2e-3);
  compare<Bf16, ReduceIn<E4M3>>(GetParam(), 4e-3);
}

TEST_P(DataParallelOnCuda, WeightsTravelInFp8) {
  using Precision = Layerwise<First<1, Fp8Recipe<Tensorwise>>, Fp8Recipe<Delayed>>;
  compare<Precision, ReduceIn<>, GatherIn<E4M3>>(GetParam(), 5e-3);
}

/// Sums in FP32 of one rank: recorded and launched like any step.
TEST(DataParallelOnOneGpu, OneRankWithSumsOfItsOwnIsRecorded) {
  if (const std::string reason = support::why_no_gpu(); !reason.empty()) GTEST_SKIP() << reason;
  Context<Cuda> context(0);
  const SessionOptions options = support::small_session(2);
  ModelSession<Llama<::support::small, Bf16, Cuda>, AdamW<>, DataParallel<ReduceIn<Fp32>>> session(
      options, context);
  support::Session<Bf16, Cuda> alone(options, context);
  for (unsigned step = 0; step < 5; ++step) {
    const StepResult shared = support::take_step(session, options, step);
    const StepResult plain = support::take_step(alone, options, step);
    EXPECT_NEAR(shared.loss, plain.loss, 1e-3 * plain.loss) << "step " << step;
  }
  EXPECT_EQ(session.replays().recordings, 1u);
  EXPECT_EQ(session.replays().launches, 4u);
}

// Steps that compare weights are enqueued as they are; those between launch the record.
TEST(DataParallelOnOneGpu, StepsThatHashWeightsHaveTheBitsOfOthers) {
  if (const std::string reason = support::why_no_gpu(); !reason.empty()) GTEST_SKIP() << reason;
  Context<Cuda> context(0);
  context.set_deterministic(true);
  SessionOptions options = support::small_session(1);
  support::Session<Bf16, Cuda> plain(options, context);
  options.check_replicas = 3;
  support::Session<Bf16, Cuda> hashed(options, context);
  for (unsigned step = 0; step < 6; ++step) {
    const StepResult result = support::take_step(hashed, options, step);
    EXPECT_EQ(result.loss, support::take_step(plain, options, step).loss) << "step " << step;
  }
  EXPECT_TRUE(support::weight_bits(hashed, context) == support::weight_bits(plain, context));
  EXPECT_EQ(hashed.replays().runs, 3u);
  EXPECT_EQ(hashed.replays().recordings, 1u);
  EXPECT_EQ(hashed.replays().launches, 3u);
}

}  // namespace octavo::data_parallel_cuda_test
