// The loss of each target of a batch, and what an evaluation before any step needs.
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "support/handing_comm.hpp"
#include "support/llama_weights.hpp"
#include "support/reference_llama.hpp"
#include "support/small_model.hpp"

namespace target_losses_test {

using namespace octavo;
using support::SmallSession;
using support::TokenBatch;

/// -log softmax(logits)[target] of each row, in double precision.
std::vector<double> expected_losses(const reference::Weights& weights, const TokenBatch& batch,
                                    BatchShape shape) {
  const auto vocabulary = static_cast<std::size_t>(support::small.vocabulary);
  const std::vector<double> logits =
      reference::logits(support::reference_config(support::small), weights,
                        {batch.tokens.begin(), batch.tokens.end()},
                        static_cast<int>(shape.sequences), static_cast<int>(shape.tokens));
  std::vector<double> losses;
  for (std::size_t row = 0; row < batch.targets.size(); ++row) {
    const auto own = std::span(logits).subspan(row * vocabulary, vocabulary);
    double total = 0;
    for (const double logit : own) total += std::exp(logit);
    const std::int32_t target = batch.targets[row];
    losses.push_back(target < 0 ? 0.0 : std::log(total) - own[static_cast<std::size_t>(target)]);
  }
  return losses;
}

TEST(TargetLosses, MatchFormula) {
  SessionOptions options = support::small_options();
  options.batch = {2, 24};
  options.model.head_chunk = 20;  // no divisor of the rows
  Context<Cpu> context{1};
  SmallSession<Fp32> session(options, context);
  // Logits of some size.
  for (const WeightInfo& weight : session.weights().list()) {
    if (weight.name != "embedding.weight" && weight.name != "head.weight") continue;
    const auto view = support::weight(session, weight.name);
    for (Index i = 0; i < view.size(); ++i) view.data()[i] *= 20.0f;
  }
  TokenBatch batch = support::step_batch(options, 0);
  for (std::size_t i = 0; i < batch.targets.size(); i += 7) batch.targets[i] = -1;
  std::vector<float> losses(batch.targets.size(), 7.0f);
  const LossSum sum = session.evaluate({batch.tokens, batch.targets}, losses);
  const std::vector<double> expected =
      expected_losses(support::weight_values(session.model()), batch, options.batch);
  double total = 0;
  double largest = 0;
  for (std::size_t i = 0; i < losses.size(); ++i) {
    EXPECT_NEAR(static_cast<double>(losses[i]), expected[i], 1e-5 * (1 + expected[i])) << i;
    total += expected[i];
    largest = std::max(largest, expected[i]);
  }
  EXPECT_GT(largest, 8.0) << "losses are to differ";
  EXPECT_NEAR(sum.sum, total, 1e-5 * total);
  EXPECT_EQ(session.evaluate({batch.tokens, batch.targets}).sum, sum.sum);
  EXPECT_THROW((void)session.evaluate({batch.tokens, batch.targets}, std::span(losses).first(47)),
               ShapeError);
}

// A step of rate 0 is what an evaluation before all others needs.
TEST(TargetLosses, DelayedScalesRequireCalibration) {
  const SessionOptions options = support::small_options();
  Context<Cpu> context{1};
  EXPECT_FALSE((SmallSession<Bf16>(options, context).must_calibrate()));
  SmallSession<Fp8Recipe<Delayed>> session(options, context);
  EXPECT_TRUE(session.must_calibrate());
  const TokenBatch batch = support::step_batch(options, 0);
  const std::vector<std::byte> weights = support::weights(session);
  EXPECT_FALSE(session.step({batch.tokens, batch.targets}, 0.0).skipped);
  EXPECT_FALSE(session.must_calibrate());
  EXPECT_TRUE(support::weights(session) == weights);
}

/// Counts the waits for the device.
class CountingComm final : public support::ForwardingComm {
 public:
  using ForwardingComm::ForwardingComm;
  void wait_sync(const Context& context, const char* what) override {
    ++waits;
    ForwardingComm::wait_sync(context, what);
  }

  int waits = 0;
};

// The next call overwrites the host memory from which the inputs are copied.
TEST(TargetLosses, CalibrationWaitsForDevice) {
  const SessionOptions options = support::small_options();
  Context<Cpu> context{1};
  SelfComm<Cpu> alone;
  CountingComm ranks(alone);
  SmallSession<Fp8Recipe<Delayed>> session(options, context, ranks);
  const TokenBatch batch = support::step_batch(options, 0);
  ranks.waits = 0;
  session.calibrate({batch.tokens, batch.targets});
  EXPECT_EQ(ranks.waits, 1);
}

}  // namespace target_losses_test
