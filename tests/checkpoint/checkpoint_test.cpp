// A run that was saved and goes on elsewhere, on other ranks too, is the run that never stopped.
#include <octavo/checkpoint/checkpoints.hpp>
#include <octavo/parallel/data_parallel.hpp>
#include <octavo/run/training_run.hpp>
#include <octavo/session/state.hpp>

#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "support/small_model.hpp"
#include "support/temporary_folder.hpp"
#include "support/test_types.hpp"
#include "support/thread_ranks.hpp"

namespace checkpoint_test {

using namespace octavo;

/// The losses of a run, and where a signal stops it.
class Losses final : public RunObserver {
 public:
  void step(const StepRecord& record, const std::vector<OperandReport>&) override {
    losses[record.step] = record.result.loss;
    if (record.step == signal_after) std::raise(SIGUSR1);
  }
  void evaluation(Index step, const LossSum& loss) override { evaluations[step] = loss.mean(); }
  void divergence(const StepRecord&, double) override {}

  Index signal_after = 0;
  std::map<Index, double> losses;
  std::map<Index, double> evaluations;
};

/// A text of 4000 letters that follow from those before them.
std::vector<std::uint8_t> letters(unsigned step = 3) {
  std::vector<std::uint8_t> text(4000);
  for (std::size_t i = 1; i < text.size(); ++i) {
    text[i] = static_cast<std::uint8_t>((5 * text[i - 1] + (i % 7 == 0 ? i % 11 : step)) % 96);
  }
  return text;
}

SessionOptions options_of(int ranks, Zero zero) {
  SessionOptions options = support::small_options();
  options.batch = {1, 48};
  options.micro_batches = 4 / ranks;
  options.sharding.zero = zero;
  options.sharding.reduce_each_micro_batch = true;
  return options;
}

RunOptions run_of(Index steps) {
  RunOptions options;
  options.schedule = {.learning_rate = 1e-3, .warmup_steps = 3, .steps = steps};
  options.evaluate_every = 2;
  return options;
}

/// What a run has at its end.
struct End {
  std::map<Index, double> losses;
  std::map<Index, double> evaluations;
  RunSummary summary;
  SavedState state;
};

/// A run of one rank, to its end or until a signal comes.
/// @param resume_from  empty: from the beginning
template <class Session>
End run(const std::filesystem::path& folder, Index signal_after,
        const std::filesystem::path& resume_from, unsigned seed_of_weights = 7) {
  const std::vector<std::uint8_t> text = letters();
  SessionOptions options = options_of(1, Zero::optimizer);
  options.seed = seed_of_weights;
  Context<Cpu> context(1);
  SelfComm<Cpu> alone;
  Session session(options, context, alone);
  TokenBatches batches(
      text,
      {.batch = options.batch, .micro_batches = options.micro_batches, .validation_batches = 2});
  Checkpoints checkpoints(
      {.folder = folder, .every = 3, .keep = {.last = 100}}, session,
      [](const CheckpointRecord& record) { EXPECT_EQ(record.error + record.warning, ""); });
  RunTotals totals(10);
  if (!resume_from.empty()) resume(resume_from, session, batches, totals, &checkpoints);
  Losses losses;
  losses.signal_after = signal_after;
  const InterruptGuard guard;
  End end;
  end.summary = train(session, batches, run_of(8), losses, totals, &checkpoints);
  end.losses = losses.losses;
  end.evaluations = losses.evaluations;
  end.state = save_state_sync(session.state().entries());
  return end;
}

template <class Case>
class ResumedRun : public support::TemporaryFolder {};
using Cases = support::TestTypes<
    std::tuple<Bf16, AdamW<>>,
    std::tuple<Fp8Recipe<Delayed>, AdamW<MasterWeights<Bf16>, Moments<Bf16>>>,
    std::tuple<Fp8Recipe<Delayed>, AdamW<MasterWeights<Fp32>, Moments<EightBit>>>,
    std::tuple<Bf16, Muon<MasterWeights<Bf16>, Moments<Bf16>>>,
    std::tuple<Bf16, Muon<MasterWeights<Bf16>, Moments<EightBit>>>>;
TYPED_TEST_SUITE(ResumedRun, Cases);

template <class Case>
using Ranked = ModelSession<support::SmallModel<std::tuple_element_t<0, Case>>,
                            std::tuple_element_t<1, Case>, DataParallel<>>;

TYPED_TEST(ResumedRun, MatchesUninterruptedRun) {
  const End whole = run<Ranked<TypeParam>>(this->folder_ / "whole", 0, {});
  EXPECT_EQ(whole.summary.end(), "done");
  EXPECT_TRUE(whole.summary.is_saved);
  const End first = run<Ranked<TypeParam>>(this->folder_ / "cut", 3, {});
  EXPECT_EQ(first.summary.signal, SIGUSR1);
  const auto found = list_checkpoints(this->folder_ / "cut");
  ASSERT_EQ(found.size(), 2u);  // that of step 3, and that of the signal
  EXPECT_EQ(found.back().step, 4);
  // Its own weights are others.
  const End second = run<Ranked<TypeParam>>(this->folder_ / "cut", 0, found.back().path, 8);
  EXPECT_EQ(second.losses.begin()->first, 5);
  EXPECT_EQ(second.losses.size(), 4u);
  for (const auto& [step, loss] : whole.losses) {
    EXPECT_EQ(step <= 4 ? first.losses.at(step) : second.losses.at(step), loss) << step;
  }
  for (const auto& [step, loss] : second.evaluations) {
    EXPECT_EQ(loss, whole.evaluations.at(step)) << step;
  }
  EXPECT_TRUE(second.state == whole.state);
  EXPECT_EQ(second.summary.steps, 8);
  EXPECT_EQ(second.summary.train_loss, whole.summary.train_loss);
  EXPECT_EQ(second.summary.validation_loss, whole.summary.validation_loss);
  EXPECT_EQ(list_checkpoints(this->folder_ / "cut").back().manifest->validation_loss,
            whole.summary.validation_loss);
}

using Case = std::tuple<Fp8Recipe<Delayed>, AdamW<MasterWeights<Fp32>, Moments<EightBit>>>;
using Session = Ranked<Case>;

class CheckpointOfRanks : public support::TemporaryFolder {};

/// Puts the state of all ranks together: for each name the bytes of its whole.
std::map<std::string, std::vector<std::byte>> whole_of(const std::vector<SavedState>& ranks) {
  std::map<std::string, std::vector<std::byte>> result;
  for (const SavedState& state : ranks) {
    for (const auto& [name, entry] : state) {
      std::size_t elements = 1;
      std::size_t of_whole = 1;
      for (const Index extent : entry.shape) elements *= static_cast<std::size_t>(extent);
      for (const Index extent : entry.whole) of_whole *= static_cast<std::size_t>(extent);
      const std::size_t size = entry.bytes.size() / elements;
      result[name].resize(size * of_whole);
      if (entry.bytes.empty()) continue;
      std::memcpy(result[name].data() + size * static_cast<std::size_t>(entry.begin),
                  entry.bytes.data(), entry.bytes.size());
    }
  }
  return result;
}

std::size_t total_bytes(const std::map<std::string, std::vector<std::byte>>& whole) {
  std::size_t sum = 0;
  for (const auto& [name, bytes] : whole) sum += bytes.size();
  return sum;
}

/// Ranks that go on from a checkpoint, if one is named, take steps and save.
template <class Session>
std::vector<SavedState> train_ranks(int ranks, Zero zero, Index steps,
                                    const std::filesystem::path& folder,
                                    const std::filesystem::path& resume_from,
                                    std::vector<SavedState>* loaded = nullptr) {
  std::vector<SavedState> states(static_cast<std::size_t>(ranks));
  if (loaded != nullptr) loaded->resize(states.size());
  const std::vector<std::uint8_t> text = letters();
  support::on_ranks(ranks, [&](support::ThreadComm& communicator) {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    const SessionOptions options = options_of(ranks, zero);
    Context<Cpu> context(1);
    Session session(options, context, communicator);
    TokenBatches batches(text, {.batch = options.batch,
                                .micro_batches = options.micro_batches,
                                .rank = communicator.rank(),
                                .ranks = ranks});
    RunTotals totals(10);
    if (!resume_from.empty()) {
      const Index step = resume(resume_from, session, batches, totals, nullptr).step;
      EXPECT_EQ(totals.steps(), step);
    }
    if (loaded != nullptr) (*loaded)[rank] = save_state_sync(session.state().entries());
    for (Index step = 0; step < steps; ++step) (void)batches.step(session, 1e-3);
    totals.add({.step = steps, .result = {.loss = 1.0}});
    Checkpoints checkpoints({.folder = folder}, session,
                            [](const CheckpointRecord& record) { EXPECT_EQ(record.error, ""); });
    checkpoints.save(totals.steps(), detail::run_state(batches, totals));
    checkpoints.finish();
    states[rank] = save_state_sync(session.state().entries());
  });
  return states;
}

template <class Session>
void expect_other_ranks_go_on(const std::filesystem::path& folder_) {
  const auto train_ranks = [](auto... arguments) {
    return checkpoint_test::train_ranks<Session>(arguments...);
  };
  const std::filesystem::path none;
  const std::vector<SavedState> saved = train_ranks(2, Zero::optimizer, 3, folder_ / "first", none);
  const std::filesystem::path path = folder_ / "first" / "step-00000001";
  const auto expected = whole_of(saved);
  // Weights and scales are there once, though both ranks have them.
  EXPECT_LT(list_checkpoints(folder_ / "first").front().manifest->bytes(),
            total_bytes(expected) + total_bytes(expected) / 4);
  std::map<int, std::vector<SavedState>> after;
  for (const auto& [ranks, zero] : {std::pair(1, Zero::optimizer), std::pair(2, Zero::optimizer),
                                    std::pair(4, Zero::optimizer), std::pair(2, Zero::weights)}) {
    std::vector<SavedState> loaded;
    const std::filesystem::path folder = folder_ / std::to_string(10 * ranks + int(zero));
    const auto end = train_ranks(ranks, zero, 2, folder, path, &loaded);
    EXPECT_TRUE(whole_of(loaded) == expected) << ranks << " ranks, ZeRO-" << int(zero);
    if (ranks == 2) after[int(zero)] = end;
  }
  // Stages of ZeRO have the same bits: those that went on alike end alike.
  EXPECT_TRUE(whole_of(after.at(1)) == whole_of(after.at(3)));
  // And those without weights on every rank can be gone on from.
  std::vector<SavedState> loaded;
  train_ranks(1, Zero::optimizer, 0, folder_ / "last", folder_ / "23" / "step-00000002", &loaded);
  EXPECT_TRUE(whole_of(loaded) == whole_of(after.at(3)));
}

TEST_F(CheckpointOfRanks, ResumesWithOtherRanksAndZeroStages) {
  expect_other_ranks_go_on<Session>(folder_);
}

TEST_F(CheckpointOfRanks, ResumesMuonWithOtherRanksAndZeroStages) {
  expect_other_ranks_go_on<Ranked<std::tuple<Bf16, Muon<>>>>(folder_);
}

TEST_F(CheckpointOfRanks, RejectsOtherTrainingText) {
  train_ranks<Session>(1, Zero::optimizer, 1, folder_, {});
  const std::vector<std::uint8_t> text = letters(4);
  const SessionOptions options = options_of(1, Zero::optimizer);
  Context<Cpu> context(1);
  Session session(options, context);
  const SavedState before = save_state_sync(session.state().entries());
  TokenBatches batches(text, {.batch = options.batch, .micro_batches = options.micro_batches});
  RunTotals totals(10);
  try {
    resume(folder_ / "step-00000001", session, batches, totals, nullptr);
    FAIL() << "it was loaded";
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("data.source is tokens of hash"), std::string::npos);
  }
  EXPECT_TRUE(save_state_sync(session.state().entries()) == before);
}

