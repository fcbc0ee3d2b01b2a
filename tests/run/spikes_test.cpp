// A batch that a run does not survive well is noticed, changes nothing, and the run ends or goes on
// as it was asked to.
#include <octavo/parallel/data_parallel.hpp>
#include <octavo/run/training_run.hpp>
#include <octavo/session/state.hpp>

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/small_model.hpp"
#include "support/state_stub.hpp"
#include "support/temporary_folder.hpp"
#include "support/thread_ranks.hpp"

namespace spikes_test {

using namespace octavo;

using Session = ModelSession<support::SmallModel<Fp8Recipe<Delayed>>, AdamW<>, DataParallel<>>;

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr Index window = 6;
constexpr Index steps = 18;
constexpr double threshold = 4;

TEST(SpikeLimit, IsGivenDeviationsAboveMedian) {
  // Median 3, deviations 2 1 0 1 97: their median is 1.
  EXPECT_DOUBLE_EQ(spike_limit({1, 100, 3, 2, 4}, 5), 3 + 5 * 1.4826);
  // Median 2.5, deviations 1.5 0.5 0.5 1.5: 1.
  EXPECT_DOUBLE_EQ(spike_limit({1, 2, 3, 4}, 2), 2.5 + 2 * 1.4826);
  // Of equal values 2 %.
  EXPECT_DOUBLE_EQ(spike_limit({5, 5, 5}, 10), 5 + 10 * 0.1);
}

TEST(SpikeLimit, RejectsNumbersWithoutLimit) {
  const double nan = std::nan("");
  for (const double wrong : {0.0, -1.0, nan, infinity}) {
    EXPECT_THROW((void)spike_limit({1, 2, 3}, wrong), ConfigError) << wrong;
  }
  EXPECT_THROW((void)spike_limit({}, 8), ConfigError);
  EXPECT_THROW((void)spike_limit({1, nan, 3}, 8), ConfigError);
}

/// A text of 8 letters, each of which follows from the one before, and somewhere others.
std::vector<std::uint8_t> poisoned_text() {
  std::vector<std::uint8_t> text(4000);
  for (std::size_t i = 1; i < text.size(); ++i) {
    text[i] = static_cast<std::uint8_t>((5 * text[i - 1] + (i % 7 == 0 ? 2 : 3)) % 8);
  }
  for (std::size_t i = 500; i < 542; ++i) text[i] = static_cast<std::uint8_t>(32 + i * i % 64);
  return text;
}

SessionOptions options_of(int ranks) {
  SessionOptions options = support::small_options();
  options.batch = {1, 48};
  options.micro_batches = 2 / ranks;
  options.sharding.reduce_each_micro_batch = true;
  return options;
}

RunOptions run_of(OnSpike action) {
  RunOptions options;
  options.schedule = {.learning_rate = 3e-3, .warmup_steps = 2, .steps = steps};
  options.spikes = {.action = action, .threshold = threshold, .window = window};
  return options;
}

/// What a run told.
class Told final : public RunObserver {
 public:
  void step(const StepRecord& record, const std::vector<OperandReport>&) override {
    losses[record.step] = record.result.loss;
    if (record.result.skipped) skipped.push_back(record.step);
  }
  void evaluation(Index step, const LossSum&) override { evaluations.push_back(step); }
  void spike(const SpikeRecord& record) override { spikes.push_back(record); }
  void divergence(const StepRecord&, double) override {}

