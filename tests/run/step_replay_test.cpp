// A step that is replayed has the bits of the run each time, and one bit that has not is named; a
// hash of all weights is that of their bits.
#include <octavo/parallel/data_parallel.hpp>
#include <octavo/run/step_replay.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "support/small_model.hpp"
#include "support/temporary_folder.hpp"
#include "support/thread_ranks.hpp"

namespace step_replay_test {

using namespace octavo;
using Session = ModelSession<support::SmallModel<Fp8Recipe<Delayed>>, AdamW<>, DataParallel<>>;

constexpr Index steps = 12;

struct Setting {
  int ranks = 1;
  Zero zero = Zero::optimizer;
};

RunOptions run_of(OnSpike action = OnSpike::off) {
  RunOptions options;
  options.schedule = {.learning_rate = 3e-3, .warmup_steps = 2, .steps = steps};
  // So low a limit that noise is above it.
  options.spikes = {.action = action, .threshold = 0.01, .window = 2};
  return options;
}

/// Batches of a text, and a bit that is turned after some step.
class Batches {
 public:
  Batches(const std::vector<std::uint8_t>& text, const SessionOptions& options, int rank, int ranks)
      : batches_(text, {.batch = options.batch,
                        .micro_batches = options.micro_batches,
                        .rank = rank,
                        .ranks = ranks,
                        .validation_batches = 1}) {}

  int fault_after = 0;  ///< so many calls of `step`; 0: none
  std::string entry;    ///< of the state, which is written anew then
  std::byte turned{0};  ///< bits of it that become others

  [[nodiscard]] StepResult step(TrainingSession& session, double rate) {
    const StepResult result = batches_.step(session, rate);
    if (++calls_ != fault_after) return result;
    for (const StateEntry& one : session.state().entries()) {
      if (one.name != entry) continue;
      std::vector<std::byte> bytes(one.bytes);
      one.read_sync(bytes.data());
      bytes.back() ^= turned;
      one.write_sync(bytes.data());
    }
    return result;
  }
  [[nodiscard]] LossSum evaluate(TrainingSession& session) { return batches_.evaluate(session); }
  [[nodiscard]] double epoch() const { return batches_.epoch(); }
  [[nodiscard]] double tokens_in_step() const { return batches_.tokens_in_step(); }
  [[nodiscard]] std::vector<StateEntry> state() { return batches_.state(); }

 private:
  TokenBatches batches_;
  int calls_ = 0;
};

/// Gives `body(rank, session, batches)` of each rank.
template <class Body>
void with_ranks(const Setting& setting, const Body& body) {
  std::vector<std::uint8_t> text;
  for (const std::int32_t token : support::make_batch(4000, support::small.vocabulary, 3).tokens) {
    text.push_back(static_cast<std::uint8_t>(token));
  }
  support::on_ranks(setting.ranks, [&](support::ThreadComm& communicator) {
    SessionOptions options = support::small_options();
    options.batch = {1, 32};
    options.micro_batches = 2 / setting.ranks;
    options.sharding.zero = setting.zero;
    Context<Cpu> context(1);
    Session session(options, context, communicator);
    Batches batches(text, options, communicator.rank(), setting.ranks);
    body(communicator.rank(), session, batches);
  });
}

/// What a run recorded.
class Told final : public RunObserver {
 public:
  void step(const StepRecord& record, const std::vector<OperandReport>&) override {
    records[record.step] = record;
  }
  void evaluation(Index, const LossSum&) override {}
  void divergence(const StepRecord&, double) override {}

