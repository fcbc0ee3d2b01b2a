// Exchanges between ranks that run beside the step and late: steps wait for what they read, and do
// not write over what is on its way. The same steps with exchanges that are waited for at once are
// the oracle.
#include <octavo/parallel/data_parallel.hpp>
#include <octavo/session/state.hpp>

#include "support/cuda_sessions.cuh"
#include "support/late_ranks.cuh"
#include "support/on_gpu.cuh"
#include "support/thread_ranks.hpp"

#include <algorithm>
#include <string>
#include <vector>

namespace octavo::late_exchanges_cuda_test {

constexpr int ranks = 2;

struct Outcome {
  std::vector<double> losses;
  double validation = 0;
  SavedState state;
  std::vector<TimelineSpan> spans;
};

/// @param late  the communicator, if its exchanges come late; else null
template <class Precision, class Sharing>
Outcome train_rank(const Sharding& sharding, support::LateRank* late,
                   Communicator<Cuda>& communicator) {
  Context<Cuda> context(0);
  context.set_deterministic(true);
  SessionOptions options = support::small_session(2);
  options.sharding = sharding;
  ModelSession<Llama<::support::small, Precision, Cuda>, AdamW<>, Sharing> session(options, context,
                                                                                   communicator);
  Outcome outcome;
  session.begin_timeline_sync();  // steps of one are not recorded
  for (unsigned step = 0; step < 3; ++step) {
    if (late != nullptr) late->delay_next_step(context);
    const auto number = static_cast<unsigned>(communicator.rank()) + ranks * step;
    outcome.losses.push_back(support::take_step(session, options, number).loss);
  }
  const ::support::TokenBatch batch = ::support::make_batch(256, ::support::small.vocabulary, 7);
  outcome.validation = session.evaluate({batch.tokens, batch.targets}).mean();
  outcome.state = save_state_sync(session.state().entries());
  outcome.spans = session.end_timeline();
  return outcome;
}

template <class Precision, class Sharing>
std::vector<Outcome> train(const Sharding& sharding, bool is_late) {
  std::vector<Outcome> outcomes(ranks);
  ::support::on_ranks<Cuda>(ranks, [&](auto& waits) {
    support::LateRank late(waits);
    outcomes[static_cast<std::size_t>(waits.rank())] =
        is_late ? train_rank<Precision, Sharing>(sharding, &late, late)
                : train_rank<Precision, Sharing>(sharding, nullptr, waits);
  });
  return outcomes;
}

class LateExchangesOnCuda : public support::OnGpu,
                            public testing::WithParamInterface<std::tuple<Zero, bool>> {
 protected:
  template <class Precision, class Sharing>
  static void compare() {
    Sharding sharding;
    sharding.zero = std::get<0>(GetParam());
    sharding.reduce_each_micro_batch = std::get<1>(GetParam());
    const std::vector<Outcome> late = train<Precision, Sharing>(sharding, true);
    const std::vector<Outcome> waited = train<Precision, Sharing>(sharding, false);
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      EXPECT_EQ(late[rank].losses, waited[rank].losses) << "rank " << rank;
      EXPECT_EQ(late[rank].validation, waited[rank].validation) << "rank " << rank;
      EXPECT_TRUE(late[rank].state == waited[rank].state) << "rank " << rank;
    }
  }
};
class LateExchangesOnCudaInFp8 : public support::OnGpuIn<Fp8Recipe<Delayed>, LateExchangesOnCuda> {
};
const auto stages = testing::Combine(
    testing::Values(Zero::optimizer, Zero::gradients, Zero::weights), testing::Bool());
INSTANTIATE_TEST_SUITE_P(Stages, LateExchangesOnCuda, stages);
INSTANTIATE_TEST_SUITE_P(Stages, LateExchangesOnCudaInFp8, stages);

TEST_P(LateExchangesOnCuda, ChangeNoBit) { compare<Bf16, DataParallel<ReduceIn<E4M3>>>(); }
TEST_P(LateExchangesOnCudaInFp8, ChangeNoBit) { compare<Fp8Recipe<Delayed>, DataParallel<>>(); }

TEST_P(LateExchangesOnCudaInFp8, OfFp8WeightsChangeNoBit) {
  compare<Layerwise<First<1, Fp8Recipe<Tensorwise>>, Fp8Recipe<Delayed>>,
          DataParallel<ReduceIn<>, GatherIn<E4M3>>>();
}

/// How many exchanges of a kind, such as "reduce", run at the time of a stage of a phase.
Index exchanges_beside(const std::vector<TimelineSpan>& spans, const std::string& exchange,
                       const std::string& phase) {
  return std::ranges::count_if(spans, [&](const TimelineSpan& one) {
    return one.kind == SpanKind::communication && one.name.starts_with(exchange) &&
           std::ranges::any_of(spans, [&](const TimelineSpan& stage) {
             return stage.kind == SpanKind::compute && stage.name.starts_with(phase) &&
                    one.begin < stage.end && stage.begin < one.end;
           });
  });
}

// In the step's own stream they would stand between stages, and have the same bits.
TEST_P(LateExchangesOnCudaInFp8, RunUnderTheStages) {
  Sharding sharding;
  sharding.zero = std::get<0>(GetParam());
  sharding.reduce_each_micro_batch = std::get<1>(GetParam());
  for (const Outcome& rank : train<Fp8Recipe<Delayed>, DataParallel<>>(sharding, true)) {
    EXPECT_GT(exchanges_beside(rank.spans, "reduce", "backward"), 0);
    EXPECT_GT(exchanges_beside(rank.spans, "gather", ""), 0);
  }
}

}  // namespace octavo::late_exchanges_cuda_test
