// A session goes on to the bit from the state that another one had, and weights that are set reach
// their masters.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include "support/small_model.hpp"

namespace state_test {

using namespace octavo;
using support::small;
using support::SmallModel;

template <class Case>
using Session =
    ModelSession<SmallModel<std::tuple_element_t<0, Case>>, std::tuple_element_t<1, Case>>;

/// What ten steps say, and the state that they leave.
struct Steps {
  std::vector<double> losses;
  SavedState state;

  friend bool operator==(const Steps&, const Steps&) = default;
};

Steps take_steps(TrainingSession& session, unsigned begin, unsigned count) {
  Steps steps;
  for (unsigned i = begin; i < begin + count; ++i) {
    const support::TokenBatch batch = support::step_batch(support::small_options(), i);
    steps.losses.push_back(session.step({batch.tokens, batch.targets}, 1e-3).loss);
  }
  steps.state = save_state_sync(session.state());
  return steps;
}

template <class Case>
class State : public testing::Test {};
using Narrow = AdamW<MasterWeights<Bf16>, Moments<Bf16>>;
using Cases =
    testing::Types<std::tuple<Fp32, AdamW<>>, std::tuple<Bf16, AdamW<>>, std::tuple<Bf16, Narrow>,
                   std::tuple<Fp8Recipe<Delayed>, AdamW<>>, std::tuple<Fp8Recipe<Delayed>, Narrow>,
                   std::tuple<Fp8Recipe<Tensorwise>, AdamW<>>,
                   std::tuple<Fp8Recipe<Blockwise>, Narrow>,
                   std::tuple<support::MixedPrecision, AdamW<>>>;
TYPED_TEST_SUITE(State, Cases);

TYPED_TEST(State, AnotherSessionGoesOnToTheBit) {
  const SessionOptions options = support::small_options();
  for (const unsigned before : {0u, 3u}) {
    Context<Cpu> context(1);
    Session<TypeParam> first(options, context);
    take_steps(first, 0, before);
    const SavedState saved = save_state_sync(first.state());
    const Steps expected = take_steps(first, before, 10);

    Context<Cpu> another(2);
    Session<TypeParam> second(options, another);
    take_steps(second, 77, 2);  // of which nothing may be left
    load_state_sync(saved, second.state());
    EXPECT_TRUE(save_state_sync(second.state()) == saved);
    EXPECT_TRUE(take_steps(second, before, 10) == expected) << "after " << before << " steps";
  }
}

TYPED_TEST(State, NamesEveryPartOnce) {
  Context<Cpu> context(1);
  Session<TypeParam> session(support::small_options(), context);
  const SavedState saved = save_state_sync(session.state());
  const SavedEntry& weight = saved.at("model.blocks.1.qkv.weight");
  EXPECT_EQ(weight.shape, (std::vector<Index>{256, 128}));
  EXPECT_EQ(saved.at("optimizer.first_moment.blocks.1.qkv.weight").shape, weight.shape);
  EXPECT_EQ(saved.at("optimizer.steps").format, "int64");
  EXPECT_TRUE(saved.at("optimizer.steps").shape.empty());
}

/// The error of loading `saved` into a session.
std::string refusal(const SavedState& saved, TrainingSession& session) {
  const SavedState before = save_state_sync(session.state());
  try {
    load_state_sync(saved, session.state());
  } catch (const ConfigError& error) {
    EXPECT_TRUE(save_state_sync(session.state()) == before) << "something was written";
    return error.what();
  }
  return "it was loaded";
}

TEST(StateErrors, WhatDoesNotFitIsNamedAndNothingIsWritten) {
  const SessionOptions options = support::small_options();
  Context<Cpu> context(1);
  ModelSession<SmallModel<Bf16>> bf16(options, context);
  ModelSession<SmallModel<Fp32>> fp32(options, context);
  ModelSession<SmallModel<Fp8Recipe<Delayed>>> delayed(options, context);
  ModelSession<SmallModel<Fp8Recipe<DelayedScaling<16>>>> shorter(options, context);
  // Each has other values than those that are loaded, so that what is written shows.
  take_steps(shorter, 0, 2);
  take_steps(delayed, 5, 1);
  take_steps(bf16, 3, 1);
  const auto state = [](TrainingSession& session) { return save_state_sync(session.state()); };
  const std::string advice = "; it is of another model, recipe or optimizer";
  EXPECT_EQ(refusal(state(fp32), bf16),
            "session.recipe is fp32 in the saved state, but bf16 here" + advice);
  EXPECT_EQ(refusal(state(bf16), delayed),
            "session.recipe is bf16 in the saved state, but fp8 delayed here" + advice);
  EXPECT_EQ(refusal(state(delayed), bf16),
            "session.recipe is fp8 delayed in the saved state, but bf16 here" + advice);
  EXPECT_EQ(refusal(state(shorter), delayed),
            "session.recipe is fp8 delayed (history 16, max, margin 0) in the saved state, but fp8 "
            "delayed here" +
                advice);
  ModelSession<SmallModel<Fp8Recipe<Delayed, E4M3Only>>> narrow(options, context);
  EXPECT_EQ(refusal(state(narrow), delayed),
            "session.recipe is fp8 delayed (e4m3 only) in the saved state, but fp8 delayed here" +
                advice);
  SavedState without = state(bf16);
  without.erase("model.embedding.weight");
  EXPECT_EQ(refusal(without, bf16), "the saved state has no model.embedding.weight" + advice);
  SavedState with = state(bf16);
  with["model.other"] = with.at("model.embedding.weight");
  EXPECT_EQ(refusal(with, bf16),
            "the saved state has model.other, which is nothing of this session" + advice);
  SavedState reshaped = state(bf16);
  reshaped.at("model.embedding.weight").shape = {64, 256};
  EXPECT_EQ(
      refusal(reshaped, bf16),
      "model.embedding.weight is bf16 [64, 256] in the saved state, but bf16 [128, 128] here" +
          advice);
  SavedState cut = state(bf16);
  cut.at("model.embedding.weight").bytes.resize(1000);
  EXPECT_EQ(refusal(cut, bf16),
            "model.embedding.weight has 1000 bytes in the saved state, but 32768 are needed; it is "
            "damaged, take another");
}

TEST(StateErrors, PartsOfOneNameAreRefused) {
  Context<Cpu> context(1);
  ModelSession<SmallModel<Bf16>> session(support::small_options(), context);
  std::vector<StateEntry> entries = session.state();
  EXPECT_NO_THROW((void)save_state_sync(entries));
  entries.push_back(entries.front());
  EXPECT_THROW((void)save_state_sync(entries), UsageError);
}

/// Elements of a saved entry.
template <class T>
std::vector<T> values(const SavedState& state, const std::string& name) {
  const SavedEntry& entry = state.at(name);
  std::vector<T> result(entry.bytes.size() / sizeof(T));
  std::memcpy(result.data(), entry.bytes.data(), entry.bytes.size());
  return result;
}

TYPED_TEST(State, WeightsThatAreSetReachTheirMasters) {
  using T = typename SmallModel<std::tuple_element_t<0, TypeParam>>::T;
  Context<Cpu> context(1);
  Session<TypeParam> session(support::small_options(), context);
  take_steps(session, 0, 2);
  const std::string name = "embedding.weight";  // 96 rows that live, 32 that pad
  std::vector<float> wanted(96 * 128);
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    wanted[i] = 1.0f / static_cast<float>(i + 3);  // most are no BF16 numbers
  }
  session.set_weight(name, wanted);
  const SavedState state = save_state_sync(session.state());
  wanted.resize(128 * 128);
  EXPECT_EQ(values<T>(state, "model." + name), std::vector<T>(wanted.begin(), wanted.end()));
  const std::string master = "optimizer.master." + name;
  EXPECT_EQ(state.contains(master), (std::is_same_v<std::tuple_element_t<1, TypeParam>, AdamW<>> &&
                                     !std::is_same_v<T, float>));
  if (state.contains(master)) {
    EXPECT_EQ(values<float>(state, master), wanted);
  }
}

