#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "support/small_model.hpp"
#include "support/test_types.hpp"

/// Tests of every precision: what is recomputed and evaluated leaves no trace. Included by a file
/// for each group of precisions, so that they compile side by side.
namespace {

using octavo::Recompute;

/// Everything that a run leaves behind, bit for bit.
struct Trace {
  std::vector<double> losses;
  std::vector<double> norms;
  std::vector<std::vector<std::byte>> gradients;  ///< after each step
  std::vector<std::vector<std::byte>> scaling;    ///< after each step
  std::vector<std::byte> weights;
};

/// What one forward and backward without a session makes.
struct OneBatch {
  std::vector<float> losses;
  std::vector<std::byte> gradients;
  std::size_t bytes = 0;  ///< of the model
};

template <class Precision>
class RecomputeTest : public testing::Test {
 protected:
  /// Four steps of two micro-batches.
  /// @param model      what is recomputed or kept
  /// @param evaluated  whether each step is followed by an evaluation
  static Trace train(octavo::ModelOptions model, bool evaluated = false) {
    octavo::Context<octavo::Cpu> context{2};
    octavo::SessionOptions options = support::small_options();
    options.batch = {1, 48};
    options.micro_batches = 2;
    options.model = model;
    support::SmallSession<Precision> session(options, context);
    Trace trace;
    for (unsigned i = 0; i < 4; ++i) {
      const support::TokenBatch batch = support::step_batch(options, i);
      const octavo::StepResult result = session.step({batch.tokens, batch.targets}, 3e-3);
      EXPECT_FALSE(result.skipped);
      trace.losses.push_back(result.loss);
      trace.norms.push_back(result.gradient_norm);
      trace.gradients.push_back(support::weight_gradients(session));
      if (evaluated) evaluate_and_expect_no_change(session);
      trace.scaling.push_back(support::scaling_state(session));
    }
    trace.weights = support::weights(session);
    return trace;
  }

  static OneBatch train_one_batch(octavo::ModelOptions options) {
    using Model = support::SmallModel<Precision>;
    constexpr octavo::BatchShape shape{1, 48};
    octavo::Context<octavo::Cpu> context{2};
    octavo::Arena<octavo::Cpu> arena;
    {
      const Model measured(arena, shape, options, context);
    }
    OneBatch result{std::vector<float>(48), {}, arena.plan().peak};
    arena = {arena.plan(), context};
    Model model(arena, shape, options, context);
    octavo::HooksOf<Model> hooks;
    model.initialize_sync(7, hooks, context);
    model.template invalidate_weight_copies<octavo::Mode::train>(hooks, context);
    const support::TokenBatch batch = support::make_batch(48, support::small.vocabulary, 3);
    const float gradient_scale = 1.0f / 48.0f;
    model.train_micro_batch({{batch.tokens.data(), {48}}, {batch.targets.data(), {48}}},
                            {result.losses.data(), {48}}, {&gradient_scale, {1}}, {}, hooks,
                            context);
    model.visit(
        [&](auto& parameter) { support::append_bytes(result.gradients, parameter.gradient); });
    return result;
  }

  static void expect_equal(const Trace& a, const Trace& b) {
    EXPECT_EQ(a.losses, b.losses);
    EXPECT_EQ(a.norms, b.norms);
    // Bytes: EXPECT_EQ would print megabytes.
    EXPECT_TRUE(a.gradients == b.gradients);
    EXPECT_TRUE(a.scaling == b.scaling);
    EXPECT_TRUE(a.weights == b.weights);
  }

 private:
  static void evaluate_and_expect_no_change(support::SmallSession<Precision>& session) {
    const std::vector<std::byte> state = support::scaling_state(session);
    const std::vector<std::byte> weights = support::weights(session);
    const support::TokenBatch batch = support::make_batch(48, support::small.vocabulary, 5);
    session.begin_evaluation();
    EXPECT_GT(session.evaluate({batch.tokens, batch.targets}).sum, 0.0);
    std::vector<float> logits(static_cast<std::size_t>(support::small.vocabulary));
    session.next_token_logits(batch.tokens, logits);
    EXPECT_TRUE(has_same_history(session, state));
    EXPECT_TRUE(weights == support::weights(session));
  }