  std::map<Index, double> losses;
  std::vector<Index> skipped;
  std::vector<Index> evaluations;
  std::vector<SpikeRecord> spikes;
};

struct End {
  Told told;
  RunSummary summary;
  SavedState state;  ///< of rank 0, without what the run itself adds
};

/// Gives `body(communicator, session, batches)` of each rank.
template <class Body>
void with_ranks(int ranks, const Body& body) {
  const std::vector<std::uint8_t> text = poisoned_text();
  support::on_ranks(ranks, [&](support::ThreadComm& communicator) {
    const SessionOptions options = options_of(ranks);
    Context<Cpu> context(1);
    Session session(options, context, communicator);
    TokenBatches batches(text, {.batch = options.batch,
                                .micro_batches = options.micro_batches,
                                .rank = communicator.rank(),
                                .ranks = ranks,
                                .validation_batches = 1});
    body(communicator.rank(), session, batches);
  });
}

End run(int ranks, const RunOptions& options, const std::filesystem::path& folder,
        const std::filesystem::path& resume_from = {}) {
  std::vector<End> ends(static_cast<std::size_t>(ranks));
  with_ranks(ranks, [&](int rank, Session& session, TokenBatches& batches) {
    End& end = ends[static_cast<std::size_t>(rank)];
    Checkpoints checkpoints(
        {.folder = folder, .every = 3, .keep = {.last = 100}}, session,
        [](const CheckpointRecord& record) { EXPECT_EQ(record.error + record.warning, ""); });
    RunTotals totals(10);
    if (!resume_from.empty()) resume(resume_from, session, batches, totals, &checkpoints);
    end.summary = train(session, batches, options, end.told, totals, &checkpoints);
    end.state = save_state_sync(session.state().entries());
  });
  for (const End& end : ends) {
    EXPECT_EQ(end.told.losses, ends[0].told.losses);
    EXPECT_EQ(end.told.skipped, ends[0].told.skipped);
  }
  return ends[0];
}

/// Takes the batches that a step would take, and nothing else.
class NoStep final : public support::SessionStub {};

/// Loads a checkpoint if one is named, passes by some batches and takes steps with the others.
/// @param first   number of the first step
/// @param passed  batches, counted from the begin of the text, that no step is taken with
SavedState by_hand(int ranks, const std::filesystem::path& folder, Index first, Index batch,
                   const std::vector<Index>& passed) {
  SavedState state;
  with_ranks(ranks, [&](int rank, Session& session, TokenBatches& batches) {
    const Schedule schedule = run_of(OnSpike::off).schedule;
    if (!folder.empty()) {
      TokenBatches& unmoved = batches;
      RunTotals totals(10);
      std::vector<StateEntry> more = detail::run_state(unmoved, totals);
      load_checkpoint(folder, session, std::move(more));
    }
    NoStep nobody;
    Index number = folder.empty() ? 1 : first;  // of the batch that comes next
    for (; number < batch; ++number) (void)batches.step(nobody, 0);
    for (Index step = first; step <= steps; ++number) {
      if (std::ranges::count(passed, number) != 0) {
        (void)batches.step(nobody, 0);
        if (folder.empty()) ++step;  // a skipped step is a step
        continue;
      }
      (void)batches.step(session, schedule.at(step));
      ++step;
    }
    const SavedState own = save_state_sync(session.state().entries());
    if (rank == 0) state = own;
  });
  return state;
}

class Spike : public support::TemporaryFolder, public testing::WithParamInterface<int> {
 protected:
  void SetUp() override {
    support::TemporaryFolder::SetUp();
    whole_ = run(ranks_, run_of(OnSpike::off), folder_ / "off");
    for (const auto& [step, loss] : whole_.told.losses) {
      if (step > window && loss > whole_.told.losses.at(step - 1) + 1) {
        at_ = step;
        break;
      }
    }
    ASSERT_GT(at_, window + 1);
    ASSERT_LT(at_ + 2, steps);
    ASSERT_NE(at_ % 3, 1) << "there is a checkpoint right before it";
  }
  void expect_the_spike(const SpikeRecord& record) const {
    EXPECT_EQ(record.step, at_);
    EXPECT_EQ(record.loss, whole_.told.losses.at(at_));
    EXPECT_TRUE(record.loss > record.loss_limit ||
                record.gradient_norm > record.gradient_norm_limit);
    std::vector<double> before;
    for (Index step = at_ - window; step < at_; ++step) {
      before.push_back(whole_.told.losses.at(step));
    }
    EXPECT_EQ(record.loss_limit, spike_limit(before, threshold));
  }

