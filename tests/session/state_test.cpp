// A session goes on to the bit from the state that another one had, and weights that are set reach
// their masters.
#include <octavo/session/state.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "support/small_model.hpp"
#include "support/test_types.hpp"

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
  steps.state = save_state_sync(session.state().entries());
  return steps;
}

template <class Case>
class State : public testing::Test {};
using Narrow = AdamW<MasterWeights<Bf16>, Moments<Bf16>>;
using Narrowest = AdamW<MasterWeights<Bf16>, Moments<EightBit>>;
using Cases = support::TestTypes<
    std::tuple<Fp32, AdamW<>>, std::tuple<Bf16, AdamW<>>, std::tuple<Bf16, Narrow>,
    std::tuple<Fp8Recipe<Delayed>, AdamW<>>, std::tuple<Fp8Recipe<Delayed>, Narrow>,
    std::tuple<Fp8Recipe<Tensorwise>, AdamW<>>, std::tuple<Fp8Recipe<Blockwise>, Narrowest>,
    std::tuple<support::MixedPrecision, AdamW<>>>;
TYPED_TEST_SUITE(State, Cases);

TYPED_TEST(State, ResumesBitwiseInAnotherSession) {
  const SessionOptions options = support::small_options();
  for (const unsigned before : {0u, 3u}) {
    Context<Cpu> context(1);
    Session<TypeParam> first(options, context);
    take_steps(first, 0, before);
    const SavedState saved = save_state_sync(first.state().entries());
    const Steps expected = take_steps(first, before, 10);

    Context<Cpu> another(2);
    Session<TypeParam> second(options, another);
    take_steps(second, 77, 2);  // of which nothing may be left
    load_state_sync(saved, second.state().entries());
    EXPECT_TRUE(save_state_sync(second.state().entries()) == saved);
    EXPECT_TRUE(take_steps(second, before, 10) == expected) << "after " << before << " steps";
  }
}

TYPED_TEST(State, EntriesHaveUniqueNamesAndShapes) {
  Context<Cpu> context(1);
  Session<TypeParam> session(support::small_options(), context);
  const SavedState saved = save_state_sync(session.state().entries());
  const SavedEntry& weight = saved.at("model.blocks.1.qkv.weight");
  EXPECT_EQ(weight.shape, (std::vector<Index>{256, 128}));
  EXPECT_EQ(saved.at("optimizer.first_moment.blocks.1.qkv.weight").shape, weight.shape);
  EXPECT_EQ(saved.at("optimizer.steps").format, "int64");
  EXPECT_TRUE(saved.at("optimizer.steps").shape.empty());
}

TEST(EightBitState, HasCodesAndOneScalePer128Elements) {
  Context<Cpu> context(1);
  Session<std::tuple<Fp8Recipe<Blockwise>, Narrowest>> session(support::small_options(), context);
  const SavedState saved = save_state_sync(session.state().entries());
  for (const std::string moment : {"first_moment", "second_moment"}) {
    const SavedEntry& codes = saved.at("optimizer." + moment + ".blocks.1.qkv.weight");
    EXPECT_EQ(codes.format, "8-bit");
    EXPECT_EQ(codes.shape, (std::vector<Index>{256, 128}));
    const SavedEntry& scales = saved.at("optimizer." + moment + "_scale.blocks.1.qkv.weight");
    EXPECT_EQ(scales.format, "E8M0");
    EXPECT_EQ(scales.shape, std::vector<Index>{256});
  }
}

/// The error of loading `saved` into a session.
std::string refusal(const SavedState& saved, TrainingSession& session) {
  const SavedState before = save_state_sync(session.state().entries());
  try {
    load_state_sync(saved, session.state().entries());
  } catch (const ConfigError& error) {
    EXPECT_TRUE(save_state_sync(session.state().entries()) == before) << "something was written";
    return error.what();
  }
  return "it was loaded";
}

