// Ranks that share a model's layers train as one that has all of them.
#include <octavo/optim/muon.hpp>
#include <octavo/parallel/data_parallel.hpp>
#include <octavo/session/state.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <limits>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "parallel/tensor_parallel.hpp"
#include "support/small_model.hpp"
#include "support/thread_ranks.hpp"

namespace tensor_parallel_test {

using Values = std::map<std::string, std::vector<double>>;

/// What one rank knows at the end.
struct Outcome {
  std::vector<double> losses;
  std::vector<double> norms;
  double validation = 0;
  std::vector<float> logits;
  Index parameters = 0;
  SavedState state;
};

/// Puts a rank's part of each parameter to its place in the whole.
template <class Of>
void put_together(Values& wholes, auto& session, const Of& of) {
  session.model().visit([&](auto& parameter) {
    const auto shape = parameter.weight.shape();
    const auto whole = parameter.part.full_shape(shape);
    std::vector<double>& values = wholes[parameter.name];
    values.resize(static_cast<std::size_t>(whole[0] * whole[1]), 1e30);
    const auto view = of(parameter);
    parameter.part.for_each_stripe(shape, [&](Index begin, Index to, Index count) {
      for (Index i = 0; i < count; ++i) {
        values[static_cast<std::size_t>(to + i)] =
            static_cast<double>(static_cast<float>(view.data()[begin + i]));
      }
    });
  });
}

/// Trains; the outcomes of all ranks.
template <class Precision, int Degree, class Gather = GatherIn<>, class Optimizer = AdamW<>>
std::vector<Outcome> train(const Setting& setting) {
  const int ranks = setting.groups * Degree;
  std::vector<Outcome> outcomes(static_cast<std::size_t>(ranks));
  support::on_ranks(ranks, [&](support::ThreadComm& communicator) {
    Context<Cpu> context{1};
    Session<Precision, Degree, Gather, Optimizer> session(options_of(setting), context,
                                                          communicator);
    Outcome& outcome = outcomes[static_cast<std::size_t>(communicator.rank())];
    for (unsigned step = 0; step < setting.steps; ++step) {
      const TokenBatch batch = part_of_step(setting, communicator.rank() / Degree, step);
      const StepResult result = session.step({batch.tokens, batch.targets}, 1e-3);
      EXPECT_FALSE(result.skipped);
      outcome.losses.push_back(result.loss);
      outcome.norms.push_back(result.gradient_norm);
    }
    for (unsigned seed = 4; seed < 8; ++seed) {
      const TokenBatch seen = support::make_batch(sequence, config.vocabulary, seed);
      const LossSum own = session.evaluate({seen.tokens, seen.targets});
      const LossSum all = session.ranks().sum(own);
      EXPECT_EQ(own.tokens, sequence);
      EXPECT_EQ(all.tokens, sequence * setting.groups);
      outcome.validation += all.mean() / 4;
    }
    const TokenBatch batch = support::make_batch(sequence, config.vocabulary, 7);
    outcome.logits.resize(config.vocabulary);
    session.next_token_logits(std::span(batch.tokens).first(21), outcome.logits);
    outcome.parameters = session.facts().parameters;
    outcome.state = save_state_sync(session.state().entries());
  });
  return outcomes;
}

void expect_near(const Outcome& one, const Outcome& other, double relative) {
  ASSERT_EQ(one.losses.size(), other.losses.size());
  for (std::size_t i = 0; i < one.losses.size(); ++i) {
    EXPECT_NEAR(one.losses[i], other.losses[i], relative * one.losses[i]) << "step " << i;
  }
  EXPECT_NEAR(one.validation, other.validation, relative * one.validation);
  EXPECT_EQ(one.parameters, other.parameters);
}

/// All ranks agree in what is whole on each of them.
void expect_agreement(const std::vector<Outcome>& outcomes) {
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.losses, outcomes[0].losses);
    EXPECT_EQ(outcome.norms, outcomes[0].norms);
    EXPECT_EQ(outcome.validation, outcomes[0].validation);
    EXPECT_EQ(outcome.logits, outcomes[0].logits);
    for (const auto& [name, entry] : outcome.state) {
      const auto first = outcomes[0].state.find(name);
      if (!entry.part.is_whole() || first == outcomes[0].state.end()) continue;
      EXPECT_TRUE(entry.shape != entry.whole || entry == first->second) << name;
    }
  }
}

