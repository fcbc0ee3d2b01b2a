// Data-parallel ranks round stochastically with different random numbers.
#include <octavo/parallel/data_parallel.hpp>

#include <gtest/gtest.h>

#include "support/small_model.hpp"
#include "support/thread_ranks.hpp"

namespace rounding_of_ranks_test {

using namespace octavo;

/// Returns the gradient norm of the first step of ranks that all have the same tokens.
template <class Precision>
double gradient_norm(int ranks) {
  double result = 0;
  support::on_ranks(ranks, [&](support::ThreadComm& communicator) {
    Context<Cpu> context{1};
    SessionOptions options = support::small_options();
    options.batch = {1, 48};
    options.micro_batches = 1;
    ModelSession<support::SmallModel<Precision>, AdamW<>, DataParallel<>> session(options, context,
                                                                                  communicator);
    const auto batch = support::make_batch(48, support::small.vocabulary, 3);
    const StepResult step = session.step({batch.tokens, batch.targets}, 1e-3);
    if (communicator.rank() == 0) result = step.gradient_norm;
  });
  return result;
}

// Equal gradients have themselves as their mean, so any difference is one of rounding.
TEST(RoundingOfRanks, DrawsOtherNumbersOnEachRank) {
  EXPECT_EQ(gradient_norm<Fp8Recipe<Rowwise>>(1), gradient_norm<Fp8Recipe<Rowwise>>(2));
  const double one = gradient_norm<Nvfp4>(1);
  const double two = gradient_norm<Nvfp4>(2);
  EXPECT_NE(one, two);
  EXPECT_NEAR(one, two, 0.2 * one);
}

}  // namespace rounding_of_ranks_test
