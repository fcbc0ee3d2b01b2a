// Adapters are trained and nothing else is: their gradients are those of the formula, whatever the
// precision of the frozen layers, and on however many ranks.
#include <octavo/optim/muon.hpp>
#include <octavo/parallel/data_parallel.hpp>
#include <octavo/session/session.hpp>
#include <octavo/session/state.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "support/adapters.hpp"
#include "support/small_model.hpp"
#include "support/test_types.hpp"
#include "support/thread_ranks.hpp"

namespace lora_test {

using namespace octavo;

constexpr LlamaConfig tiny{.name = "tiny",
                           .layers = 2,
                           .hidden = 16,
                           .ffn = 24,
                           .heads = 4,
                           .kv_heads = 2,
                           .head_dim = 4,
                           .vocabulary = 20,
                           .rope_theta = 100.0f,
                           .tied_embeddings = true,
                           .qk_norm = true};

template <class Precision, class Optimizer = AdamW<>>
using Session = ModelSession<support::SmallModel<Precision>, Optimizer, DataParallel<>>;
using TinySession = ModelSession<Llama<tiny, Lora<Fp32>, Cpu>>;

SessionOptions tiny_options(const std::vector<std::string>& targets) {
  SessionOptions options;
  options.batch = {2, 6};
  options.model.lora = {.rank = 3, .alpha = 5};
  set_lora_targets(options.model.lora, targets);
  return options;
}

const auto gradient_of = [](auto& parameter) { return parameter.gradient; };
const auto weight_of = [](auto& parameter) { return parameter.weight; };

/// The gradients of every adapter against the change of the loss of a model with merged weights.
void expect_gradients_of_the_formula(const SessionOptions& options) {
  const LoraOptions& lora = options.model.lora;
  Context<Cpu> context{1};
  TinySession session(options, context);
  support::set_nontrivial_adapters(session, 5);
  const auto rows = static_cast<std::size_t>(options.batch.rows() * options.micro_batches);
  const support::TokenBatch batch = support::make_batch(rows, tiny.vocabulary, 4);
  const double loss = session.step({batch.tokens, batch.targets}, 0.0).loss;
  const reference::Weights base = support::base_weights(session, tiny);
  reference::Weights adapters =
      support::adapters_by_module(support::values_by_parameter(session, weight_of), tiny, lora);
  const reference::Weights gradients =
      support::adapters_by_module(support::values_by_parameter(session, gradient_of), tiny, lora);
  const std::vector<int> tokens(batch.tokens.begin(), batch.tokens.end());
  const std::vector<int> targets(batch.targets.begin(), batch.targets.end());
  const auto loss_of_formula = [&] {
    return reference::mean_cross_entropy(support::reference_config(tiny),
                                         support::merged(base, adapters, tiny, lora), tokens,
                                         targets, static_cast<int>(rows) / 6, 6);
  };
  EXPECT_NEAR(loss, loss_of_formula(), 1e-5);
  ASSERT_EQ(gradients.size(), 2 * support::adapter_places(tiny, lora).size());
  for (auto& adapter : adapters) {
    const std::string& name = adapter.first;
    auto& values = adapter.second;
    double largest = 0;
    for (const double gradient : gradients.at(name)) {
      largest = std::max(largest, std::abs(gradient));
    }
    for (std::size_t i = 0; i < values.size(); i += 1 + values.size() / 3) {
      const double value = values[i];
      const auto loss_at = [&](double at) {
        values[i] = at;
        return loss_of_formula();
      };
      constexpr double step = 1e-4;
      const double expected = (loss_at(value + step) - loss_at(value - step)) / (2 * step);
      values[i] = value;
      EXPECT_NEAR(gradients.at(name)[i], expected, 1e-3 * largest) << name << " " << i;
    }
  }
}

TEST(Lora, GradientsMatchFormula) { expect_gradients_of_the_formula(tiny_options({"all-linear"})); }

TEST(Lora, GradientsOfSelectedLayersSumOverMicroBatches) {
  SessionOptions options = tiny_options({"q_proj", "v_proj", "up_proj"});
  options.micro_batches = 2;
  expect_gradients_of_the_formula(options);
}

TEST(Lora, OnlyAdaptersHaveGradientsAndState) {
  const SessionOptions options = tiny_options({"k_proj", "down_proj"});
  Context<Cpu> context{1};
  TinySession session(options, context);
  const auto has_size = [&](const std::string& name, Index rows, Index columns) {
    const auto weights = session.weights().list();
    return std::ranges::any_of(weights, [&](const WeightInfo& weight) {
      return weight.name == name && weight.rows == rows && weight.columns == columns &&
             weight.is_adapter;
    });
  };
  EXPECT_TRUE(has_size("blocks.1.qkv.lora_A", 3, 16));
  EXPECT_TRUE(has_size("blocks.1.qkv.lora_B", 8, 3));
  EXPECT_TRUE(has_size("blocks.1.down.lora_A", 3, 24));
  EXPECT_TRUE(has_size("blocks.1.down.lora_B", 16, 3));
  Index adapters = 0;
  Index others = 0;
  Index taken = 0;  // with A in eights of rows, and each in 256 elements
  session.model().visit([&](auto& parameter) {
    (parameter.is_adapter ? adapters : others) += parameter.full_size();
    if (parameter.is_adapter) taken += round_up(parameter.weight.size(), 256);
  });
  EXPECT_EQ(session.facts().parameters, adapters + others);
  EXPECT_EQ(session.facts().frozen, others);
  const auto bytes = static_cast<std::size_t>(taken) * sizeof(float);
  EXPECT_EQ(session.facts().memory.bytes(MemoryKind::gradients), bytes);
  // Two moments, and what the optimizer keeps of a step.
  EXPECT_EQ(session.facts().memory.bytes(MemoryKind::optimizer), 2 * bytes + 256);
  for (const StateEntry& entry : session.state().entries()) {
    const bool is_of_tensor =
        entry.name.starts_with("model.") || entry.name.find("moment") != std::string::npos;
    EXPECT_TRUE(!is_of_tensor || entry.name.find("lora_") != std::string::npos) << entry.name;
  }
}

TEST(Lora, InitialMatricesMatchPeft) {
  Context<Cpu> context{1};
  TinySession session(tiny_options({"all-linear"}), context);
  std::set<double> firsts;
  for (const auto& [name, values] : support::values_by_parameter(session, weight_of)) {
    if (name.ends_with("lora_B")) {
      EXPECT_EQ(std::ranges::count(values, 0.0), std::ssize(values)) << name;
    } else if (name.ends_with("lora_A")) {
      EXPECT_TRUE(firsts.insert(values[0]).second) << name << " is that of another layer";
      const double bound = 1 / std::sqrt(name.find("down") == std::string::npos ? 16.0 : 24.0);
      double squares = 0;
      for (const double value : values) {
        EXPECT_LE(std::abs(value), bound) << name;
        squares += value * value;
      }
      // Of uniform numbers the mean square is a third of the bound's; of so many it is near.
      const double mean = squares / static_cast<double>(values.size());
      EXPECT_NEAR(mean / (bound * bound), 1.0 / 3, 0.1) << name;
    }
  }
}

SessionOptions small_options() {
  SessionOptions options = support::small_options();
  options.model.lora = {.rank = 4, .alpha = 8};
  return options;
}

std::vector<double> train(TrainingSession& session, unsigned begin, unsigned count,
                          double learning_rate = 3e-3) {
  std::vector<double> losses;
  for (unsigned i = begin; i < begin + count; ++i) {
    const support::TokenBatch batch = support::step_batch(support::small_options(), i);
    losses.push_back(session.step({batch.tokens, batch.targets}, learning_rate).loss);
  }
  return losses;
}
double evaluate(TrainingSession& session) {
  const support::TokenBatch batch = support::step_batch(support::small_options(), 50);
  return session.evaluate({batch.tokens, batch.targets}).sum;
}

template <class Precision>
class LoraPrecisions : public testing::Test {};
using Precisions =
    support::TestTypes<Bf16, Fp8Recipe<Tensorwise>, Fp8Recipe<Blockwise>, Fp8Recipe<Delayed>>;
TYPED_TEST_SUITE(LoraPrecisions, Precisions);

TYPED_TEST(LoraPrecisions, FrozenLayersMatchTrainedLayers) {
  Context<Cpu> context{1};
  Session<TypeParam> plain(small_options(), context);
  Session<Lora<TypeParam>> frozen(small_options(), context);
  for (TrainingSession* session :
       {static_cast<TrainingSession*>(&plain), static_cast<TrainingSession*>(&frozen)}) {
    train(*session, 0, 1, 0.0);  // makes delayed scales
  }
  // Delayed scales remember passes in which the others' weights were cast by other scales.
  const double bound = std::is_same_v<TypeParam, Fp8Recipe<Delayed>> ? 1e-3 : 0.0;
  const double expected = evaluate(plain);
  EXPECT_NEAR(evaluate(frozen), expected, bound * expected);
}

TYPED_TEST(LoraPrecisions, OnlyAdaptersLearn) {
  Context<Cpu> context{1};
  Session<Lora<TypeParam>> session(small_options(), context);
  const auto before = support::values_by_parameter(session, weight_of);
  const std::vector<double> losses = train(session, 0, 12);
  EXPECT_LT(losses.back(), losses.front() - 0.05);
  for (const auto& [name, values] : support::values_by_parameter(session, weight_of)) {
    const bool is_adapter = name.find("lora_") != std::string::npos;
    EXPECT_EQ(values != before.at(name), is_adapter) << name;
  }
}

/// Adapters' gradients are near those with layers in FP32, whose values others are roundings of.
TYPED_TEST(LoraPrecisions, GradientsAreCloseToFp32) {
  const auto gradients = [](auto&& session) {
    support::set_nontrivial_adapters(session, 6);
    train(session, 0, 1, 0.0);
    return support::values_by_parameter(session, gradient_of);
  };
  Context<Cpu> context{1};
  Session<Lora<TypeParam>> own(small_options(), context);
  Session<Lora<Fp32>> exact(small_options(), context);
  exact.model().visit([&](auto& parameter) {
    own.model().visit([&](auto& other) {
      if (other.name != parameter.name || other.is_adapter) return;
      for (Index i = 0; i < parameter.weight.size(); ++i) {
        parameter.weight.data()[i] = static_cast<float>(other.weight.data()[i]);
      }
    });
  });
  const auto expected = gradients(exact);
  const double bound = std::is_same_v<TypeParam, Bf16> ? 0.03 : 0.25;
  for (const auto& [name, values] : gradients(own)) {
    double difference = 0;
    double norm = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      difference += std::pow(values[i] - expected.at(name)[i], 2);
      norm += std::pow(expected.at(name)[i], 2);
    }
    EXPECT_LE(std::sqrt(difference), bound * std::sqrt(norm)) << name;
  }
}

