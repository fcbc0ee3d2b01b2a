// Ranks that share the optimizer's work, and perhaps gradients, train as one does on all of their
// batches.
#include <octavo/parallel/data_parallel.hpp>
#include <octavo/session/state.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "support/small_model.hpp"
#include "support/states_of_ranks.hpp"
#include "support/thread_ranks.hpp"

namespace data_parallel_test {

using namespace octavo;
using support::TokenBatch;

template <class Precision, class Reduce = ReduceIn<>, class Optimizer = AdamW<>>
using Ranked = ModelSession<support::SmallModel<Precision>, Optimizer, DataParallel<Reduce>>;

/// What one rank knows at the end.
struct Outcome {
  std::vector<double> losses;
  double norm = 0;
  double validation = 0;
  std::vector<std::byte> weights;
  SavedState state;
};

struct Setting {
  int ranks = 1;
  Zero zero = Zero::optimizer;
  bool reduce_each_micro_batch = false;
  Index micro_batches = 4;  ///< of all ranks together
};

constexpr unsigned steps = 6;
/// Of 48 tokens each: chance makes of so few more than FP8 makes of the order of sums.
constexpr unsigned validation_batches = 8;

SessionOptions options_of(const Setting& setting) {
  SessionOptions options = support::small_options();
  options.batch = {1, 48};
  options.micro_batches = setting.micro_batches / setting.ranks;
  options.sharding.zero = setting.zero;
  options.sharding.reduce_each_micro_batch = setting.reduce_each_micro_batch;
  return options;
}

/// The rank's part of a step's batch: neighbouring micro-batches.
TokenBatch part_of_step(const Setting& setting, int rank, unsigned step) {
  const SessionOptions options = options_of(setting);
  TokenBatch part;
  for (Index m = 0; m < options.micro_batches; ++m) {
    const auto number = static_cast<unsigned>(rank * options.micro_batches + m);
    TokenBatch one = support::make_batch(48, support::small.vocabulary, 100 * step + number);
    for (unsigned i = 0; i < 3 * number; ++i) one.targets[i] = -1;  // not all have equally many
    part.tokens.insert(part.tokens.end(), one.tokens.begin(), one.tokens.end());
    part.targets.insert(part.targets.end(), one.targets.begin(), one.targets.end());
  }
  return part;
}

/// Trains; the outcomes of all ranks.
template <class Precision, class Reduce = ReduceIn<>, class Optimizer = AdamW<>>
std::vector<Outcome> train(const Setting& setting) {
  std::vector<Outcome> outcomes(static_cast<std::size_t>(setting.ranks));
  support::on_ranks(setting.ranks, [&](support::ThreadComm& communicator) {
    Context<Cpu> context{1};
    Ranked<Precision, Reduce, Optimizer> session(options_of(setting), context, communicator);
    Outcome& outcome = outcomes[static_cast<std::size_t>(communicator.rank())];
    for (unsigned step = 0; step < steps; ++step) {
      const TokenBatch batch = part_of_step(setting, communicator.rank(), step);
      const StepResult result = session.step({batch.tokens, batch.targets}, 1e-3);
      EXPECT_FALSE(result.skipped);
      outcome.losses.push_back(result.loss);
      outcome.norm = result.gradient_norm;
    }
    for (unsigned seed = 7; seed < 7 + validation_batches; ++seed) {
      const TokenBatch batch = support::make_batch(48, support::small.vocabulary, seed);
      const double mean = session.evaluate({batch.tokens, batch.targets}).mean();
      outcome.validation += mean / validation_batches;
    }
    outcome.state = save_state_sync(session.state().entries());
    if (setting.zero != Zero::weights) outcome.weights = support::weights(session);
  });
  return outcomes;
}

void expect_near(const Outcome& one, const Outcome& other, double relative) {
  ASSERT_EQ(one.losses.size(), other.losses.size());
  for (std::size_t i = 0; i < one.losses.size(); ++i) {
    EXPECT_NEAR(one.losses[i], other.losses[i], relative * one.losses[i]) << "step " << i;
  }
  EXPECT_NEAR(one.validation, other.validation, relative * one.validation);
}

/// All ranks of a run agree in what is whole on each of them.
void expect_agreement(const std::vector<Outcome>& outcomes) {
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.losses, outcomes[0].losses);
    EXPECT_EQ(outcome.norm, outcomes[0].norm);
    EXPECT_EQ(outcome.validation, outcomes[0].validation);
    EXPECT_TRUE(outcome.weights == outcomes[0].weights);
  }
}

