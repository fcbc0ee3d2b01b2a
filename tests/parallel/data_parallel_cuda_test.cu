// Ranks on the Cuda device take the step of the Cpu's, and the same steps in every stage of ZeRO
// and in whichever format weights travel. They are threads of one program on one GPU, whose
// operations wait and cannot be recorded: so each session takes one step, which is not, or has a
// timeline.
#include <octavo/parallel/data_parallel.hpp>
#include <octavo/session/state.hpp>

#include "support/cuda_sessions.cuh"
#include "support/on_gpu.cuh"
#include "support/states_of_ranks.hpp"
#include "support/thread_ranks.hpp"

namespace octavo::data_parallel_cuda_test {

/// What a rank knows at the end.
struct Outcome {
  StepResult step;  ///< the last
  std::vector<double> losses;
  double validation = 0;
  SavedState state;
};

/// How a run is divided.
struct Setting {
  int ranks = 1;
  Zero zero = Zero::optimizer;
  Index micro_batches = 4;  ///< of all ranks together
  bool reduce_each_micro_batch = false;
  unsigned steps = 1;
};

template <class Precision, class Reduce, class Gather, Device D, class Optimizer = AdamW<>>
std::vector<Outcome> train(const Setting& setting) {
  std::vector<Outcome> outcomes(static_cast<std::size_t>(setting.ranks));
  ::support::on_ranks<D>(setting.ranks, [&](auto& communicator) {
    Context<D> context(std::is_same_v<D, Cuda> ? 0 : 1);
    // Runs of several steps are compared to the bit.
    if constexpr (std::is_same_v<D, Cuda>) context.set_deterministic(setting.steps > 1);
    SessionOptions options = ::support::small_options();
    options.batch = {2, 64};
    options.micro_batches = setting.micro_batches / setting.ranks;
    options.sharding.zero = setting.zero;
    options.sharding.reduce_each_micro_batch = setting.reduce_each_micro_batch;
    ModelSession<Llama<::support::small, Precision, D>, Optimizer, DataParallel<Reduce, Gather>>
        session(options, context, communicator);
    if (setting.steps > 1) session.begin_timeline_sync();  // steps of one are not recorded
    const auto rank = static_cast<unsigned>(communicator.rank());
    const auto all = static_cast<unsigned>(setting.micro_batches);
    const auto own = static_cast<unsigned>(options.micro_batches);
    Outcome& outcome = outcomes[rank];
    for (unsigned step = 0; step < setting.steps; ++step) {
      ::support::TokenBatch batch;
      for (unsigned m = 0; m < own; ++m) {
        const auto one = ::support::make_batch(128, ::support::small.vocabulary,
                                               10 + step * all + rank * own + m);
        batch.tokens.insert(batch.tokens.end(), one.tokens.begin(), one.tokens.end());
        batch.targets.insert(batch.targets.end(), one.targets.begin(), one.targets.end());
      }
      outcome.step = session.step({batch.tokens, batch.targets}, 1e-3);
      EXPECT_FALSE(outcome.step.skipped);
      outcome.losses.push_back(outcome.step.loss);
    }
    const auto validation = ::support::make_batch(128, ::support::small.vocabulary, 7);
    outcome.validation = session.evaluate({validation.tokens, validation.targets}).mean();
    outcome.state = save_state_sync(session.state().entries());
  });
  return outcomes;
}

class DataParallelOnCuda : public support::OnGpu, public testing::WithParamInterface<Zero> {};
class DataParallelOnCudaInFp8 : public support::OnGpuIn<Fp8Recipe<Delayed>, DataParallelOnCuda> {};
constexpr auto stages = {Zero::optimizer, Zero::gradients, Zero::weights};
INSTANTIATE_TEST_SUITE_P(Stages, DataParallelOnCuda, testing::ValuesIn(stages));
INSTANTIATE_TEST_SUITE_P(Stages, DataParallelOnCudaInFp8, testing::ValuesIn(stages));

template <class Precision, class Reduce, class Gather = GatherIn<>>
void compare(Zero zero, double allowed) {
  const Outcome one = train<Precision, Reduce, GatherIn<>, Cpu>({.zero = zero})[0];
  const auto outcomes = train<Precision, Reduce, Gather, Cuda>({.ranks = 2, .zero = zero});
  for (const Outcome& outcome : outcomes) {
    EXPECT_NEAR(outcome.step.loss, one.step.loss, allowed * one.step.loss);
    EXPECT_NEAR(outcome.step.gradient_norm, one.step.gradient_norm,
                10 * allowed * one.step.gradient_norm);
    EXPECT_NEAR(outcome.validation, one.validation, allowed * one.validation);
    EXPECT_EQ(outcome.validation, outcomes[0].validation);
  }
}

TEST_P(DataParallelOnCuda, TwoRanksMatchOneRankOnCpu) {
  compare<Bf16, ReduceIn<>>(GetParam(), 2e-3);
}
TEST_P(DataParallelOnCudaInFp8, TwoRanksTakeTheStepOfOneOnTheCpu) {
  compare<Fp8Recipe<Delayed>, ReduceIn<>>(GetParam(), 5e-3);
}

TEST_P(DataParallelOnCuda, ReducesGradientsInOtherFormats) {
  compare<Bf16, ReduceIn<Fp32>>(GetParam(), 2e-3);
  compare<Bf16, ReduceIn<E4M3>>(GetParam(), 4e-3);
}

using TensorwiseAndDelayed = Layerwise<First<1, Fp8Recipe<Tensorwise>>, Fp8Recipe<Delayed>>;

TEST_P(DataParallelOnCudaInFp8, WeightsTravelInFp8) {
  compare<TensorwiseAndDelayed, ReduceIn<>, GatherIn<E4M3>>(GetParam(), 5e-3);
}

/// Expects that all ranks of two runs took the same steps to the same state.
void expect_same_bits(const std::vector<Outcome>& some, const std::vector<Outcome>& others) {
  for (std::size_t rank = 0; rank < some.size(); ++rank) {
    EXPECT_EQ(some[rank].losses, others[rank].losses) << "rank " << rank;
    EXPECT_EQ(some[rank].validation, others[rank].validation) << "rank " << rank;
  }
  ::support::expect_same_state(some, others);
}

TEST_P(DataParallelOnCudaInFp8, WeightsThatTravelInFp8HaveTheBitsOfOthers) {
  const Setting setting{.ranks = 2, .zero = GetParam(), .steps = 3};
  expect_same_bits(train<TensorwiseAndDelayed, ReduceIn<>, GatherIn<E4M3>, Cuda>(setting),
                   train<TensorwiseAndDelayed, ReduceIn<>, GatherIn<>, Cuda>(setting));
}

template <class Precision>
void expect_repeated(Zero zero) {
  const Setting setting{.ranks = 2, .zero = zero, .steps = 3};
  const auto run = [&] { return train<Precision, ReduceIn<>, GatherIn<>, Cuda>(setting); };
  expect_same_bits(run(), run());
}
TEST_P(DataParallelOnCuda, RepeatedRunsAreBitwiseEqual) { expect_repeated<Bf16>(GetParam()); }
TEST_P(DataParallelOnCudaInFp8, RunsAreRepeatedToTheBit) {
  expect_repeated<Fp8Recipe<Delayed>>(GetParam());
}

class DataParallelOnOneGpu : public support::OnGpu {};
class DataParallelOnOneGpuInFp8 : public support::OnGpuIn<Fp8Recipe<Delayed>> {};

TEST_F(DataParallelOnOneGpu, ZeroStagesAreBitwiseEqualWithMuon) {
  const auto run = [](Zero zero) {
    return train<Bf16, ReduceIn<>, GatherIn<>, Cuda, Muon<>>(
        {.ranks = 2, .zero = zero, .micro_batches = 2, .steps = 3});
  };
  const auto once = run(Zero::optimizer);
  for (const Zero zero : {Zero::gradients, Zero::weights}) expect_same_bits(once, run(zero));
  const auto on_cpu = train<Bf16, ReduceIn<>, GatherIn<>, Cpu, Muon<>>(
      {.ranks = 2, .micro_batches = 2, .steps = 3});
  EXPECT_NEAR(once[0].step.loss, on_cpu[0].step.loss, 1e-2 * on_cpu[0].step.loss);
}

// Where gradients are summed over ranks once per step, and where after each micro-batch.
template <class Precision>
void expect_same_bits_of_stages() {
  const Setting once{.ranks = 2, .micro_batches = 2, .steps = 3};
  const Setting each{.ranks = 2, .reduce_each_micro_batch = true, .steps = 3};
  for (Setting setting : {once, each}) {
    const auto run = [&](Zero zero) {
      setting.zero = zero;
      return train<Precision, ReduceIn<>, GatherIn<>, Cuda>(setting);
    };
    const auto optimizer = run(Zero::optimizer);
    for (const Zero zero : {Zero::gradients, Zero::weights}) expect_same_bits(optimizer, run(zero));
  }
}
TEST_F(DataParallelOnOneGpu, ZeroStagesAreBitwiseEqual) { expect_same_bits_of_stages<Bf16>(); }
TEST_F(DataParallelOnOneGpuInFp8, StagesOfZeroHaveTheSameBits) {
  expect_same_bits_of_stages<Fp8Recipe<Delayed>>();
}

// Each rank times for itself, and would choose what is fastest there.
TEST_F(DataParallelOnOneGpu, RanksUseGemmPlansOfRankZero) {
  if (const std::string reason = support::gpu_skip_reason(); !reason.empty())
    GTEST_SKIP() << reason;
  constexpr std::size_t ranks = 2;
  std::vector<std::string> chosen(ranks);
  std::vector<GemmPlanSummary> summaries(ranks);
  ::support::on_ranks<Cuda>(static_cast<int>(ranks), [&](auto& communicator) {
    Context<Cuda> context(0);
    SessionOptions options = support::small_session(1);
    options.gemm_choice = GemmChoice::rehearsed;
    ModelSession<Llama<::support::small, Bf16, Cuda>, AdamW<>, DataParallel<>> session(
        options, context, communicator);
    const auto rank = static_cast<std::size_t>(communicator.rank());
    chosen[rank] = gemm_plans_text(session.gemm_plans());
    summaries[rank] = session.gemm_plan_summary();
  });
  EXPECT_GT(summaries[0].rehearsed, 0);
  EXPECT_EQ(summaries[1].rehearsed, 0);
  EXPECT_EQ(summaries[1].recorded, summaries[0].rehearsed);
  EXPECT_EQ(chosen[1], chosen[0]);
}

TEST_F(DataParallelOnOneGpu, LibrariesTextNamesAllLibraries) {
  if (const std::string reason = support::gpu_skip_reason(); !reason.empty())
    GTEST_SKIP() << reason;
  Context<Cuda> context(0);
  const std::string text = libraries_text(context);
  EXPECT_EQ(text.find(context.card() + " of "), 0u) << text;
  for (const char* part : {", CUDA ", ", a driver for ", ", cuBLASLt ", "cuDNN"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " is not in " << text;
  }
  context.set_cudnn(false);
  EXPECT_NE(libraries_text(context).find(", no cuDNN"), std::string::npos);
}

/// Sums in FP32 of one rank: recorded and launched like any step.
TEST_F(DataParallelOnOneGpu, OneRankWithFp32SumsIsRecorded) {
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
TEST_F(DataParallelOnOneGpu, HashingWeightsChangesNoBit) {
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
