// State in the host's pinned memory changes no bit of a training on the Cuda device: neither where
// the host enqueues a step, nor where its record is launched.
#include <octavo/cuda.cuh>
#include <octavo/session/state.hpp>

#include "kernels/cuda_support.cuh"
#include "support/cuda_sessions.cuh"
#include "support/test_types.hpp"

#include <cstddef>
#include <vector>

namespace octavo {
namespace offload_cuda_test {

template <class Optimizer>
class OffloadOnCuda : public support::OnGpu {
 protected:
  using Session = ModelSession<Llama<::support::small, Bf16, Cuda>, Optimizer>;

  static SessionOptions options(bool offloads) {
    SessionOptions options = support::small_session(2);
    // Fewer elements than most parameters have, and no divisor of any run.
    options.offload = {.optimizer = offloads, .chunk = 5 * 256};
    return options;
  }
};

using Cases = ::support::TestTypes<AdamW<>, AdamW<MasterWeights<Bf16>, Moments<Bf16>>,
                                   AdamW<MasterWeights<Fp32>, Moments<EightBit>>, Muon<>,
                                   Muon<MasterWeights<Bf16>, Moments<Bf16>>>;
TYPED_TEST_SUITE(OffloadOnCuda, Cases);

TYPED_TEST(OffloadOnCuda, ChangesNoBit) {
  using Session = typename TestFixture::Session;
  std::vector<double> losses[2];
  SavedState states[2];
  for (const bool offloads : {false, true}) {
    const SessionOptions options = TestFixture::options(offloads);
    Context<Cuda> context;
    context.set_deterministic(true);
    Session session(options, context);
    EXPECT_EQ(session.facts().allocated_host_bytes > 0, offloads);
    for (unsigned step = 0; step < 6; ++step) {
      const StepResult result = support::take_step(session, options, step);
      EXPECT_FALSE(result.skipped);
      losses[offloads].push_back(result.loss);
    }
    EXPECT_EQ(session.replays().recordings, 1U);
    EXPECT_EQ(session.replays().launches, 5U);
    states[offloads] = save_state_sync(session.state().entries());
  }
  EXPECT_EQ(losses[0], losses[1]);
  EXPECT_TRUE(states[0] == states[1]);
}

TYPED_TEST(OffloadOnCuda, SkippedStepChangesNothing) {
  using Session = typename TestFixture::Session;
  const SessionOptions options = TestFixture::options(true);
  Context<Cuda> context;
  Session session(options, context);
  for (unsigned step = 0; step < 3; ++step) {
    EXPECT_FALSE(support::take_step(session, options, step).skipped);
  }
  const std::vector<std::byte> weights = support::weight_bits(session, context);
  const SavedState before = save_state_sync(session.state().entries());
  std::vector<std::byte> poisoned = weights;
  poisoned[0] = poisoned[1] = std::byte{0xff};  // a NaN in BF16
  support::set_weight_bits(session, poisoned, context);
  EXPECT_TRUE(support::take_step(session, options, 3).skipped);
  support::set_weight_bits(session, weights, context);
  EXPECT_TRUE(save_state_sync(session.state().entries()) == before);
}

TYPED_TEST(OffloadOnCuda, ResumesFromStateWithoutOffload) {
  using Session = typename TestFixture::Session;
  Context<Cuda> context;
  context.set_deterministic(true);
  Session without(TestFixture::options(false), context);
  Session with(TestFixture::options(true), context);
  const auto steps = [&](Session& session, unsigned begin) {
    std::vector<double> losses;
    for (unsigned step = begin; step < begin + 3; ++step) {
      losses.push_back(support::take_step(session, TestFixture::options(false), step).loss);
    }
    return losses;
  };
  steps(without, 0);
  steps(with, 50);  // of which nothing may be left
  const SavedState saved = save_state_sync(without.state().entries());
  load_state_sync(saved, with.state().entries());
  EXPECT_TRUE(save_state_sync(with.state().entries()) == saved);
  EXPECT_EQ(steps(with, 3), steps(without, 3));
}

}  // namespace offload_cuda_test
}  // namespace octavo
