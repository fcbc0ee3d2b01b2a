// Training with activations that read E4M3.
#include <octavo/precision/named_precisions.hpp>
#include <octavo/session/state.hpp>

#include <gtest/gtest.h>

#include "session/short_training.hpp"
#include "support/small_model.hpp"

namespace activation_input_session_test {

using namespace octavo;
using short_training::step;
using short_training::trained_loss;
using support::SmallSession;

using Plain = Fp8Recipe<Delayed>;
using ReadsE4M3 = Layerwise<Fp8Recipe<Delayed>, ForActivation<E4M3>>;

TEST(ActivationInputSession, LearnsAboutAsWellAsStorageFormat) {
  const double plain = trained_loss<Plain>();
  const double narrow = trained_loss<ReadsE4M3>();
  EXPECT_LT(plain, 3.6) << "nothing was learnt";
  EXPECT_NEAR(narrow, plain, 0.05 * plain);
  EXPECT_NE(narrow, plain);
}

/// The forward GEMM of the first projection writes E4M3, and no other GEMM does.
TEST(ActivationInputSession, ManifestNamesTheResult) {
  Context<Cpu> context(2);
  SmallSession<ReadsE4M3> session(support::small_options(), context);
  (void)step(session, 0);
  int narrow = 0;
  for (const GemmEntry& entry : session.manifest().entries()) {
    const bool expected = entry.layer.ends_with(".gate_up") && entry.pass == GemmPass::forward;
    EXPECT_EQ(entry.output_format == "E4M3", expected) << entry.layer;
    narrow += static_cast<int>(expected);
    EXPECT_EQ(entry.executed, 1U) << entry.layer;
  }
  EXPECT_GT(narrow, 0);
}

/// A block in BF16 keeps BF16, because the GEMM of its projection does.
TEST(ActivationInputSession, BlocksInBf16KeepTheirFormat) {
  using Edges = Layerwise<First<1, Bf16>, Fp8Recipe<Delayed>, ForActivation<E4M3>>;
  Context<Cpu> context(2);
  SmallSession<Edges> session(support::small_options(), context);
  (void)step(session, 0);
  int projections = 0;
  for (const GemmEntry& entry : session.manifest().entries()) {
    if (!entry.layer.ends_with(".gate_up") || entry.pass != GemmPass::forward) continue;
    ++projections;
    EXPECT_EQ(entry.output_format, entry.layer.starts_with("blocks.0.") ? "bf16" : "E4M3");
  }
  EXPECT_EQ(projections, support::small.layers);
}

TEST(ActivationInputSession, NeedsLessMemory) {
  Context<Cpu> context(1);
  SmallSession<Plain> plain(support::small_options(), context);
  SmallSession<ReadsE4M3> narrow(support::small_options(), context);
  EXPECT_LT(narrow.facts().allocated_bytes, plain.facts().allocated_bytes);
}

TEST(ActivationInputSession, RecomputationAndThreadsChangeNoBit) {
  Context<Cpu> context(1);
  for (const Recompute recompute : {Recompute::swiglu, Recompute::ffn, Recompute::block}) {
    SessionOptions options = support::small_options();
    options.model.recompute = recompute;
    Context<Cpu> another(3);
    SmallSession<ReadsE4M3> second(options, another);
    SmallSession<ReadsE4M3> whole(support::small_options(), context);
    for (unsigned i = 0; i < 3; ++i) EXPECT_EQ(step(second, i).loss, step(whole, i).loss) << i;
    EXPECT_TRUE(save_state_sync(second.state().entries()) ==
                save_state_sync(whole.state().entries()));
  }
}

}  // namespace activation_input_session_test
