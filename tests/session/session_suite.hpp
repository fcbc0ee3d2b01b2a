#pragma once

#include <octavo/checkpoint/checkpoints.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "support/llama_weights.hpp"
#include "support/own_scalings.hpp"
#include "support/small_model.hpp"
#include "support/temporary_folder.hpp"
#include "support/test_types.hpp"

/// Tests of a training session in every precision. Included by a file for each group of
/// precisions, so that they compile side by side.
namespace {

/// Saves a session in a folder of checkpoints, goes on from there in one of other weights, and
/// expects the bits of the one that was never stopped.
template <class Session>
void expect_to_go_on(const std::filesystem::path& folder) {
  octavo::SessionOptions options = support::small_options();
  const auto step = [&](Session& session, unsigned number) {
    const support::TokenBatch batch = support::step_batch(options, number);
    return session.step({batch.tokens, batch.targets}, 3e-3).loss;
  };
  octavo::Context<octavo::Cpu> context{2};
  Session whole(options, context);
  for (unsigned i = 0; i < 3; ++i) (void)step(whole, i);
  octavo::Checkpoints checkpoints(
      {.folder = folder}, whole,
      [](const octavo::CheckpointRecord& record) { EXPECT_EQ(record.error, ""); });
  checkpoints.save(3);
  checkpoints.finish();
  ++options.seed;
  Session resumed(options, context);
  (void)step(resumed, 7);
  (void)octavo::load_checkpoint(folder / "step-00000003", resumed);
  for (unsigned i = 3; i < 6; ++i) EXPECT_EQ(step(resumed, i), step(whole, i)) << i;
  EXPECT_TRUE(support::weights(resumed) == support::weights(whole));
  EXPECT_TRUE(support::scaling_state(resumed) == support::scaling_state(whole));
}

template <class Precision>
class SessionTest : public support::TemporaryFolder {
 protected:
  using Session = support::SmallSession<Precision>;

  static octavo::StepResult step(Session& session, unsigned number, double learning_rate = 3e-3) {
    const support::TokenBatch batch = support::step_batch(options(), number);
    return session.step({batch.tokens, batch.targets}, learning_rate);
  }

  static octavo::SessionOptions options() { return support::small_options(); }

  static std::vector<std::byte> weights_after_five_steps(int threads) {
    octavo::Context<octavo::Cpu> context{threads};
    Session session(options(), context);
    for (unsigned i = 0; i < 5; ++i) EXPECT_FALSE(step(session, i).skipped);
    return support::weights(session);
  }

  /// Trains `steps` steps, one of which sees a weight `poison` if `poisoned_step` says so.
  struct PoisonedRun {
    std::vector<std::byte> weights;
    std::vector<std::byte> scaling;
  };
  static PoisonedRun run_with_poison(int poisoned_step, float poison, const std::string& name) {
    octavo::Context<octavo::Cpu> context{2};
    Session session(options(), context);
    using T = typename support::SmallModel<Precision>::T;
    for (int i = 0; i < 6; ++i) {
      if (i == poisoned_step) {
        T& element = support::weight(session, name).data()[11];
        const T healthy = element;
        element = T(poison);
        const std::vector<std::byte> weights = support::weights(session);
        const std::vector<std::byte> scaling = support::scaling_state(session);
        EXPECT_TRUE(step(session, 99).skipped) << name << " = " << poison;
        EXPECT_TRUE(weights == support::weights(session)) << name << " = " << poison;
        EXPECT_TRUE(scaling == support::scaling_state(session)) << name << " = " << poison;
        element = healthy;
      }
      EXPECT_FALSE(step(session, static_cast<unsigned>(i)).skipped);
    }
    return {support::weights(session), support::scaling_state(session)};
  }
};

TYPED_TEST_SUITE_P(SessionTest);

TYPED_TEST_P(SessionTest, IsDeterministicForAnyThreadCount) {
  const std::vector<std::byte> one = this->weights_after_five_steps(1);
  EXPECT_TRUE(one == this->weights_after_five_steps(1));
  EXPECT_TRUE(one == this->weights_after_five_steps(2));
  EXPECT_TRUE(one == this->weights_after_five_steps(4));
}

/// Every step after a skipped one gives the bits that it gives without it, so moments, master
/// weights, step count and random streams did not move either.
TYPED_TEST_P(SessionTest, NonFiniteStepsLeaveNoTrace) {
  const auto healthy = this->run_with_poison(-1, 0.0f, "");
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const float poison : {nan, inf, -inf}) {
    for (const std::string name :
         {"embedding.weight", "blocks.1.qkv.weight", "blocks.1.mlp_norm.weight", "head.weight"}) {
      if (name == "embedding.weight" && !std::isnan(poison)) continue;
      const auto poisoned = this->run_with_poison(3, poison, name);
      EXPECT_TRUE(healthy.weights == poisoned.weights) << name << " = " << poison;
      EXPECT_TRUE(healthy.scaling == poisoned.scaling) << name << " = " << poison;
    }
  }
}