TEST(DataParallel, RanksMatchOneRankInFp32) {
  const Outcome one = train<Fp32>({.ranks = 1})[0];
  EXPECT_LT(one.losses.back(), one.losses.front());
  for (const int ranks : {2, 4}) {
    for (const Zero zero : {Zero::optimizer, Zero::gradients, Zero::weights}) {
      const auto outcomes = train<Fp32>({.ranks = ranks, .zero = zero});
      expect_near(one, outcomes[0], 1e-6);
      EXPECT_NEAR(one.norm, outcomes[0].norm, 1e-5 * one.norm);
      expect_agreement(outcomes);
    }
  }
}

TEST(DataParallel, RanksMatchOneRankInFp8) {
  using Precision = Fp8Recipe<Delayed>;
  const Outcome one = train<Precision>({.ranks = 1})[0];
  for (const int ranks : {2, 4}) {
    const auto outcomes = train<Precision>({.ranks = ranks});
    expect_near(one, outcomes[0], 2e-3);
    expect_agreement(outcomes);
  }
}

void expect_same_bits(const std::vector<Outcome>& some, const std::vector<Outcome>& others) {
  EXPECT_EQ(some[0].losses, others[0].losses);
  EXPECT_EQ(some[0].validation, others[0].validation);
  support::expect_same_state(some, others);
}

TEST(DataParallel, ZeroStagesAreBitwiseEqual) {
  using Precision = support::MixedPrecision;
  const auto once = train<Precision>({.ranks = 2, .micro_batches = 2});
  for (const Zero zero : {Zero::gradients, Zero::weights}) {
    expect_same_bits(once, train<Precision>({.ranks = 2, .zero = zero, .micro_batches = 2}));
  }
  const auto each = train<Precision>({.ranks = 2, .reduce_each_micro_batch = true});
  for (const Zero zero : {Zero::gradients, Zero::weights}) {
    expect_same_bits(each, train<Precision>({.ranks = 2, .zero = zero}));
  }
}

TEST(DataParallel, ZeroStagesAreBitwiseEqualWithMuon) {
  const auto run = [](Zero zero) {
    return train<support::MixedPrecision, ReduceIn<E4M3>, Muon<>>(
        {.ranks = 2, .zero = zero, .micro_batches = 2});
  };
  const auto once = run(Zero::optimizer);
  EXPECT_LT(once[0].losses.back(), once[0].losses.front());
  expect_agreement(once);
  for (const Zero zero : {Zero::gradients, Zero::weights}) expect_same_bits(once, run(zero));
}

TEST(DataParallel, RanksMatchOneRankInFp32WithMuon) {
  const Outcome one = train<Fp32, ReduceIn<>, Muon<>>({.ranks = 1})[0];
  const auto outcomes = train<Fp32, ReduceIn<>, Muon<>>({.ranks = 4, .zero = Zero::weights});
  // Orthogonalisation is in BF16.
  expect_near(one, outcomes[0], 1e-3);
  expect_agreement(outcomes);
}

TEST(DataParallel, OneRankIsBitwiseEqualToSingleSession) {
  const Setting setting;
  const auto outcomes = train<Bf16>(setting);
  Context<Cpu> context{1};
  ModelSession<support::SmallModel<Bf16>> alone(options_of(setting), context);
  std::vector<double> losses;
  for (unsigned step = 0; step < steps; ++step) {
    const TokenBatch batch = part_of_step(setting, 0, step);
    losses.push_back(alone.step({batch.tokens, batch.targets}, 1e-3).loss);
  }
  EXPECT_EQ(outcomes[0].losses, losses);
  EXPECT_TRUE(outcomes[0].state == save_state_sync(alone.state().entries()));
}

TEST(DataParallel, RanksWithFp32SumsMatchOneRank) {
  const Outcome one = train<Bf16, ReduceIn<Fp32>>({.ranks = 1})[0];
  const auto outcomes = train<Bf16, ReduceIn<Fp32>>({.ranks = 4});
  expect_near(one, outcomes[0], 2e-3);
  expect_agreement(outcomes);
}