TYPED_TEST(LoraPrecisions, ResumesBitwiseInAnotherSession) {
  Context<Cpu> context{1};
  Session<Lora<TypeParam>> first(small_options(), context);
  train(first, 0, 2);
  const SavedState state = save_state_sync(first.state().entries());
  const std::vector<double> losses = train(first, 2, 3);
  Session<Lora<TypeParam>> second(small_options(), context);
  train(second, 7, 1);
  load_state_sync(state, second.state().entries());
  EXPECT_EQ(train(second, 2, 3), losses);
  EXPECT_TRUE(save_state_sync(second.state().entries()) ==
              save_state_sync(first.state().entries()));
  SessionOptions others = small_options();
  others.model.lora.alpha = 16;
  Session<Lora<TypeParam>> third(others, context);
  try {
    load_state_sync(state, third.state().entries());
    ADD_FAILURE() << "it was loaded";
  } catch (const StateMismatchError& error) {
    EXPECT_EQ(error.subject(), "session.lora");
    EXPECT_EQ(error.saved(), first.facts().lora->text());
    EXPECT_EQ(error.what(), "the adapters are of " + first.facts().lora->text() +
                                " in the saved state, but " + third.facts().lora->text() +
                                " here; create the session with the same");
  }
}

/// Copies of frozen weights follow when these are set, however many steps were taken.
TYPED_TEST(LoraPrecisions, RecastsFrozenWeightsAfterSet) {
  Context<Cpu> context{1};
  const std::string name = "blocks.1.gate_up.weight";
  std::vector<float> values(std::size_t{256} * 128);
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = 0.001f * static_cast<float>(i * 37 % 101) - 0.05f;
  }
  Session<Lora<TypeParam>> early(small_options(), context);
  early.weights().set(name, values);
  train(early, 0, 1, 0.0);
  for (const WeightCopies copies : {WeightCopies::kept, WeightCopies::remade}) {
    SessionOptions options = small_options();
    options.model.weight_copies = copies;
    Session<Lora<TypeParam>> late(options, context);
    train(late, 3, 2, 0.0);
    (void)evaluate(late);
    late.weights().set(name, values);
    train(late, 0, 1, 0.0);
    EXPECT_EQ(evaluate(late), evaluate(early));
    EXPECT_EQ(support::values_by_parameter(late, gradient_of),
              support::values_by_parameter(early, gradient_of));
  }
}

