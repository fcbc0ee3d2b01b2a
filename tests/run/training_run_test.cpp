// A run is told of step by step, ends when it should and says why.
#include <octavo/run/training_run.hpp>

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "support/session_stub.hpp"
#include "support/small_model.hpp"
#include "support/state_stub.hpp"
#include "support/temporary_folder.hpp"

namespace training_run_test {

using namespace octavo;

/// What a run told.
class Record final : public RunObserver {
 public:
  void step(const StepRecord& record, const std::vector<OperandReport>& operands) override {
    steps.push_back(record);
    if (!operands.empty()) with_operands.push_back(record.step);
    if (record.step == signal_after) std::raise(SIGTERM);
  }
  void evaluation(Index step, const LossSum& loss) override {
    evaluations.push_back(step);
    EXPECT_GT(loss.tokens, 0);
  }
  void divergence(const StepRecord& record, double) override { diverged.push_back(record.step); }

  Index signal_after = 0;
  std::vector<StepRecord> steps;
  std::vector<Index> with_operands;
  std::vector<Index> evaluations;
  std::vector<Index> diverged;
};

/// A text of 4000 letters that follow from those before them.
std::vector<std::uint8_t> letters() {
  std::vector<std::uint8_t> text(4000);
  for (std::size_t i = 1; i < text.size(); ++i) {
    text[i] = static_cast<std::uint8_t>((5 * text[i - 1] + (i % 7 == 0 ? i % 11 : 3)) % 96);
  }
  return text;
}

RunSummary run(const RunOptions& options, Record& record) {
  const std::vector<std::uint8_t> text = letters();
  const SessionOptions session_options = support::small_options();
  Context<Cpu> context(1);
  support::SmallSession<Fp8Recipe<Delayed>> session(session_options, context);
  TokenBatches batches(text, {.batch = session_options.batch, .validation_batches = 2});
  return train(session, batches, options, record);
}

RunOptions eight_steps() {
  RunOptions options;
  options.schedule = {.learning_rate = 1e-3, .warmup_steps = 3, .steps = 8};
  options.evaluate_every = 3;
  options.operands_every = 5;
  return options;
}

TEST(TrainingRun, ReportsEveryStepAndEvaluation) {
  Record record;
  const RunOptions options = eight_steps();
  const RunSummary summary = run(options, record);
  ASSERT_EQ(record.steps.size(), 8u);
  double sum = 0;
  for (Index i = 0; i < 8; ++i) {
    const StepRecord& step = record.steps[static_cast<std::size_t>(i)];
    EXPECT_EQ(step.step, i + 1);
    EXPECT_EQ(step.learning_rate, options.schedule.at(i + 1));
    EXPECT_EQ(step.last, i == 7);
    EXPECT_GT(step.epoch, i == 0 ? 0.0 : record.steps[static_cast<std::size_t>(i) - 1].epoch);
    sum += step.result.loss;
  }
  EXPECT_EQ(record.evaluations, (std::vector<Index>{0, 3, 6, 8}));
  EXPECT_EQ(record.with_operands, (std::vector<Index>{1, 5, 8}));
  EXPECT_EQ(summary.steps, 8);
  EXPECT_EQ(summary.taken, 8);
  EXPECT_EQ(summary.end(), "done");
  EXPECT_DOUBLE_EQ(summary.train_loss, sum / 8);
  EXPECT_GT(summary.gemms.fp8, 0u);
  EXPECT_GT(summary.gemms.total, summary.gemms.fp8) << "the head is not in FP8";
  EXPECT_TRUE(record.diverged.empty());
}

// GEMMs are counted of one micro-batch, however many a step has.
TEST(TrainingRun, CountsGemmsOfOneMicroBatch) {
  const std::vector<std::uint8_t> text = letters();
  std::vector<GemmCount> counts;
  for (const Index micro_batches : {1, 2}) {
    SessionOptions session_options = support::small_options();
    session_options.micro_batches = micro_batches;
    Context<Cpu> context(1);
    support::SmallSession<Fp8Recipe<Delayed>> session(session_options, context);
    EXPECT_EQ(session.facts().micro_batches, micro_batches);
    TokenBatches batches(
        text,
        {.batch = session_options.batch, .micro_batches = micro_batches, .validation_batches = 1});
    Record record;
    RunOptions options;
    options.schedule = {.learning_rate = 1e-3, .steps = 1};
    counts.push_back(train(session, batches, options, record).gemms);
  }
  EXPECT_GT(counts[0].fp8, 0u);
  EXPECT_EQ(counts[1].fp8, counts[0].fp8);
  EXPECT_EQ(counts[1].total, counts[0].total);
}

TEST(TrainingRun, EvaluatesOnlyAtEndByDefault) {
  Record record;
  RunOptions options = eight_steps();
  options.evaluate_every = 0;
  run(options, record);
  EXPECT_EQ(record.evaluations, std::vector<Index>{8});
}

TEST(TrainingRun, GivesUpAfterNonFiniteSteps) {
  Record record;
  RunOptions options = eight_steps();
  options.schedule = {.kind = ScheduleKind::constant, .learning_rate = 1e30, .steps = 100};
  options.max_skipped = 3;
  const RunSummary summary = run(options, record);
  EXPECT_TRUE(summary.gave_up);
  EXPECT_EQ(summary.end(), "not finite");
  ASSERT_GE(record.steps.size(), 3u);
  for (std::size_t i = record.steps.size() - 3; i < record.steps.size(); ++i) {
    EXPECT_TRUE(record.steps[i].result.skipped);
    EXPECT_EQ(record.with_operands[record.with_operands.size() + i - record.steps.size()],
              record.steps[i].step);
  }
  EXPECT_FALSE(summary.operands.empty());
}

TEST(TrainingRun, RejectsInvalidOptions) {
  Record record;
  RunOptions options = eight_steps();
  options.operands_every = 0;
  EXPECT_THROW(run(options, record), ConfigError);
  options = eight_steps();
  options.max_skipped = 0;
  EXPECT_THROW(run(options, record), ConfigError);
  options = eight_steps();
  options.evaluate_every = -1;
  EXPECT_THROW(run(options, record), ConfigError);
  options = eight_steps();
  options.schedule.final_fraction = -0.1;  // of steps that a run would reach only at its end
  EXPECT_THROW(run(options, record), ConfigError);
  EXPECT_TRUE(record.steps.empty());
}

TEST(TrainingRun, SignalEndsItAfterStep) {
  const InterruptGuard guard;
  Record record;
  record.signal_after = 2;
  const RunSummary summary = run(eight_steps(), record);
  EXPECT_EQ(summary.steps, 3);
  EXPECT_EQ(summary.signal, SIGTERM);
  EXPECT_EQ(summary.end(), "signal 15");
  EXPECT_TRUE(record.steps.back().last);
  EXPECT_EQ(record.evaluations, (std::vector<Index>{0, 3}));
}

TEST(TrainingRun, EndTimeActsLikeSignal) {
  const InterruptGuard guard;
  Record record;
  RunOptions options;
  options.schedule.steps = 9;
  options.end_time = std::chrono::steady_clock::now();
  const RunSummary summary = run(options, record);
  EXPECT_EQ(summary.steps, 1);
  EXPECT_EQ(summary.signal, SIGTERM);
}

TEST(TrainingRun, SignalOfPreviousRunDoesNotEndIt) {
  {
    const InterruptGuard guard;
    Record record;
    record.signal_after = 2;
    EXPECT_EQ(run(eight_steps(), record).steps, 3);
  }
  Record record;
  EXPECT_EQ(run(eight_steps(), record).end(), "done");
}

TEST(TrainingRun, SignalInLastStepIsIgnored) {
  const InterruptGuard guard;
  Record record;
  record.signal_after = 7;
  const RunSummary summary = run(eight_steps(), record);
  EXPECT_EQ(summary.steps, 8);
  EXPECT_EQ(summary.end(), "done");
}

/// Batches of a run of which every second step is skipped; each is a quarter of an epoch.
struct EverySecondSkipped {
  StepResult step(TrainingSession&, double) {
    ++steps;
    return {2.0, 1.0, steps % skipped_every == 0};
  }
  LossSum evaluate(TrainingSession&) const { return {3.0, 1}; }
  double epoch() const { return static_cast<double>(steps) / 4.0; }
  double tokens_in_step() const { return 100; }
  std::vector<StateEntry> state() { return {number_entry("data.steps", steps)}; }

