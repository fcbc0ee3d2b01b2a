// Ranks on the Cuda device that share a model's layers take the step of one on the Cpu, and steps
// of the same bits however their exchanges come: waited for at once, late, or in a recorded graph.
// Ranks are threads of one program on one GPU, whose operations cannot be recorded, so each session
// takes one step, which is not, or has a timeline; those that record are processes.
#include <octavo/parallel/data_parallel.hpp>
#include <octavo/session/state.hpp>

#include "support/copy_ranks.cuh"
#include "support/cuda_sessions.cuh"
#include "support/late_ranks.cuh"
#include "support/on_gpu.cuh"
#include "support/rank_processes.hpp"
#include "support/thread_ranks.hpp"

#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <span>
#include <sstream>
#include <string>
#include <type_traits>
#include <vector>

#include <unistd.h>

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

/// What a rank knows at the end.
struct Outcome {
  StepResult step;  ///< the last
  std::vector<double> losses;
  double validation = 0;
  std::vector<float> logits;
  SavedState state;
  ReplayCounts replays;
};

/// How a run is divided.
struct Setting {
  int ranks = 1;
  Zero zero = Zero::optimizer;
  unsigned steps = 1;
};

/// Steps of a run of two micro-batches, of which each group has its part.
/// @param records  whether steps may be recorded
template <class Precision, int Degree, Device D>
Outcome train_rank(const Setting& setting, bool records, Context<D>& context,
                   Communicator<D>& communicator) {
  constexpr Index of_all = 2;
  const int group = communicator.rank() / Degree;
  SessionOptions options;
  options.batch = {2, 64};
  options.seed = 7;
  options.micro_batches = of_all / (setting.ranks / Degree);
  options.sharding.zero = setting.zero;
  using Model = Llama<config, Precision, D, StorageOf<Precision>, TensorParallel<Degree>>;
  ModelSession<Model, AdamW<>, DataParallel<>> session(options, context, communicator);
  if (!records && setting.steps > 1)
    session.begin_timeline_sync();  // steps of one are not recorded
  Outcome outcome;
  for (unsigned step = 0; step < setting.steps; ++step) {
    ::support::TokenBatch batch;
    for (Index m = 0; m < options.micro_batches; ++m) {
      const Index number = 10 + of_all * step + group * options.micro_batches + m;
      const auto one = ::support::make_batch(128, config.vocabulary, static_cast<unsigned>(number));
      batch.tokens.insert(batch.tokens.end(), one.tokens.begin(), one.tokens.end());
      batch.targets.insert(batch.targets.end(), one.targets.begin(), one.targets.end());
    }
    outcome.step = session.step({batch.tokens, batch.targets}, 1e-3);
    EXPECT_FALSE(outcome.step.skipped);
    outcome.losses.push_back(outcome.step.loss);
  }
  const auto validation = ::support::make_batch(128, config.vocabulary, 7);
  outcome.validation = session.evaluate({validation.tokens, validation.targets}).mean();
  outcome.logits.resize(config.vocabulary);
  session.next_token_logits(std::span(validation.tokens).first(5), outcome.logits);
  outcome.state = save_state_sync(session.state().entries());
  outcome.replays = session.replays();
  return outcome;
}

/// @param is_late  of the `Cuda` device: exchanges are only enqueued, and come late
template <class Precision, int Degree, Device D>
std::vector<Outcome> train(const Setting& setting, bool is_late = false) {
  std::vector<Outcome> outcomes(static_cast<std::size_t>(setting.ranks));
  ::support::on_ranks<D>(setting.ranks, [&](auto& waits) {
    Outcome& outcome = outcomes[static_cast<std::size_t>(waits.rank())];
    Context<D> context(std::is_same_v<D, Cuda> ? 0 : 1);
    if constexpr (std::is_same_v<D, Cuda>) {
      context.set_deterministic(setting.steps > 1);  // such runs are compared to the bit
      if (is_late) {
        support::LateRank late(waits);
        outcome = train_rank<Precision, Degree, D>(setting, false, context, late);
        return;
      }
    }
    outcome = train_rank<Precision, Degree, D>(setting, false, context, waits);
  });
  return outcomes;
}

template <class Precision>
void compare(const Setting& setting, double allowed) {
  const Outcome one = train<Precision, 1, Cpu>({})[0];
  const auto outcomes = train<Precision, 2, Cuda>(setting);
  for (const Outcome& outcome : outcomes) {
    EXPECT_NEAR(outcome.step.loss, one.step.loss, allowed * one.step.loss);
    EXPECT_NEAR(outcome.step.gradient_norm, one.step.gradient_norm,
                10 * allowed * one.step.gradient_norm);
    EXPECT_NEAR(outcome.validation, one.validation, allowed * one.validation);
    EXPECT_EQ(outcome.validation, outcomes[0].validation);
    EXPECT_EQ(outcome.logits, outcomes[0].logits);
  }
}

class TensorParallelOnCuda : public support::OnGpu {};
class TensorParallelOnCudaInFp8 : public support::OnGpuIn<Fp8Recipe<Delayed>> {};

