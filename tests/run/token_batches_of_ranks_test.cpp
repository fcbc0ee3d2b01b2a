// Ranks share a step's sequences and an evaluation's batches without a gap or an overlap.
#include <octavo/run/token_batches.hpp>
#include <octavo/session/state.hpp>

#include <gtest/gtest.h>

#include <cstdint>
#include <utility>
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
  LossSum evaluate(const Batch& batch, std::span<float>) override {
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

TEST(TokenBatchesOfRanks, SplitStepsOfOneRank) {
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

TEST(TokenBatchesOfRanks, EvaluateEachTargetOnceAndEquallyOften) {
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

/// What all ranks together are given in a step.
std::vector<std::int32_t> step_of(std::vector<TokenBatches>& parts) {
  Recorder all;
  for (TokenBatches& part : parts) (void)part.step(all, 0);
  return all.steps;
}

/// So many ranks that share four micro-batches, a mixture of two texts.
std::vector<TokenBatches> ranks_of(const std::vector<std::uint8_t>& bytes, int ranks) {
  std::vector<TokenBatches> parts;
  const Tokens tokens(bytes);
  const std::vector<TokenShare> shares{{"a", tokens.part(0, 1200), 0.8},
                                       {"b", tokens.part(1200, 500), 0.2}};
  parts.reserve(static_cast<std::size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank)
    parts.emplace_back(shares, tokens.part(1700, 300), options_of(rank, ranks, 4 / ranks));
  return parts;
}

// The state that one rank saves serves any number of ranks.
TEST(TokenBatchesOfRanks, ResumeWithAnyNumberOfRanks) {
  const auto bytes = text();
  auto whole = ranks_of(bytes, 1);
  SavedState saved;
  for (int step = 0; step < 60; ++step) {
    auto parts = ranks_of(bytes, 1 << step % 3);
    if (step != 0)
      for (TokenBatches& part : parts) load_state_sync(saved, part.state());
    EXPECT_EQ(step_of(parts), step_of(whole)) << step;
    saved = save_state_sync(parts.front().state());
    for (TokenBatches& part : parts) EXPECT_EQ(save_state_sync(part.state()), saved);
    EXPECT_EQ(parts.back().epoch(), whole.front().epoch());
  }
}

TEST(TokenBatchesOfRanks, RejectStateOfOtherTokens) {
  auto bytes = text();
  auto parts = ranks_of(bytes, 1);
  (void)step_of(parts);
  const SavedState saved = save_state_sync(parts.front().state());
  const std::uint64_t hash = parts.front().hash();
  EXPECT_EQ(ranks_of(bytes, 2).back().hash(), hash);
  bytes[300] ^= 1;
  auto other = ranks_of(bytes, 1);
  EXPECT_THROW(load_state_sync(saved, other.front().state()), ConfigError);
  EXPECT_NE(other.front().hash(), hash);
  bytes[300] ^= 1;
  bytes[1999] ^= 1;
  EXPECT_NE(ranks_of(bytes, 1).front().hash(), hash) << "validation counts, too";
}

TEST(TokenBatchesOfRanks, RejectRanksOutOfRange) {
  const auto bytes = text();
  for (const auto& [rank, ranks] : {std::pair{0, 0}, {0, -1}, {2, 2}, {-1, 2}}) {
    EXPECT_THROW(
        TokenBatches(bytes,
                     {.batch = {.sequences = 2, .tokens = 16}, .rank = rank, .ranks = ranks}),
        ConfigError)
        << rank << " of " << ranks;
    EXPECT_THROW(
        EvaluationBatches(Tokens(bytes),
                          {.batch = {.sequences = 2, .tokens = 16}, .rank = rank, .ranks = ranks}),
        ConfigError)
        << rank << " of " << ranks;
  }
}

}  // namespace token_batches_of_ranks_test
