// Sequences of any length on the Cuda device: those that run longer are those that are filled by
// hand, to the bit.
#include <octavo/cuda.cuh>

#include "kernels/cuda_support.cuh"
#include "support/cuda_sessions.cuh"
#include "support/small_model.hpp"
#include "support/test_types.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace octavo {
namespace run_shape_cuda_test {

using ::support::TokenBatch;

using support::Session;

template <class Precision>
class AnyLengthOnCuda : public support::OnGpuIn<Precision> {};

using Precisions = ::support::TestTypes<Bf16, Fp8Recipe<Delayed>, Fp8Recipe<Rowwise>>;
TYPED_TEST_SUITE(AnyLengthOnCuda, Precisions);

TYPED_TEST(AnyLengthOnCuda, IsBitwiseEqualToManualPadding) {
  constexpr Index length = 2039;
  constexpr Index run_length = 2048;
  SessionOptions options = ::support::small_options();
  options.batch = {1, length, 3};
  SessionOptions longer = options;
  longer.batch.tokens = run_length;
  support::GpuContext context;
  context.set_deterministic(true);
  Session<TypeParam, Cuda> session(options, context);
  Session<TypeParam, Cuda> by_hand(longer, context);
  ASSERT_EQ(session.facts().run_shape, longer.batch);
  const std::vector<Index> begins{100, 2000};
  for (unsigned step = 0; step < 3; ++step) {
    const TokenBatch batch = ::support::step_batch(options, step);
    TokenBatch filled = batch;
    for (std::size_t i = 0; i < run_length - length; ++i) {
      filled.tokens.push_back(batch.tokens[i]);
      filled.targets.push_back(-1);
    }
    const StepResult result = session.step({batch.tokens, batch.targets, begins}, 3e-3);
    const StepResult expected = by_hand.step({filled.tokens, filled.targets, begins}, 3e-3);
    EXPECT_FALSE(result.skipped);
    EXPECT_EQ(result.loss, expected.loss) << "step " << step;
    std::vector<float> losses(length), all(run_length);
    (void)session.evaluate({batch.tokens, batch.targets, begins}, losses);
    (void)by_hand.evaluate({filled.tokens, filled.targets, begins}, all);
    all.resize(length);
    EXPECT_EQ(losses, all);
  }
  EXPECT_EQ(support::weight_bits(session, context), support::weight_bits(by_hand, context));
}

template <class Precision>
class TextOfAnyLengthOnCuda : public support::OnGpuIn<Precision> {};

using Recipes = ::support::TestTypes<Bf16, Fp8Recipe<Delayed>, Fp8Recipe<Tensorwise>,
                                     Fp8Recipe<Rowwise>, Fp8Recipe<Blockwise>>;
TYPED_TEST_SUITE(TextOfAnyLengthOnCuda, Recipes);

// The rows of 16 sequences are whole 16s, those of one are not: its logits are wanted all the same.
TYPED_TEST(TextOfAnyLengthOnCuda, LogitsMatchCpu) {
  constexpr Index length = 101;
  SessionOptions options = ::support::small_options();
  options.batch = {16, length};
  const TokenBatch batch = ::support::step_batch(options, 0);
  support::GpuContext context;
  Session<TypeParam, Cuda> session(options, context);
  options.batch.sequences = 1;
  Context<Cpu> host(4);
  Session<TypeParam, Cpu> alone(options, host);
  for (const std::size_t count : {101u, 97u, 50u, 1u}) {
    const auto text = std::span(batch.tokens).first(count);
    std::vector<float> logits(static_cast<std::size_t>(::support::small.vocabulary));
    std::vector<float> expected(logits.size());
    session.next_token_logits(text, logits);
    alone.next_token_logits(text, expected);
    float largest = 0;
    for (const float logit : expected) largest = std::max(largest, std::abs(logit));
    for (std::size_t i = 0; i < logits.size(); ++i) {
      ASSERT_NEAR(logits[i], expected[i], 0.05f * largest) << i << " after " << count;
    }
  }
}

}  // namespace run_shape_cuda_test
}  // namespace octavo