  /// Tensorwise scaling writes the scale of the tensor at hand into the state, and nothing reads it
  /// before the next tensor has set its own; every other field has to stay.
  static bool has_same_history(support::SmallSession<Precision>& session,
                               std::vector<std::byte> before) {
    std::vector<std::byte> after = support::scaling_state(session);
    if constexpr (std::is_same_v<Precision, octavo::Fp8Recipe<octavo::Tensorwise>>) {
      const auto& scaling = session.model().scaling();
      for (std::size_t i = 0; i < scaling.size(); ++i) {
        const auto* scales = reinterpret_cast<const std::byte*>(scaling.slot(i).scaling);
        const auto begin = scales - scaling.state().data();
        for (auto* state : {&before, &after}) {
          std::fill_n(state->begin() + begin, sizeof(octavo::OperandScale), std::byte{});
        }
      }
    }
    return before == after;
  }
};

TYPED_TEST_SUITE_P(RecomputeTest);

TYPED_TEST_P(RecomputeTest, PoliciesAreBitwiseEqual) {
  const Trace none = this->train({.recompute = Recompute::none});
  EXPECT_NE(none.losses[0], none.losses[3]);
  for (const Recompute policy :
       {Recompute::norms, Recompute::swiglu, Recompute::ffn, Recompute::block}) {
    SCOPED_TRACE("policy " + std::to_string(static_cast<int>(policy)));
    this->expect_equal(this->train({.recompute = policy}), none);
  }
}

TYPED_TEST_P(RecomputeTest, EvaluationDoesNotAffectTraining) {
  for (const Recompute policy : {Recompute::none, Recompute::block}) {
    SCOPED_TRACE("policy " + std::to_string(static_cast<int>(policy)));
    const Trace plain = this->train({.recompute = policy});
    const Trace evaluated = this->train({.recompute = policy}, true);
    EXPECT_EQ(evaluated.losses, plain.losses);
    EXPECT_TRUE(evaluated.gradients == plain.gradients);
    EXPECT_TRUE(evaluated.weights == plain.weights);
  }
}

TYPED_TEST_P(RecomputeTest, RemadeWeightCopiesAreBitwiseEqual) {
  for (const Recompute policy : {Recompute::none, Recompute::block}) {
    SCOPED_TRACE("policy " + std::to_string(static_cast<int>(policy)));
    const Trace kept = this->train({.recompute = policy});
    const octavo::ModelOptions remade{.recompute = policy,
                                      .weight_copies = octavo::WeightCopies::remade};
    this->expect_equal(this->train(remade), kept);
    EXPECT_EQ(this->train(remade, true).losses, kept.losses);
  }
}

TYPED_TEST_P(RecomputeTest, GradientsSharingMemoryAreBitwiseEqual) {
  for (const Recompute policy : {Recompute::none, Recompute::block}) {
    SCOPED_TRACE("policy " + std::to_string(static_cast<int>(policy)));
    octavo::ModelOptions options{.recompute = policy};
    const OneBatch apart = this->train_one_batch(options);
    options.gradients_share_memory = true;
    const OneBatch sharing = this->train_one_batch(options);
    EXPECT_TRUE(sharing.losses == apart.losses);
    EXPECT_TRUE(sharing.gradients == apart.gradients);
    // Under the other policy a block keeps nothing of its own that could be shared.
    EXPECT_EQ(sharing.bytes < apart.bytes, policy == Recompute::none);
  }
}

REGISTER_TYPED_TEST_SUITE_P(RecomputeTest, PoliciesAreBitwiseEqual, EvaluationDoesNotAffectTraining,
                            RemadeWeightCopiesAreBitwiseEqual,
                            GradientsSharingMemoryAreBitwiseEqual);

}  // namespace
