// Weights that ranks cast before they send them: every loss, weight and scale has the bits of ranks
// that send weights as they are stored and all cast them.
#include <octavo/parallel/data_parallel.hpp>
#include <octavo/session/state.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/cast_weights.hpp"
#include "support/small_model.hpp"
#include "support/thread_ranks.hpp"

namespace cast_weights_test {

/// Counts what a rank sends in all-gathers, and may turn a bit of what it gets.
class WatchedLink final : public Communicator<Cpu> {
 public:
  struct Sent {
    std::size_t calls = 0;
    Index bytes = 0;
  };

  explicit WatchedLink(Communicator<Cpu>& ranks) : ranks_(ranks) {}

  std::map<std::string, Sent> sent;  ///< by what it is called, without the run
  std::set<std::string> names;       ///< with it
  std::string faulty;                ///< what arrives with a wrong bit

  [[nodiscard]] int rank() const override { return ranks_.rank(); }
  [[nodiscard]] int size() const override { return ranks_.size(); }
  void all_gather(TensorView<const std::byte, 1, Cpu> part, TensorView<std::byte, 1, Cpu> whole,
                  const char* what, const Context<Cpu>& context) override {
    ranks_.all_gather(part, whole, what, context);
    const std::string sort = std::string(what).substr(0, std::string_view(what).find(" of "));
    names.insert(what);
    ++sent[sort].calls;
    sent[sort].bytes += part.size();
    if (faulty == sort) whole.data()[0] ^= std::byte{0x10};  // of rank 0's, where a norm begins
  }
  void all_to_all(TensorView<const std::byte, 1, Cpu> parts, TensorView<std::byte, 1, Cpu> received,
                  const char* what, const Context<Cpu>& context) override {
    ranks_.all_to_all(parts, received, what, context);
    names.insert(what);
  }
  void all_reduce_max(TensorView<std::uint32_t, 1, Cpu> values, const char* what,
                      const Context<Cpu>& context) override {
    ++sent[what].calls;
    ranks_.all_reduce_max(values, what, context);
    if (faulty == what) values.data()[0] ^= 1u << 22;  // of the first of them
  }
  void all_gather_host_sync(std::span<const std::byte> part, std::span<std::byte> whole,
                            const char* what) override {
    ranks_.all_gather_host_sync(part, whole, what);
  }
  [[nodiscard]] std::unique_ptr<Communicator<Cpu>> split(int group) override {
    return ranks_.split(group);
  }

