// Ranks that train a model with experts learn what one rank learns of all of their batches.
#include <octavo/parallel/data_parallel.hpp>
#include <octavo/session/session.hpp>

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "support/small_model.hpp"
#include "support/thread_ranks.hpp"

namespace experts_of_ranks_test {

using namespace octavo;

constexpr LlamaConfig small = [] {
  LlamaConfig config = support::small;
  config.layers = 1;
  config.hidden = 64;
  config.ffn = 32;
  config.head_dim = 32;
  config.experts = {.experts = 4, .choices = 2};
  config.experts.balance_coefficient = 0.5f;
  return config;
}();

template <class Precision, class Optimizer = AdamW<>>
using Ranked = ModelSession<Llama<small, Precision, Cpu>, Optimizer, DataParallel<>>;

struct Outcome {
  std::vector<double> losses;
  std::vector<double> norms;
  double validation = 0;
  std::map<std::string, std::vector<float>> weights;
};

/// Trains on four micro-batches a step, and returns the results of rank 0.
template <class Session>
Outcome train(int ranks, const SessionOptions& given) {
  constexpr Index sequence = 48;
  Outcome outcome;
  support::on_ranks(ranks, [&](support::ThreadComm& communicator) {
    SessionOptions options = given;
    options.seed = 7;
    options.batch = {1, sequence};
    options.micro_batches = 4 / ranks;
    Context<Cpu> context{1};
    Session session(options, context, communicator);
    Outcome own;
    const auto count = static_cast<std::size_t>(sequence * options.micro_batches);
    for (unsigned step = 0; step < 3; ++step) {
      const support::TokenBatch all = support::make_batch(4 * sequence, small.vocabulary, step);
      const std::size_t begin = static_cast<std::size_t>(communicator.rank()) * count;
      const StepResult result = session.step({std::span(all.tokens).subspan(begin, count),
                                              std::span(all.targets).subspan(begin, count)},
                                             1e-3);
      own.losses.push_back(result.loss);
      own.norms.push_back(result.gradient_norm);
    }
    const support::TokenBatch batch = support::make_batch(sequence, small.vocabulary, 9);
    own.validation = session.evaluate({batch.tokens, batch.targets}).mean();
    session.weights().read_sync(
        [&](const WeightInfo& weight, Index, std::span<const float> values) {
          std::vector<float>& all = own.weights[weight.name];
          all.insert(all.end(), values.begin(), values.end());
        });
    if (communicator.rank() == 0) outcome = own;
  });
  return outcome;
}

SessionOptions options_of(Zero zero) {
  SessionOptions options;
  options.sharding.zero = zero;
  options.model.lora = {.rank = 4, .alpha = 8};
  return options;
}

constexpr std::array stages{Zero::optimizer, Zero::gradients, Zero::weights};

TEST(ExpertsOfRanks, MatchOneRankInFp32) {
  const Outcome one = train<Ranked<Fp32>>(1, options_of(Zero::optimizer));
  for (const Zero zero : stages) {
    const Outcome two = train<Ranked<Fp32>>(2, options_of(zero));
    for (std::size_t i = 0; i < one.losses.size(); ++i) {
      EXPECT_NEAR(two.losses[i], one.losses[i], 1e-5 * one.losses[i]) << i;
      EXPECT_NEAR(two.norms[i], one.norms[i], 1e-4 * one.norms[i]) << i;
    }
    EXPECT_NEAR(two.validation, one.validation, 1e-5 * one.validation);
    ASSERT_EQ(two.weights.size(), one.weights.size());
  }
}

template <class Session>
void expect_the_same_bits_in_all_stages(SessionOptions options = options_of(Zero::optimizer)) {
  const Outcome first = train<Session>(2, options);
  for (const Zero zero : {Zero::gradients, Zero::weights}) {
    options.sharding.zero = zero;
    const Outcome other = train<Session>(2, options);
    EXPECT_EQ(other.losses, first.losses);
    EXPECT_EQ(other.norms, first.norms);
    EXPECT_EQ(other.validation, first.validation);
    EXPECT_TRUE(other.weights == first.weights);
  }
}

TEST(ExpertsOfRanks, AreBitwiseEqualInAllZeroStages) {
  // Gradients of several micro-batches are added before they travel, or after.
  SessionOptions options = options_of(Zero::optimizer);
  options.sharding.reduce_each_micro_batch = true;
  expect_the_same_bits_in_all_stages<Ranked<Fp8Recipe<Delayed>>>(options);
}

TEST(ExpertsOfRanks, TrainAdaptersInAllZeroStages) {
  SessionOptions options = options_of(Zero::optimizer);
  options.sharding.reduce_each_micro_batch = true;
  expect_the_same_bits_in_all_stages<Ranked<Lora<Bf16>>>(options);
}

// Weights of experts are one operand, which ranks can cast before it travels.
TEST(ExpertsOfRanks, CastingBeforeGatherIsBitwiseNeutral) {
  using Model = Llama<small, Fp8Recipe<Delayed>, Cpu>;
  const SessionOptions options = options_of(Zero::weights);
  const Outcome stored = train<ModelSession<Model, AdamW<>, DataParallel<>>>(2, options);
  using Casts = DataParallel<ReduceIn<>, GatherIn<E4M3>>;
  const Outcome cast = train<ModelSession<Model, AdamW<>, Casts>>(2, options);
  EXPECT_EQ(cast.losses, stored.losses);
  EXPECT_EQ(cast.norms, stored.norms);
  EXPECT_EQ(cast.validation, stored.validation);
  EXPECT_TRUE(cast.weights == stored.weights);
}

TEST(ExpertsOfRanks, TrainWithMuonInAllZeroStages) {
  SessionOptions options = options_of(Zero::optimizer);
  options.sharding.reduce_each_micro_batch = true;
  expect_the_same_bits_in_all_stages<Ranked<Bf16, Muon<>>>(options);
}

}  // namespace experts_of_ranks_test
