// Where an optimizer's state lives changes no bit of a training, but what memory it takes.
#include <octavo/parallel/data_parallel.hpp>
#include <octavo/session/state.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include "support/small_model.hpp"
#include "support/test_types.hpp"
#include "support/thread_ranks.hpp"

namespace offload_test {

using namespace octavo;
using support::TokenBatch;

// With and without masters, and moments of each format.
using Wide = std::tuple<Bf16, MasterWeights<Fp32>, Moments<Fp32>>;
using Narrow = std::tuple<Fp8Recipe<Delayed>, MasterWeights<Bf16>, Moments<Bf16>>;
using Narrowest = std::tuple<Bf16, MasterWeights<Fp32>, Moments<EightBit>>;

template <class Case>
using Session = ModelSession<support::SmallModel<std::tuple_element_t<0, Case>>,
                             AdamW<std::tuple_element_t<1, Case>, std::tuple_element_t<2, Case>>,
                             DataParallel<>>;

/// Fewer elements than most parameters have, and no divisor of any run.
constexpr Index chunk = 5 * 256;

SessionOptions options_of(bool offloads, int ranks = 1) {
  SessionOptions options = support::small_options();
  options.sharding.ranks = ranks;
  options.offload = {.optimizer = offloads, .chunk = chunk};
  return options;
}

/// What a session did, in all that can differ.
struct Outcome {
  std::vector<double> losses;
  std::vector<double> norms;
  SavedState state;