/// The gradients of a step by four ranks with a micro-batch each, or by the one of them that is
/// given, alone. By the names of parameters; without momentum first moments are gradients.
template <class Reduce>
std::map<std::string, std::vector<float>> gradients_of_step(int ranks, int alone = 0) {
  const Setting setting{.ranks = ranks, .micro_batches = ranks};
  std::vector<Outcome> outcomes(static_cast<std::size_t>(ranks));
  support::on_ranks(ranks, [&](support::ThreadComm& communicator) {
    Context<Cpu> context{1};
    SessionOptions options = options_of(setting);
    options.max_gradient_norm = 0;
    options.optimizer = AdamWSettings{.beta1 = 0};
    Ranked<Bf16, Reduce> session(options, context, communicator);
    const auto number = static_cast<unsigned>(communicator.rank() + alone);
    const TokenBatch batch = support::make_batch(48, support::small.vocabulary, number);
    EXPECT_FALSE(session.step({batch.tokens, batch.targets}, 1e-3).skipped);
    outcomes[static_cast<std::size_t>(communicator.rank())].state =
        save_state_sync(session.state().entries());
  });
  std::map<std::string, std::vector<float>> gradients;
  for (const Outcome& outcome : outcomes) {
    for (const auto& [name, entry] : outcome.state) {
      if (!name.starts_with("optimizer.first_moment.") || gradients.contains(name)) continue;
      const std::vector<std::byte> bytes = support::gather_entry(outcomes, name);
      std::vector<float>& values = gradients[name];
      values.resize(bytes.size() / sizeof(float));
      std::memcpy(values.data(), bytes.data(), bytes.size());
    }
  }
  return gradients;
}

TEST(DataParallel, Fp32SumsAreNotRoundedToWireFormat) {
  // A power of two: a rank alone has this many times its gradients, exactly.
  constexpr int ranks = 4;
  std::vector<std::map<std::string, std::vector<float>>> terms;
  terms.reserve(ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    terms.push_back(gradients_of_step<ReduceIn<>>(1, rank));
  }
  const auto kept = gradients_of_step<ReduceIn<Fp32>>(ranks);
  const auto rounded = gradients_of_step<ReduceIn<>>(ranks);
  std::size_t elements = 0;
  std::size_t farther = 0;
  ASSERT_EQ(kept.size(), terms[0].size());
  for (const auto& [name, values] : kept) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      double exact = 0;
      double magnitude = 0;
      for (const auto& term : terms) {
        exact += static_cast<double>(term.at(name)[i]) / ranks;
        magnitude += std::abs(static_cast<double>(term.at(name)[i])) / ranks;
      }
      const double allowed = ranks * double{std::numeric_limits<float>::epsilon()} * magnitude;
      ASSERT_NEAR(values[i], exact, allowed) << name << " " << i;
      farther += std::abs(static_cast<double>(rounded.at(name)[i]) - exact) > allowed ? 1 : 0;
      elements += values[i] != 0 ? 1 : 0;
    }
  }
  EXPECT_GT(farther, elements / 2) << "sums in BF16 are as near";
}

TEST(DataParallel, ReducesGradientsInFp8) {
  const Outcome one = train<Bf16>({.ranks = 1})[0];
  const auto outcomes = train<Bf16, ReduceIn<E4M3>>({.ranks = 4, .zero = Zero::gradients});
  expect_near(one, outcomes[0], 1e-2);
  expect_agreement(outcomes);
  EXPECT_NE(outcomes[0].losses, (train<Bf16>({.ranks = 4, .zero = Zero::gradients})[0].losses));
  // Two micro-batches of a rank, of which the second goes on with the sums of the first.
  const auto two = train<Bf16, ReduceIn<E4M3>>({.ranks = 2, .zero = Zero::gradients});
  expect_near(one, two[0], 1e-2);
  EXPECT_NEAR(two[0].norm, one.norm, 0.1 * one.norm);
  expect_agreement(two);
}

/// State of the optimizer that the ranks have together, by name.
TEST(DataParallel, StateShardsMatchStateOfOneRank) {
  const SavedState one = train<Fp32>({.ranks = 1})[0].state;
  const auto outcomes = train<Fp32>({.ranks = 4});
  for (const auto& [name, whole] : one) {
    if (!name.starts_with("optimizer.first_moment.")) continue;
    Index next = 0;
    double worst = 0;
    double largest = 0;
    std::vector<float> expected(whole.bytes.size() / sizeof(float));
    std::memcpy(expected.data(), whole.bytes.data(), whole.bytes.size());
    for (const Outcome& outcome : outcomes) {
      const auto found = outcome.state.find(name);
      if (found == outcome.state.end()) continue;
      const SavedEntry& part = found->second;
      EXPECT_EQ(part.begin, next) << name;
      EXPECT_EQ(part.whole, whole.shape) << name;
      std::vector<float> values(part.bytes.size() / sizeof(float));
      std::memcpy(values.data(), part.bytes.data(), part.bytes.size());
      for (const float value : values) {
        const double exact = expected[static_cast<std::size_t>(next++)];
        worst = std::max(worst, std::abs(exact - static_cast<double>(value)));
        largest = std::max(largest, std::abs(exact));
      }
    }
    EXPECT_EQ(next, static_cast<Index>(expected.size())) << name;
    EXPECT_LT(worst, 1e-4 * largest) << name;
  }
}