void expect_near(const std::vector<float>& one, const std::vector<float>& other, double bound) {
  for (std::size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(one[i], other[i], bound) << i;
}

TEST(TensorParallel, TwoRanksMatchOneRankInFp32) {
  const Outcome one = train<Fp32, 1>({.steps = 50})[0];
  EXPECT_LT(one.losses.back(), one.losses.front());
  const auto outcomes = train<Fp32, 2>({.steps = 50});
  expect_near(one, outcomes[0], 1e-6);
  for (std::size_t i = 0; i < one.norms.size(); ++i) {
    EXPECT_NEAR(one.norms[i], outcomes[0].norms[i], 1e-5 * one.norms[i]) << "step " << i;
  }
  expect_near(one.logits, outcomes[0].logits, 1e-4);
  expect_agreement(outcomes);
}

TEST(TensorParallel, TwoRanksMatchOneRankInFp8) {
  using Precision = Fp8Recipe<Delayed>;
  const Setting setting{.micro_batches = 4, .steps = 50};
  const Outcome one = train<Precision, 1>(setting)[0];
  const auto outcomes = train<Precision, 2>(setting);
  expect_near(one, outcomes[0], 2e-3);
  expect_agreement(outcomes);
  // Scales are those of the whole, not of a rank's part.
  for (const auto& [name, entry] : outcomes[1].state) {
    if (!name.starts_with("scaling.")) continue;
    EXPECT_TRUE(entry == outcomes[0].state.at(name)) << name;
  }
}

TEST(TensorParallel, GroupsWithShardedOptimizerMatchOneRank) {
  const Outcome one = train<Fp32, 1>({.micro_batches = 4, .steps = 6})[0];
  for (const Zero zero : {Zero::optimizer, Zero::gradients, Zero::weights}) {
    Setting setting{.groups = 2, .zero = zero, .micro_batches = 4, .steps = 6};
    // Of ranks with the same part.
    if (zero != Zero::weights) setting.options.check_replicas = 2;
    const auto outcomes = train<Fp32, 2>(setting);
    expect_near(one, outcomes[0], 1e-6);
    expect_agreement(outcomes);
  }
}

TEST(TensorParallel, GroupsWithShardedOptimizerMatchOneRankInFp8) {
  using Precision = Fp8Recipe<Delayed>;
  const Outcome one = train<Precision, 1>({.micro_batches = 2, .steps = 6})[0];
  const auto outcomes =
      train<Precision, 2>({.groups = 2, .zero = Zero::weights, .micro_batches = 2, .steps = 6});
  expect_near(one, outcomes[0], 2e-3);
  expect_agreement(outcomes);
}

TEST(TensorParallel, RanksMatchOneRankWithMuon) {
  const Outcome one = train<Fp32, 1, GatherIn<>, Muon<>>({.micro_batches = 2, .steps = 6})[0];
  EXPECT_LT(one.losses.back(), one.losses.front());
  for (const int groups : {1, 2}) {
    const auto outcomes = train<Fp32, 2, GatherIn<>, Muon<>>(
        {.groups = groups, .zero = Zero::weights, .micro_batches = 2, .steps = 6});
    // Gradients differ by rounding, which changes the rounding of some directions to BF16.
    expect_near(one, outcomes[0], 1e-5);
    expect_agreement(outcomes);
  }
}

/// The parameters of all ranks, put together.
template <int Degree, class Of>
Values parameters_after(unsigned steps, const Of& of) {
  Values values;
  std::mutex one_at_a_time;
  const Setting setting;
  support::on_ranks(Degree, [&](support::ThreadComm& communicator) {
    Context<Cpu> context{1};
    Session<Fp32, Degree> session(options_of(setting), context, communicator);
    for (unsigned step = 0; step < steps; ++step) {
      const TokenBatch batch = part_of_step(setting, 0, step);
      EXPECT_FALSE(session.step({batch.tokens, batch.targets}, 1e-3).skipped);
    }
    const std::lock_guard lock(one_at_a_time);
    put_together(values, session, of);
  });
  return values;
}

TEST(TensorParallel, GatheringWeightsInFp8IsBitwiseNeutral) {
  using Precision = Fp8Recipe<Delayed>;
  for (const Zero zero : {Zero::optimizer, Zero::weights}) {
    const Setting setting{.groups = 2, .zero = zero, .micro_batches = 2};
    const auto stored = train<Precision, 2>(setting);
    const auto cast = train<Precision, 2, GatherIn<E4M3>>(setting);
    for (std::size_t rank = 0; rank < stored.size(); ++rank) {
      EXPECT_EQ(cast[rank].losses, stored[rank].losses);
      EXPECT_EQ(cast[rank].norms, stored[rank].norms);
      EXPECT_EQ(cast[rank].logits, stored[rank].logits);
      EXPECT_TRUE(cast[rank].state == stored[rank].state);
    }
  }
}

TEST(TensorParallel, StartsFromWeightsOfOneRank) {
  const auto weights = [](auto& parameter) { return parameter.weight; };
  EXPECT_TRUE((parameters_after<2>(0, weights)) == (parameters_after<1>(0, weights)));
}

TEST(TensorParallel, GradientsMatchOneRank) {
  const auto gradients = [](auto& parameter) { return parameter.gradient; };
  const Values one = parameters_after<1>(1, gradients);
  const Values two = parameters_after<2>(1, gradients);
  ASSERT_EQ(one.size(), two.size());
  for (const auto& [name, expected] : one) {
    const std::vector<double>& found = two.at(name);
    ASSERT_EQ(expected.size(), found.size()) << name;
    double worst = 0;
    double largest = 0;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      worst = std::max(worst, std::abs(expected[i] - found[i]));
      largest = std::max(largest, std::abs(expected[i]));
    }
    EXPECT_GT(largest, 0) << name;
    EXPECT_LT(worst, 1e-5 * largest) << name;
  }
}

