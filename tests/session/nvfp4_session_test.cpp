// NVFP4 trains about as BF16 does, and its random numbers are part of the state.
#include <octavo/session/state.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "session/short_training.hpp"
#include "support/small_model.hpp"

namespace nvfp4_session_test {

using namespace octavo;
using short_training::step;
using short_training::trained_loss;
using support::SmallSession;

TEST(Nvfp4Session, LearnsAboutAsWellAsBf16) {
  const double bf16 = trained_loss<Bf16>();
  const double nvfp4 = trained_loss<Nvfp4>();
  EXPECT_LT(bf16, 3.6) << "nothing was learnt";
  EXPECT_NEAR(nvfp4, bf16, 0.05 * bf16);
  EXPECT_NE(nvfp4, bf16);
}

TEST(Nvfp4Session, LoadingThreadsAndRecomputationChangeNoBit) {
  Context<Cpu> context(1);
  SmallSession<Nvfp4> first(support::small_options(), context);
  for (unsigned i = 0; i < 3; ++i) (void)step(first, i);
  const SavedState saved = save_state_sync(first.state().entries());

  SessionOptions options = support::small_options();
  options.seed = 8;
  options.model.recompute = Recompute::block;
  options.model.weight_copies = WeightCopies::remade;
  Context<Cpu> another(3);
  SmallSession<Nvfp4> second(options, another);
  (void)step(second, 77);
  load_state_sync(saved, second.state().entries());
  for (unsigned i = 3; i < 6; ++i) EXPECT_EQ(step(second, i).loss, step(first, i).loss) << i;
  EXPECT_TRUE(save_state_sync(second.state().entries()) ==
              save_state_sync(first.state().entries()));
}

// A skipped step draws no random numbers: the steps after it have the bits that they have without
// it.
TEST(Nvfp4Session, SkippedStepLeavesNoTrace) {
  const auto train = [](bool poisoned) {
    Context<Cpu> context(2);
    SmallSession<Nvfp4> session(support::small_options(), context);
    (void)step(session, 0);
    if (poisoned) {
      Bf16& element = support::weight(session, "blocks.1.qkv.weight").data()[11];
      const Bf16 healthy = element;
      element = Bf16(std::numeric_limits<float>::quiet_NaN());
      EXPECT_TRUE(step(session, 99).skipped);
      element = healthy;
    }
    (void)step(session, 1);
    return save_state_sync(session.state().entries());
  };
  EXPECT_TRUE(train(true) == train(false));
}

TEST(Nvfp4Session, ReportsItsBlocksAndFormats) {
  Context<Cpu> context(2);
  SmallSession<Nvfp4> session(support::small_options(), context);
  (void)step(session, 0);
  for (const OperandReport& operand : session.operands()) {
    EXPECT_EQ(operand.format, "E2M1");
    EXPECT_EQ(operand.granularity, operand.name.ends_with(".weight") ? "16x16" : "1x16");
    EXPECT_TRUE(std::isnan(operand.scale)) << operand.name;
  }
  for (const GemmEntry& entry : session.manifest().entries()) {
    const bool is_head = entry.layer == "head";
    EXPECT_EQ(std::string(entry.expected.a), is_head ? "bf16" : "E2M1") << entry.layer;
    EXPECT_EQ(entry.precision, is_head ? "bf16" : "nvfp4") << entry.layer;
  }
}

}  // namespace nvfp4_session_test