TEST(StateErrors, ReportsMismatchAndChangesNothing) {
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
  const auto state = [](TrainingSession& session) {
    return save_state_sync(session.state().entries());
  };
  const std::string advice = "; it is of a different model, recipe or optimizer";
  const std::string same = "; create the session with the same";
  EXPECT_EQ(refusal(state(fp32), bf16),
            "the recipe is fp32 in the saved state, but bf16 here" + same);
  EXPECT_EQ(refusal(state(bf16), delayed),
            "the recipe is bf16 in the saved state, but fp8-delayed here" + same);
  EXPECT_EQ(refusal(state(delayed), bf16),
            "the recipe is fp8-delayed in the saved state, but bf16 here" + same);
  EXPECT_EQ(refusal(state(shorter), delayed),
            "the recipe is fp8-delayed (history 16, max, margin 0) in the saved state, but "
            "fp8-delayed here" +
                same);
  ModelSession<SmallModel<Fp8Recipe<Delayed, E4M3Only>>> narrow(options, context);
  EXPECT_EQ(
      refusal(state(narrow), delayed),
      "the recipe is fp8-delayed (e4m3 only) in the saved state, but fp8-delayed here" + same);
  SavedState without = state(bf16);
  without.erase("model.embedding.weight");
  EXPECT_EQ(refusal(without, bf16), "the saved state has no model.embedding.weight" + advice);
  SavedState with = state(bf16);
  with["model.other"] = with.at("model.embedding.weight");
  EXPECT_EQ(refusal(with, bf16),
            "the saved state has model.other, which this session does not have" + advice);
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
            "damaged, use another");
}

// Whatever is wrong, and however late it is found.
TEST(StateErrors, ChecksAllEntriesBeforeWriting) {
  const SessionOptions options = support::small_options();
  Context<Cpu> context(1);
  ModelSession<SmallModel<Bf16>> saved(options, context);
  ModelSession<SmallModel<Bf16>> session(options, context);
  take_steps(saved, 0, 2);
  const SavedState good = save_state_sync(saved.state().entries());
  ASSERT_FALSE(save_state_sync(session.state().entries()) == good);
  SavedState with = good;
  with["zeal"] = {"int64", {}, {}};
  EXPECT_NE(refusal(with, session), "it was loaded");
  for (const StateEntry& entry : session.state().entries()) {
    if (entry.bytes == 0) continue;
    SavedState cut = good;
    cut.at(entry.name).bytes.pop_back();
    EXPECT_NE(refusal(cut, session), "it was loaded") << entry.name;
  }
  EXPECT_EQ(refusal(good, session), "it was loaded");
}

