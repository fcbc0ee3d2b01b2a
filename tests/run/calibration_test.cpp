// The state of delayed scales in a session: what a first step starts from, and what each adds.
#include <octavo/run/token_batches.hpp>
#include <octavo/session/state.hpp>

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "support/gradients.hpp"
#include "support/small_model.hpp"

namespace calibration_test {

using octavo::Bf16;
using octavo::Index;
using octavo::OperandReport;
using octavo::ScalingSlot;
using octavo::SessionOptions;
using support::TokenBatch;

using Delayed = octavo::Fp8Recipe<octavo::Delayed>;
using Session = support::SmallSession<Delayed>;

SessionOptions options(Index micro_batches) {
  SessionOptions result = support::small_options();
  result.batch = {8 / micro_batches, 48};
  result.micro_batches = micro_batches;
  return result;
}

/// Calls `check(name, slot)` for every operand.
template <class Check>
void visit_slots(Session& session, const Check& check) {
  const std::vector<OperandReport> operands = session.operands();
  ASSERT_EQ(operands.size(), 36U);
  for (std::size_t i = 0; i < operands.size(); ++i) {
    check(operands[i].name, session.model().scaling().slot(i));
  }
}

void expect_no_history(Session& session) {
  visit_slots(session, [](const std::string& name, const ScalingSlot& slot) {
    EXPECT_EQ(slot.scaling->position, 0U) << name;
    EXPECT_EQ(slot.scaling->scale, 1.0f) << name;
  });
}

/// Makes the gradients within blocks so small that E5M2 with a scale of 1 has none of them: the
/// final norm divides them by the size of the residual stream.
template <class AnySession>
void shrink_gradients(AnySession& session) {
  const auto table = support::weight(session, "embedding.weight");
  for (Index i = 0; i < table.size(); ++i) {
    table.data()[i] = Bf16(4096.0f * static_cast<float>(table.data()[i]));
  }
}

/// A first step with small gradients, which stay in the session.
template <class AnySession>
void take_first_step(AnySession& session) {
  shrink_gradients(session);
  const TokenBatch batch = support::step_batch(options(1), 0);
  EXPECT_FALSE(session.step({batch.tokens, batch.targets}, 0.0).skipped);
}

// Scales of 1 make zero of nearly all of a gradient; the next cast of the block then sees none, and
// its scale, too, has to be right before the step.
TEST(Calibration, FirstStepUsesScalesOfItsOwnValues) {
  octavo::Context<octavo::Cpu> context{2};
  Session session(options(1), context);
  take_first_step(session);
  for (const OperandReport& operand : session.operands()) {
    EXPECT_LT(operand.saturated, 1e-3) << operand.name;
    EXPECT_LT(operand.flushed, 0.02) << operand.name;
  }
}

// One block without histories does not speak for the others.
TEST(Calibration, AppliesToMixedRecipes) {
  using Mixed = octavo::Layerwise<octavo::First<1, octavo::Fp8Recipe<octavo::Tensorwise>>, Delayed>;
  octavo::Context<octavo::Cpu> context{2};
  support::SmallSession<Mixed> session(options(1), context);
  const auto must_calibrate = [&] {
    std::int64_t value = -1;
    const octavo::SavedState state = octavo::save_state_sync(session.state().entries());
    std::memcpy(&value, state.at("session.must_calibrate").bytes.data(), sizeof(value));
    return value;
  };
  EXPECT_EQ(must_calibrate(), 1);
  take_first_step(session);
  EXPECT_EQ(must_calibrate(), 0);
  for (const OperandReport& operand : session.operands()) {
    EXPECT_LT(operand.flushed, 0.02) << operand.name;
  }
}

TEST(Calibration, FirstGradientsMatchBf16) {
  octavo::Context<octavo::Cpu> context{2};
  support::SmallSession<Bf16> expected(options(1), context);
  Session session(options(1), context);
  take_first_step(expected);
  take_first_step(session);
  for (const support::Distance& one : support::distances(support::gradients(session.model()),
                                                         support::gradients(expected.model()))) {
    EXPECT_LT(one.error, 0.2) << one.name;
    EXPECT_NEAR(one.factor, 1.0, 0.05) << one.name;
  }
}

// Two entries of the calibration, then one a step, of however many micro-batches.
TEST(Calibration, EveryStepAddsOneEntryToEachHistory) {
  for (const Index micro_batches : {1, 2}) {
    octavo::Context<octavo::Cpu> context{2};
    Session session(options(micro_batches), context);
    expect_no_history(session);
    for (unsigned step = 1; step <= 3; ++step) {
      const TokenBatch batch = support::step_batch(options(micro_batches), step);
      EXPECT_FALSE(session.step({batch.tokens, batch.targets}, 1e-3).skipped);
      visit_slots(session, [&](const std::string& name, const ScalingSlot& slot) {
        EXPECT_EQ(slot.scaling->position, 2U + step) << name << " after step " << step;
      });
    }
  }
}

/// Reports say of every operand what its slot holds.
void expect_reports_of_slots(Session& session) {
  const std::vector<OperandReport> operands = session.operands();
  std::uint64_t flushed = 0;
  for (std::size_t i = 0; i < operands.size(); ++i) {
    const OperandReport& operand = operands[i];
    const ScalingSlot slot = session.model().scaling().slot(i);
    const auto elements = static_cast<double>(slot.statistics->elements);
    EXPECT_EQ(operand.amax, octavo::float_from_bits(slot.statistics->last_amax_bits))
        << operand.name;
    EXPECT_EQ(operand.scale, slot.scaling->scale) << operand.name;
    EXPECT_EQ(operand.saturated, static_cast<double>(slot.statistics->saturated) / elements)
        << operand.name;
    EXPECT_EQ(operand.flushed, static_cast<double>(slot.statistics->flushed) / elements)
        << operand.name;
    EXPECT_EQ(operand.nonfinite, 0U) << operand.name;
    flushed += slot.statistics->flushed;
  }
  EXPECT_GT(flushed, 0U);
}

TEST(Calibration, StatisticsCoverOneStep) {
  for (const Index micro_batches : {1, 2}) {
    octavo::Context<octavo::Cpu> context{2};
    Session session(options(micro_batches), context);
    for (unsigned step = 0; step < 2; ++step) {
      const TokenBatch batch = support::step_batch(options(micro_batches), step);
      EXPECT_FALSE(session.step({batch.tokens, batch.targets}, 1e-3).skipped);
      visit_slots(session, [&](const std::string& name, const ScalingSlot& slot) {
        constexpr std::uint64_t hidden = 128;
        const bool weight = name.ends_with(".weight");
        const bool gradient = name.ends_with(".output_gradient");
        const bool wide =
            name.find("qkv") != std::string::npos || name.find("gate_up") != std::string::npos;
        const std::uint64_t features = hidden * (wide && (weight || gradient) ? 2 : 1);
        const std::uint64_t rows = weight ? hidden : 8 * 48;
        EXPECT_EQ(slot.statistics->elements, rows * features) << name << " in step " << step;
      });
      expect_reports_of_slots(session);
    }
  }
}

/// Casts of the last step in which an operand was not finite.
std::uint32_t nonfinite_casts(Session& session, const std::string& name) {
  for (const OperandReport& operand : session.operands()) {
    if (operand.name == name) return operand.nonfinite;
  }
  ADD_FAILURE() << "there is no " << name;
  return 0;
}

TEST(Calibration, SkippedFirstStepLeavesNoHistory) {
  octavo::Context<octavo::Cpu> context{2};
  Session session(options(1), context);
  const TokenBatch batch = support::step_batch(options(1), 0);
  Bf16& element = support::weight(session, "blocks.1.qkv.weight").data()[11];
  const Bf16 healthy = element;
  element = Bf16(std::numeric_limits<float>::quiet_NaN());
  EXPECT_TRUE(session.step({batch.tokens, batch.targets}, 1e-3).skipped);
  expect_no_history(session);
  EXPECT_EQ(nonfinite_casts(session, "blocks.1.qkv.weight"), 1U) << "the calibration's count too";
  element = healthy;
  Session untouched(options(1), context);
  EXPECT_FALSE(session.step({batch.tokens, batch.targets}, 1e-3).skipped);
  EXPECT_FALSE(untouched.step({batch.tokens, batch.targets}, 1e-3).skipped);
  EXPECT_TRUE(support::weights(session) == support::weights(untouched));
}

// What docs/recipes.md advises for evaluations of weights that were set: scales are 1 until a step,
// and one without a learning rate moves no weight.
TEST(Calibration, WorksInStepWithZeroLearningRate) {
  octavo::Context<octavo::Cpu> context{2};
  Session session(options(1), context);
  take_first_step(session);
  std::vector<float> values(256 * 128);
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = 1e-4f * static_cast<float>(static_cast<int>(i % 37) - 18);
  }
  session.weights().set("blocks.1.qkv.weight", values);
  expect_no_history(session);
  const std::vector<std::byte> weights = support::weights(session);
  const TokenBatch batch = support::step_batch(options(1), 1);
  EXPECT_FALSE(session.step({batch.tokens, batch.targets}, 0.0).skipped);
  EXPECT_TRUE(support::weights(session) == weights);
  for (const OperandReport& operand : session.operands()) {
    EXPECT_NE(operand.scale, 1.0f) << operand.name;
    EXPECT_LT(operand.flushed, 0.03) << operand.name;
  }
}