// All weights of one session in another: the same losses.
TYPED_TEST(State, WeightsThatAreSetAreUsed) {
  using T = typename SmallModel<std::tuple_element_t<0, TypeParam>>::T;
  SessionOptions options = support::small_options();
  Context<Cpu> context(1);
  Session<TypeParam> trained(options, context);
  take_steps(trained, 0, 5);
  const SavedState state = save_state_sync(trained.state());
  options.seed = 99;
  Session<TypeParam> other(options, context);
  trained.model().visit([&](const auto& parameter) {
    const std::vector<T> weight = values<T>(state, "model." + parameter.name);
    const std::vector<float> wide(weight.begin(), weight.end());
    other.set_weight(parameter.name, std::span(wide).first(static_cast<std::size_t>(
                                         parameter.initialised_rows * parameter.weight.extent(1))));
  });
  const support::TokenBatch batch = support::step_batch(support::small_options(), 5);
  if (trained.model().scaling().has_histories()) return;  // the scales differ
  trained.begin_evaluation();
  other.begin_evaluation();
  EXPECT_EQ(other.evaluate({batch.tokens, batch.targets}).sum,
            trained.evaluate({batch.tokens, batch.targets}).sum);
}

// Histories of other weights say nothing.
TEST(SetWeight, MakesHistoriesBeMeasuredAnew) {
  Context<Cpu> context(1);
  ModelSession<SmallModel<Fp8Recipe<Delayed>>> session(support::small_options(), context);
  take_steps(session, 0, 2);
  const auto must_calibrate = [&] {
    return values<std::int64_t>(save_state_sync(session.state()), "session.must_calibrate");
  };
  EXPECT_EQ(must_calibrate(), std::vector<std::int64_t>{0});
  session.set_weight("final_norm.weight", std::vector<float>(128, 2.0f));
  EXPECT_EQ(must_calibrate(), std::vector<std::int64_t>{1});
  take_steps(session, 2, 1);
  EXPECT_EQ(must_calibrate(), std::vector<std::int64_t>{0});
}

