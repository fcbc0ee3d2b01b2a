// What TokenBatches tells a session of documents.
#include <octavo/run/token_batches.hpp>
#include <octavo/session/state.hpp>

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "support/session_stub.hpp"
#include "support/small_model.hpp"

namespace token_batches_test {

using namespace octavo;

/// Lines of 5 tokens, the last of which is 0.
std::vector<std::uint8_t> lines(std::size_t tokens) {
  std::vector<std::uint8_t> text;
  for (std::size_t i = 0; i < tokens; ++i) {
    text.push_back(i % 5 == 4 ? std::uint8_t{0} : static_cast<std::uint8_t>(1 + i % 90));
  }
  return text;
}

TokenBatchesOptions options_of(BatchShape batch) {
  TokenBatchesOptions options;
  options.batch = batch;
  options.document_end = 0;
  return options;
}

SessionOptions session_options(BatchShape batch) {
  SessionOptions options = support::small_options();
  options.batch = batch;
  return options;
}

// Of 16 tokens in lines of 5, three or four are a line's last; what follows each is no target.
TEST(TokenBatches, TokenAfterDocumentEndIsNotTarget) {
  Context<Cpu> context{1};
  const BatchShape batch{2, 8, 8};
  const std::vector<std::uint8_t> text = lines(200);
  TokenBatches batches(text, options_of(batch));
  support::SmallSession<Bf16> session(session_options(batch), context);
  const LossSum divided = batches.evaluate(session);
  TokenBatchesOptions plain = options_of(batch);
  plain.document_end.reset();
  TokenBatches whole(text, plain);
  const LossSum all = whole.evaluate(session);
  const std::size_t ends = batches.validation_tokens() / 5;
  EXPECT_EQ(all.tokens, static_cast<Index>(batches.validation_tokens()) - 1);
  EXPECT_NEAR(static_cast<double>(all.tokens - divided.tokens), static_cast<double>(ends), 1.0);
  EXPECT_NE(all.tokens % batch.rows(), 0) << "the last batch is to be filled with the end's token";
  EXPECT_FALSE(batches.step(session, 1e-3).skipped);
}

// Where documents end, steps are others and losses of an evaluation, too.
TEST(TokenBatches, RejectStateOfOtherDocumentEnds) {
  const std::vector<std::uint8_t> text = lines(200);
  const BatchShape batch{2, 8, 16};
  TokenBatches batches(text, options_of(batch));
  const SavedState saved = save_state_sync(batches.state());
  const auto refused = [&](const TokenBatchesOptions& options) -> std::string {
    TokenBatches other(text, options);
    EXPECT_NE(other.validation_hash(), batches.validation_hash());
    try {
      load_state_sync(saved, other.state());
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "it was loaded";
  };
  TokenBatchesOptions options = options_of(batch);
  TokenBatches same(text, options);
  EXPECT_EQ(same.validation_hash(), batches.validation_hash());
  load_state_sync(saved, same.state());
  options.document_end = 1;
  EXPECT_NE(refused(options).find("with documents that end in 1"), std::string::npos);
  options.document_end.reset();
  EXPECT_NE(refused(options).find("with documents that end in 0"), std::string::npos);
}

TEST(TokenBatches, RejectMoreDocumentsThanShapeAllows) {
  const std::vector<std::uint8_t> text = lines(200);
  EXPECT_NO_THROW(TokenBatches(text, options_of({2, 8, 6})));
  try {
    const TokenBatches batches(text, options_of({2, 8, 5}));
    ADD_FAILURE() << "five documents are enough";
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("may have up to 6 documents"), std::string::npos)
        << error.what();
  }
}

// Those that only evaluations have, too.
TEST(TokenBatches, CountDocumentsOfValidationPart) {
  std::vector<std::uint8_t> text(200, 1);
  for (std::size_t i = 185; i < 200; i += 2) text[i] = 0;
  EXPECT_THROW(TokenBatches(text, options_of({1, 8, 1})), ConfigError);
  EXPECT_NO_THROW(TokenBatches(text, options_of({1, 8, 5})));
}

/// Sees to it that an evaluation was begun since the last step.
struct BegunEvaluations final : support::SessionStub {
  StepResult step(const Batch&, double) override {
    is_ready = false;
    return {};
  }
  void begin_evaluation() override { is_ready = true; }
  LossSum evaluate(const Batch&, std::span<float>) override {
    EXPECT_TRUE(is_ready) << "weights may have moved";
    ++evaluated;
    return {};
  }