  std::map<Index, StepRecord> records;
};

void expect_same(const StepRecord& record, const StepRecord& other) {
  EXPECT_EQ(record.step, other.step);
  EXPECT_EQ(record.result.loss, other.result.loss) << record.step;
  EXPECT_EQ(record.result.gradient_norm, other.result.gradient_norm) << record.step;
  EXPECT_EQ(record.result.skipped, other.result.skipped) << record.step;
  EXPECT_EQ(record.weights_hash, other.weights_hash) << record.step;
}

class StepReplayTest : public support::TemporaryFolder,
                       public testing::WithParamInterface<Setting> {
 protected:
  /// Trains, and records every step; a checkpoint after each fourth one.
  Told run(RunOptions options) const {
    options.hash_every = 1;
    std::vector<Told> told(static_cast<std::size_t>(GetParam().ranks));
    with_ranks(GetParam(), [&](int rank, Session& session, Batches& batches) {
      Checkpoints checkpoints({.folder = folder_, .every = 4, .keep = {.last = 100}}, session,
                              [](const CheckpointRecord&) {});
      RunTotals totals(steps);
      options.evaluate_every = 3;
      (void)train(session, batches, options, told[static_cast<std::size_t>(rank)], totals,
                  &checkpoints);
    });
    return told[0];
  }
};

TEST_P(StepReplayTest, IsBitwiseEqualToRunEachTime) {
  const Told whole = run(run_of());
  ASSERT_EQ(whole.records.size(), static_cast<std::size_t>(steps));
  ASSERT_NE(whole.records.at(1).weights_hash, whole.records.at(2).weights_hash);
  for (const auto& [from, step] : {std::pair<Index, Index>{0, 1}, {4, 7}}) {
    with_ranks(GetParam(), [&, from = from, step = step](int, Session& session, Batches& batches) {
      RunTotals totals(steps);
      if (from != 0) {
        (void)resume(folder_ / octavo::detail::checkpoint_name(from), session, batches, totals,
                     nullptr);
      }
      RunOptions options = run_of();
      options.hash_every = 1;
      Index told = from;
      const auto replays = replay_step(
          session, batches, options, totals, step, 3,
          [&](const StepRecord& record) { expect_same(record, whole.records.at(++told)); });
      EXPECT_EQ(told, step - 1);
      ASSERT_EQ(replays.size(), 3u);
      for (const StepReplay& replay : replays) {
        EXPECT_TRUE(replay.equals(replays[0]));
        expect_same(replay.record, whole.records.at(step));
      }
    });
  }
}

TEST_P(StepReplayTest, ReportsDifferingBits) {
  const auto ranks = static_cast<std::size_t>(GetParam().ranks);
  const int faulty = GetParam().ranks - 1;
  with_ranks(GetParam(), [&](int rank, Session& session, Batches& batches) {
    // Of each rank, and not the first one.
    std::string entry;
    for (const StateEntry& one : session.state().entries()) {
      if (one.name.starts_with("optimizer.") && one.bytes > 64) entry = one.name;
    }
    ASSERT_FALSE(entry.empty());
    batches.fault_after = 2 + 2;  // the second replay of step 3
    batches.entry = entry;
    if (rank == faulty) batches.turned = std::byte{1};
    RunTotals totals(steps);
    const auto replays =
        replay_step(session, batches, run_of(), totals, 3, 3, [](const StepRecord&) {});
    ASSERT_EQ(replays.size(), 3u);
    std::vector<std::string> named(ranks);
    EXPECT_EQ(replays[0].differs, named);
    EXPECT_TRUE(replays[2].equals(replays[0]));
    EXPECT_FALSE(replays[1].equals(replays[0]));
    EXPECT_NE(replays[1].optimizer_hash, replays[0].optimizer_hash);
    EXPECT_EQ(replays[1].record.weights_hash, replays[0].record.weights_hash);
    named[ranks - 1] = session.ranks().texts(entry, "entries")[ranks - 1];
    EXPECT_EQ(replays[1].differs, named);
  });
}

TEST_P(StepReplayTest, RejectsStepAfterSpikeThatStopsRun) {
  Told skipping = run(run_of(OnSpike::skip));
  const auto spike = std::ranges::find_if(
      skipping.records, [](const auto& one) { return one.second.result.skipped; });
  ASSERT_NE(spike, skipping.records.end());
  const Index at = spike->first;
  ASSERT_LT(at, steps);
  for (const OnSpike action : {OnSpike::skip, OnSpike::stop}) {
    with_ranks(GetParam(), [&](int, Session& session, Batches& batches) {
      RunOptions options = run_of(action);
      options.hash_every = 1;
      RunTotals totals(steps);
      const auto replay = [&](Index step) {
        return replay_step(session, batches, options, totals, step, 2, [](const StepRecord&) {});
      };
      if (action == OnSpike::skip) {
        const auto replays = replay(at + 1);
        EXPECT_TRUE(replays[1].equals(replays[0]));
        expect_same(replays[1].record, skipping.records.at(at + 1));
      } else {
        EXPECT_THROW((void)replay(at + 1), ConfigError);
      }
    });
  }
}

TEST_P(StepReplayTest, RejectsStepsOutsideRun) {
  with_ranks(GetParam(), [&](int, Session& session, Batches& batches) {
    RunTotals totals(steps);
    const auto replay = [&](Index step, Index replays) {
      return replay_step(session, batches, run_of(), totals, step, replays,
                         [](const StepRecord&) {});
    };
    EXPECT_THROW((void)replay(0, 2), ConfigError);
    EXPECT_THROW((void)replay(steps + 1, 2), ConfigError);
    EXPECT_THROW((void)replay(2, 1), ConfigError);
    EXPECT_EQ(replay(2, 2).size(), 2u);
    EXPECT_THROW((void)replay(2, 2), ConfigError);
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, StepReplayTest,
                         testing::Values(Setting{}, Setting{.ranks = 2},
                                         Setting{.ranks = 2, .zero = Zero::weights}),
                         [](const auto& setting) {
                           return message("Of", setting.param.ranks, "Zero",
                                          static_cast<int>(setting.param.zero));
                         });

TEST(WeightsHash, IsIndependentOfZeroStage) {
  std::vector<std::uint64_t> before, after;
  for (const Zero zero : {Zero::optimizer, Zero::gradients, Zero::weights}) {
    std::vector<std::vector<std::uint64_t>> of_rank(2);
    with_ranks({.ranks = 2, .zero = zero}, [&](int rank, Session& session, Batches& batches) {
      auto& hashes = of_rank[static_cast<std::size_t>(rank)];
      hashes.push_back(session.weights().hash_sync());
      (void)batches.step(session, 1e-3);
      hashes.push_back(session.weights().hash_sync());
      EXPECT_EQ(session.weights().hash_sync(), hashes[1]);
    });
    EXPECT_EQ(of_rank[1], of_rank[0]);
    before.push_back(of_rank[0][0]);
    after.push_back(of_rank[0][1]);
  }
  EXPECT_NE(before[0], after[0]);
  for (const std::size_t other : {1u, 2u}) {
    EXPECT_EQ(before[other], before[0]);
    EXPECT_EQ(after[other], after[0]);
  }
}

// Whichever rank updates the weight, and wherever in it the element is.
TEST(WeightsHash, ChangesWithAnyElement) {
  with_ranks({.ranks = 2}, [&](int, Session& session, Batches&) {
    const std::uint64_t hash = session.weights().hash_sync();
    for (const WeightInfo& weight : session.weights().list()) {
      std::vector<float> values;
      session.weights().read_sync([&](const WeightInfo& one, Index, std::span<const float> piece) {
        if (one.name == weight.name) values.insert(values.end(), piece.begin(), piece.end());
      });
      for (const std::size_t at : {std::size_t{0}, values.size() - 1}) {
        const float value = values[at];
        values[at] = value == 0 ? 1.0f : 2 * value;
        session.weights().set(weight.name, values);
        EXPECT_NE(session.weights().hash_sync(), hash) << weight.name << ' ' << at;
        values[at] = value;
        session.weights().set(weight.name, values);
        EXPECT_EQ(session.weights().hash_sync(), hash) << weight.name << ' ' << at;
      }
    }
  });
}

}  // namespace step_replay_test