// The scale of a weight that was set is that of a session which never had another.
TEST(SetWeight, OldHistoriesAreForgotten) {
  Context<Cpu> context(1);
  using Model = SmallModel<Fp8Recipe<Delayed>>;
  ModelSession<Model> trained(support::small_options(), context);
  ModelSession<Model> fresh(support::small_options(), context);
  take_steps(trained, 0, 3);
  const std::vector<float> weight(256 * 128, 1e-4f);
  std::vector<float> scales;
  for (ModelSession<Model>* session : {&trained, &fresh}) {
    session->set_weight("blocks.1.qkv.weight", weight);
    take_steps(*session, 3, 1);
    scales.push_back(
        values<float>(save_state_sync(session->state()), "scaling.blocks.1.qkv.weight.scale")[0]);
  }
  EXPECT_GT(scales[0], 1e6f);
  EXPECT_NEAR(scales[0], scales[1], 0.5f * scales[1]);
}

// Whoever forgets to begin an evaluation gets no casts of older weights.
TEST(Evaluation, IsOfTheWeightsAsTheyAreNow) {
  Context<Cpu> context(1);
  const support::TokenBatch batch = support::step_batch(support::small_options(), 9);
  std::vector<double> sums;
  for (const bool begins : {true, false}) {
    ModelSession<SmallModel<Fp8Recipe<Tensorwise>>> session(support::small_options(), context);
    if (begins) session.begin_evaluation();
    sums.push_back(session.evaluate({batch.tokens, batch.targets}).sum);
    take_steps(session, 0, 2);
    if (begins) session.begin_evaluation();
    sums.push_back(session.evaluate({batch.tokens, batch.targets}).sum);
    session.set_weight("final_norm.weight", std::vector<float>(128, 2.0f));
    session.set_weight("blocks.1.qkv.weight", std::vector<float>(256 * 128, 0.01f));
    if (begins) session.begin_evaluation();
    sums.push_back(session.evaluate({batch.tokens, batch.targets}).sum);
  }
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(sums[i], sums[i + 3]) << i;
}

TEST(SessionOptions, WhatNoSessionCanBeMadeWithIsRefused) {
  Context<Cpu> context(1);
  const auto refuses = [&](auto change) {
    SessionOptions options = support::small_options();
    change(options);
    EXPECT_THROW(ModelSession<SmallModel<Bf16>>(options, context), ConfigError);
  };
  refuses([](SessionOptions& options) { options.model.head_chunk = -3; });
  refuses([](SessionOptions& options) { options.optimizer.beta1 = 1.5f; });
  refuses([](SessionOptions& options) { options.optimizer.beta2 = 1.0f; });
  refuses([](SessionOptions& options) { options.optimizer.epsilon = 0.0f; });
  refuses([](SessionOptions& options) { options.optimizer.weight_decay = -0.1f; });
  refuses([](SessionOptions& options) { options.max_gradient_norm = -1.0f; });
}

// Bits of stochastic rounding are those of the session that was saved, whatever the other's seed.
TEST(StateOfAnotherSeed, RoundsAsTheSavedOneDoes) {
  Context<Cpu> context(1);
  SessionOptions options = support::small_options();
  ModelSession<SmallModel<Bf16>, Narrow> first(options, context);
  take_steps(first, 0, 1);
  const SavedState saved = save_state_sync(first.state());
  options.seed = 99;
  ModelSession<SmallModel<Bf16>, Narrow> second(options, context);
  load_state_sync(saved, second.state());
  EXPECT_TRUE(take_steps(second, 1, 3) == take_steps(first, 1, 3));
}

TEST(StateErrors, WeightsThatThereAreNotAreNamed) {
  Context<Cpu> context(1);
  ModelSession<SmallModel<Bf16>> session(support::small_options(), context);
  const std::vector<float> some(128);
  EXPECT_THROW(session.set_weight("blocks.3.qkv.weight", some), ConfigError);
  EXPECT_THROW(session.set_weight("embedding.weight", some), ConfigError);
  std::vector<float> broken = some;
  broken[7] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THROW(session.set_weight("final_norm.weight", broken), ConfigError);
  EXPECT_NO_THROW(session.set_weight("final_norm.weight", some));
}

}  // namespace state_test