TEST_F(TensorParallelOnCuda, TwoRanksMatchOneRankOnCpu) { compare<Bf16>({.ranks = 2}, 2e-3); }
TEST_F(TensorParallelOnCudaInFp8, TwoRanksTakeTheStepOfOneOnTheCpu) {
  compare<Fp8Recipe<Delayed>>({.ranks = 2}, 5e-3);
}

TEST_F(TensorParallelOnCuda, TwoGroupsMatchOneRankOnCpu) {
  compare<Bf16>({.ranks = 4, .zero = Zero::weights}, 2e-3);
}
TEST_F(TensorParallelOnCudaInFp8, TwoGroupsTakeTheStepOfOneOnTheCpu) {
  for (const Zero zero : {Zero::gradients, Zero::weights}) {
    compare<Fp8Recipe<Delayed>>({.ranks = 4, .zero = zero}, 5e-3);
  }
}

/// Two groups of ranks that share the optimizer in some stage of ZeRO.
class GroupsOnCuda : public support::OnGpuIn<Fp8Recipe<Delayed>>,
                     public testing::WithParamInterface<Zero> {
 public:
  using Precision = Fp8Recipe<Delayed>;
  static Setting setting(Zero zero) { return {.ranks = 4, .zero = zero, .steps = 4}; }
};
INSTANTIATE_TEST_SUITE_P(Stages, GroupsOnCuda, testing::Values(Zero::gradients, Zero::weights));

TEST_P(GroupsOnCuda, LateExchangesChangeNoBit) {
  const auto waited = train<Precision, 2, Cuda>(setting(GetParam()));
  const auto late = train<Precision, 2, Cuda>(setting(GetParam()), true);
  for (std::size_t rank = 0; rank < waited.size(); ++rank) {
    EXPECT_EQ(late[rank].losses, waited[rank].losses) << "rank " << rank;
    EXPECT_EQ(late[rank].validation, waited[rank].validation) << "rank " << rank;
    EXPECT_EQ(late[rank].logits, waited[rank].logits) << "rank " << rank;
    EXPECT_TRUE(late[rank].state == waited[rank].state) << "rank " << rank;
  }
}

/// What there is to compare of an outcome, to be handed from process to process.
std::string told(const Outcome& outcome) {
  std::ostringstream text;
  text << std::hexfloat;
  for (const double loss : outcome.losses) text << "loss " << loss << '\n';
  text << "validation " << outcome.validation << '\n';
  for (const float logit : outcome.logits) text << "logit " << logit << '\n';
  for (const auto& [name, entry] : outcome.state) {
    text << name << ' ';
    for (const std::byte byte : entry.bytes) text << static_cast<char>(byte);
    text << '\n';
  }
  return text.str();
}

/// A rank, in a process of its own; see GroupsOnCuda.RecordedStepsAreBitwiseEqualToUnrecorded.
TEST(RecordedRank, DoesItsPart) {
  const char* part = std::getenv("OCTAVO_TEST_RECORDED_RANK");
  if (part == nullptr) GTEST_SKIP() << "the other tests of this file start it";
  std::istringstream words(part);
  int zero = 0;
  int rank = 0;
  int port = 0;
  std::string file;
  words >> zero >> rank >> port >> file;
  const Setting setting = GroupsOnCuda::setting(static_cast<Zero>(zero));
  Rendezvous rendezvous(launch_of(rank, setting.ranks, port), std::chrono::seconds(100));
  Context<Cuda> context(rank % visible_gpus());
  context.set_deterministic(true);
  support::CopyRank communicator(rendezvous, context);
  const Outcome outcome =
      train_rank<GroupsOnCuda::Precision, 2, Cuda>(setting, true, context, communicator);
  EXPECT_EQ(outcome.replays.recordings, 1u);
  EXPECT_EQ(outcome.replays.launches, setting.steps - 1);
  std::ofstream(file, std::ios::binary) << told(outcome);
}

TEST_P(GroupsOnCuda, RecordedStepsAreBitwiseEqualToUnrecorded) {
  const auto expected = train<Precision, 2, Cuda>(setting(GetParam()));
  const std::string files = message(testing::TempDir(), "octavo_recorded_rank_", ::getpid(), '_');
  const int port = free_port();
  RankProcesses processes;
  for (std::size_t rank = 0; rank < expected.size(); ++rank) {
    processes.start([&] {
      const std::string part =
          message(static_cast<int>(GetParam()), ' ', rank, ' ', port, ' ', files, rank);
      exec_as_test("--gtest_filter=RecordedRank.*", "OCTAVO_TEST_RECORDED_RANK", part);
    });
  }
  const std::vector<RankResult> ends = processes.wait(200);
  for (std::size_t rank = 0; rank < expected.size(); ++rank) {
    EXPECT_EQ(ends[rank].exit_code, 0) << "rank " << rank;
    std::ostringstream found;
    found << std::ifstream(files + std::to_string(rank), std::ios::binary).rdbuf();
    EXPECT_TRUE(found.str() == told(expected[rank])) << "rank " << rank;
    std::filesystem::remove(files + std::to_string(rank));
  }
}

}  // namespace octavo::tensor_parallel_cuda_test