 private:
  Communicator<Cpu>& ranks_;
};

/// What one rank knows of a run.
struct Outcome {
  std::vector<double> numbers;
  std::map<std::string, std::vector<float>> weights;
  SavedState state;
  std::vector<float> amaxes;
  bool operator==(const Outcome&) const = default;
};

/// Trains with evaluations on the way.
template <class Gather>
std::vector<Outcome> train(const Setting& setting) {
  std::vector<Outcome> outcomes(static_cast<std::size_t>(setting.ranks));
  support::on_ranks(setting.ranks, [&](support::ThreadComm& ranks) {
    Context<Cpu> context{1};
    Session<Gather> session(options_of(setting), context, ranks);
    Outcome& outcome = outcomes[static_cast<std::size_t>(ranks.rank())];
    outcome.numbers.push_back(validate(session));
    for (unsigned step = 0; step < 2; ++step) {
      const StepResult result = take_step(session, ranks.rank(), step);
      EXPECT_FALSE(result.skipped);
      outcome.numbers.insert(outcome.numbers.end(), {result.loss, result.gradient_norm});
      if (step == 0) outcome.numbers.push_back(validate(session));
    }
    for (const OperandReport& operand : session.operands()) outcome.amaxes.push_back(operand.amax);
    outcome.numbers.push_back(validate(session));
    outcome.weights = read_weights(session);
    EXPECT_EQ(outcome.numbers.back(), validate(session));
    outcome.state = save_state_sync(session.state().entries());
  });
  return outcomes;
}

TEST(CastWeights, AreBitwiseEqualToCastsAfterGather) {
  for (const Zero zero : {Zero::optimizer, Zero::gradients, Zero::weights}) {
    for (const int ranks : {2, 4}) {
      const auto expected = train<GatherIn<>>({.ranks = ranks, .zero = zero});
      EXPECT_NE(expected[0].numbers.back(), expected[0].numbers.front());
      for (const WeightCopies copies : {WeightCopies::kept, WeightCopies::remade}) {
        if (ranks == 4 && (copies == WeightCopies::remade) != (zero == Zero::weights)) continue;
        const auto cast = train<GatherIn<E4M3>>({.ranks = ranks, .zero = zero, .copies = copies});
        EXPECT_TRUE(cast == expected)
            << ranks << " ranks, ZeRO-" << static_cast<int>(zero)
            << (copies == WeightCopies::kept ? ", kept copies" : ", copies made for each GEMM");
      }
    }
  }
}

/// What rank 0 sends in a step after the first.
template <class Gather>
std::map<std::string, WatchedLink::Sent> sent_in_a_step(const Setting& setting) {
  std::map<std::string, WatchedLink::Sent> sent;
  support::on_ranks(setting.ranks, [&](support::ThreadComm& ranks) {
    Context<Cpu> context{1};
    WatchedLink link(ranks);
    Session<Gather> session(options_of(setting), context, link);
    (void)take_step(session, ranks.rank(), 0);
    link.sent.clear();
    (void)take_step(session, ranks.rank(), 1);
    if (ranks.rank() == 0) sent = link.sent;
  });
  return sent;
}

// Errors of exchanges have these names.
TEST(CastWeights, ExchangesNameTheirRun) {
  std::set<std::string> names;
  support::on_ranks(2, [&](support::ThreadComm& ranks) {
    Context<Cpu> context{1};
    WatchedLink link(ranks);
    Session<GatherIn<E4M3>> session(options_of({.zero = Zero::weights}), context, link);
    (void)take_step(session, ranks.rank(), 0);
    if (ranks.rank() == 0) names = link.names;
  });
  for (const char* name :
       {"weights of embedding.weight", "weights of blocks.0", "FP8 weights of blocks.1",
        "weights besides FP8 ones of blocks.3", "gradients of blocks.0", "gradients of blocks.3"}) {
    EXPECT_EQ(names.count(name), 1u) << name;
  }
  EXPECT_EQ(names.count("weights of blocks.1"), 0u);
}

// Of the matrices of blocks, and of none where nobody sends them.
TEST(CastWeights, AreCountedInFacts) {
  constexpr Index matrices = 128 * (256 + 128 + 2 * 128 + 128);  // of a block
  support::on_ranks(2, [&](support::ThreadComm& ranks) {
    Context<Cpu> context{1};
    const Session<GatherIn<E4M3>> session(options_of({}), context, ranks);
    EXPECT_EQ(session.facts().parameters_gathered_in_fp8,
              static_cast<Index>(fp8_blocks) * matrices);
  });
  Context<Cpu> context{1};
  const Session<GatherIn<E4M3>> alone(options_of({}), context);
  EXPECT_EQ(alone.facts().parameters_gathered_in_fp8, 0);
}

TEST(CastWeights, HalveGatheredBytes) {
  for (const Setting& setting : {Setting{.ranks = 4, .zero = Zero::gradients},
                                 Setting{.zero = Zero::weights, .copies = WeightCopies::remade}}) {
    auto stored = sent_in_a_step<GatherIn<>>(setting);
    auto cast = sent_in_a_step<GatherIn<E4M3>>(setting);
    EXPECT_EQ(stored.count("FP8 weights"), 0u);
    EXPECT_GT(cast["FP8 weights"].bytes, 0);
    EXPECT_LT(20 * cast["weights besides FP8 ones"].bytes, cast["FP8 weights"].bytes);
    const Index saved = stored["weights"].bytes - cast["weights"].bytes;
    if (setting.zero == Zero::weights) {  // what blocks of other kinds lend them is gathered again
      EXPECT_GE(saved, 2 * cast["FP8 weights"].bytes);
    } else {
      EXPECT_EQ(saved, 2 * cast["FP8 weights"].bytes);
    }
  }
}

TEST(CastWeights, AreGatheredOncePerStepIfKept) {
  for (const Zero zero : {Zero::optimizer, Zero::weights}) {
    auto sent = sent_in_a_step<GatherIn<E4M3>>({.zero = zero});
    EXPECT_EQ(sent["FP8 weights"].calls, fp8_blocks);
    EXPECT_EQ(sent["weights besides FP8 ones"].calls, fp8_blocks);
    // The amaxes of all weights are one reduction, and those that histories take in another.
    EXPECT_EQ(sent["amaxes of weights"].calls, 1u);
    EXPECT_EQ(sent["amaxes"].calls, 1u);
  }
}

TEST(CastWeights, ResumeFromSavedState) {
  for (const Zero zero : {Zero::optimizer, Zero::weights}) {
    std::vector<std::vector<double>> expected(2), resumed(2);
    const auto go_on = [](auto& session, int rank) {
      std::vector<double> losses;
      for (unsigned step = 1; step < 4; ++step) {
        losses.push_back(take_step(session, rank, step).loss);
      }
      return losses;
    };
    support::on_ranks(2, [&](support::ThreadComm& ranks) {
      Context<Cpu> context{1};
      const auto rank = static_cast<std::size_t>(ranks.rank());
      SessionOptions options = options_of({.zero = zero});
      Session<GatherIn<E4M3>> session(options, context, ranks);
      (void)take_step(session, ranks.rank(), 0);
      const SavedState saved = save_state_sync(session.state().entries());
      expected[rank] = go_on(session, ranks.rank());
      options.seed = 99;
      Session<GatherIn<E4M3>> other(options, context, ranks);
      const double before = validate(other);
      load_state_sync(saved, other.state().entries());
      EXPECT_NE(validate(other), before);
      resumed[rank] = go_on(other, ranks.rank());
    });
    EXPECT_EQ(resumed, expected);  // an evaluation before leaves no amax
  }
}

TEST(CastWeights, AreCoveredByReplicaCheck) {
  const std::map<std::string, std::string> named{
      {"", ""},
      {"FP8 weights", "blocks.1"},
      {"weights besides FP8 ones", "blocks.1"},
      // FP8 values are those that all have, but this rank reads them by another scale.
      {"amaxes of weights", "scale of blocks.3.qkv.weight'"}};
  for (const auto& one : named) {
    const std::string& faulty = one.first;
    const std::string& name = one.second;
    std::vector<std::string> errors(4);
    support::on_ranks(4, [&](support::ThreadComm& ranks) {
      Context<Cpu> context{1};
      WatchedLink link(ranks);
      Session<GatherIn<E4M3>> session(options_of({.ranks = 4, .check_replicas = 2}), context, link);
      (void)take_step(session, ranks.rank(), 0);
      if (ranks.rank() == 2) link.faulty = faulty;
      try {
        (void)take_step(session, ranks.rank(), 1);
      } catch (const CommError& error) {
        errors[static_cast<std::size_t>(ranks.rank())] = error.what();
      }
    });
    for (const std::string& error : errors) {
      const std::string told = "rank 2 read different weights of '" + name;
      EXPECT_EQ(error.find(told) != std::string::npos, !faulty.empty()) << faulty << error;
    }
  }
}

TEST(CastWeights, NeedMemoryOnlyForGatheredBlocks) {
  using Whole = support::SmallModel<Fp8Recipe<Delayed>>;
  SessionOptions options = options_of({.zero = Zero::weights, .copies = WeightCopies::remade});
  options.sharding.ranks = 8;
  const Context<Cpu> context{1};
  const auto stored = plan_memory<Whole, AdamW<>, DataParallel<>>(options, context);
  const auto cast =
      plan_memory<Whole, AdamW<>, DataParallel<ReduceIn<>, GatherIn<E4M3>>>(options, context);
  EXPECT_LT(cast.peak, stored.peak);
  // Two blocks are there at a time.
  const Index block = 128 * (256 + 128 + 2 * 128 + 128);
  EXPECT_LT(cast.bytes(MemoryKind::weights) + 2 * 2 * static_cast<std::size_t>(block),
            stored.bytes(MemoryKind::weights) + 4096);
  // What a rank casts of its shards is nowhere beside.
  EXPECT_LE(
      cast.bytes(MemoryKind::quantized_weights),
      stored.bytes(MemoryKind::quantized_weights) + 2 * static_cast<std::size_t>(block) + 4096);
}

TEST(CastWeights, AreRejectedWithoutFp8Weights) {
  SessionOptions options = options_of({});
  options.sharding.ranks = 2;
  const Context<Cpu> context{1};
  const auto plan = [&] {
    using Ranks = DataParallel<ReduceIn<>, GatherIn<E4M3>>;
    return plan_memory<support::SmallModel<Bf16>, AdamW<>, Ranks>(options, context).peak;
  };
  EXPECT_THROW((void)plan(), ConfigError);
  options.sharding.ranks = 1;
  EXPECT_GT(plan(), 0u);
}

// What one rank casts, the others get as a number: they have to be told that it was none.
TEST(CastWeights, AllRanksSkipStepIfOneCastsInfinity) {
  std::vector<int> skipped(2);
  support::on_ranks(2, [&](support::ThreadComm& ranks) {
    Context<Cpu> context{1};
    Session<GatherIn<E4M3>> session(options_of({}), context, ranks);
    EXPECT_FALSE(take_step(session, ranks.rank(), 0).skipped);
    // Of the last matrix of a block with delayed scales: in rank 1's shard.
    Bf16& value = support::weight(session, "blocks.1.down.weight").row(127)[100];
    if (ranks.rank() == 1) value = Bf16(std::numeric_limits<float>::infinity());
    const StepResult result = take_step(session, ranks.rank(), 1);
    EXPECT_TRUE(std::isfinite(result.loss)) << "the cast hides it";
    skipped[static_cast<std::size_t>(ranks.rank())] = result.skipped ? 1 : 0;
  });
  EXPECT_EQ(skipped, (std::vector<int>{1, 1}));
}

// Of weights whose scales are not from histories, which nothing else forgets once they are set
// anew.
TEST(CastWeights, EvaluationDoesNotRecordAmaxes) {
  using Current = ModelSession<support::SmallModel<Fp8Recipe<Tensorwise>>, AdamW<>,
                               DataParallel<ReduceIn<>, GatherIn<E4M3>>>;
  const std::string name = "blocks.0.down.weight";
  support::on_ranks(2, [&](support::ThreadComm& ranks) {
    Context<Cpu> context{1};
    Current session(options_of({}), context, ranks);
    const TokenBatch batch = support::make_batch(32, support::small.vocabulary, 7);
    const TokenBatch half = support::make_batch(16, support::small.vocabulary, 7);
    std::vector<float> values(128 * 128, 0.01f);
    values[77] = 50;
    session.weights().set(name, values);
    (void)session.evaluate({half.tokens, half.targets});
    values[77] = 0.01f;
    session.weights().set(name, values);
    (void)session.step({batch.tokens, batch.targets}, 3e-3);
    const std::vector<OperandReport> operands = session.operands();
    const auto found = std::find_if(operands.begin(), operands.end(),
                                    [&](const OperandReport& one) { return one.name == name; });
    ASSERT_NE(found, operands.end());
    EXPECT_EQ(found->amax, static_cast<float>(Bf16(0.01f)));
  });
}

// Ranks rehearse each for itself. A weight that is read of a session which did nothing else leaves
// no amax, and would where a rehearsal still records.
TEST(CastWeights, RehearsalNeitherCommunicatesNorLeavesTrace) {
  for (const Zero zero : {Zero::optimizer, Zero::gradients, Zero::weights}) {
    const auto state_of = [&](bool rehearses) {
      std::vector<SavedState> states(2);
      support::on_ranks(2, [&](support::ThreadComm& communicator) {
        Context<Cpu> context{1};
        WatchedLink link(communicator);
        Session<GatherIn<E4M3>> session(options_of({.zero = zero}), context, link);
        auto& ranks = session.collectives();
        link.sent.clear();
        if (rehearses) {
          ranks.rehearse(true);
          ranks.cast_weights(session.model().scaling(), true, context);
          for (const auto& stage : session.model().parameters()) {
            ranks.before_forward(*stage.flat, context);
            const auto fp8_values = stage.flat->fp8_values();
            if (fp8_values.empty()) continue;
            const E4M3* const begin = fp8_values.data();
            const E4M3* const other = begin + fp8_values.size() / 2;
            EXPECT_TRUE(std::equal(begin, other, other)) << "a part stands for all";
            EXPECT_TRUE(std::any_of(other, other + fp8_values.size() / 2,
                                    [](E4M3 code) { return code.bits != 0; }));
          }
          ranks.rehearse(false);
        }
        EXPECT_TRUE(link.sent.empty()) << link.sent.begin()->first;
        session.model().scaling().reset_sync(context);
        std::vector<float> values(128 * 128, 0.01f);
        values[77] = 50;
        session.weights().set("blocks.1.down.weight", values);
        (void)read_weights(session);
        values[77] = 0.01f;
        session.weights().set("blocks.1.down.weight", values);
        (void)take_step(session, communicator.rank(), 0);
        states[static_cast<std::size_t>(communicator.rank())] =
            save_state_sync(session.state().entries());
      });
      return states;
    };
    EXPECT_TRUE(state_of(true) == state_of(false)) << "ZeRO-" << static_cast<int>(zero);
  }
}

// A norm that begins in one rank's shard and ends in the next one's, and a bias behind it.
TEST(CastWeights, PlacesUncastParameters) {
  constexpr Index shard = 512;
  support::on_ranks(2, [](support::ThreadComm& ranks) {
    const Context<Cpu> context{1};
    std::vector<Bf16> own;  // of a run whose element i has the bits i
    for (Index i = 0; i < shard; ++i) {
      own.push_back(Bf16::from_bits(static_cast<std::uint16_t>(ranks.rank() * shard + i)));
    }
    std::vector<Bf16> found(2 * shard);
    std::vector<E4M3> fp8_values(2 * shard);
    std::array<Parameter<Bf16, Bf16, Cpu>, 3> parameters;
    const auto place = [&](std::size_t number, Index offset, Index size) {
      parameters[number].offset = offset;
      parameters[number].weight = {found.data() + offset, {1, size}};
    };
    place(0, 0, 256);
    parameters[0].fp8_values = {fp8_values.data(), {1, 256}};
    place(1, 256, 512);
    place(2, 768, 200);
    const FlatParameters<Bf16, Bf16, Cpu> run{};
    const StageParameters<Bf16, Bf16, Cpu> stage{&run,
                                                 {&parameters[0], &parameters[1], &parameters[2]}};
    const CastWeights<Bf16, Bf16, Cpu> cast(stage, {own.data(), {shard}},
                                            {fp8_values.data(), {shard}},
                                            {.rank = ranks.rank(), .ranks = 2});
    EXPECT_EQ(cast.rest_size(), 2 * 512);
    std::vector<Bf16> memory(static_cast<std::size_t>(cast.rest_size()));
    const auto all_gather = [&](auto part, auto whole, const char* what) {
      ranks.all_gather(
          {reinterpret_cast<const std::byte*>(part.data()), {static_cast<Index>(part.bytes())}},
          {reinterpret_cast<std::byte*>(whole.data()), {static_cast<Index>(whole.bytes())}}, what,
          context);
    };
    cast.gather_rest({memory.data(), {cast.rest_size()}}, all_gather, context);
    for (Index i = 256; i < 968; ++i) {
      EXPECT_EQ(found[static_cast<std::size_t>(i)].bits, i) << "rank " << ranks.rank();
    }
  });
}

}  // namespace cast_weights_test
