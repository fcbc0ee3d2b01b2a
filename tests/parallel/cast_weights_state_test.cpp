// States that are saved and loaded, and weights that are read, where ranks cast weights before they
// send them: no cast outside of a step leaves anything.
#include <octavo/session/state.hpp>

#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <string>
#include <vector>

#include "parallel/cast_weights.hpp"
#include "support/small_model.hpp"
#include "support/thread_ranks.hpp"

namespace cast_weights_test {
namespace {

const std::vector<Zero> stages{Zero::optimizer, Zero::gradients, Zero::weights};

/// Runs `f(session, rank)` on two ranks, each with a new session.
template <class Gather, class F>
void on_sessions(const Setting& setting, const F& f) {
  support::on_ranks(2, [&](support::ThreadComm& ranks) {
    Context<Cpu> context{1};
    Session<Gather> session(options_of(setting), context, ranks);
    f(session, ranks.rank());
  });
}

TEST(CastWeightsState, LoadsIntoNewSession) {
  for (const Zero zero : stages) {
    std::vector<SavedState> saved(2);
    std::vector<double> expected(2), resumed(2);
    on_sessions<GatherIn<E4M3>>({.zero = zero}, [&](auto& session, int rank) {
      const auto place = static_cast<std::size_t>(rank);
      (void)take_step(session, rank, 0);
      saved[place] = save_state_sync(session.state().entries());
      expected[place] = take_step(session, rank, 1).loss;
    });
    on_sessions<GatherIn<E4M3>>({.zero = zero}, [&](auto& session, int rank) {
      const auto place = static_cast<std::size_t>(rank);
      load_state_sync(saved[place], session.state().entries());
      resumed[place] = take_step(session, rank, 1).loss;
    });
    EXPECT_EQ(resumed, expected) << "ZeRO-" << static_cast<int>(zero);
  }
}

TEST(CastWeightsState, WeightsCanBeReadFromNewSession) {
  for (const Zero zero : stages) {
    std::map<std::string, std::vector<float>> stored, cast;
    on_sessions<GatherIn<>>({.zero = zero}, [&](auto& session, int rank) {
      auto weights = read_weights(session);
      if (rank == 0) stored = std::move(weights);
    });
    on_sessions<GatherIn<E4M3>>({.zero = zero}, [&](auto& session, int rank) {
      auto weights = read_weights(session);
      if (rank == 0) cast = std::move(weights);
    });
    EXPECT_EQ(cast, stored) << "ZeRO-" << static_cast<int>(zero);
  }
}

/// The state behind steps that follow a state which is loaded, and what comes between the two is of
/// no account: steps of a larger weight, which is set, and weights that are read.
template <class Gather>
std::vector<SavedState> go_back(const Setting& setting, bool reads) {
  std::vector<SavedState> states(2);
  on_sessions<Gather>(setting, [&](auto& session, int rank) {
    (void)take_step(session, rank, 0);
    const SavedState saved = save_state_sync(session.state().entries());
    (void)take_step(session, rank, 1);
    std::vector<float> large(128 * 128, 0.01f);
    large[77] = 50;
    for (const char* name : {"blocks.1.down.weight", "blocks.2.down.weight"}) {
      session.weights().set(name, large);
    }
    if (reads) (void)read_weights(session);
    load_state_sync(saved, session.state().entries());
    for (unsigned step = 1; step < 3; ++step) (void)take_step(session, rank, step);
    states[static_cast<std::size_t>(rank)] = save_state_sync(session.state().entries());
  });
  return states;
}

TEST(CastWeightsState, LoadDiscardsPreviousWeights) {
  for (const Zero zero : stages) {
    for (const WeightCopies copies : {WeightCopies::kept, WeightCopies::remade}) {
      const Setting setting{.zero = zero, .copies = copies};
      const auto expected = go_back<GatherIn<>>(setting, false);
      for (const bool reads : {false, true}) {
        EXPECT_TRUE(go_back<GatherIn<E4M3>>(setting, reads) == expected)
            << "ZeRO-" << static_cast<int>(zero) << (reads ? ", read in between" : "");
      }
    }
  }
}

TEST(CastWeightsState, LoadClearsInfinity) {
  for (const Zero zero : {Zero::optimizer, Zero::gradients}) {
    on_sessions<GatherIn<E4M3>>({.zero = zero}, [](auto& session, int rank) {
      (void)take_step(session, rank, 0);
      const SavedState saved = save_state_sync(session.state().entries());
      support::weight(session, "blocks.1.qkv.weight").row(0)[0] =
          Bf16(std::numeric_limits<float>::infinity());
      EXPECT_TRUE(take_step(session, rank, 1).skipped);
      load_state_sync(saved, session.state().entries());
      EXPECT_FALSE(take_step(session, rank, 1).skipped);
    });
  }
}

}  // namespace
}  // namespace cast_weights_test
