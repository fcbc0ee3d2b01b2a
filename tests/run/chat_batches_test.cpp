// Batches of chats: what sessions are given, shared among ranks, evaluated and gone on with.
#include <octavo/run/chat_batches.hpp>
#include <octavo/session/state.hpp>

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <vector>

#include "support/session_stub.hpp"

namespace chat_batches_test {

using namespace octavo;

/// Keeps what it is given.
class Recorder final : public support::SessionStub {
 public:
  StepResult step(const Batch& batch, double rate) override {
    for (const Index document : batch.documents)
      documents.push_back(document + static_cast<Index>(tokens.size()));
    tokens.insert(tokens.end(), batch.tokens.begin(), batch.tokens.end());
    targets.insert(targets.end(), batch.targets.begin(), batch.targets.end());
    learning_rate = rate;
    return {};
  }
  void begin_evaluation() override { ++begun; }
  using TrainingSession::evaluate;
  LossSum evaluate(const Batch& batch, std::span<float>) override {
    EXPECT_EQ(batch.tokens.size(), 24u);
    std::vector<Index> begins;
    for (std::size_t i = 0; i < batch.tokens.size(); ++i)
      if (i % 12 != 0 && firsts.contains(batch.tokens[i])) begins.push_back(static_cast<Index>(i));
    EXPECT_EQ(std::vector<Index>(batch.documents.begin(), batch.documents.end()), begins);
    LossSum sum;
    for (const std::int32_t target : batch.targets) {
      if (target < 0) continue;
      sum.sum += target;
      ++sum.tokens;
    }
    ++evaluations;
    return sum;
  }

  std::vector<std::int32_t> tokens;
  std::vector<std::int32_t> targets;
  std::vector<Index> documents;
  std::set<std::int32_t> firsts;  ///< tokens with which chats begin that are evaluated
  double learning_rate = 0;
  int begun = 0;
  int evaluations = 0;
};

/// Chats of several lengths up to 12, of tokens that no other has.
Chats chats(Index count, std::int32_t first) {
  Chats chats;
  for (Index i = 0; i < count; ++i) {
    ChatTokens chat;
    for (Index j = 0; j < 2 + i * 5 % 11; ++j) {
      chat.tokens.push_back(first++);
      chat.targets.push_back(j % 2 == 0 ? first : -1);
    }
    chats.add(chat);
  }
  return chats;
}

/// The tokens with which they begin.
std::set<std::int32_t> first_tokens(const Chats& chats, std::int32_t first) {
  std::set<std::int32_t> firsts;
  for (Index chat = 0; chat < chats.size(); ++chat) {
    firsts.insert(first);
    first += static_cast<std::int32_t>(chats.length(chat));
  }
  return firsts;
}

ChatBatches batches(int rank = 0, int ranks = 1, Index micro_batches = 6, Index evaluated = 99,
                    std::uint64_t seed = 1) {
  return {chats(50, 1),
          chats(17, 1000),
          {.batch = {.sequences = 2, .tokens = 12, .most_documents = 7},
           .micro_batches = micro_batches,
           .rank = rank,
           .ranks = ranks,
           .validation_batches = evaluated,
           .seed = seed}};
}

TEST(ChatBatches, PassEachChatOncePerEpoch) {
  ChatBatches all = batches();
  const Index steps = all.steps_of(2);
  Recorder session;
  for (Index step = 0; step < steps; ++step) {
    EXPECT_LT(all.epoch(), 2);
    (void)all.step(session, 0.5);
  }
  EXPECT_GE(all.epoch(), 2);
  EXPECT_LT(all.epoch(), 2.5);
  EXPECT_EQ(session.learning_rate, 0.5);
  EXPECT_EQ(session.tokens.size(), static_cast<std::size_t>(steps * 2 * 12 * 6));
  EXPECT_EQ(all.tokens_in_step(), 2 * 12 * 6);
  std::vector<int> seen(static_cast<std::size_t>(all.train().tokens()) + 1);
  for (const std::int32_t token : session.tokens) ++seen.at(static_cast<std::size_t>(token));
  for (std::size_t token = 1; token < seen.size(); ++token) {
    EXPECT_GE(seen[token], 2) << token;
    EXPECT_LE(seen[token], 3) << token;
  }
}

TEST(ChatBatches, MarkChatBoundaries) {
  ChatBatches all = batches();
  Recorder session;
  (void)all.step(session, 0);
  const std::set<std::int32_t> firsts = first_tokens(all.train(), 1);
  std::vector<Index> begins;
  for (std::size_t i = 0; i < session.tokens.size(); ++i)
    if (i % 12 != 0 && firsts.contains(session.tokens[i])) begins.push_back(static_cast<Index>(i));
  EXPECT_FALSE(begins.empty());
  EXPECT_EQ(session.documents, begins);
}

TEST(ChatBatches, RanksSplitStepsOfOneRank) {
  ChatBatches all = batches();
  std::vector<ChatBatches> parts;
  parts.reserve(3);
  for (int rank = 0; rank < 3; ++rank) parts.push_back(batches(rank, 3, 2));
  for (int step = 0; step < 5; ++step) {
    Recorder one;
    (void)all.step(one, 0);
    Recorder several;
    for (ChatBatches& part : parts) (void)part.step(several, 0);
    EXPECT_EQ(one.tokens, several.tokens);
    EXPECT_EQ(one.targets, several.targets);
    EXPECT_EQ(one.documents, several.documents);
  }
  EXPECT_EQ(all.epoch(), parts[2].epoch());
  EXPECT_EQ(all.tokens_in_step(), parts[0].tokens_in_step());
  EXPECT_EQ(all.steps_of(3), parts[1].steps_of(3));
  EXPECT_EQ(all.hash(), parts[1].hash());
}

TEST(ChatBatches, RanksEvaluateEachTargetOnceAndEquallyOften) {
  ChatBatches all = batches();
  const std::set<std::int32_t> firsts = first_tokens(all.validation(), 1000);
  Recorder one;
  one.firsts = firsts;
  const LossSum whole = all.evaluate(one);
  EXPECT_EQ(one.begun, 1);
  EXPECT_EQ(whole.tokens, all.validation().targets());
  EXPECT_NE(one.evaluations % 4, 0) << "some rank is to have no batch left";
  LossSum total;
  for (int rank = 0; rank < 4; ++rank) {
    ChatBatches part = batches(rank, 4, 1);
    Recorder recorder;
    recorder.firsts = firsts;
    const LossSum own = part.evaluate(recorder);
    total.sum += own.sum;
    total.tokens += own.tokens;
    EXPECT_EQ(recorder.evaluations, (one.evaluations + 3) / 4);
  }
  EXPECT_EQ(total.sum, whole.sum);
  EXPECT_EQ(total.tokens, whole.tokens);
  const auto limited = [&](int ranks) {
    Index tokens = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      Recorder few;
      few.firsts = firsts;
      tokens += batches(rank, ranks, 1, 2).evaluate(few).tokens;
      EXPECT_EQ(few.evaluations, (2 + ranks - 1) / ranks);
    }
    return tokens;
  };
  EXPECT_LT(limited(1), whole.tokens);
  EXPECT_EQ(limited(4), limited(1));
}