  int ranks_ = GetParam();
  End whole_;     ///< of the run that does not look for spikes
  Index at_ = 0;  ///< the step with the poison
};

TEST_P(Spike, IsSkippedWithOnSpikeSkip) {
  const End end = run(ranks_, run_of(OnSpike::skip), folder_ / "skip");
  EXPECT_EQ(end.summary.end(), "done");
  EXPECT_EQ(end.told.skipped, std::vector<Index>{at_});
  ASSERT_EQ(end.told.spikes.size(), 1u);
  expect_the_spike(end.told.spikes[0]);
  EXPECT_EQ(end.told.spikes[0].action, OnSpike::skip);
  for (Index step = 1; step <= at_; ++step) {
    EXPECT_EQ(end.told.losses.at(step), whole_.told.losses.at(step)) << step;
  }
  EXPECT_NE(end.told.losses.at(at_ + 1), whole_.told.losses.at(at_ + 1));
  EXPECT_TRUE(end.state == by_hand(ranks_, {}, 1, 1, {at_}));
}

TEST_P(Spike, StopsRunBeforeStep) {
  const End end = run(ranks_, run_of(OnSpike::stop), folder_ / "stop");
  EXPECT_EQ(end.summary.end(), "spike");
  EXPECT_TRUE(end.summary.spiked);
  EXPECT_TRUE(end.summary.is_saved);
  EXPECT_EQ(end.summary.steps, at_ - 1);
  EXPECT_EQ(end.summary.skipped, 0);
  ASSERT_EQ(end.told.spikes.size(), 1u);
  expect_the_spike(end.told.spikes[0]);
  const auto all = list_checkpoints(folder_ / "stop");
  EXPECT_EQ(all.back().step, at_ - 1);
  // What was saved goes on as the run that did not look.
  const End rest = run(ranks_, run_of(OnSpike::off), folder_ / "stop", all.back().path);
  EXPECT_EQ(rest.told.losses.begin()->first, at_);
  for (const auto& [step, loss] : rest.told.losses) {
    EXPECT_EQ(loss, whole_.told.losses.at(step)) << step;
  }
  EXPECT_TRUE(rest.state == whole_.state);
}

TEST_P(Spike, RollsBackAndSkipsItsBatches) {
  const End end = run(ranks_, run_of(OnSpike::rollback), folder_ / "rollback");
  EXPECT_EQ(end.summary.end(), "done");
  EXPECT_EQ(end.summary.rollbacks, 1);
  EXPECT_EQ(end.summary.steps, steps);
  EXPECT_EQ(end.summary.skipped, 0) << "what was gone back from is forgotten";
  ASSERT_EQ(end.told.spikes.size(), 1u);
  expect_the_spike(end.told.spikes[0]);
  const Index back = (at_ - 1) / 3 * 3;
  EXPECT_EQ(end.told.spikes[0].resumed_step, back);
  EXPECT_TRUE(end.state == by_hand(ranks_, folder_ / "off" / detail::checkpoint_name(back),
                                   back + 1, at_ + 1, {}));
}

INSTANTIATE_TEST_SUITE_P(Ranks, Spike, testing::Values(1, 2));

/// Batches whose losses are given.
struct Scripted {
  StepResult step(octavo::TrainingSession&, double) {
    if (steps == 1000) throw std::runtime_error("the run has no end");
    const bool is_above = steps >= last_good && steps < good_again;
    ++steps;
    return {.loss = is_above ? 9.0 : 2.0,
            .gradient_norm = 1.0,
            .skipped = is_above,
            .is_above_limits = is_above};
  }
  LossSum evaluate(octavo::TrainingSession&) const { return {3.0, 1}; }
  double epoch() const { return 0; }
  double tokens_in_step() const { return 1; }
  std::vector<StateEntry> state() { return {number_entry("data.steps", steps)}; }

  std::int64_t steps = 0;
  std::int64_t last_good = 5;
  std::int64_t good_again = std::numeric_limits<std::int64_t>::max();
};

/// A state, and the limits of the next step.
class LimitedStub final : public support::StateStub {
 public:
  void limit_steps(double loss, double gradient_norm) override {
    limits = {loss, gradient_norm};
    were_finite |= std::isfinite(loss);
  }

  std::array<double, 2> limits{};
  bool were_finite = false;
};

class RepeatedSpikes : public support::TemporaryFolder {
 protected:
  RunSummary run(OnSpike action, Index every, Told& told, Index last = 100) {
    LimitedStub session;
    Checkpoints checkpoints({.folder = folder_, .every = every}, session,
                            [&](const CheckpointRecord& record) {
                              if (damages_) flip_a_bit(record.path / "rank-00000.safetensors");
                            });
    RunTotals totals(4);
    RunOptions options;
    options.schedule = {.learning_rate = 1e-3, .steps = last};
    options.evaluate_every = 1;
    options.spikes = {.action = action, .window = 3, .max_rollbacks = 2};
    RunSummary summary = train(session, batches_, options, told, totals, &checkpoints);
    EXPECT_TRUE(session.were_finite);
    EXPECT_EQ(session.limits, (std::array{infinity, infinity})) << "the run is over";
    return summary;
  }
  static void flip_a_bit(const std::filesystem::path& path) {
    std::string bytes = content(path);
    bytes.back() = static_cast<char>(bytes.back() ^ 1);
    std::ofstream(path, std::ios::binary) << bytes;
  }

