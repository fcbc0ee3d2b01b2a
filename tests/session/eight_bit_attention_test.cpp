// Training with attention in 8 bits, which replaces queries, keys and values by rounded ones.
#include <octavo/precision/named_precisions.hpp>
#include <octavo/session/state.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "session/short_training.hpp"
#include "support/small_model.hpp"

namespace eight_bit_attention_session_test {

using namespace octavo;
using short_training::step;
using short_training::trained_loss;
using support::SmallSession;

using InEightBits = Layerwise<Bf16, ForAttention<EightBitForward>>;
using InFp8AndEightBits = Layerwise<Fp8Recipe<Delayed>, ForAttention<EightBitForward>>;

TEST(EightBitAttentionSession, LearnsAboutAsWellAsBf16) {
  const double bf16 = trained_loss<Bf16>();
  const double eight_bit = trained_loss<InEightBits>();
  EXPECT_LT(bf16, 3.6) << "nothing was learnt";
  // A single seed differs by up to 4 %; the means of eight seeds differ by 0.1 %.
  EXPECT_NEAR(eight_bit, bf16, 0.05 * bf16);
  EXPECT_NE(eight_bit, bf16);
}

TEST(EightBitAttentionSession, ReportsExecutedForward) {
  Context<Cpu> context(2);
  SmallSession<InEightBits> session(support::small_options(), context);
  (void)step(session, 0);
  ASSERT_FALSE(session.manifest().attentions().empty());
  for (const AttentionEntry& entry : session.manifest().attentions()) {
    const bool forward = std::string(entry.pass) == "forward";
    EXPECT_EQ(entry.expected, forward ? "octavo loops 8-bit" : "octavo loops");
    EXPECT_EQ(entry.executed, 1U);
  }
}

TEST(EightBitAttentionSession, RecomputationAndThreadsChangeNoBit) {
  for (const Recompute recompute : {Recompute::ffn, Recompute::block}) {
    SessionOptions options = support::small_options();
    options.model.recompute = recompute;
    Context<Cpu> one(1);
    Context<Cpu> another(3);
    SmallSession<InFp8AndEightBits> recomputed(options, another);
    SmallSession<InFp8AndEightBits> kept(support::small_options(), one);
    for (unsigned i = 0; i < 3; ++i) EXPECT_EQ(step(recomputed, i).loss, step(kept, i).loss) << i;
    EXPECT_TRUE(save_state_sync(recomputed.state().entries()) ==
                save_state_sync(kept.state().entries()));
  }
}

}  // namespace eight_bit_attention_session_test
