// A step that throws leaves the session as it was: the next ones give the bits that they would have
// given without it.
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <limits>
#include <utility>
#include <vector>

#include "support/faulty_model.hpp"
#include "support/small_model.hpp"
#include "support/test_types.hpp"

namespace failing_step_test {

struct State {
  std::vector<std::byte> weights;
  std::vector<std::byte> scaling;

  friend bool operator==(const State&, const State&) = default;
};

/// Whose join throws once, when it is told to.
struct FaultyRanks {
  template <class W, class G, octavo::Device D>
  struct For : octavo::SingleRank::For<W, G, D> {
    using octavo::SingleRank::For<W, G, D>::For;

    void join(const octavo::Context<octavo::Cpu>&) override {
      if (std::exchange(is_faulty, false)) throw octavo::UsageError("a join that throws");
    }

    bool is_faulty = false;
  };
};

/// Three steps: what they leave, and the micro-batches of each, those of a calibration included.
struct ThreeSteps {
  State state;
  std::vector<int> micro_batches;
};

/// Before step `failing`, if there is one, another step throws in its micro-batch `micro_batch`,
/// counted from 1, and perhaps the first join of it does.
template <class Precision>
ThreeSteps take_three_steps(int failing = -1, int micro_batch = 0, bool faulty_join = false) {
  octavo::SessionOptions options = support::small_options();
  options.batch = {1, 16};
  options.micro_batches = 2;
  octavo::Context<octavo::Cpu> context{2};
  using Model = support::FaultyModel<support::SmallModel<Precision>>;
  octavo::ModelSession<Model, octavo::AdamW<>, FaultyRanks> session(options, context);
  std::vector<int> micro_batches;
  for (int i = 0; i < 3; ++i) {
    if (i == failing) {
      session.model().calls_until_error = micro_batch;
      session.collectives().is_faulty = faulty_join;
      const support::TokenBatch batch = support::step_batch(options, 99);
      const auto step = [&] { (void)session.step({batch.tokens, batch.targets}, 1e-2); };
      if (micro_batch != 0) {
        EXPECT_THROW(step(), octavo::ConfigError);
      } else {
        EXPECT_THROW(step(), octavo::UsageError);
      }
      EXPECT_FALSE(session.collectives().is_faulty) << "nothing was joined";
    }
    const int before = session.model().trained;
    const support::TokenBatch batch = support::step_batch(options, static_cast<unsigned>(i));
    EXPECT_FALSE(session.step({batch.tokens, batch.targets}, 1e-3).skipped);
    micro_batches.push_back(session.model().trained - before);
  }
  return {{support::weights(session), support::scaling_state(session)}, micro_batches};
}

template <class Precision>
class FailingStep : public testing::Test {};
using Precisions =
    support::TestTypes<octavo::Bf16, octavo::Fp8Recipe<octavo::Delayed>,
                       octavo::Fp8Recipe<octavo::Tensorwise>, octavo::Fp8Recipe<octavo::Blockwise>>;
TYPED_TEST_SUITE(FailingStep, Precisions);

TYPED_TEST(FailingStep, ChangesNoBitOfLaterSteps) {
  const ThreeSteps undisturbed = take_three_steps<TypeParam>();
  for (const int failing : {0, 2}) {
    const int micro_batches = undisturbed.micro_batches[static_cast<std::size_t>(failing)];
    ASSERT_GE(micro_batches, 2);
    for (int faulty = 1; faulty <= micro_batches; ++faulty) {
      EXPECT_TRUE(take_three_steps<TypeParam>(failing, faulty).state == undisturbed.state)
          << "before step " << failing << ", in micro-batch " << faulty;
    }
  }
}

// What ends the lanes may be what broke: the step is taken back all the same, and its own error
// told.
TYPED_TEST(FailingStep, IsRolledBackEvenIfJoinThrows) {
  const State undisturbed = take_three_steps<TypeParam>().state;
  for (const int failing : {0, 2}) {
    for (const int faulty : {0, 1, 2}) {
      EXPECT_TRUE(take_three_steps<TypeParam>(failing, faulty, true).state == undisturbed)
          << "before step " << failing << ", in micro-batch " << faulty;
    }
  }
}

TYPED_TEST(FailingStep, InvalidLearningRateChangesNothing) {
  const octavo::SessionOptions options = support::small_options();
  octavo::Context<octavo::Cpu> context{1};
  octavo::ModelSession<support::SmallModel<TypeParam>> session(options, context);
  const State before{support::weights(session), support::scaling_state(session)};
  const support::TokenBatch batch = support::step_batch(options, 0);
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double rate : {-1e-3, std::nan(""), infinity, -infinity, 1e300}) {
    EXPECT_THROW((void)session.step({batch.tokens, batch.targets}, rate), octavo::ConfigError)
        << rate;
  }
  EXPECT_TRUE(State({support::weights(session), support::scaling_state(session)}) == before);
  EXPECT_FALSE(session.step({batch.tokens, batch.targets}, 0.0).skipped);
}

}  // namespace failing_step_test