/// Scales are 1 after it, by which frozen weights were not cast.
TEST(Lora, SkippedFirstStepLeavesNoTrace) {
  Context<Cpu> context{1};
  Session<Lora<Fp8Recipe<Delayed>>> fresh(small_options(), context);
  Session<Lora<Fp8Recipe<Delayed>>> session(small_options(), context);
  session.limit_steps(0, 0);
  const support::TokenBatch batch = support::step_batch(support::small_options(), 9);
  EXPECT_TRUE(session.step({batch.tokens, batch.targets}, 3e-3).is_above_limits);
  constexpr double infinity = std::numeric_limits<double>::infinity();
  session.limit_steps(infinity, infinity);
  EXPECT_EQ(train(session, 0, 3), train(fresh, 0, 3));
}

TYPED_TEST(LoraPrecisions, RecomputationChangesNoBit) {
  Context<Cpu> context{1};
  std::vector<double> expected;
  for (const Recompute recompute :
       {Recompute::none, Recompute::norms, Recompute::swiglu, Recompute::ffn, Recompute::block}) {
    SessionOptions options = small_options();
    options.model.recompute = recompute;
    Session<Lora<TypeParam>> session(options, context);
    const std::vector<double> losses = train(session, 0, 3);
    if (expected.empty()) expected = losses;
    EXPECT_EQ(losses, expected) << static_cast<int>(recompute);
  }
}