TEST(TensorParallel, RecomputationAndHeadChunksChangeNothing) {
  Setting setting;
  const auto kept = train<Fp32, 2>(setting);
  for (const Recompute recompute : {Recompute::norms, Recompute::ffn, Recompute::block}) {
    setting.options.model.recompute = recompute;
    EXPECT_EQ((train<Fp32, 2>(setting)[0].losses), kept[0].losses);
  }
  setting.options.model.head_chunk = 10;  // which does not divide the rows
  const auto chunks = train<Fp32, 2>(setting);
  expect_near(kept[0], chunks[0], 1e-6);
  expect_near(kept[0].logits, chunks[0].logits, 1e-4);
}

TEST(TensorParallel, DocumentsSpanRowsOfSeveralRanks) {
  const std::vector<Index> documents{5, 20};
  std::vector<double> losses[2];
  const auto run = [&](auto& session, std::vector<double>& of) {
    for (unsigned step = 0; step < 3; ++step) {
      const TokenBatch batch = part_of_step({}, 0, step);
      of.push_back(session.step({batch.tokens, batch.targets, documents}, 1e-3).loss);
    }
  };
  Setting setting;
  setting.options.batch.most_documents = 4;
  support::on_ranks(1, [&](support::ThreadComm& communicator) {
    Context<Cpu> context{1};
    Session<Fp32, 1> session(options_of(setting), context, communicator);
    run(session, losses[0]);
  });
  support::on_ranks(2, [&](support::ThreadComm& communicator) {
    Context<Cpu> context{1};
    Session<Fp32, 2> session(options_of(setting), context, communicator);
    std::vector<double> own;
    run(session, own);
    if (communicator.rank() == 1) losses[1] = own;
  });
  ASSERT_EQ(losses[0].size(), losses[1].size());
  for (std::size_t i = 0; i < losses[0].size(); ++i) {
    EXPECT_NEAR(losses[0][i], losses[1][i], 1e-6 * losses[0][i]);
  }
}