/// The validation loss of a session, by the batches of a run.
template <class AnySession>
double validation_loss(AnySession& session) {
  std::vector<std::uint8_t> text(3000);
  for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<std::uint8_t>(i * i % 96);
  octavo::TokenBatches batches(text, {.batch = options(1).batch, .validation_batches = 2});
  return batches.evaluate(session).mean();
}

TEST(Calibration, EvaluationBeforeFirstStepLeavesNoScales) {
  octavo::Context<octavo::Cpu> context{2};
  support::SmallSession<Bf16> wide(options(1), context);
  Session evaluated(options(1), context);
  Session untouched(options(1), context);
  for (auto* session : {&evaluated, &untouched}) shrink_gradients(*session);
  shrink_gradients(wide);
  const double loss = validation_loss(evaluated);
  EXPECT_NEAR(loss, validation_loss(wide), 2e-3 * loss);
  EXPECT_EQ(validation_loss(evaluated), loss) << "the second time";
  EXPECT_TRUE(evaluated.must_calibrate());
  visit_slots(evaluated, [](const std::string& name, const ScalingSlot& slot) {
    EXPECT_NE(slot.scaling->scale, 1.0f) << name;
  });
  for (unsigned step = 0; step < 2; ++step) {
    const TokenBatch batch = support::step_batch(options(1), step);
    EXPECT_EQ(evaluated.step({batch.tokens, batch.targets}, 1e-3).loss,
              untouched.step({batch.tokens, batch.targets}, 1e-3).loss);
  }
  EXPECT_TRUE(support::weights(evaluated) == support::weights(untouched));
  EXPECT_EQ(octavo::save_state_sync(evaluated.state().entries()),
            octavo::save_state_sync(untouched.state().entries()));
}

// What a step quantised before is not what it multiplies with.
TEST(Calibration, EveryStepRequantisesWeights) {
  using Tensorwise = support::SmallSession<octavo::Fp8Recipe<octavo::Tensorwise>>;
  octavo::Context<octavo::Cpu> context{2};
  Tensorwise trained(options(1), context);
  Tensorwise evaluated(options(1), context);
  const TokenBatch first = support::step_batch(options(1), 0);
  const TokenBatch second = support::step_batch(options(1), 1);
  const double before = trained.step({first.tokens, first.targets}, 1e-2).loss;
  EXPECT_FALSE(evaluated.step({first.tokens, first.targets}, 1e-2).skipped);
  evaluated.begin_evaluation();
  const double loss = evaluated.evaluate({second.tokens, second.targets}).mean();
  EXPECT_NEAR(trained.step({second.tokens, second.targets}, 0.0).loss, loss, 1e-9);
  EXPECT_LT(loss, before - 0.1) << "the step moved nothing";
}

}  // namespace calibration_test