  bool is_ready = false;
  int evaluated = 0;
};

// Sessions are told that an evaluation begins, whether or not they would see for themselves.
TEST(TokenBatches, AnnounceEveryEvaluation) {
  const std::vector<std::uint8_t> text = lines(330);
  TokenBatches batches(text, options_of({1, 16, 5}));
  BegunEvaluations session;
  for (int i = 1; i <= 2; ++i) {
    (void)batches.step(session, 1e-3);
    const int before = session.evaluated;
    (void)batches.evaluate(session);
    EXPECT_GT(session.evaluated, before + 1);
  }
}

/// The losses of whole batches of one sequence of `length` tokens, from token `first` of the text
/// on, which the test divides itself, by the rule that a line is a document.
LossSum evaluate_lines(TrainingSession& session, const std::vector<std::uint8_t>& text,
                       std::size_t first, std::size_t length) {
  LossSum expected;
  session.begin_evaluation();
  for (; first + length < text.size(); first += length) {
    std::vector<std::int32_t> tokens;
    std::vector<std::int32_t> targets;
    std::vector<Index> begins;
    for (std::size_t i = first; i < first + length; ++i) {
      if (i % 5 == 0) begins.push_back(static_cast<Index>(i - first));
      tokens.push_back(text[i]);
      targets.push_back(i % 5 == 4 ? -1 : std::int32_t{text[i + 1]});
    }
    const LossSum one = session.evaluate({tokens, targets, begins});
    expected.sum += one.sum;
    expected.tokens += one.tokens;
  }
  return expected;
}

TEST(TokenBatches, PassDocumentsToSession) {
  Context<Cpu> context{1};
  const BatchShape batch{1, 20, 5};
  const std::vector<std::uint8_t> text = lines(411);
  support::SmallSession<Bf16> session(session_options(batch), context);
  TokenBatches batches(text, options_of(batch));
  const LossSum loss = batches.evaluate(session);
  const LossSum expected = evaluate_lines(session, text, batches.training_tokens(), 20);
  EXPECT_EQ(loss.tokens, expected.tokens);
  EXPECT_EQ(loss.sum, expected.sum);
}

// A step moves the weights; their quantised copies are those of before until they are made anew.
TEST(TokenBatches, EvaluationUsesCurrentWeights) {
  Context<Cpu> context{1};
  const BatchShape batch{1, 16, 5};
  const std::vector<std::uint8_t> text = lines(330);
  support::SmallSession<Fp8Recipe<Tensorwise>> session(session_options(batch), context);
  TokenBatches batches(text, options_of(batch));
  EXPECT_FALSE(batches.step(session, 1e-2).skipped);
  const LossSum loss = batches.evaluate(session);
  const LossSum expected = evaluate_lines(session, text, batches.training_tokens(), 16);
  EXPECT_GT(expected.tokens, 16);
  EXPECT_EQ(loss.tokens, expected.tokens);
  EXPECT_EQ(loss.sum, expected.sum);
}

/// Keeps the batch of the last step.
struct NotedBatch final : support::SessionStub {
  StepResult step(const Batch& batch, double) override {
    tokens.assign(batch.tokens.begin(), batch.tokens.end());
    targets.assign(batch.targets.begin(), batch.targets.end());
    documents.assign(batch.documents.begin(), batch.documents.end());
    return {};
  }

  std::vector<std::int32_t> tokens, targets;
  std::vector<Index> documents;
};

TEST(TokenBatches, DivideEveryMicroBatchIntoDocuments) {
  TokenBatchesOptions options = options_of({2, 8, 8});
  options.micro_batches = 2;
  const std::vector<std::uint8_t> text = lines(400);
  TokenBatches batches(text, options);
  NotedBatch session;
  (void)batches.step(session, 1e-3);
  ASSERT_EQ(session.tokens.size(), 32u);
  std::vector<Index> begins;
  for (std::size_t i = 0; i < 32; ++i) {
    const bool ends_sequence = i % 8 == 7;
    if (session.tokens[i] == 0) {
      EXPECT_EQ(session.targets[i], -1) << i;
      if (!ends_sequence) begins.push_back(static_cast<Index>(i) + 1);
    } else if (!ends_sequence) {
      EXPECT_EQ(session.targets[i], session.tokens[i + 1]) << i;
    }
  }
  EXPECT_EQ(session.documents, begins);
  ASSERT_FALSE(begins.empty());
  EXPECT_GT(begins.back(), 16) << "the second micro-batch is to have a document's end";
}

TEST(TokenBatches, ThrowForMoreDocumentsThanSessionAllows) {
  Context<Cpu> context{1};
  const std::vector<std::uint8_t> text = lines(400);
  TokenBatches batches(text, options_of({1, 20, 5}));
  support::SmallSession<Bf16> few(session_options({1, 20, 3}), context);
  EXPECT_THROW((void)batches.step(few, 1e-3), ConfigError);
  support::SmallSession<Bf16> none(session_options({1, 20}), context);
  EXPECT_THROW((void)batches.step(none, 1e-3), ConfigError);
}

}  // namespace token_batches_test
