// A batch that has more documents than there is room for: ranks refuse it together, the run ends as
// it was before the step, saved, and goes on with more room as if nothing had been.
#include <octavo/parallel/data_parallel.hpp>
#include <octavo/run/training_run.hpp>

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "support/small_model.hpp"
#include "support/temporary_folder.hpp"
#include "support/thread_ranks.hpp"

namespace too_many_documents_test {

using namespace octavo;

constexpr std::int32_t document_end = 90;
constexpr Index sequence = 16;
constexpr Index steps = 12;

using Session = ModelSession<support::SmallModel<Bf16>, AdamW<>, DataParallel<>>;

/// Documents of 40 letters, and at one place nine of one letter each.
std::vector<std::uint8_t> text() {
  std::vector<std::uint8_t> text(400);
  for (std::size_t i = 1; i < text.size(); ++i) {
    const auto letter = static_cast<std::uint8_t>((5 * text[i - 1] + i % 11) % 89);
    text[i] = i % 40 == 0 || (i > 165 && i < 175) ? std::uint8_t{document_end} : letter;
  }
  return text;
}

class Losses final : public RunObserver {
 public:
  void step(const StepRecord& record, const std::vector<OperandReport>&) override {
    losses.push_back(record.result.loss);
  }
  void evaluation(Index step, const LossSum&) override { evaluations.push_back(step); }
  void divergence(const StepRecord&, double) override {}