/// What entries say that another thread may read, and the state after three more steps.
struct Read {
  std::map<std::string, std::vector<std::byte>> bytes;
  SavedState end;
};

/// Two ranks, one of which is looked at.
/// @param reads   another thread begins to read the state a while after the next call has begun
/// @param loads   that call loads another state, else it is a step
std::vector<Read> read_while_ranks_go_on(Zero zero, bool reads, bool loads) {
  std::vector<Read> all(2);
  support::on_ranks(2, [&, text = letters()](support::ThreadComm& communicator) {
    const SessionOptions options = options_of(2, zero);
    Context<Cpu> context(1);
    Session session(options, context, communicator);
    TokenBatches batches(text, {.batch = options.batch,
                                .micro_batches = options.micro_batches,
                                .rank = communicator.rank(),
                                .ranks = 2});
    const SavedState first = save_state_sync(session.state().entries());
    (void)batches.step(session, 1e-3);
    const std::vector<StateEntry> entries = session.state().entries();
    Read& read = all[static_cast<std::size_t>(communicator.rank())];
    std::thread reader;
    if (reads) {
      session.state().begin_reading();
      reader = std::thread([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(80));  // several steps
        for (const StateEntry& entry : entries) {
          if (!entry.read_async) continue;
          auto& bytes = read.bytes[entry.name];
          bytes.resize(entry.bytes);
          entry.read_async(bytes.data());
        }
        session.state().end_reading();
      });
    } else {
      for (const auto& [name, entry] : save_state_sync(entries)) read.bytes[name] = entry.bytes;
    }
    if (loads) load_state_sync(first, session.state().entries());
    for (int step = 0; step < 3; ++step) (void)batches.step(session, 1e-3);
    if (reads) reader.join();
    read.end = save_state_sync(session.state().entries());
  });
  return all;
}

TEST(ConcurrentStateRead, IsSnapshotAndChangesNoStep) {
  for (const auto& [zero, loads] :
       {std::pair(Zero::optimizer, false), std::pair(Zero::optimizer, true),
        std::pair(Zero::weights, false)}) {
    const std::vector<Read> expected = read_while_ranks_go_on(zero, false, loads);
    const std::vector<Read> read = read_while_ranks_go_on(zero, true, loads);
    for (std::size_t rank = 0; rank < 2; ++rank) {
      EXPECT_GT(read[rank].bytes.size(), 10u);
      for (const auto& [name, bytes] : read[rank].bytes) {
        EXPECT_TRUE(bytes == expected[rank].bytes.at(name)) << name;
      }
      EXPECT_TRUE(read[rank].end == expected[rank].end) << "loads: " << loads;
    }
  }
}

}  // namespace checkpoint_test
