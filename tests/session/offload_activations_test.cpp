// Activations in the host's memory change no bit of a training, but what memory it takes.
#include <octavo/session/state.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "support/small_model.hpp"
#include "support/test_types.hpp"
#include "support/thread_ranks.hpp"

namespace offload_activations_test {

using namespace octavo;
using support::TokenBatch;

constexpr LlamaConfig deep(int layers, bool qk_norm = false) {
  LlamaConfig config = support::small;
  config.layers = layers;
  config.qk_norm = qk_norm;
  return config;
}
constexpr int layers = 5;

template <class Precision, LlamaConfig Config = deep(layers)>
using Session = ModelSession<Llama<Config, Precision, Cpu>>;

SessionOptions options_of(Recompute recompute, bool offloads, Index micro_batches = 1) {
  SessionOptions options = support::small_options();
  options.batch = {1, 48};
  options.micro_batches = micro_batches;
  options.model.recompute = recompute;
  options.offload.activations = offloads;
  return options;
}

/// What a session did, in all that can differ.
struct Outcome {
  std::vector<double> losses;
  std::vector<double> norms;
  std::vector<std::vector<std::byte>> gradients;
  std::vector<float> logits;
  SavedState state;

  friend bool operator==(const Outcome&, const Outcome&) = default;
};

void take_steps(auto& session, const SessionOptions& options, unsigned begin, unsigned end,
                Outcome& outcome, const std::vector<Index>& documents = {}) {
  for (unsigned step = begin; step < end; ++step) {
    const TokenBatch batch = support::step_batch(options, step);
    const StepResult result = session.step({batch.tokens, batch.targets, documents}, 1e-2);
    EXPECT_FALSE(result.skipped);
    outcome.losses.push_back(result.loss);
    outcome.norms.push_back(result.gradient_norm);
    outcome.gradients.push_back(support::weight_gradients(session));
    const TokenBatch seen = support::make_batch(48, support::small.vocabulary, 5);
    outcome.losses.push_back(session.evaluate({seen.tokens, seen.targets}).sum);
    outcome.logits.resize(static_cast<std::size_t>(support::small.vocabulary));
    session.next_token_logits(seen.tokens, outcome.logits);
  }
  outcome.state = save_state_sync(session.state().entries());
}

template <class S>
Outcome train(const SessionOptions& options, const std::vector<Index>& documents = {}) {
  Context<Cpu> context{1};
  S session(options, context);
  Outcome outcome;
  take_steps(session, options, 0, 2, outcome, documents);
  return outcome;
}

template <class Precision>
class OffloadedActivations : public testing::Test {};
using Precisions = support::TestTypes<Bf16, Fp8Recipe<Delayed>, support::MixedPrecision>;
TYPED_TEST_SUITE(OffloadedActivations, Precisions);

TYPED_TEST(OffloadedActivations, ChangeNoBit) {
  using S = Session<TypeParam>;
  const auto expect_equal = [](Index micro_batches, Recompute offloads) {
    const Outcome kept = train<S>(options_of(Recompute::none, false, micro_batches));
    EXPECT_TRUE(train<S>(options_of(offloads, true, micro_batches)) == kept)
        << micro_batches << " micro-batches";
  };
  expect_equal(1, Recompute::none);
  expect_equal(3, Recompute::ffn);
}

TEST(OffloadActivations, ChangesNoBitWithDocumentsAndNormalisedQueries) {
  using S = Session<Bf16, deep(layers, true)>;
  const std::vector<Index> documents{7, 30, 50, 96};
  const auto options = [](bool offloads) {
    SessionOptions result = options_of(Recompute::ffn, offloads, 3);
    result.batch.most_documents = 4;
    return result;
  };
  EXPECT_TRUE(train<S>(options(true), documents) == train<S>(options(false), documents));
}

TEST(OffloadActivations, ChangesNoBitWithAdapters) {
  using S = Session<Lora<Fp8Recipe<Delayed>>>;
  const auto options = [](bool offloads) {
    SessionOptions result = options_of(Recompute::swiglu, offloads, 2);
    result.model.lora.rank = 4;
    return result;
  };
  EXPECT_TRUE(train<S>(options(true)) == train<S>(options(false)));
}

TEST(OffloadActivations, ChangesNoBitWithFewBlocks) {
  using One = Session<Bf16, deep(1)>;
  using Two = Session<Bf16, deep(2)>;
  EXPECT_TRUE(train<One>(options_of(Recompute::ffn, true)) ==
              train<One>(options_of(Recompute::ffn, false)));
  EXPECT_TRUE(train<Two>(options_of(Recompute::ffn, true)) ==
              train<Two>(options_of(Recompute::ffn, false)));
}

TEST(OffloadActivations, ChangesNoBitWithTensorParallelism) {
  constexpr LlamaConfig config = [] {
    LlamaConfig result = deep(layers);
    result.kv_heads = 2;
    return result;
  }();
  using S = ModelSession<Llama<config, Bf16, Cpu, Bf16, TensorParallel<2>>>;
  std::vector<double> losses[2];
  for (const bool offloads : {false, true}) {
    const SessionOptions options = options_of(Recompute::ffn, offloads, 2);
    support::on_ranks(2, [&](support::ThreadComm& communicator) {
      Context<Cpu> context{1};
      S session(options, context, communicator);
      for (unsigned step = 0; step < 2; ++step) {
        const TokenBatch batch = support::step_batch(options, step);
        const double loss = session.step({batch.tokens, batch.targets}, 1e-2).loss;
        if (communicator.rank() == 0) losses[offloads].push_back(loss);
      }
    });
  }
  EXPECT_EQ(losses[0], losses[1]);
}

TEST(OffloadActivations, StateIsIndependentOfOffloading) {
  using S = Session<Fp8Recipe<Delayed>>;
  for (const bool first_offloads : {false, true}) {
    Context<Cpu> context{1};
    const SessionOptions options = options_of(Recompute::ffn, first_offloads);
    S first(options, context);
    S second(options_of(Recompute::ffn, !first_offloads), context);
    Outcome before;
    take_steps(first, options, 0, 2, before);
    load_state_sync(before.state, second.state().entries());
    Outcome expected;
    Outcome outcome;
    take_steps(first, options, 2, 4, expected);
    take_steps(second, options, 2, 4, outcome);
    EXPECT_TRUE(outcome == expected);
  }
}

/// Bytes of an array in an arena.
std::size_t in_arena(Index elements, std::size_t element) {
  return static_cast<std::size_t>(
      round_up(elements * static_cast<Index>(element), Index{allocation_alignment}));
}

TEST(OffloadActivations, UsesPlannedMemory) {
  // Queries, keys and values, the attention's output, its log-sum-exp, the statistics of both
  // norms, and the residual stream within a block of 48 tokens in BF16.
  const std::size_t block = in_arena(48 * 256, 2) + in_arena(48 * 128, 2) + in_arena(48 * 2, 4) +
                            2 * in_arena(48, 4) + in_arena(48 * 128, 2);
  for (const Index micro_batches : {1, 3}) {
    Context<Cpu> context{1};
    using Model = Llama<deep(layers), Bf16, Cpu>;
    const auto plan_of = [&](bool offloads) {
      return plan_memory<Model, AdamW<>>(options_of(Recompute::ffn, offloads, micro_batches),
                                         context);
    };
    const MemoryPlan without = plan_of(false);
    const MemoryPlan with = plan_of(true);
    EXPECT_EQ(without.host, 0U);
    EXPECT_EQ(with.host, (layers - activation_buffers) * block);
    if (micro_batches > 1) {  // otherwise, gradients share memory with the activations
      EXPECT_EQ(without.peak - with.peak, with.host);
      constexpr auto kind = MemoryKind::activations;
      EXPECT_EQ(without.bytes(kind) - with.bytes(kind), with.host);
    }
    const Session<Bf16> session(options_of(Recompute::ffn, true, micro_batches), context);
    EXPECT_EQ(session.facts().allocated_bytes, with.peak);
    EXPECT_EQ(session.facts().allocated_host_bytes, with.host);
    EXPECT_EQ(session.facts().memory.host, with.host);
  }
}

TEST(OffloadActivations, AddsToHostMemoryOfOptimizerState) {
  Context<Cpu> context{1};
  using Model = Llama<deep(layers), Bf16, Cpu>;
  const auto host_of = [&](bool activations, bool optimizer) {
    SessionOptions options = options_of(Recompute::ffn, activations);
    options.offload.optimizer = optimizer;
    return plan_memory<Model, AdamW<>>(options, context).host;
  };
  EXPECT_EQ(host_of(true, true), host_of(true, false) + host_of(false, true));
}

TEST(OffloadActivations, CopiesAppearInTimeline) {
  Context<Cpu> context{1};
  const SessionOptions options = options_of(Recompute::ffn, true, 3);
  Session<Bf16> session(options, context);
  session.begin_timeline_sync();
  Outcome outcome;
  take_steps(session, options, 0, 1, outcome);
  const std::vector<TimelineSpan> spans = session.end_timeline();
  for (const auto& [track, name] :
       {std::pair<std::string, std::string>{"to device", "fetch activations"},
        {"to host", "store activations"}}) {
    EXPECT_EQ(std::ranges::count_if(spans,
                                    [&](const TimelineSpan& span) {
                                      return span.kind == SpanKind::copy && span.track == track &&
                                             span.name == name;
                                    }),
              3 * (layers - static_cast<int>(activation_buffers)))
        << track;
  }
}

TEST(OffloadActivations, RejectsRecomputationOfWholeBlocks) {
  Context<Cpu> context{1};
  try {
    const Session<Bf16> session(options_of(Recompute::block, true), context);
    ADD_FAILURE() << "was taken";
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("recompute is block"), std::string::npos)
        << error.what();
  }
}

TEST(OffloadActivations, RejectsTheModelsOptionAlone) {
  Context<Cpu> context{1};
  SessionOptions options = options_of(Recompute::none, false);
  options.model.offload_activations = true;
  EXPECT_THROW(Session<Bf16>(options, context), ConfigError);
  options.offload.activations = true;
  EXPECT_NO_THROW(Session<Bf16>(options, context));
}

}  // namespace offload_activations_test
