// Training with the 8-bit forward of attention.
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
  Context<Cpu> context(1);
  SmallSession<InEightBits> first(support::small_options(), context);
  SessionOptions options = support::small_options();
  options.model.recompute = Recompute::block;
  Context<Cpu> another(3);
  SmallSession<InEightBits> second(options, another);
  for (unsigned i = 0; i < 3; ++i) EXPECT_EQ(step(second, i).loss, step(first, i).loss) << i;
  EXPECT_TRUE(save_state_sync(second.state().entries()) ==
              save_state_sync(first.state().entries()));
}

}  // namespace eight_bit_attention_session_test
