// Sessions on the Cuda device train with Muon as on the Cpu: with momentum in 8 bits, adapters, and
// ranks that share layers.
#include <octavo/cuda.cuh>
#include <octavo/parallel/data_parallel.hpp>
#include <octavo/session/state.hpp>

#include "kernels/cuda_support.cuh"
#include "support/cuda_sessions.cuh"
#include "support/thread_ranks.hpp"

#include <vector>

namespace octavo {
namespace muon_session_cuda_test {

using EightBitMuon = Muon<MasterWeights<Fp32>, Moments<EightBit>>;
template <class Precision, class Optimizer, Device D>
using Session = ModelSession<Llama<::support::small, Precision, D>, Optimizer>;

class MuonSessionOnCuda : public support::OnGpu {};

SessionOptions options_of(Index lora_rank) {
  SessionOptions options = support::small_session(2);
  if (lora_rank != 0) options.model.lora = {.rank = lora_rank, .alpha = 8};
  return options;
}

template <class Precision, class Optimizer>
void expect_the_cpus_steps(Index lora_rank) {
  const SessionOptions options = options_of(lora_rank);
  Context<Cuda> on_gpu;
  Context<Cpu> on_cpu(support::few_threads);
  Session<Precision, Optimizer, Cuda> cuda(options, on_gpu);
  Session<Precision, Optimizer, Cpu> cpu(options, on_cpu);
  double first = 0;
  for (unsigned i = 0; i < 8; ++i) {
    const ::support::TokenBatch batch = ::support::step_batch(options, 0);
    const StepResult expected = cpu.step({batch.tokens, batch.targets}, 3e-3);
    const StepResult result = cuda.step({batch.tokens, batch.targets}, 3e-3);
    ASSERT_FALSE(result.skipped);
    ASSERT_NEAR(result.loss, expected.loss, 3e-3 * expected.loss) << "step " << i;
    if (i == 0) first = result.loss;
    if (i == 7) EXPECT_LT(result.loss, first);
  }
  EXPECT_EQ(cuda.replays().recordings, 1u);
}

TEST_F(MuonSessionOnCuda, MatchesCpuWithEightBitMomentum) {
  expect_the_cpus_steps<Bf16, EightBitMuon>(0);
}

TEST_F(MuonSessionOnCuda, MatchesCpuWithAdapters) { expect_the_cpus_steps<Lora<Bf16>, Muon<>>(4); }

TEST_F(MuonSessionOnCuda, ResumesBitwiseWithEightBitMomentum) {
  const SessionOptions options = options_of(0);
  Context<Cuda> context;
  context.set_deterministic(true);
  Session<Bf16, EightBitMuon, Cuda> session(options, context);
  for (unsigned i = 0; i < 3; ++i) (void)support::take_step(session, options, i);
  const SavedState saved = save_state_sync(session.state().entries());
  Session<Bf16, EightBitMuon, Cuda> resumed(options, context);
  load_state_sync(saved, resumed.state().entries());
  for (unsigned i = 3; i < 6; ++i) {
    EXPECT_EQ(support::take_step(resumed, options, i).loss,
              support::take_step(session, options, i).loss);
  }
  EXPECT_TRUE(save_state_sync(resumed.state().entries()) ==
              save_state_sync(session.state().entries()));
}

constexpr LlamaConfig shared_by_two() {
  LlamaConfig config = ::support::small;
  config.kv_heads = 2;
  return config;
}
constexpr LlamaConfig shared = shared_by_two();

/// Returns the loss of an evaluation after one step of each rank; see tensor_parallel_cuda_test.cu.
template <int Degree, Device D>
std::vector<double> losses_after_a_step(int ranks) {
  std::vector<double> losses(static_cast<std::size_t>(ranks));
  ::support::on_ranks<D>(ranks, [&](auto& communicator) {
    SessionOptions options = support::small_session(2 / (ranks / Degree));
    options.sharding.zero = Zero::weights;
    Context<D> context(std::is_same_v<D, Cuda> ? 0 : 1);
    using Model = Llama<shared, Bf16, D, Bf16, TensorParallel<Degree>>;
    ModelSession<Model, Muon<>, DataParallel<>> session(options, context, communicator);
    ::support::TokenBatch batch;
    for (Index m = 0; m < options.micro_batches; ++m) {
      const auto number = communicator.rank() / Degree * options.micro_batches + m;
      const auto one =
          ::support::make_batch(static_cast<std::size_t>(options.batch.rows()),
                                ::support::small.vocabulary, static_cast<unsigned>(number));
      batch.tokens.insert(batch.tokens.end(), one.tokens.begin(), one.tokens.end());
      batch.targets.insert(batch.targets.end(), one.targets.begin(), one.targets.end());
    }
    EXPECT_FALSE(session.step({batch.tokens, batch.targets}, 3e-3).skipped);
    const auto seen = ::support::make_batch(static_cast<std::size_t>(options.batch.rows()),
                                            ::support::small.vocabulary, 0);
    losses[static_cast<std::size_t>(communicator.rank())] =
        session.evaluate({seen.tokens, seen.targets}).mean();
  });
  return losses;
}

TEST_F(MuonSessionOnCuda, TensorParallelRanksMatchOneRankOnCpu) {
  const double expected = losses_after_a_step<1, Cpu>(1)[0];
  for (const int ranks : {2, 4}) {
    for (const double loss : losses_after_a_step<2, Cuda>(ranks)) {
      EXPECT_NEAR(loss, expected, 3e-3 * expected) << ranks;
    }
  }
}

}  // namespace muon_session_cuda_test
}  // namespace octavo