// Of columns, and of groups of rows; with ZeRO-3 a rank has a shard of its part.
TEST(TensorParallel, ReportsNonFiniteElementByGlobalIndex) {
  for (const Zero zero : {Zero::optimizer, Zero::weights}) {
    const Setting setting{.groups = 2, .zero = zero, .micro_batches = 2};
    support::on_ranks(4, [&](support::ThreadComm& communicator) {
      Context<Cpu> context{1};
      Session<Fp32, 2> session(options_of(setting), context, communicator);
      for (const char* name : {"blocks.1.output.weight", "blocks.1.qkv.weight"}) {
        const auto part = support::weight(session, name);
        const auto size = static_cast<Index>(2 * part.size());
        for (const Index wrong : {Index{3}, size / 2 + 1, size - 2}) {
          const WeightSource source = [&](Index begin, std::span<float> values) {
            for (std::size_t i = 0; i < values.size(); ++i) {
              const bool is_wrong = begin + static_cast<Index>(i) == wrong;
              values[i] = is_wrong ? std::numeric_limits<float>::infinity() : 0.5f;
            }
          };
          std::string said;
          try {
            session.weights().set(name, source);
          } catch (const ConfigError& error) {
            said = error.what();
          }
          bool is_told = false;
          for (const std::string& text : session.ranks().texts(said, "errors")) {
            is_told = is_told || !text.empty();
            const std::string wanted = message(name, ": element ", wrong, " must be finite in ");
            EXPECT_EQ(text.substr(0, wanted.size()), text.empty() ? "" : wanted);
          }
          EXPECT_TRUE(is_told) << name << ' ' << wrong;
        }
      }
    });
  }
}

TEST(TensorParallel, SetsWholeWeightsAndRecordsPartInState) {
  const Index columns = config.heads * config.head_dim;
  std::vector<float> output(static_cast<std::size_t>(config.hidden * columns));
  for (std::size_t i = 0; i < output.size(); ++i) output[i] = static_cast<float>(i);
  std::vector<float> head(static_cast<std::size_t>(config.vocabulary * config.hidden), 0.25f);
  support::on_ranks(2, [&](support::ThreadComm& communicator) {
    Context<Cpu> context{1};
    Session<Fp32, 2> session(options_of({}), context, communicator);
    session.weights().set("blocks.1.output.weight", output);
    session.weights().set("head.weight", head);
    EXPECT_THROW(session.weights().set("blocks.1.output.weight", std::span(output).first(8)),
                 ConfigError);
    const int rank = communicator.rank();
    const auto part = support::weight(session, "blocks.1.output.weight");
    EXPECT_EQ(part.extent(1), columns / 2);
    for (Index row = 0; row < config.hidden; ++row) {
      for (Index i = 0; i < columns / 2; ++i) {
        const Index whole = row * columns + rank * columns / 2 + i;
        EXPECT_EQ(part.row(row)[i], static_cast<float>(whole));
      }
    }
    // Rows 128 to 199 of the vocabulary are rank 1's, the rest of its 128 pads it.
    const auto of_head = support::weight(session, "head.weight");
    EXPECT_EQ(of_head.row(71)[5], 0.25f);
    EXPECT_EQ(of_head.row(72)[5], rank == 0 ? 0.25f : 0.0f);
    const SavedState state = save_state_sync(session.state().entries());
    const ParameterPart& of_state = state.at("optimizer.first_moment.blocks.1.output.weight").part;
    EXPECT_EQ(of_state, ParameterPart::columns(2, rank, config.hidden));
    EXPECT_TRUE(state.at("model.blocks.1.attention_norm.weight").part.is_whole());
    SavedState other = state;
    other.at("model.head.weight").part.rank = 1 - rank;
    EXPECT_THROW(load_state_sync(other, session.state().entries()), ConfigError);
    load_state_sync(state, session.state().entries());
  });
}

TEST(TensorParallel, RanksUseLessMemory) {
  const Context<Cpu> context{1};
  const SessionOptions options = options_of({});
  const MemoryPlan one = plan_memory<Model<Fp32, 1>, AdamW<>, DataParallel<>>(options, context);
  const MemoryPlan two = plan_memory<Model<Fp32, 2>, AdamW<>, DataParallel<>>(options, context);
  for (const MemoryKind kind :
       {MemoryKind::weights, MemoryKind::optimizer, MemoryKind::activations}) {
    EXPECT_LT(two.bytes(kind), one.bytes(kind) * 7 / 10) << name_of(kind);
  }
}