TEST(ChatBatches, ResumeWithAnyNumberOfRanks) {
  ChatBatches whole = batches(0, 1, 4);
  SavedState saved;
  for (int step = 0; step < 20; ++step) {
    const int ranks = 1 << step % 3;
    std::vector<ChatBatches> parts;
    parts.reserve(static_cast<std::size_t>(ranks));
    for (int rank = 0; rank < ranks; ++rank) parts.push_back(batches(rank, ranks, 4 / ranks));
    Recorder expected;
    Recorder found;
    (void)whole.step(expected, 0);
    for (ChatBatches& part : parts) {
      if (step != 0) load_state_sync(saved, part.state());
      (void)part.step(found, 0);
    }
    EXPECT_EQ(found.tokens, expected.tokens) << step;
    saved = save_state_sync(parts.front().state());
    for (ChatBatches& part : parts) EXPECT_EQ(save_state_sync(part.state()), saved);
    EXPECT_EQ(parts.back().epoch(), whole.epoch());
  }
  EXPECT_GT(whole.epoch(), 2);
}

TEST(ChatBatches, RejectRanksOutOfRange) {
  EXPECT_THROW(batches(0, 0), ConfigError);
  EXPECT_THROW(batches(2, 2), ConfigError);
  EXPECT_THROW(batches(-1, 2), ConfigError);
}

TEST(ChatBatches, RejectStateOfOtherChats) {
  ChatBatches first = batches();
  Recorder session;
  (void)first.step(session, 0);
  const SavedState saved = save_state_sync(first.state());
  ChatBatches other = batches(0, 1, 6, 99, 2);
  EXPECT_THROW(load_state_sync(saved, other.state()), ConfigError);
  const ChatBatches more(
      chats(50, 1), chats(18, 1000),
      {.batch = {.sequences = 2, .tokens = 12, .most_documents = 7}, .micro_batches = 6});
  EXPECT_NE(more.hash(), first.hash()) << "validation counts, too";
  EXPECT_NE(more.validation_hash(), first.validation_hash());
  EXPECT_EQ(other.validation_hash(), first.validation_hash());
  EXPECT_NE(other.hash(), first.hash()) << "the order counts, too";
}

TEST(ChatBatches, PadSequencesWithFillerToken) {
  ChatBatches all(chats(1, 1), chats(1, 1000),
                  {.batch = {.sequences = 1, .tokens = 12, .most_documents = 7}, .filler = 99});
  Recorder session;
  (void)all.step(session, 0);
  std::vector<std::int32_t> expected(12, 99);
  expected[0] = 1;
  expected[1] = 2;
  EXPECT_EQ(session.tokens, expected);
}

TEST(ChatBatches, RequireOneDocumentPerSequence) {
  EXPECT_THROW(ChatBatches(chats(9, 1), chats(9, 1), {.batch = {2, 12, 1}}), ConfigError);
  EXPECT_NO_THROW(ChatBatches(chats(9, 1), chats(9, 1), {.batch = {2, 12, 2}}));
}

}  // namespace chat_batches_test