  std::int64_t steps = 0;
  std::int64_t skipped_every = 2;
};

TEST(TrainingRun, CountsSkippedSteps) {
  Record record;
  RunOptions options;
  options.schedule = {.learning_rate = 1e-3, .steps = 5};
  EverySecondSkipped batches;
  support::SessionStub session;
  const RunSummary summary = train(session, batches, options, record);
  EXPECT_EQ(summary.steps, 5);
  EXPECT_EQ(summary.skipped, 2);
  EXPECT_FALSE(summary.gave_up);
  ASSERT_EQ(record.steps.size(), 5u);
  for (std::size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(record.steps[i].epoch, static_cast<double>(i + 1) / 4.0);
  }
}

class SavedRun : public support::TemporaryFolder {
 protected:
  /// The steps that were saved, or were to be.
  RunSummary run_saved(EverySecondSkipped& batches, Index steps, Record& record,
                       const std::filesystem::path& resume_from = {}) {
    support::StateStub session;
    Checkpoints checkpoints({.folder = folder_, .every = 3, .keep = {.last = 10}}, session,
                            [&](const CheckpointRecord& saved) {
                              (saved.error.empty() ? saved_ : failed_).push_back(saved.step);
                              session.fail(saved.step == fails_after_);
                            });
    session.fail(fails_after_ == 0);
    RunTotals totals(2);
    if (!resume_from.empty()) resume(resume_from, session, batches, totals, &checkpoints);
    RunOptions options;
    options.schedule = {.learning_rate = 1e-3, .steps = steps};
    options.evaluate_every = 2;
    options.max_skipped = 2;
    return train(session, batches, options, record, totals, &checkpoints);
  }

