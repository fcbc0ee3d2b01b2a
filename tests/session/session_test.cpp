// What a training session does besides training: allocation, clipping, evaluation, skipped steps.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "support/allocation_counter.hpp"
#include "support/small_model.hpp"

namespace session_test {

using octavo::Bf16;
using octavo::Fp32;
using octavo::Fp8Recipe;
using octavo::SessionOptions;
using octavo::StepResult;
using support::SmallSession;
using support::TokenBatch;

TEST(Session, FactsNameOptimizerState) {
  octavo::Context<octavo::Cpu> context{1};
  const SessionOptions options = support::small_options();
  using Narrow = octavo::AdamW<octavo::MasterWeights<Bf16>, octavo::Moments<Bf16>>;
  EXPECT_EQ((SmallSession<Bf16>(options, context).facts().optimizer),
            "AdamW with fp32 master weights and fp32 moments");
  EXPECT_EQ((SmallSession<Bf16, Narrow>(options, context).facts().optimizer),
            "AdamW with bf16 master weights and bf16 moments");
  EXPECT_EQ((SmallSession<Fp32, Narrow>(options, context).facts().optimizer),
            "AdamW with fp32 weights and bf16 moments");
}

TEST(AllocationCounter, CountsAllocations) {
  std::vector<int> kept;
  EXPECT_EQ(support::count_allocations([&] { kept.resize(100); }), 1U);
  EXPECT_EQ(support::count_allocations([&] { kept.resize(50); }), 0U);
}

template <class Precision>
void expect_no_allocation() {
  SessionOptions options = support::small_options();
  options.micro_batches = 2;
  options.model.recompute = octavo::Recompute::ffn;
  octavo::Context<octavo::Cpu> context{2};
  SmallSession<Precision> session(options, context);
  const TokenBatch batch = support::step_batch(options, 0);
  const auto tokens = std::span(batch.tokens).first(batch.tokens.size() / 2);
  const auto targets = std::span(batch.targets).first(batch.targets.size() / 2);
  EXPECT_FALSE(session.step({batch.tokens, batch.targets}, 1e-3).skipped);
  EXPECT_EQ(support::count_allocations(
                [&] { EXPECT_FALSE(session.step({batch.tokens, batch.targets}, 1e-3).skipped); }),
            0U);
  EXPECT_EQ(support::count_allocations([&] {
              session.begin_evaluation();
              (void)session.evaluate({tokens, targets});
            }),
            0U);
}

TEST(Session, StepAndEvaluationDoNotAllocate) {
  expect_no_allocation<Bf16>();
  expect_no_allocation<Fp8Recipe<octavo::Delayed>>();
  expect_no_allocation<Fp8Recipe<octavo::Tensorwise>>();
  expect_no_allocation<Fp8Recipe<octavo::Rowwise>>();
  expect_no_allocation<Fp8Recipe<octavo::Blockwise>>();
}

template <class Session>
std::vector<std::string> nonfinite_operands(Session& session) {
  std::vector<std::string> names;
  for (const octavo::OperandReport& operand : session.operands()) {
    if (operand.nonfinite > 0) names.push_back(operand.name);
  }
  return names;
}

/// Makes one feature of a normalised row overflow BF16 where no weight reads it: the Inf meets a
/// saturating cast in the forward, and a zero in the backward, so loss and gradients stay finite.
template <class Precision>
void expect_hidden_infinity_is_noticed() {
  SCOPED_TRACE(octavo::precision_name<Precision>());
  const SessionOptions options = support::small_options();
  octavo::Context<octavo::Cpu> context{2};
  SmallSession<Precision> session(options, context);
  const auto norm = support::weight(session, "blocks.1.attention_norm.weight");
  const auto qkv = support::weight(session, "blocks.1.qkv.weight");
  const auto embedding = support::weight(session, "embedding.weight");
  // Feature 5 then is about 11 in every normalised row, and 11 · 3e38 is beyond FP32.
  for (octavo::Index row = 0; row < embedding.extent(0); ++row) embedding.row(row)[5] = Bf16(1.0f);
  for (octavo::Index row = 0; row < qkv.extent(0); ++row) qkv.row(row)[5] = Bf16(0.0f);
  norm.data()[5] = Bf16(3e38f);
  const std::vector<std::byte> weights = support::weights(session);
  const std::vector<std::byte> scaling = support::scaling_state(session);
  const TokenBatch batch = support::step_batch(options, 0);
  const StepResult result = session.step({batch.tokens, batch.targets}, 1e-3);
  EXPECT_TRUE(std::isfinite(result.loss));
  EXPECT_TRUE(std::isfinite(result.gradient_norm));
  EXPECT_TRUE(result.skipped);
  EXPECT_TRUE(weights == support::weights(session));
  EXPECT_TRUE(scaling == support::scaling_state(session));
  EXPECT_EQ(nonfinite_operands(session), std::vector<std::string>{"blocks.1.qkv.input"});
  norm.data()[5] = Bf16(1.0f);
  EXPECT_FALSE(session.step({batch.tokens, batch.targets}, 1e-3).skipped);
  EXPECT_EQ(nonfinite_operands(session), std::vector<std::string>{});
}

TEST(Session, DetectsInfinityHiddenBySaturatingCast) {
  expect_hidden_infinity_is_noticed<Fp8Recipe<octavo::Delayed>>();
  expect_hidden_infinity_is_noticed<Fp8Recipe<octavo::Tensorwise>>();
  expect_hidden_infinity_is_noticed<Fp8Recipe<octavo::Rowwise>>();
  expect_hidden_infinity_is_noticed<Fp8Recipe<octavo::Blockwise>>();
}

template <class Precision>
void expect_granularity(const std::string& of_inputs, const std::string& of_weights) {
  SCOPED_TRACE(octavo::precision_name<Precision>());
  const SessionOptions options = support::small_options();
  octavo::Context<octavo::Cpu> context{2};
  SmallSession<Precision> session(options, context);
  const TokenBatch batch = support::step_batch(options, 0);
  EXPECT_FALSE(session.step({batch.tokens, batch.targets}, 1e-3).skipped);
  for (const octavo::OperandReport& operand : session.operands()) {
    EXPECT_EQ(operand.granularity, operand.name.ends_with(".weight") ? of_weights : of_inputs);
    EXPECT_EQ(std::isnan(operand.scale), of_inputs != "tensor") << operand.name;
  }
}

// One scale of many would say nothing.
TEST(Session, ReportsOnlyScalesOfWholeTensors) {
  expect_granularity<Fp8Recipe<octavo::Tensorwise>>("tensor", "tensor");
  expect_granularity<Fp8Recipe<octavo::Rowwise>>("row", "row");
  expect_granularity<Fp8Recipe<octavo::Blockwise>>("1x128", "128x128");
  expect_granularity<octavo::Mxfp8>("1x32", "1x32");
}

/// Share of the gradients' elements that became zero in a step, the largest of all operands.
template <class Session>
double flushed_gradients(Session& session) {
  double flushed = 0;
  for (const octavo::OperandReport& operand : session.operands()) {
    if (operand.name.ends_with("output_gradient")) flushed = std::max(flushed, operand.flushed);
  }
  return flushed;
}

// Scales of 1 would make zero of most of a gradient.
TEST(Session, FirstStepWithDelayedScalesKeepsGradients) {
  SessionOptions options = support::small_options();
  options.batch = {32, 48};
  octavo::Context<octavo::Cpu> context{2};
  SmallSession<Fp8Recipe<octavo::Delayed>> session(options, context);
  const TokenBatch batch = support::step_batch(options, 0);
  EXPECT_FALSE(session.step({batch.tokens, batch.targets}, 1e-3).skipped);
  EXPECT_LT(flushed_gradients(session), 0.01);
}

TEST(Session, HugeLearningRateSkipsStepsInsteadOfNaN) {
  const SessionOptions options = support::small_options();
  octavo::Context<octavo::Cpu> context{2};
  SmallSession<Bf16> session(options, context);
  int skipped = 0;
  for (unsigned i = 0; i < 6; ++i) {
    const TokenBatch batch = support::step_batch(options, i);
    const std::vector<std::byte> before = support::weights(session);
    const StepResult result = session.step({batch.tokens, batch.targets}, 1e30);
    EXPECT_EQ(result.skipped, before == support::weights(session)) << "step " << i;
    skipped += result.skipped ? 1 : 0;
  }
  EXPECT_GE(skipped, 4);
  session.model().visit([](auto& parameter) {
    for (octavo::Index i = 0; i < parameter.weight.size(); ++i) {
      ASSERT_FALSE(std::isnan(static_cast<float>(parameter.weight.data()[i]))) << parameter.name;
    }
  });
}

// The first step of AdamW moves every weight by the learning rate, whatever the gradient's size,
// so clipping shows in what follows a step of another size. With beta1 = beta2 = 0 and a large
// epsilon the update is the clipped gradient itself over epsilon.
TEST(Session, ClipsGradientsToMaximumNorm) {
  const auto updates = [](float max_norm, double* norm) {
    SessionOptions options = support::small_options();
    options.max_gradient_norm = max_norm;
    options.optimizer =
        octavo::AdamWSettings{.beta1 = 0.0f, .beta2 = 0.0f, .epsilon = 1e4f, .weight_decay = 0.0f};
    octavo::Context<octavo::Cpu> context{2};
    SmallSession<Fp32> session(options, context);
    std::vector<double> values;
    const auto collect = [&](double sign) {
      std::size_t i = 0;
      session.model().visit([&](auto& parameter) {
        if (values.size() < i + static_cast<std::size_t>(parameter.weight.size())) {
          values.resize(i + static_cast<std::size_t>(parameter.weight.size()));
        }
        for (octavo::Index j = 0; j < parameter.weight.size(); ++j) {
          values[i++] += sign * static_cast<double>(parameter.weight.data()[j]);
        }
      });
    };
    collect(1.0);
    const TokenBatch batch = support::step_batch(options, 0);
    *norm = session.step({batch.tokens, batch.targets}, 1e4).gradient_norm;
    collect(-1.0);
    return std::sqrt(std::inner_product(values.begin(), values.end(), values.begin(), 0.0));
  };
  double norm = 0;
  const double free = updates(0.0f, &norm);
  EXPECT_NEAR(free, norm, 0.01 * norm);
  double clipped_norm = 0;
  const auto bound = static_cast<float>(0.25 * norm);
  EXPECT_NEAR(updates(bound, &clipped_norm), 0.25 * norm, 0.01 * norm);
  EXPECT_EQ(clipped_norm, norm) << "the norm is that before clipping";
  EXPECT_NEAR(updates(static_cast<float>(2.0 * norm), &norm), free, 1e-9) << "not scaled up";
}

TEST(Session, RejectsLimitsThatLimitNothing) {
  octavo::Context<octavo::Cpu> context{1};
  SmallSession<Bf16> session(support::small_options(), context);
  constexpr double infinity = std::numeric_limits<double>::infinity();
  for (const double wrong : {std::nan(""), -1.0, -infinity}) {
    EXPECT_THROW(session.limit_steps(wrong, infinity), octavo::ConfigError) << wrong;
    EXPECT_THROW(session.limit_steps(infinity, wrong), octavo::ConfigError) << wrong;
  }
  const TokenBatch batch = support::step_batch(support::small_options(), 0);
  session.limit_steps(0, infinity);
  EXPECT_TRUE(session.step({batch.tokens, batch.targets}, 1e-3).is_above_limits);
}

TEST(Session, IgnoredTargetsDoNotCount) {
  const SessionOptions options = support::small_options();
  octavo::Context<octavo::Cpu> context{2};
  SmallSession<Fp32> session(options, context);
  TokenBatch batch = support::step_batch(options, 0);
  session.begin_evaluation();
  const octavo::LossSum all = session.evaluate({batch.tokens, batch.targets});
  EXPECT_EQ(all.tokens, 96);
  double of_targets = 0;
  for (const std::size_t kept : {std::size_t{0}, std::size_t{47}, std::size_t{95}}) {
    std::vector<std::int32_t> one(batch.targets.size(), -1);
    one[kept] = batch.targets[kept];
    const octavo::LossSum loss = session.evaluate({batch.tokens, one});
    EXPECT_EQ(loss.tokens, 1);
    EXPECT_GT(loss.sum, 0.0);
    of_targets += loss.sum;
  }
  std::vector<std::int32_t> three(batch.targets.size(), -1);
  for (const std::size_t kept : {std::size_t{0}, std::size_t{47}, std::size_t{95}}) {
    three[kept] = batch.targets[kept];
  }
  const octavo::LossSum loss = session.evaluate({batch.tokens, three});
  EXPECT_EQ(loss.tokens, 3);
  EXPECT_NEAR(loss.sum, of_targets, 1e-5);

  const std::vector<std::int32_t> none(batch.targets.size(), -1);
  EXPECT_EQ(session.evaluate({batch.tokens, none}).tokens, 0);
  EXPECT_TRUE(std::isnan(session.evaluate({batch.tokens, none}).mean()));
  const StepResult step = session.step({batch.tokens, none}, 1e-3);
  EXPECT_TRUE(std::isnan(step.loss));
  EXPECT_EQ(step.gradient_norm, 0.0);
  EXPECT_FALSE(step.skipped);
}

TEST(Session, EvaluationLossMatchesTrainingLoss) {
  const SessionOptions options = support::small_options();
  octavo::Context<octavo::Cpu> context{2};
  SmallSession<Fp8Recipe<octavo::Tensorwise>> session(options, context);
  const TokenBatch batch = support::step_batch(options, 0);
  session.begin_evaluation();
  const double evaluated = session.evaluate({batch.tokens, batch.targets}).mean();
  EXPECT_NEAR(session.step({batch.tokens, batch.targets}, 1e-3).loss, evaluated, 1e-9);
}

TEST(Session, SessionsOfOneContextAreIndependent) {
  const SessionOptions options = support::small_options();
  const TokenBatch batch = support::step_batch(options, 0);
  octavo::Context<octavo::Cpu> context{2};
  SmallSession<Fp32> one(options, context);
  const double expected = one.step({batch.tokens, batch.targets}, 0.0).loss;
  {
    SessionOptions smaller = options;
    smaller.batch = {1, 16};
    SmallSession<Fp32> other(smaller, context);
  }
  EXPECT_EQ(one.step({batch.tokens, batch.targets}, 0.0).loss, expected);
}

// The workspace that a context lends is the one of the session that asked last.
TEST(Session, SessionCanBeCreatedDuringEvaluation) {
  const SessionOptions options = support::small_options();
  const TokenBatch batch = support::step_batch(options, 0);
  octavo::Context<octavo::Cpu> context{2};
  SmallSession<Fp32> one(options, context);
  one.begin_evaluation();
  const double expected = one.evaluate({batch.tokens, batch.targets}).sum;
  const auto prompt = std::span(batch.tokens).first(48);
  std::vector<float> expected_logits(96);
  std::vector<float> logits(96);
  one.next_token_logits(prompt, expected_logits);

  SessionOptions smaller = options;
  smaller.batch = {1, 16};
  const SmallSession<Fp32> other(smaller, context);
  EXPECT_EQ(one.evaluate({batch.tokens, batch.targets}).sum, expected);
  const SmallSession<Fp32> third(smaller, context);
  one.next_token_logits(prompt, logits);
  EXPECT_EQ(logits, expected_logits);
}

// A tensorwise scale also covers the rows after the text.
TEST(Session, LogitsDoNotDependOnEarlierTokens) {
  using Session = SmallSession<octavo::Fp8Recipe<octavo::Tensorwise>>;
  const SessionOptions options = support::small_options();
  const TokenBatch batch = support::step_batch(options, 0);
  octavo::Context<octavo::Cpu> context{2};
  for (const std::size_t count : {std::size_t{1}, std::size_t{3}, std::size_t{20}}) {
    Session session(options, context);
    const auto prompt = std::span(batch.tokens).first(count);
    std::vector<float> expected(96);
    std::vector<float> logits(96);
    session.next_token_logits(prompt, expected);
    for (unsigned other = 1; other < 5; ++other) {
      const TokenBatch earlier = support::step_batch(options, other);
      (void)session.evaluate({earlier.tokens, earlier.targets});
      session.next_token_logits(prompt, logits);
      EXPECT_EQ(logits, expected) << count << ' ' << other;
    }
  }
}

}  // namespace session_test