  friend bool operator==(const Outcome&, const Outcome&) = default;
};

void take_steps(auto& session, unsigned begin, unsigned end, int rank, Outcome& outcome) {
  for (unsigned step = begin; step < end; ++step) {
    const TokenBatch batch =
        support::step_batch(support::small_options(), 100 * static_cast<unsigned>(rank) + step);
    const StepResult result = session.step({batch.tokens, batch.targets}, 1e-2);
    EXPECT_FALSE(result.skipped);
    outcome.losses.push_back(result.loss);
    outcome.norms.push_back(result.gradient_norm);
  }
  outcome.state = save_state_sync(session.state().entries());
}

/// A step that is skipped; the weights are as before afterwards.
void skip_step(auto& session) {
  auto weight = support::weight(session, "blocks.1.qkv.weight");
  auto& element = weight.data()[11];
  const auto kept = element;
  using Element = std::remove_reference_t<decltype(element)>;
  element = Element(std::numeric_limits<float>::quiet_NaN());
  const TokenBatch batch = support::step_batch(support::small_options(), 50);
  EXPECT_TRUE(session.step({batch.tokens, batch.targets}, 1e-2).skipped);
  element = kept;
}

/// Takes some steps, skips one, sets a weight and goes on; of each rank.
template <class Case>
std::vector<Outcome> train(bool offloads, int ranks) {
  std::vector<Outcome> outcomes(static_cast<std::size_t>(ranks));
  support::on_ranks(ranks, [&](support::ThreadComm& communicator) {
    Context<Cpu> context{1};
    Session<Case> session(options_of(offloads), context, communicator);
    Outcome& outcome = outcomes[static_cast<std::size_t>(communicator.rank())];
    take_steps(session, 0, 3, communicator.rank(), outcome);
    const SavedState before = save_state_sync(session.state().entries());
    skip_step(session);
    SavedState after = save_state_sync(session.state().entries());
    EXPECT_TRUE(after == before) << "a step that was skipped";
    std::vector<float> values(256 * 128);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = 1.0f / static_cast<float>(i + 9);
    session.weights().set("blocks.1.qkv.weight", values);
    take_steps(session, 3, 5, communicator.rank(), outcome);
  });
  return outcomes;
}

template <class Case>
class OffloadVariants : public testing::Test {};
using Cases = support::TestTypes<Wide, Narrow, Narrowest>;
TYPED_TEST_SUITE(OffloadVariants, Cases);

TYPED_TEST(OffloadVariants, ChangesNoBit) {
  for (const int ranks : {1, 2}) {
    const std::vector<Outcome> without = train<TypeParam>(false, ranks);
    EXPECT_LT(without[0].losses[2], without[0].losses[0]);
    EXPECT_TRUE(train<TypeParam>(true, ranks) == without) << ranks << " ranks";
  }
}

TYPED_TEST(OffloadVariants, StateIsInterchangeableWithAndWithoutOffload) {
  for (const bool first_offloads : {false, true}) {
    Context<Cpu> context{1};
    Session<TypeParam> first(options_of(first_offloads), context);
    Session<TypeParam> second(options_of(!first_offloads), context);
    Outcome expected;
    Outcome outcome;
    take_steps(first, 0, 2, 0, outcome);
    load_state_sync(outcome.state, second.state().entries());
    EXPECT_TRUE(save_state_sync(second.state().entries()) == outcome.state);
    outcome = {};
    take_steps(second, 2, 4, 0, outcome);
    take_steps(first, 2, 4, 0, expected);
    EXPECT_TRUE(outcome == expected);
  }
}

/// Bytes of an array in an arena.
std::size_t in_arena(Index elements, std::size_t element) {
  return static_cast<std::size_t>(
      round_up(elements * static_cast<Index>(element), Index{allocation_alignment}));
}

/// Bytes of the state of so many neighbouring elements.
template <class Case>
std::size_t state_bytes(Index elements) {
  using Model = support::SmallModel<std::tuple_element_t<0, Case>>;
  constexpr bool has_master = std::is_same_v<std::tuple_element_t<1, Case>, MasterWeights<Fp32>> &&
                              !std::is_same_v<typename Model::T, float>;
  const std::size_t master = has_master ? in_arena(elements, 4) : 0;
  if constexpr (std::is_same_v<Case, Narrowest>) {
    return master + 2 * in_arena(elements, 1) + 2 * in_arena(elements / 128, 1);
  } else {
    return master + 2 * in_arena(elements, std::is_same_v<Case, Wide> ? 4 : 2);
  }
}

TYPED_TEST(OffloadVariants, MovesExactlyOptimizerStateToHost) {
  for (const int ranks : {1, 2}) {
    const auto plan_of = [&](bool offloads) {
      using Model = support::SmallModel<std::tuple_element_t<0, TypeParam>>;
      using Optimizer =
          AdamW<std::tuple_element_t<1, TypeParam>, std::tuple_element_t<2, TypeParam>>;
      const Context<Cpu> context{1};
      return plan_memory<Model, Optimizer, DataParallel<>>(options_of(offloads, ranks), context);
    };
    const MemoryPlan without = plan_of(false);
    const MemoryPlan with = plan_of(true);
    constexpr auto kind = MemoryKind::optimizer;
    constexpr std::size_t of_step = allocation_alignment;
    EXPECT_EQ(without.host, 0U);
    EXPECT_EQ(with.host, without.bytes(kind) - of_step);
    EXPECT_EQ(with.bytes(kind), 3 * state_bytes<TypeParam>(chunk) + of_step);
    EXPECT_EQ(without.peak - with.peak, without.bytes(kind) - with.bytes(kind));
    support::on_ranks(ranks, [&](support::ThreadComm& communicator) {
      Context<Cpu> context{1};
      Session<TypeParam> session(options_of(true), context, communicator);
      EXPECT_EQ(session.facts().allocated_bytes, with.peak);
      EXPECT_EQ(session.facts().allocated_host_bytes, with.host);
      EXPECT_EQ(session.facts().memory.host, with.host);
    });
  }
}

TEST(Offload, BuffersAreAtMostAsLargeAsLargestRun) {
  const auto bytes = [](Index elements) {
    SessionOptions options = options_of(true);
    options.offload.chunk = elements;
    const Context<Cpu> context{1};
    return plan_memory<support::SmallModel<Bf16>, AdamW<>, DataParallel<>>(options, context)
        .bytes(MemoryKind::optimizer);
  };
  EXPECT_EQ(bytes(Index{1} << 23), bytes(Index{1} << 30));
  EXPECT_LT(bytes(chunk), bytes(Index{1} << 23));
}

TEST(Offload, RejectsChunksThatSplitGroups) {
  Context<Cpu> context{1};
  for (const Index wrong : {Index{0}, Index{-256}, Index{128}, Index{1000}}) {
    SessionOptions options = options_of(true);
    options.offload.chunk = wrong;
    try {
      const Session<Wide> session(options, context);
      ADD_FAILURE() << wrong << " elements were taken";
    } catch (const ConfigError& error) {
      EXPECT_NE(std::string(error.what()).find("elements, but is " + std::to_string(wrong)),
                std::string::npos)
          << error.what();
    }
  }
}

TEST(Offload, CopiesOfEachChunkAppearInTimeline) {
  Context<Cpu> context{1};
  Session<Wide> session(options_of(true), context);
  std::ptrdiff_t chunks = 0;
  for (const auto& stage : session.model().parameters())
    chunks += ceil_divide(stage.flat->size(), chunk);
  session.begin_timeline_sync();
  Outcome outcome;
  take_steps(session, 0, 1, 0, outcome);
  const std::vector<TimelineSpan> spans = session.end_timeline();
  for (const char* track : {"to device", "to host"}) {
    EXPECT_EQ(std::ranges::count_if(spans,
                                    [&](const TimelineSpan& span) {
                                      return span.kind == SpanKind::copy &&
                                             span.track == std::string(track);
                                    }),
              chunks)
        << track;
  }
}

}  // namespace offload_test