/// Muon's singular values end between about 0.7 and 1.2, and so do the norms of columns.
void expect_orthogonal_columns(const std::string& name, const double* values, Index rows,
                               Index columns) {
  for (Index i = 0; i < columns; ++i) {
    for (Index j = 0; j <= i; ++j) {
      double product = 0;
      for (Index row = 0; row < rows; ++row) {
        product += values[row * columns + i] * values[row * columns + j];
      }
      EXPECT_GT(product, i == j ? 0.4 : -0.5) << name << " " << i << " " << j;
      EXPECT_LT(product, i == j ? 1.5 : 0.5) << name << " " << i << " " << j;
    }
  }
}

TEST(Lora, MuonOrthogonalisesMatricesOfEveryAdapter) {
  using Muons = ModelSession<Llama<tiny, Lora<Fp32>, Cpu>, Muon<>>;
  SessionOptions options = tiny_options({"q_proj", "v_proj", "down_proj"});
  options.optimizer = MuonSettings{.rate = MuonRate::original, .weight_decay = 0};
  Context<Cpu> context{1};
  Muons session(options, context);
  const auto batch = support::make_batch(12, tiny.vocabulary, 4);
  const auto step = [&] { (void)session.step({batch.tokens, batch.targets}, 0.01); };
  const auto before = support::values_by_parameter(session, weight_of);
  step();
  // B begins as zero, so A has no gradient yet.
  auto after = support::values_by_parameter(session, weight_of);
  for (const char* block : {"blocks.0.", "blocks.1."}) {
    const auto moved = [&](const std::string& name, Index first_row, Index rows) {
      std::vector<double> moves = after.at(block + name);
      for (double& move : moves) move /= -0.01 * std::sqrt(static_cast<double>(rows) / 3);
      expect_orthogonal_columns(block + name, moves.data() + first_row * 3, rows, 3);
    };
    moved("qkv.lora_B", 0, 16);
    moved("qkv.lora_B", 16, 8);
    moved("down.lora_B", 0, 16);
  }
  step();
  const SavedState state = save_state_sync(session.state().entries());
  step();
  Muons resumed(options, context);
  load_state_sync(state, resumed.state().entries());
  (void)resumed.step({batch.tokens, batch.targets}, 0.01);
  EXPECT_TRUE(save_state_sync(resumed.state().entries()) ==
              save_state_sync(session.state().entries()));
  after = support::values_by_parameter(session, weight_of);
  for (const auto& [name, values] : after) {
    EXPECT_EQ(values != before.at(name), name.find("lora_") != std::string::npos) << name;
  }
  session.model().visit([&](auto& parameter) {
    for (Index i = parameter.is_adapter ? parameter.full_size() : parameter.weight.size();
         i < parameter.weight.size(); ++i) {
      EXPECT_EQ(parameter.weight.data()[i], 0.0f) << parameter.name << ", padding " << i;
    }
  });
}