TYPED_TEST_P(SessionTest, ManifestMatchesExecution) {
  using Precision = TypeParam;
  octavo::Context<octavo::Cpu> context{2};
  octavo::SessionOptions options = this->options();
  options.micro_batches = 2;
  options.model.head_chunk = 32;
  options.model.recompute = octavo::Recompute::ffn;
  support::SmallSession<Precision> session(options, context);
  const std::vector<octavo::GemmEntry>& entries = session.manifest().entries();
  // Three GEMMs for each of 3 blocks of 4 linear layers, and for the head.
  ASSERT_EQ(entries.size(), 39U);
  for (const octavo::GemmEntry& entry : entries) {
    const bool head = entry.layer == "head";
    const bool edge = entry.layer.starts_with("blocks.0.") || entry.layer.starts_with("blocks.2.");
    const bool mixed = std::is_same_v<Precision, support::MixedPrecision>;
    const bool fp8 = !head && !(mixed && edge) && !std::is_same_v<Precision, octavo::Bf16>;
    // Scales of blocks are E4M3 backwards too; the others take E5M2 there.
    const bool e4m3_only = std::is_same_v<Precision, octavo::Fp8Recipe<octavo::Blockwise>> ||
                           std::is_same_v<Precision, octavo::Fp8Recipe<support::BlocksOf64>> ||
                           std::is_same_v<Precision, octavo::Fp8Recipe<support::RowsOf16>> ||
                           std::is_same_v<Precision, octavo::Mxfp8>;
    const bool forward = entry.pass == octavo::GemmPass::forward;
    const std::string a = !fp8 ? "bf16" : forward || e4m3_only ? "E4M3" : "E5M2";
    EXPECT_EQ(entry.expected.a, a) << entry.layer << " " << name_of(entry.pass);
    EXPECT_EQ(std::string(entry.expected.b), fp8 ? "E4M3" : "bf16") << entry.layer;
    EXPECT_EQ(entry.output_format, "bf16") << entry.layer;
    EXPECT_EQ(entry.expected.is_fp8(), fp8) << entry.layer;
  }
  const support::TokenBatch batch = support::step_batch(options, 0);
  for (int i = 0; i < 2; ++i) {
    EXPECT_FALSE(session.step({batch.tokens, batch.targets}, 1e-3).skipped);
    for (const octavo::GemmEntry& entry : entries) {
      const bool again = entry.pass == octavo::GemmPass::forward &&
                         entry.layer.find("gate_up") != std::string::npos;
      const std::uint64_t expected = entry.layer == "head" ? 2 * 3 : again ? 4 : 2;
      EXPECT_EQ(entry.executed, expected) << entry.layer << " " << name_of(entry.pass);
    }
    const std::vector<octavo::AttentionEntry>& attentions = session.manifest().attentions();
    ASSERT_EQ(attentions.size(), 6U) << "forward and backward of each block";
    for (const octavo::AttentionEntry& attention : attentions) {
      EXPECT_EQ(attention.expected, "octavo loops");
      EXPECT_EQ(attention.shape, "2 x 48, 2/1 heads of 64");
      EXPECT_EQ(attention.executed, 2U) << attention.layer << " " << attention.pass;
    }
    EXPECT_NO_THROW(session.manifest().verify_step(2, 3));
    EXPECT_THROW(session.manifest().verify_step(1, 3), octavo::ManifestError);
    EXPECT_THROW(session.manifest().verify_step(2, 2), octavo::ManifestError);
    session.begin_evaluation();
    std::vector<float> logits(96);
    session.next_token_logits(std::span(batch.tokens).first(8), logits);
  }
}

/// Mean cross-entropy of a session's weights as they are, on text that it has not seen, by the
/// double reference, which knows nothing of the library.
template <class Session>
double reference_loss(Session& session, const support::TokenBatch& text, octavo::BatchShape shape) {
  return reference::mean_cross_entropy(
      support::reference_config(support::small), support::weight_values(session.model()),
      {text.tokens.begin(), text.tokens.end()}, {text.targets.begin(), text.targets.end()},
      static_cast<int>(shape.sequences), static_cast<int>(shape.tokens));
}

// A fresh model is at log 96 = 4.56. The text's own noise leaves 1.69: a token follows from the one
// before with a chance of 3/4 + 1/4 · 1/96, and each other one has 1/4 · 1/96.
TYPED_TEST_P(SessionTest, TrainingReachesExpectedLoss) {
  octavo::Context<octavo::Cpu> context{2};
  support::SmallSession<TypeParam> session(this->options(), context);
  const support::TokenBatch unseen = support::step_batch(this->options(), 1000);
  EXPECT_NEAR(reference_loss(session, unseen, this->options().batch), std::log(96.0), 0.05);
  for (unsigned i = 0; i < 60; ++i) EXPECT_FALSE(this->step(session, i).skipped);
  const double learnt = reference_loss(session, unseen, this->options().batch);
  EXPECT_LT(learnt, 2.5);
  session.begin_evaluation();
  EXPECT_NEAR(session.evaluate({unseen.tokens, unseen.targets}).mean(), learnt, 0.01 * learnt);
}

TYPED_TEST_P(SessionTest, ResumesFromCheckpoint) {
  expect_to_go_on<support::SmallSession<TypeParam>>(this->folder_);
}

REGISTER_TYPED_TEST_SUITE_P(SessionTest, IsDeterministicForAnyThreadCount,
                            NonFiniteStepsLeaveNoTrace, ManifestMatchesExecution,
                            TrainingReachesExpectedLoss, ResumesFromCheckpoint);

}  // namespace
