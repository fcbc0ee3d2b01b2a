// What TokenBatches tells a session of documents.
#include <octavo/train/token_batches.hpp>

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

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
TEST(TokenBatches, WhatFollowsADocumentsEndIsNoTarget) {
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

TEST(TokenBatches, MoreDocumentsThanTheShapeAllowsAreRefusedAtOnce) {
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

// Against batches that the test divides itself, by the rule that a line is a document.
TEST(TokenBatches, DocumentsReachTheSession) {
  Context<Cpu> context{1};
  const BatchShape batch{1, 20, 5};
  const std::vector<std::uint8_t> text = lines(411);
  support::SmallSession<Bf16> session(session_options(batch), context);
  TokenBatches batches(text, options_of(batch));
  const LossSum loss = batches.evaluate(session);
  LossSum expected;
  session.begin_evaluation();
  for (std::size_t first = batches.training_tokens(); first + 20 < text.size(); first += 20) {
    std::vector<std::int32_t> tokens;
    std::vector<std::int32_t> targets;
    std::vector<Index> begins;
    for (std::size_t i = first; i < first + 20; ++i) {
      if (i % 5 == 0) begins.push_back(static_cast<Index>(i - first));
      tokens.push_back(text[i]);
      targets.push_back(i % 5 == 4 ? -1 : std::int32_t{text[i + 1]});
    }
    const LossSum one = session.evaluate({tokens, targets, begins});
    expected.sum += one.sum;
    expected.tokens += one.tokens;
  }
  EXPECT_EQ(loss.tokens, expected.tokens);
  EXPECT_EQ(loss.sum, expected.sum);
}

TEST(TokenBatches, MoreDocumentsThanTheSessionAllowsAreAnError) {
  Context<Cpu> context{1};
  const std::vector<std::uint8_t> text = lines(400);
  TokenBatches batches(text, options_of({1, 20, 5}));
  support::SmallSession<Bf16> few(session_options({1, 20, 3}), context);
  EXPECT_THROW((void)batches.step(few, 1e-3), ConfigError);
  support::SmallSession<Bf16> none(session_options({1, 20}), context);
  EXPECT_THROW((void)batches.step(none, 1e-3), ConfigError);
}

}  // namespace token_batches_test