TEST(DataParallel, AllRanksSkipStepThatIsNonFiniteOnOne) {
  std::vector<std::vector<std::byte>> before(2), after(2);
  std::vector<int> skipped(2);
  support::on_ranks(2, [&](support::ThreadComm& communicator) {
    Context<Cpu> context{1};
    const Setting setting{.ranks = 2};
    Ranked<Fp32> session(options_of(setting), context, communicator);
    const auto rank = static_cast<std::size_t>(communicator.rank());
    const TokenBatch batch = part_of_step(setting, communicator.rank(), 0);
    EXPECT_FALSE(session.step({batch.tokens, batch.targets}, 3e-3).skipped);
    (void)session.state().entries();
    before[rank] = support::weights(session);
    // Of the last run, which rank 1 sends the other one its shard of.
    float& value = support::weight(session, "head.weight").row(support::small.vocabulary - 1)[127];
    const float kept = value;
    if (rank == 1) value = std::numeric_limits<float>::infinity();
    skipped[rank] = session.step({batch.tokens, batch.targets}, 3e-3).skipped ? 1 : 0;
    if (rank == 1) value = kept;
    (void)session.state().entries();
    after[rank] = support::weights(session);
  });
  EXPECT_EQ(skipped, (std::vector<int>{1, 1}));
  EXPECT_TRUE(before[0] == after[0]);
  EXPECT_TRUE(before[1] == after[1]);
}

class DataParallelState : public testing::TestWithParam<Zero> {};
INSTANTIATE_TEST_SUITE_P(Stages, DataParallelState,
                         testing::Values(Zero::optimizer, Zero::weights));

// What was gathered for an evaluation is not what is there once others are set or loaded.
TEST_P(DataParallelState, EvaluatesWeightsThatWereSetOrLoaded) {
  const Setting setting{.ranks = 2, .zero = GetParam(), .micro_batches = 2};
  const std::vector<float> table(static_cast<std::size_t>(support::small.vocabulary) * 128, 0.5f);
  const std::vector<float> qkv(256 * 128, 0.01f);
  const auto loss = [](auto& session) {
    const TokenBatch batch = support::make_batch(48, support::small.vocabulary, 7);
    return session.evaluate({batch.tokens, batch.targets}).mean();
  };
  const auto set = [&](auto& session) {
    session.weights().set("embedding.weight", table);
    session.weights().set("blocks.1.qkv.weight", qkv);
  };
  support::on_ranks(2, [&](support::ThreadComm& communicator) {
    Context<Cpu> context{1};
    Ranked<Bf16> expected(options_of(setting), context, communicator);
    Ranked<Bf16> session(options_of(setting), context, communicator);
    const double before = loss(session);
    const SavedState saved = save_state_sync(session.state().entries());
    const std::vector<StateEntry> entries = session.state().entries();
    set(expected);
    set(session);
    const double after = loss(session);
    EXPECT_EQ(after, loss(expected));
    EXPECT_NE(after, before);
    load_state_sync(saved, entries);
    EXPECT_EQ(loss(session), before);
  });
}

TEST_P(DataParallelState, ResumesFromSavedState) {
  const Setting setting{.ranks = 2, .zero = GetParam(), .micro_batches = 2};
  std::vector<std::vector<double>> expected(2), resumed(2);
  std::vector<SavedState> saved(2);
  const auto go_on = [&](auto& session, int rank, std::vector<double>& losses) {
    for (unsigned step = 2; step < 5; ++step) {
      const TokenBatch batch = part_of_step(setting, rank, step);
      losses.push_back(session.step({batch.tokens, batch.targets}, 3e-3).loss);
    }
  };
  support::on_ranks(2, [&](support::ThreadComm& communicator) {
    Context<Cpu> context{1};
    Ranked<Fp8Recipe<Delayed>> session(options_of(setting), context, communicator);
    const int rank = communicator.rank();
    for (unsigned step = 0; step < 2; ++step) {
      const TokenBatch batch = part_of_step(setting, rank, step);
      EXPECT_FALSE(session.step({batch.tokens, batch.targets}, 3e-3).skipped);
    }
    saved[static_cast<std::size_t>(rank)] = save_state_sync(session.state().entries());
    go_on(session, rank, expected[static_cast<std::size_t>(rank)]);
  });
  support::on_ranks(2, [&](support::ThreadComm& communicator) {
    Context<Cpu> context{1};
    SessionOptions options = options_of(setting);
    options.seed = 99;
    Ranked<Fp8Recipe<Delayed>> session(options, context, communicator);
    const auto rank = static_cast<std::size_t>(communicator.rank());
    EXPECT_THROW(load_state_sync(saved[1 - rank], session.state().entries()), ConfigError);
    load_state_sync(saved[rank], session.state().entries());
    go_on(session, communicator.rank(), resumed[rank]);
  });
  EXPECT_EQ(expected, resumed);
}