/// What a run on some ranks ends with.
struct Outcome {
  std::vector<double> losses;
  double validation = 0;
  std::map<std::string, std::vector<double>> adapters;
};

template <class Precision, class Optimizer = AdamW<>>
Outcome train_on(int ranks, Zero zero) {
  Outcome outcome;
  support::on_ranks(ranks, [&](support::ThreadComm& communicator) {
    SessionOptions options = small_options();
    options.batch = {1, 48};
    options.micro_batches = 2 / ranks;
    options.sharding.zero = zero;
    Context<Cpu> context{1};
    Session<Lora<Precision>, Optimizer> session(options, context, communicator);
    Outcome own;
    for (unsigned i = 0; i < 4; ++i) {
      const support::TokenBatch both = support::step_batch(support::small_options(), i);
      const Index begin = ranks == 1 ? 0 : 48 * communicator.rank();
      const std::span tokens(both.tokens.data() + begin, static_cast<std::size_t>(96 / ranks));
      const std::span targets(both.targets.data() + begin, tokens.size());
      own.losses.push_back(session.step({tokens, targets}, 3e-3).loss);
    }
    const support::TokenBatch batch = support::make_batch(48, support::small.vocabulary, 7);
    own.validation = session.evaluate({batch.tokens, batch.targets}).mean();
    session.weights().read_sync(
        [&](const WeightInfo& weight, Index, std::span<const float> values) {
          if (!weight.is_adapter) return;
          own.adapters[weight.name].insert(own.adapters[weight.name].end(), values.begin(),
                                           values.end());
        });
    if (communicator.rank() == 0) outcome = own;
  });
  return outcome;
}

TEST(Lora, RanksMatchOneRank) {
  using Precision = Fp32;
  const Outcome one = train_on<Precision>(1, Zero::optimizer);
  const Outcome two = train_on<Precision>(2, Zero::optimizer);
  for (std::size_t i = 0; i < one.losses.size(); ++i) {
    EXPECT_NEAR(two.losses[i], one.losses[i], 1e-6 * one.losses[i]) << i;
  }
  EXPECT_NEAR(two.validation, one.validation, 1e-6 * one.validation);
  for (const auto& [name, values] : one.adapters) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      ASSERT_NEAR(two.adapters.at(name)[i], values[i], 1e-4) << name << i;
    }
  }
}

template <class Optimizer>
void expect_stages_of_zero_agree() {
  using Precision = Fp8Recipe<Delayed>;
  const Outcome one = train_on<Precision, Optimizer>(2, Zero::optimizer);
  for (const Zero zero : {Zero::gradients, Zero::weights}) {
    const Outcome other = train_on<Precision, Optimizer>(2, zero);
    EXPECT_EQ(other.losses, one.losses);
    EXPECT_EQ(other.validation, one.validation);
    EXPECT_EQ(other.adapters, one.adapters);
  }
}

TEST(Lora, ZeroStagesAreBitwiseEqual) { expect_stages_of_zero_agree<AdamW<>>(); }

TEST(Lora, ZeroStagesAreBitwiseEqualWithMuon) { expect_stages_of_zero_agree<Muon<>>(); }

TEST(Lora, RejectsInvalidOptions) {
  Context<Cpu> context{1};
  const auto expect_refused = [&](const LoraOptions& lora, const char* why) {
    SessionOptions options = tiny_options({"all-linear"});
    options.model.lora = lora;
    try {
      const TinySession session(options, context);
      ADD_FAILURE() << "taken, though: " << why;
    } catch (const ConfigError& error) {
      EXPECT_NE(std::string(error.what()).find(why), std::string::npos) << error.what();
    }
  };
  LoraOptions lora;
  lora.rank = 0;
  expect_refused(lora, "the LoRA rank must be from 1 to 4096, but is 0");
  lora = {};
  lora.alpha = -1;
  expect_refused(lora, "alpha must be positive, but is -1");
  lora = {};
  lora.targets.fill(false);
  expect_refused(lora, "no layer is selected for adapters");
  EXPECT_THROW(set_lora_targets(lora, {"q_proj", "lm_head"}), ConfigError);
}

}  // namespace lora_test