  std::vector<double> losses;
  std::vector<Index> evaluations;
};

/// What one rank knows of a run.
struct Outcome {
  RunSummary summary;
  std::vector<double> losses;
  std::vector<Index> evaluations;
  Index refused = 0;  ///< documents of a batch with which the run did not begin
  StepResult after{};
};

TokenBatchesOptions batches_of(int rank, int ranks, Index most_documents) {
  return {.batch = {1, sequence, most_documents},
          .micro_batches = 2 / ranks,
          .rank = rank,
          .ranks = ranks,
          .seed = 2,
          .document_end = document_end};
}

/// Trains on two sequences a step.
/// @param from  a checkpoint to go on from; empty: the run begins
std::vector<Outcome> run(int ranks, Zero zero, Index most_documents,
                         const std::filesystem::path& folder,
                         const std::filesystem::path& from = {}) {
  const std::vector<std::uint8_t> letters = text();
  std::vector<Outcome> outcomes(static_cast<std::size_t>(ranks));
  support::on_ranks(ranks, [&](support::ThreadComm& communicator) {
    const TokenBatchesOptions shape = batches_of(communicator.rank(), ranks, most_documents);
    SessionOptions options = support::small_options();
    options.batch = shape.batch;
    options.micro_batches = shape.micro_batches;
    options.sharding.zero = zero;
    Context<Cpu> context(1);
    Session session(options, context, communicator);
    TokenBatches batches(split_validation(letters, 0.1, sequence + 1), shape);
    Checkpoints checkpoints({.folder = folder, .every = 100}, session,
                            [](const CheckpointRecord& record) { EXPECT_EQ(record.error, ""); });
    RunTotals totals(10);
    if (!from.empty()) (void)resume(from, session, batches, totals, &checkpoints);
    RunOptions course;
    course.schedule = {.learning_rate = 1e-2, .steps = steps};
    Outcome& outcome = outcomes[static_cast<std::size_t>(communicator.rank())];
    Losses record;
    try {
      outcome.summary = train(session, batches, course, record, totals, &checkpoints);
    } catch (const TooManyDocumentsError& error) {
      outcome.refused = error.count();
      const support::TokenBatch batch = support::make_batch(
          static_cast<std::size_t>(sequence * shape.micro_batches), document_end, 1);
      outcome.after = session.step({batch.tokens, batch.targets}, 1e-2);
    }
    outcome.losses = record.losses;
    outcome.evaluations = record.evaluations;
  });
  return outcomes;
}

class TooManyDocuments : public support::TemporaryFolder {};

TEST_F(TooManyDocuments, EndRunThatCanBeResumed) {
  for (const int ranks : {1, 2}) {
    for (const Zero zero : {Zero::optimizer, Zero::weights}) {
      const auto at = [&](const char* name) {
        return folder_ / std::to_string(ranks) / std::to_string(static_cast<int>(zero)) / name;
      };
      const Outcome whole = run(ranks, zero, sequence, at("whole"))[0];
      ASSERT_EQ(whole.losses.size(), static_cast<std::size_t>(steps));
      EXPECT_EQ(whole.summary.end(), "done");
      const std::vector<Outcome> ended = run(ranks, zero, 4, at("ended"));
      const RunSummary& summary = ended[0].summary;
      ASSERT_GT(summary.steps, 0);
      ASSERT_LT(summary.steps, steps);
      EXPECT_EQ(summary.end(), "too many documents");
      EXPECT_GT(summary.documents, 4);
      EXPECT_TRUE(summary.is_saved);
      for (const Outcome& of_rank : ended) {
        EXPECT_EQ(of_rank.summary.steps, summary.steps);
        EXPECT_EQ(of_rank.summary.documents, summary.documents);
        EXPECT_EQ(of_rank.losses,
                  (std::vector(whole.losses.begin(), whole.losses.begin() + summary.steps)));
        EXPECT_EQ(of_rank.evaluations, std::vector{summary.steps});
      }
      const auto saved = at("ended") / octavo::detail::checkpoint_name(summary.steps);
      const Outcome on = run(ranks, zero, summary.documents, at("on"), saved)[0];
      EXPECT_EQ(on.losses, (std::vector(whole.losses.begin() + summary.steps, whole.losses.end())));
      EXPECT_EQ(on.summary.validation_loss, whole.summary.validation_loss);
      // What that batch needs is no document more.
      for (const Outcome& of_rank : run(ranks, zero, summary.documents - 1, at("again"), saved)) {
        EXPECT_EQ(of_rank.refused, summary.documents);
        EXPECT_TRUE(of_rank.losses.empty());
        EXPECT_FALSE(of_rank.after.skipped);
      }
      EXPECT_TRUE(list_checkpoints(at("again")).empty());
    }
  }
}

// Of all that a rank has in a step: else it would refuse the step when others have begun it.
TEST(TooManyStepDocuments, CountIsMaximumOverMicroBatches) {
  SessionOptions options = support::small_options();
  options.batch = {1, sequence, 4};
  options.micro_batches = 2;
  const support::TokenBatch batch =
      support::make_batch(static_cast<std::size_t>(2 * sequence), document_end, 1);
  support::on_ranks(1, [&](support::ThreadComm& communicator) {
    Context<Cpu> context(1);
    Session session(options, context, communicator);
    const std::vector<Index> documents{1, 2, 3, 4, 17, 18, 19, 20, 21, 22};
    try {
      (void)session.step({batch.tokens, batch.targets, documents}, 1e-2);
      ADD_FAILURE() << "it was taken";
    } catch (const TooManyDocumentsError& error) {
      EXPECT_EQ(error.count(), 7);
    }
  });
}

TEST(TooManyEvaluationDocuments, AreRejectedBeforeRun) {
  const std::vector<std::uint8_t> letters = text();
  const Tokens tokens(letters);
  const auto batches = [&](int rank, Index most, Index begin = 160) {
    return TokenBatches({{"a", tokens.part(0, 160)}}, tokens.part(begin, 3 * sequence),
                        batches_of(rank, 2, most));
  };
  EXPECT_NO_THROW(batches(1, 4)) << "another rank's batch is none of its own";
  EXPECT_NO_THROW(batches(0, 4, 160 - sequence)) << "nor is the one behind its own";
  EXPECT_THROW(batches(1, 4, 160 - sequence), TooManyDocumentsError);
  Index needed = 0;
  try {
    (void)batches(0, 4);
  } catch (const TooManyDocumentsError& error) {
    needed = error.count();
  }
  ASSERT_GT(needed, 4);
  EXPECT_THROW(batches(0, needed - 1), TooManyDocumentsError);
  EXPECT_NO_THROW(batches(0, needed));
}

}  // namespace too_many_documents_test
