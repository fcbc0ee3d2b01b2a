// Ranks share a step's sequences and an evaluation's batches without a gap or an overlap.
#include <octavo/train/token_batches.hpp>

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "support/session_stub.hpp"

namespace token_batches_of_ranks_test {

using namespace octavo;

/// Keeps what it is given.
class Recorder final : public support::SessionStub {
 public:
  StepResult step(const Batch& batch, double) override {
    steps.insert(steps.end(), batch.tokens.begin(), batch.tokens.end());
    return {};
  }
  LossSum evaluate(const Batch& batch) override {
    LossSum sum;
    for (const std::int32_t target : batch.targets) {
      if (target < 0) continue;
      sum.sum += target;
      ++sum.tokens;
    }
    evaluations.push_back(sum);
    return sum;
  }

  std::vector<std::int32_t> steps;
  std::vector<LossSum> evaluations;
};

std::vector<std::uint8_t> text() {
  std::vector<std::uint8_t> bytes;
  for (unsigned i = 0; i < 2000; ++i) bytes.push_back(static_cast<std::uint8_t>(i * i % 251));
  return bytes;
}

TokenBatchesOptions options_of(int rank, int ranks, Index micro_batches) {
  TokenBatchesOptions options;
  options.batch = {2, 8};
  options.micro_batches = micro_batches;
  options.rank = rank;
  options.ranks = ranks;
  return options;
}

TEST(TokenBatchesOfRanks, StepsAreThoseOfOneRankInTheOrderOfRanks) {
  const auto bytes = text();
  TokenBatches all(bytes, options_of(0, 1, 6));
  std::vector<TokenBatches> parts;
  parts.reserve(3);
  for (int rank = 0; rank < 3; ++rank) parts.emplace_back(bytes, options_of(rank, 3, 2));
  for (int step = 0; step < 5; ++step) {
    Recorder one;
    (void)all.step(one, 0);
    Recorder several;
    for (TokenBatches& part : parts) (void)part.step(several, 0);
    EXPECT_EQ(one.steps, several.steps);
  }
  EXPECT_EQ(all.tokens_in_step(), parts[0].tokens_in_step());
  EXPECT_EQ(all.epoch(), parts[2].epoch());
}

TEST(TokenBatchesOfRanks, EvaluationsAreCalledEquallyOftenAndCountEachTargetOnce) {
  const auto bytes = text();
  TokenBatches all(bytes, options_of(0, 1, 1));
  Recorder one;
  const LossSum whole = all.evaluate(one);
  LossSum total;
  for (int rank = 0; rank < 3; ++rank) {
    TokenBatches part(bytes, options_of(rank, 3, 1));
    Recorder recorder;
    const LossSum own = part.evaluate(recorder);
    total.sum += own.sum;
    total.tokens += own.tokens;
    EXPECT_EQ(recorder.evaluations.size(), (one.evaluations.size() + 2) / 3) << "rank " << rank;
  }
  EXPECT_NE(one.evaluations.size() % 3, 0u) << "some rank is to have no batch left";
  EXPECT_EQ(total.sum, whole.sum);
  EXPECT_EQ(total.tokens, whole.tokens);
}

}  // namespace token_batches_of_ranks_test