TEST(DataParallel, SingleRankSessionRejectsSeveralRanks) {
  support::ThreadRanks two(2);
  support::ThreadComm communicator(two, 0);
  Context<Cpu> context{1};
  const SessionOptions options = support::small_options();
  EXPECT_THROW((ModelSession<support::SmallModel<Bf16>>(options, context, communicator)),
               UsageError);
}

/// Ranks that are to be left alone for a while: what is asked of them then is counted, not done.
class LeftAlone final : public Communicator<Cpu> {
 public:
  explicit LeftAlone(Communicator<Cpu>& ranks) : ranks_(ranks) {}

  bool is_left_alone = false;
  int calls = 0;                          ///< while it was
  std::vector<std::string> host_gathers;  ///< the names of all

  [[nodiscard]] int rank() const override { return ranks_.rank(); }
  [[nodiscard]] int size() const override { return ranks_.size(); }
  void all_gather(TensorView<const std::byte, 1, Cpu> part, TensorView<std::byte, 1, Cpu> whole,
                  const char* what, const Context<Cpu>& context) override {
    if (!is_counted()) ranks_.all_gather(part, whole, what, context);
  }
  void all_to_all(TensorView<const std::byte, 1, Cpu> parts, TensorView<std::byte, 1, Cpu> received,
                  const char* what, const Context<Cpu>& context) override {
    if (!is_counted()) ranks_.all_to_all(parts, received, what, context);
  }
  void all_reduce_max(TensorView<std::uint32_t, 1, Cpu> values, const char* what,
                      const Context<Cpu>& context) override {
    if (!is_counted()) ranks_.all_reduce_max(values, what, context);
  }
  void all_gather_host_sync(std::span<const std::byte> part, std::span<std::byte> whole,
                            const char* what) override {
    host_gathers.emplace_back(what);
    if (!is_counted()) ranks_.all_gather_host_sync(part, whole, what);
  }
  [[nodiscard]] std::unique_ptr<Communicator<Cpu>> split(int group) override {
    return ranks_.split(group);
  }

 private:
  bool is_counted() {
    if (is_left_alone) ++calls;
    return is_left_alone;
  }

  Communicator<Cpu>& ranks_;
};

// What those are, the Cpu device has no choice of: see gemms_of_ranks_test.cpp.
TEST(DataParallel, SessionSharesGemmPlans) {
  const Setting setting{.ranks = 2};
  support::on_ranks(2, [&](support::ThreadComm& communicator) {
    Context<Cpu> context{1};
    LeftAlone link(communicator);
    const Ranked<Fp32> session(options_of(setting), context, link);
    EXPECT_EQ(std::ranges::count(link.host_gathers, "algorithms of GEMMs"), 2)  // lengths, texts
        << "of " << link.host_gathers.size();
  });
}

// Ranks rehearse different numbers of passes: none may wait for another in one.
TEST_P(DataParallelState, RehearsalNeitherCommunicatesNorLeavesTrace) {
  const Setting setting{.ranks = 2, .zero = GetParam(), .micro_batches = 2};
  support::on_ranks(2, [&](support::ThreadComm& communicator) {
    Context<Cpu> context{1};
    LeftAlone link(communicator);
    const TokenBatch batch = support::make_batch(48, support::small.vocabulary, 7);
    const auto loss = [&](auto& of) { return of.evaluate({batch.tokens, batch.targets}).mean(); };
    Ranked<Bf16> other(options_of(setting), context, link);
    const double expected = loss(other);
    Ranked<Bf16> session(options_of(setting), context, link);  // has gathered nothing yet
    auto& ranks = session.collectives();
    link.is_left_alone = true;
    ranks.rehearse(true);
    for (int pass = 0; pass <= communicator.rank(); ++pass) {
      for (const auto& stage : session.model().parameters())
        ranks.before_forward(*stage.flat, context);
      for (const auto& stage : session.model().parameters()) {
        ranks.before_backward(*stage.flat, context);
        ranks.gradients_final(*stage.flat, context);
      }
    }
    ranks.rehearse(false);
    link.is_left_alone = false;
    EXPECT_EQ(link.calls, 0);
    EXPECT_EQ(loss(session), expected);
  });
}

}  // namespace data_parallel_test