TEST(TensorParallel, RejectsRankCountsThatFormNoGroups) {
  support::ThreadRanks three(3);
  support::ThreadComm communicator(three, 0);
  Context<Cpu> context{1};
  const auto text = [&](const auto& make) {
    try {
      make();
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const auto of_three =
      text([&] { Session<Fp32, 2> session(options_of({}), context, communicator); });
  EXPECT_NE(of_three.find("TensorParallel<2>"), std::string::npos) << of_three;
  EXPECT_NE(of_three.find("there are 3"), std::string::npos) << of_three;
  const auto of_one = text([&] { Session<Fp32, 2> session(options_of({}), context); });
  EXPECT_NE(of_one.find("there are 1"), std::string::npos) << of_one;
  Arena<Cpu> arena;
  EXPECT_THROW((Model<Fp32, 2>(arena, {1, 31}, {}, context)), ConfigError);
}

// A session fills such sequences up, in a batch and for logits.
TEST(TensorParallel, SupportsRowsNotDivisibleByRanks) {
  const auto outcomes = [&]<int Degree>(std::integral_constant<int, Degree>, BatchShape batch) {
    std::vector<Outcome> of_ranks(Degree);
    support::on_ranks(Degree, [&](support::ThreadComm& communicator) {
      SessionOptions options = options_of({});
      options.batch = batch;
      Context<Cpu> context{1};
      Session<Fp32, Degree> session(options, context, communicator);
      Outcome& outcome = of_ranks[static_cast<std::size_t>(communicator.rank())];
      const auto all = static_cast<std::size_t>(options.micro_batches * batch.rows());
      const TokenBatch tokens = support::make_batch(all, config.vocabulary, 3);
      for (unsigned step = 0; step < 2; ++step) {
        outcome.losses.push_back(session.step({tokens.tokens, tokens.targets}, 1e-3).loss);
      }
      const auto rows = static_cast<std::size_t>(batch.rows());
      const Batch seen{std::span(tokens.tokens).first(rows), std::span(tokens.targets).first(rows)};
      outcome.validation = session.evaluate(seen).mean();
      for (const std::size_t length : {1u, 20u, 31u, 33u}) {
        std::vector<float> logits(config.vocabulary);
        session.next_token_logits(std::span(tokens.tokens).first(length), logits);
        outcome.logits.insert(outcome.logits.end(), logits.begin(), logits.end());
      }
    });
    return of_ranks;
  };
  for (const BatchShape batch : {BatchShape{1, 33}, BatchShape{2, 33}}) {
    const auto one = outcomes(std::integral_constant<int, 1>{}, batch);
    const auto two = outcomes(std::integral_constant<int, 2>{}, batch);
    expect_agreement(two);
    expect_near(one[0], two[0], 1e-6);
    expect_near(one[0].logits, two[0].logits, 1e-4);
  }
}

TEST(TensorParallel, RejectsDifferentBatchesInGroup) {
  std::vector<std::string> said(2);
  support::on_ranks(2, [&](support::ThreadComm& communicator) {
    Context<Cpu> context{1};
    Session<Fp32, 2> session(options_of({}), context, communicator);
    const int rank = communicator.rank();
    const TokenBatch batch = part_of_step({}, 0, static_cast<unsigned>(rank));
    try {
      (void)session.step({batch.tokens, batch.targets}, 1e-3);
    } catch (const UsageError& error) {
      said[static_cast<std::size_t>(rank)] = error.what();
    }
  });
  for (const std::string& text : said) {
    EXPECT_NE(text.find("rank 1 has a different batch than rank 0"), std::string::npos) << text;
  }
}

TEST(TensorParallel, AllRanksSkipStepThatIsNonFiniteOnOne) {
  std::vector<int> skipped(2);
  support::on_ranks(2, [&](support::ThreadComm& communicator) {
    Context<Cpu> context{1};
    Session<Fp32, 2> session(options_of({}), context, communicator);
    const TokenBatch batch = part_of_step({}, 0, 0);
    if (communicator.rank() == 1) {
      support::weight(session, "blocks.0.down.weight").row(3)[7] =
          std::numeric_limits<float>::infinity();
    }
    const auto before = support::weights(session);
    const bool skips = session.step({batch.tokens, batch.targets}, 1e-3).skipped;
    skipped[static_cast<std::size_t>(communicator.rank())] = skips ? 1 : 0;
    EXPECT_TRUE(support::weights(session) == before);
  });
  EXPECT_EQ(skipped, (std::vector<int>{1, 1}));
}

}  // namespace tensor_parallel_test
