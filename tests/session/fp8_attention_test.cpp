// Training with the FP8 forward of attention.
#include <octavo/precision/named_precisions.hpp>
#include <octavo/session/state.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "session/short_training.hpp"
#include "support/small_model.hpp"

namespace fp8_attention_session_test {

using namespace octavo;
using short_training::step;
using short_training::trained_loss;
using support::SmallSession;

using InFp8 = Layerwise<Bf16, ForAttention<Fp8Forward>>;

TEST(Fp8AttentionSession, LearnsAboutAsWellAsBf16) {
  const double bf16 = trained_loss<Bf16>();
  const double fp8 = trained_loss<InFp8>();
  EXPECT_LT(bf16, 3.6) << "nothing was learnt";
  // A single seed differs by up to 4 %; the means of eight seeds differ by 0.1 %.
  EXPECT_NEAR(fp8, bf16, 0.05 * bf16);
  EXPECT_NE(fp8, bf16);
}

TEST(Fp8AttentionSession, ReportsExecutedForward) {
  Context<Cpu> context(2);
  SmallSession<InFp8> session(support::small_options(), context);
  (void)step(session, 0);
  ASSERT_FALSE(session.manifest().attentions().empty());
  for (const AttentionEntry& entry : session.manifest().attentions()) {
    const bool forward = std::string(entry.pass) == "forward";
    EXPECT_EQ(entry.expected, forward ? "octavo loops fp8" : "octavo loops");
    EXPECT_EQ(entry.executed, 1U);
  }
}

TEST(Fp8AttentionSession, RecomputationAndThreadsChangeNoBit) {
  Context<Cpu> context(1);
  SmallSession<InFp8> first(support::small_options(), context);
  SessionOptions options = support::small_options();
  options.model.recompute = Recompute::block;
  Context<Cpu> another(3);
  SmallSession<InFp8> second(options, another);
  for (unsigned i = 0; i < 3; ++i) EXPECT_EQ(step(second, i).loss, step(first, i).loss) << i;
  EXPECT_TRUE(save_state_sync(second.state().entries()) ==
              save_state_sync(first.state().entries()));
}

}  // namespace fp8_attention_session_test
