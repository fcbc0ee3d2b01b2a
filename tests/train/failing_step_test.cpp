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

/// The state after five steps; before step `failing`, if there is one, another step throws.
template <class Precision>
State state_after_steps(int failing) {
  octavo::SessionOptions options = support::small_options();
  options.micro_batches = 2;
  octavo::Context<octavo::Cpu> context{2};
  octavo::ModelSession<support::FaultyModel<support::SmallModel<Precision>>> session(options,
                                                                                     context);
  for (int i = 0; i < 5; ++i) {
    if (i == failing) {
      session.model().faulty = true;
      const support::TokenBatch batch = support::step_batch(options, 99);
      EXPECT_THROW((void)session.step({batch.tokens, batch.targets}, 1e-2), octavo::ConfigError);
    }
    const support::TokenBatch batch = support::step_batch(options, static_cast<unsigned>(i));
    EXPECT_FALSE(session.step({batch.tokens, batch.targets}, 1e-3).skipped);
  }
  return {support::weights(session), support::scaling_state(session)};
}

template <class Precision>
class FailingStep : public testing::Test {};
using Precisions =
    testing::Types<octavo::Bf16, octavo::Fp8Recipe<octavo::Delayed>,
                   octavo::Fp8Recipe<octavo::Tensorwise>, octavo::Fp8Recipe<octavo::Blockwise>>;
TYPED_TEST_SUITE(FailingStep, Precisions);

TYPED_TEST(FailingStep, ChangesNoBitOfTheStepsThatFollow) {
  const State undisturbed = state_after_steps<TypeParam>(-1);
  for (const int failing : {0, 1, 4}) {
    EXPECT_TRUE(state_after_steps<TypeParam>(failing) == undisturbed) << "before step " << failing;
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