  Scripted batches_;
  bool damages_ = false;  ///< each checkpoint once it is saved
};

TEST_F(RepeatedSpikes, StopRunAfterMaxRollbacks) {
  Told told;
  const RunSummary summary = run(OnSpike::rollback, 4, told);
  EXPECT_EQ(summary.end(), "spike");
  EXPECT_EQ(summary.rollbacks, 2);
  EXPECT_EQ(summary.steps, 4);
  ASSERT_EQ(told.spikes.size(), 3u);
  for (const Index i : {0, 1, 2}) {
    const SpikeRecord& spike = told.spikes[static_cast<std::size_t>(i)];
    EXPECT_EQ(spike.step, i == 0 ? 6 : 5);
    EXPECT_EQ(spike.rollbacks, std::min<Index>(i + 1, 2));
    EXPECT_EQ(spike.action, i == 2 ? OnSpike::stop : OnSpike::rollback);
  }
  EXPECT_NE(told.spikes[2].reason.find("2 times"), std::string::npos);
  // The last one's batch is still to come.
  EXPECT_EQ(batches_.steps, 7);
  EXPECT_EQ(told.evaluations, (std::vector<Index>{0, 1, 2, 3, 4, 5, 4}))
      << "steps that were gone back from are none";
}

TEST_F(RepeatedSpikes, InLastStepRollBackToo) {
  Told told;
  batches_.good_again = 6;
  const RunSummary summary = run(OnSpike::rollback, 4, told, 6);
  EXPECT_EQ(summary.end(), "done");
  EXPECT_EQ(summary.rollbacks, 1);
  EXPECT_EQ(summary.steps, 6);
  EXPECT_EQ(batches_.steps, 8) << "the batch of the spike, and those of steps 5 and 6 anew";
}

TEST_F(RepeatedSpikes, StopRunWithoutCheckpoint) {
  Told told;
  const RunSummary summary = run(OnSpike::rollback, 50, told);
  EXPECT_EQ(summary.end(), "spike");
  EXPECT_EQ(summary.steps, 5);
  ASSERT_EQ(told.spikes.size(), 1u);
  EXPECT_NE(told.spikes[0].reason.find("no checkpoint"), std::string::npos);
}

TEST_F(RepeatedSpikes, StopRunWithDamagedCheckpoint) {
  Told told;
  damages_ = true;
  const RunSummary summary = run(OnSpike::rollback, 4, told);
  EXPECT_EQ(summary.end(), "spike");
  EXPECT_EQ(summary.steps, 5);
  EXPECT_TRUE(summary.is_saved);
  ASSERT_EQ(told.spikes.size(), 1u);
  EXPECT_NE(told.spikes[0].reason.find("step-00000004/rank-00000.safetensors"), std::string::npos);
}

TEST_F(RepeatedSpikes, StopRunAfterMaxSkippedSteps) {
  Told told;
  const RunSummary summary = run(OnSpike::skip, 50, told);
  EXPECT_TRUE(summary.gave_up);
  EXPECT_EQ(summary.steps, 9);
  EXPECT_EQ(told.spikes.size(), 4u);
}

TEST_F(RepeatedSpikes, RejectInvalidOptions) {
  support::StateStub session;
  Told told;
  const auto refused = [&](const SpikeOptions& spikes) {
    RunOptions options;
    options.schedule = {.learning_rate = 1e-3, .steps = 1};
    options.spikes = spikes;
    EXPECT_THROW((void)train(session, batches_, options, told), ConfigError);
  };
  refused({.action = OnSpike::skip, .threshold = 0});
  refused({.action = OnSpike::skip, .threshold = infinity});
  refused({.action = OnSpike::skip, .threshold = std::nan("")});
  refused({.action = OnSpike::skip, .window = 1});
  refused({.action = OnSpike::skip, .window = RunTotals::most_recent + 1});
  refused({.action = OnSpike::skip, .max_rollbacks = 0});
  refused({.action = OnSpike::rollback});  // without checkpoints
  EXPECT_TRUE(told.losses.empty());
}

}  // namespace spikes_test
