// Training with attention in 8 bits, which replaces queries, keys and values by rounded ones.
#include <octavo/session/state.hpp>

#include <gtest/gtest.h>

#include "session/short_training.hpp"
#include "support/small_model.hpp"

namespace eight_bit_attention_session_test {

using namespace octavo;
using short_training::step;
using support::SmallSession;

using InEightBits = Layerwise<Fp8Recipe<Delayed>, ForAttention<EightBitForward>>;

TEST(EightBitAttentionSession, RecomputationAndThreadsChangeNoBit) {
  for (const Recompute recompute : {Recompute::ffn, Recompute::block}) {
    SessionOptions options = support::small_options();
    options.model.recompute = recompute;
    Context<Cpu> one(1);
    Context<Cpu> another(3);
    SmallSession<InEightBits> recomputed(options, another);
    SmallSession<InEightBits> kept(support::small_options(), one);
    for (unsigned i = 0; i < 3; ++i) EXPECT_EQ(step(recomputed, i).loss, step(kept, i).loss) << i;
    EXPECT_TRUE(save_state_sync(recomputed.state().entries()) ==
                save_state_sync(kept.state().entries()));
  }
}

}  // namespace eight_bit_attention_session_test
