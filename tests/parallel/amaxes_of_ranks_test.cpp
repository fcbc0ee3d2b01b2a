// Ranks that take the largest of their amaxes have the scales of one session that saw all of their
// batches; and scales do not depend on how a step's tokens are split.
#include <octavo/session/state.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <barrier>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

#include "support/small_model.hpp"

namespace amaxes_of_ranks_test {

using namespace octavo;
using support::TokenBatch;

using Model = support::SmallModel<Fp8Recipe<Delayed>>;

/// Where two ranks in threads of their own show each other their amaxes.
struct Meeting {
  std::barrier<> both{2};
  std::array<TensorView<std::uint32_t, 1, Cpu>, 2> amaxes;
};

/// One of two ranks; alone until it has a meeting.
struct OneOfTwo {
  template <class W, class G, Device D>
  struct For : SingleRank::For<W, G, D> {
    using SingleRank::For<W, G, D>::For;

    void maximum(TensorView<std::uint32_t, 1, Cpu> amaxes, const Context<Cpu>&) override {
      if (meeting == nullptr) return;
      meeting->amaxes[number] = amaxes;
      meeting->both.arrive_and_wait();
      std::vector<std::uint32_t> largest;
      for (Index i = 0; i < amaxes.size(); ++i) {
        largest.push_back(std::max(meeting->amaxes[0].data()[i], meeting->amaxes[1].data()[i]));
      }
      meeting->both.arrive_and_wait();
      std::copy(largest.begin(), largest.end(), amaxes.data());
    }

    Meeting* meeting = nullptr;
    std::size_t number = 0;
  };
};

using Ranked = ModelSession<Model, AdamW<>, OneOfTwo>;

/// The tokens of one micro-batch after those of another.
TokenBatch after(const TokenBatch& first, const TokenBatch& second) {
  TokenBatch both = first;
  both.tokens.insert(both.tokens.end(), second.tokens.begin(), second.tokens.end());
  both.targets.insert(both.targets.end(), second.targets.begin(), second.targets.end());
  return both;
}

/// Scales and histories of all operands.
SavedState scaling_state(TrainingSession& session) {
  SavedState state = save_state_sync(session.state().entries());
  std::erase_if(state, [](const auto& entry) { return !entry.first.starts_with("scaling."); });
  return state;
}

constexpr unsigned steps = 3;

/// Steps that change scales and no weight.
template <class BatchOf>
void take_steps(TrainingSession& session, const BatchOf& batch_of) {
  for (unsigned step = 0; step < steps; ++step) {
    const TokenBatch batch = batch_of(step);
    EXPECT_FALSE(session.step({batch.tokens, batch.targets}, 0.0).skipped);
  }
}

TEST(AmaxesOfRanks, MaximumOverRanksGivesScalesOfOneRank) {
  SessionOptions options = support::small_options();
  options.batch = {1, 48};
  options.micro_batches = 2;
  const auto micro_batch = [](unsigned rank, unsigned step) {
    return support::make_batch(48, support::small.vocabulary, 10 * rank + step);
  };
  Context<Cpu> context{1};
  Context<Cpu> another{1};
  Ranked all(options, context);
  take_steps(all, [&](unsigned step) { return after(micro_batch(0, step), micro_batch(1, step)); });
  const SavedState expected = scaling_state(all);

  // Each micro-batch twice, so that a gradient is of as many targets as in the session of all.
  const auto own_batch = [&](unsigned rank) {
    return [&, rank](unsigned step) {
      return after(micro_batch(rank, step), micro_batch(rank, step));
    };
  };
  Ranked alone(options, context);
  take_steps(alone, own_batch(0));
  EXPECT_FALSE(scaling_state(alone) == expected) << "the second rank's amaxes do not matter";

  Meeting meeting;
  Ranked first(options, context);
  Ranked second(options, another);
  first.collectives().meeting = second.collectives().meeting = &meeting;
  second.collectives().number = 1;
  std::thread beside([&] { take_steps(second, own_batch(1)); });
  take_steps(first, own_batch(0));
  beside.join();
  EXPECT_TRUE(scaling_state(first) == expected);
  EXPECT_TRUE(scaling_state(second) == expected);
}

TEST(AmaxesOfMicroBatches, GiveScalesOfOneLargeBatch) {
  const auto state_after = [](Index micro_batches) {
    SessionOptions options = support::small_options();
    options.batch = {4 / micro_batches, 48};
    options.micro_batches = micro_batches;
    Context<Cpu> context{2};
    ModelSession<Model> session(options, context);
    take_steps(session, [&](unsigned step) { return support::step_batch(options, step); });
    return scaling_state(session);
  };
  const SavedState whole = state_after(1);
  EXPECT_FALSE(whole.empty());
  EXPECT_TRUE(state_after(2) == whole);
  EXPECT_TRUE(state_after(4) == whole);
}

}  // namespace amaxes_of_ranks_test