  Index fails_after_ = -1;
  std::vector<Index> saved_;
  std::vector<Index> failed_;
};

TEST_F(SavedRun, IsSavedWhenDueAndAtEnd) {
  Record record;
  EverySecondSkipped batches;
  EXPECT_TRUE(run_saved(batches, 8, record).is_saved);
  EXPECT_EQ(saved_, (std::vector<Index>{3, 6, 8}));
  std::vector<bool> evaluated;
  for (const ListedCheckpoint& one : list_checkpoints(folder_)) {
    evaluated.push_back(one.manifest->validation_loss == 3.0);
  }
  EXPECT_EQ(evaluated, (std::vector<bool>{false, true, true}));
  // One that is done takes no step, and is not saved again.
  Record again;
  EverySecondSkipped other;
  const RunSummary summary = run_saved(other, 8, again, folder_ / "step-00000008");
  EXPECT_TRUE(again.steps.empty());
  EXPECT_EQ(again.evaluations, std::vector<Index>{8});
  EXPECT_EQ(other.steps, 8);
  EXPECT_EQ(summary.steps, 8);
  EXPECT_EQ(summary.taken, 0);
  EXPECT_EQ(summary.end(), "done");
  EXPECT_EQ(saved_.size(), 3u);
}

TEST_F(SavedRun, ContinuesAfterFailedSave) {
  Record record;
  EverySecondSkipped batches;
  fails_after_ = 3;
  EXPECT_TRUE(run_saved(batches, 9, record).is_saved);
  EXPECT_EQ(saved_, (std::vector<Index>{3, 9}));
  EXPECT_EQ(failed_, std::vector<Index>{6});
  EXPECT_EQ(record.steps.size(), 9u);
}

TEST_F(SavedRun, ReportsFailureOfLastSave) {
  Record record;
  EverySecondSkipped batches;
  fails_after_ = 6;
  EXPECT_FALSE(run_saved(batches, 8, record).is_saved);
  EXPECT_EQ(failed_, std::vector<Index>{8});
}

TEST_F(SavedRun, IsNotSavedAfterGivingUp) {
  Record record;
  EverySecondSkipped batches;
  batches.skipped_every = 1;
  EXPECT_TRUE(run_saved(batches, 8, record).gave_up);
  EXPECT_TRUE(saved_.empty());
}

TEST(TrainingRunErrors, RejectsRunWithoutSteps) {
  Record record;
  RunOptions options = eight_steps();
  options.schedule.steps = 0;
  EXPECT_THROW(run(options, record), ConfigError);
}

}  // namespace training_run_test
