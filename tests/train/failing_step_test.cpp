// A step that throws leaves the session as it was: the next ones give the bits that they would have
// given without it.
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include "support/faulty_model.hpp"
#include "support/small_model.hpp"

namespace failing_step_test {

struct State {
  std::vector<std::byte> weights;
  std::vector<std::byte> scaling;

  friend bool operator==(const State&, const State&) = default;
};

/// Three steps: what they leave, and the micro-batches of each, those of a calibration included.
struct ThreeSteps {
  State state;
  std::vector<int> micro_batches;
};

/// Before step `failing`, if there is one, another step throws in its micro-batch `micro_batch`,
/// counted from 1.
template <class Precision>
ThreeSteps take_three_steps(int failing = -1, int micro_batch = 0) {
  octavo::SessionOptions options = support::small_options();
  options.batch = {1, 16};
  options.micro_batches = 2;
  octavo::Context<octavo::Cpu> context{2};
  octavo::ModelSession<support::FaultyModel<support::SmallModel<Precision>>> session(options,
                                                                                     context);
  std::vector<int> micro_batches;
  for (int i = 0; i < 3; ++i) {
    if (i == failing) {
      session.model().faulty_in = micro_batch;
      const support::TokenBatch batch = support::step_batch(options, 99);
      EXPECT_THROW((void)session.step({batch.tokens, batch.targets}, 1e-2), octavo::ConfigError);
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
    testing::Types<octavo::Bf16, octavo::Fp8Recipe<octavo::Delayed>,
                   octavo::Fp8Recipe<octavo::Tensorwise>, octavo::Fp8Recipe<octavo::Blockwise>>;
TYPED_TEST_SUITE(FailingStep, Precisions);

TYPED_TEST(FailingStep, ChangesNoBitOfTheStepsThatFollow) {
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

TYPED_TEST(FailingStep, ALearningRateThatIsNoneChangesNothing) {
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