TEST(StateErrors, RejectsDuplicateNames) {
  Context<Cpu> context(1);
  ModelSession<SmallModel<Bf16>> session(support::small_options(), context);
  std::vector<StateEntry> entries = session.state().entries();
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

TYPED_TEST(State, SettingWeightsUpdatesMasters) {
  using T = typename SmallModel<std::tuple_element_t<0, TypeParam>>::T;
  Context<Cpu> context(1);
  Session<TypeParam> session(support::small_options(), context);
  take_steps(session, 0, 2);
  const std::string name = "embedding.weight";  // 96 rows that live, 32 that pad
  std::vector<float> wanted(96 * 128);
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    wanted[i] = 1.0f / static_cast<float>(i + 3);  // most are no BF16 numbers
  }
  session.weights().set(name, wanted);
  const SavedState state = save_state_sync(session.state().entries());
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
TYPED_TEST(State, SetWeightsAreUsed) {
  using T = typename SmallModel<std::tuple_element_t<0, TypeParam>>::T;
  SessionOptions options = support::small_options();
  Context<Cpu> context(1);
  Session<TypeParam> trained(options, context);
  take_steps(trained, 0, 5);
  const SavedState state = save_state_sync(trained.state().entries());
  options.seed = 99;
  Session<TypeParam> other(options, context);
  trained.model().visit([&](const auto& parameter) {
    const std::vector<T> weight = values<T>(state, "model." + parameter.name);
    const std::vector<float> wide(weight.begin(), weight.end());
    other.weights().set(parameter.name,
                        std::span(wide).first(static_cast<std::size_t>(
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
TEST(SetWeight, RequiresCalibration) {
  Context<Cpu> context(1);
  ModelSession<SmallModel<Fp8Recipe<Delayed>>> session(support::small_options(), context);
  take_steps(session, 0, 2);
  const auto must_calibrate = [&] {
    return values<std::int64_t>(save_state_sync(session.state().entries()),
                                "session.must_calibrate");
  };
  EXPECT_EQ(must_calibrate(), std::vector<std::int64_t>{0});
  session.weights().set("final_norm.weight", std::vector<float>(128, 2.0f));
  EXPECT_EQ(must_calibrate(), std::vector<std::int64_t>{1});
  take_steps(session, 2, 1);
  EXPECT_EQ(must_calibrate(), std::vector<std::int64_t>{0});
}

TEST(SetWeight, ResetsHistoriesEvenIfPieceIsRejected) {
  Context<Cpu> context(1);
  ModelSession<SmallModel<Fp8Recipe<Delayed>>> session(support::small_options(), context);
  take_steps(session, 0, 2);
  EXPECT_FALSE(session.must_calibrate());
  const WeightSource broken = [](Index, std::span<float> piece) {
    std::fill(piece.begin(), piece.end(), std::numeric_limits<float>::infinity());
  };
  EXPECT_THROW(session.weights().set("final_norm.weight", broken), ConfigError);
  EXPECT_TRUE(session.must_calibrate());
}

// The scale of a weight that was set is that of a session which never had another.
TEST(SetWeight, ResetsHistories) {
  Context<Cpu> context(1);
  using Model = SmallModel<Fp8Recipe<Delayed>>;
  ModelSession<Model> trained(support::small_options(), context);
  ModelSession<Model> fresh(support::small_options(), context);
  take_steps(trained, 0, 3);
  const std::vector<float> weight(256 * 128, 1e-4f);
  std::vector<float> scales;
  for (ModelSession<Model>* session : {&trained, &fresh}) {
    session->weights().set("blocks.1.qkv.weight", weight);
    take_steps(*session, 3, 1);
    scales.push_back(values<float>(save_state_sync(session->state().entries()),
                                   "scaling.blocks.1.qkv.weight.scale")[0]);
  }
  EXPECT_GT(scales[0], 1e6f);
  EXPECT_NEAR(scales[0], scales[1], 0.5f * scales[1]);
}

// Whoever forgets to begin an evaluation gets no casts of older weights.
TEST(Evaluation, UsesCurrentWeights) {
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
    session.weights().set("final_norm.weight", std::vector<float>(128, 2.0f));
    session.weights().set("blocks.1.qkv.weight", std::vector<float>(256 * 128, 0.01f));
    if (begins) session.begin_evaluation();
    sums.push_back(session.evaluate({batch.tokens, batch.targets}).sum);
  }
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(sums[i], sums[i + 3]) << i;
}

/// A session's evaluation, and the logits of a prompt, without a call of begin_evaluation.
std::vector<float> looked_at(TrainingSession& session) {
  const support::TokenBatch batch = support::step_batch(support::small_options(), 9);
  std::vector<float> values(static_cast<std::size_t>(small.vocabulary));
  session.next_token_logits(std::span(batch.tokens).first(20), values);
  values.push_back(static_cast<float>(session.evaluate({batch.tokens, batch.targets}).sum));
  return values;
}

/// The same, where the logits come last.
std::vector<float> looked_at_from_behind(TrainingSession& session) {
  const support::TokenBatch batch = support::step_batch(support::small_options(), 9);
  const auto sum = static_cast<float>(session.evaluate({batch.tokens, batch.targets}).sum);
  std::vector<float> values(static_cast<std::size_t>(small.vocabulary));
  session.next_token_logits(std::span(batch.tokens).first(20), values);
  values.push_back(sum);
  return values;
}

/// One step, and nothing of the session but that.
void take_step(TrainingSession& session, unsigned number, double rate = 1e-2) {
  const support::TokenBatch batch = support::step_batch(support::small_options(), number);
  EXPECT_FALSE(session.step({batch.tokens, batch.targets}, rate).skipped);
}

template <class Precision>
class EvaluationWeights : public testing::Test {};
using Evaluated =
    support::TestTypes<Fp8Recipe<Tensorwise>, Fp8Recipe<Delayed>, Fp8Recipe<Blockwise>>;
TYPED_TEST_SUITE(EvaluationWeights, Evaluated);

// Each step moves the weights; casts of those before it are told by nothing else: no state is asked
// for between.
TYPED_TEST(EvaluationWeights, UsesWeightsOfLatestStep) {
  Context<Cpu> context(1);
  std::vector<std::vector<float>> expected;
  for (const WeightCopies copies : {WeightCopies::kept, WeightCopies::remade}) {
    SessionOptions options = support::small_options();
    options.model.weight_copies = copies;
    ModelSession<SmallModel<TypeParam>> told(options, context);
    ModelSession<SmallModel<TypeParam>> session(options, context);
    for (unsigned i = 0; i < 3; ++i) {
      take_step(told, i);
      take_step(session, i);
      told.begin_evaluation();
      const std::vector<float> values = looked_at(told);
      EXPECT_EQ(i % 2 == 0 ? looked_at(session) : looked_at_from_behind(session), values) << i;
      if (copies == WeightCopies::kept) expected.push_back(values);
      EXPECT_EQ(values, expected[i]) << "copies that are made again differ from those that stay";
    }
  }
}

TYPED_TEST(EvaluationWeights, UsesWeightsOfLoadedState) {
  Context<Cpu> context(1);
  ModelSession<SmallModel<TypeParam>> trained(support::small_options(), context);
  for (unsigned i = 0; i < 3; ++i) take_step(trained, i);
  const std::vector<float> expected = looked_at(trained);
  const SavedState saved = save_state_sync(trained.state().entries());
  ModelSession<SmallModel<TypeParam>> session(support::small_options(), context);
  take_step(session, 5);
  const std::vector<StateEntry> entries = session.state().entries();
  EXPECT_NE(looked_at(session), expected);
  load_state_sync(saved, entries);
  EXPECT_EQ(looked_at(session), expected);
}

/// Throws before casts when it is told to.
struct FaultyRanks {
  template <class W, class G, Device D>
  class For : public SingleRank::For<W, G, D> {
   public:
    using SingleRank::For<W, G, D>::For;

    void before_quantize(const FlatParameters<W, G, D>&, const Context<D>&) override {
      if (calls_until_error != 0 && --calls_until_error == 0)
        throw ConfigError("a fault that the test asked for");
    }

    int calls_until_error = 0;
  };
};

// What was cast before it threw is no reason to keep the rest.
TEST(Evaluation, RestartsAfterException) {
  Context<Cpu> context(1);
  using Model = SmallModel<Fp8Recipe<Tensorwise>>;
  ModelSession<Model> undisturbed(support::small_options(), context);
  ModelSession<Model, AdamW<>, FaultyRanks> session(support::small_options(), context);
  take_step(undisturbed, 0);
  take_step(session, 0);
  const support::TokenBatch batch = support::step_batch(support::small_options(), 9);
  session.collectives().calls_until_error = 2;
  EXPECT_THROW((void)session.evaluate({batch.tokens, batch.targets}), ConfigError);
  EXPECT_EQ(looked_at(session), looked_at(undisturbed));
}

TEST(SessionOptions, RejectsInvalidValues) {
  Context<Cpu> context(1);
  const auto refuses = [&](const std::string& name, auto change) {
    SessionOptions options = support::small_options();
    change(options);
    const auto expect_refusal = [&](const auto& make) {
      try {
        make();
        ADD_FAILURE() << "a wrong " << name << " is taken";
      } catch (const ConfigError& error) {
        EXPECT_TRUE(std::string(error.what()).starts_with(name + " must be ")) << error.what();
      }
    };
    using Model = SmallModel<Bf16>;
    expect_refusal([&] { ModelSession<Model>(options, context); });
    expect_refusal(
        [&] { (void)plan_memory<Model, AdamW<>>(options, limits_of<Model>(options, context)); });
  };
  constexpr float infinity = std::numeric_limits<float>::infinity();
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  refuses("micro-batches", [](SessionOptions& options) { options.micro_batches = 0; });
  refuses("head_chunk", [](SessionOptions& options) { options.model.head_chunk = -3; });
  for (const float wrong : {-0.1f, 1.0f, 1.5f, nan}) {
    refuses("beta1",
            [&](SessionOptions& options) { options.optimizer = AdamWSettings{.beta1 = wrong}; });
    refuses("beta2",
            [&](SessionOptions& options) { options.optimizer = AdamWSettings{.beta2 = wrong}; });
  }
  for (const float wrong : {-1e-8f, 0.0f, infinity, nan}) {
    refuses("epsilon",
            [&](SessionOptions& options) { options.optimizer = AdamWSettings{.epsilon = wrong}; });
  }
  for (const float wrong : {-0.1f, infinity, nan}) {
    refuses("weight_decay", [&](SessionOptions& options) {
      options.optimizer = AdamWSettings{.weight_decay = wrong};
    });
    refuses("max_gradient_norm",
            [&](SessionOptions& options) { options.max_gradient_norm = wrong; });
  }
}

// Bits of stochastic rounding are those of the session that was saved, whatever the other's seed.
TEST(StateSeed, PreservesStochasticRoundingOfSavedSession) {
  Context<Cpu> context(1);
  SessionOptions options = support::small_options();
  ModelSession<SmallModel<Bf16>, Narrow> first(options, context);
  take_steps(first, 0, 1);
  const SavedState saved = save_state_sync(first.state().entries());
  options.seed = 99;
  ModelSession<SmallModel<Bf16>, Narrow> second(options, context);
  load_state_sync(saved, second.state().entries());
  EXPECT_TRUE(take_steps(second, 1, 3) == take_steps(first, 1, 3));
}

TEST(StateErrors, RejectsUnknownMismatchedAndNonFiniteWeights) {
  Context<Cpu> context(1);
  ModelSession<SmallModel<Bf16>> session(support::small_options(), context);
  const std::vector<float> some(128);
  EXPECT_THROW(session.weights().set("blocks.3.qkv.weight", some), ConfigError);
  EXPECT_THROW(session.weights().set("embedding.weight", some), ConfigError);
  for (const float wrong :
       {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    std::vector<float> broken = some;
    broken[7] = wrong;
    EXPECT_THROW(session.weights().set("final_norm.weight", broken), ConfigError);
  }
  EXPECT_NO_THROW(session.weights().set("final_norm.weight", some));
}

// The largest numbers of FP32 are beyond BF16's.
TEST(StateErrors, RejectsWeightsBeyondRangeOfFormat) {
  Context<Cpu> context(1);
  ModelSession<SmallModel<Bf16>> narrow(support::small_options(), context);
  ModelSession<SmallModel<Fp32>> wide(support::small_options(), context);
  std::vector<float> values(128);
  values[7] = 3.4e38f;
  try {
    narrow.weights().set("final_norm.weight", values);
    ADD_FAILURE() << "an infinite weight was set";
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("element 7 must be finite in bf16"), std::string::npos)
        << error.what();
    EXPECT_NE(std::string(error.what()).find("bf16"), std::string::npos) << error.what();
  }
  EXPECT_NO_THROW(wide.weights().set("final_norm.weight", values));
  values[7] = 3.38e38f;
  EXPECT_NO_THROW(narrow.weights().set("final_norm.weight", values));
}

}  // namespace state_test
