// Sequences of any length: what they run as, and that what follows them changes nothing of theirs.
#include <octavo/attention/cuda/workspace.hpp>
#include <octavo/gemm/cuda/limits.hpp>
#include <octavo/models/models.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "support/small_model.hpp"

namespace run_shape_test {

using namespace octavo;
using support::SmallSession;
using support::TokenBatch;

using Delayed8b = Fp8Recipe<Delayed>;

template <class Precision, Device D, auto Config = llama3_8b, int Degree = 1>
Index length(Index sequences, Index tokens) {
  using Model = PresetModel<Config, Precision, D, StorageOf<Precision>, TensorParallel<Degree>>;
  return Model::run_shape({sequences, tokens}).tokens;
}

TEST(RunShape, RoundsRowsTo16IfAnyLayerQuantises) {
  EXPECT_EQ((length<Delayed8b, Cpu>(1, 40)), 48);
  EXPECT_EQ((length<Delayed8b, Cpu>(2, 40)), 40);
  EXPECT_EQ((length<Delayed8b, Cpu>(3, 5)), 16);
  EXPECT_EQ((length<Delayed8b, Cpu>(6, 5)), 8);
  EXPECT_EQ((length<Delayed8b, Cpu>(16, 5)), 5);
  EXPECT_EQ((length<Bf16, Cpu>(3, 5)), 5);
  EXPECT_EQ((length<Layerwise<Bf16, Head<Delayed8b>>, Cpu>(3, 5)), 16);
  EXPECT_EQ((length<Layerwise<Delayed8b, First<1, Bf16>>, Cpu>(3, 5)), 16);
  EXPECT_EQ((length<Lora<Delayed8b>, Cpu>(3, 5)), 16);
  EXPECT_EQ((length<Lora<Bf16>, Cpu>(3, 5)), 5);
}

TEST(RunShape, RoundsRowsTo64OnCudaIfNearlyFree) {
  EXPECT_EQ((length<Delayed8b, Cuda>(1, 8144)), 8192);
  EXPECT_EQ((length<Delayed8b, Cuda>(1, 8143)), 8192);
  EXPECT_EQ((length<Bf16, Cuda>(1, 8143)), 8192);
  EXPECT_EQ((length<Bf16, Cpu>(1, 8143)), 8143);
  EXPECT_EQ((length<Delayed8b, Cuda>(4, 2044)), 2048);
  EXPECT_EQ((length<Delayed8b, Cuda>(1, 8128)), 8128);
  EXPECT_EQ((length<Delayed8b, Cuda>(1, 1000)), 1008);  // 1024 is more than a 64th longer
  EXPECT_EQ((length<Bf16, Cuda>(1, 1000)), 1000);
  EXPECT_EQ((length<Bf16, Cuda>(1, 1009)), 1024);
}

TEST(RunShape, StaysWithinPositionsOfModel) {
  EXPECT_EQ((length<Delayed8b, Cuda, gpt2_124m>(1, 1023)), 1024);
  EXPECT_EQ((length<Delayed8b, Cuda, gpt2_124m>(1, 1025)), 1025);
}

TEST(RunShape, SupportsTensorParallelism) {
  EXPECT_EQ((length<Bf16, Cpu, llama3_8b, 4>(1, 33)), 36);
  EXPECT_EQ((length<Delayed8b, Cpu, llama3_8b, 4>(1, 33)), 48);
}

TEST(RunShape, IsIdempotent) {
  for (Index tokens = 1; tokens < 20000; tokens += tokens < 300 ? 1 : 37) {
    for (const Index sequences : {1, 3, 4}) {
      const Index once = length<Delayed8b, Cuda>(sequences, tokens);
      EXPECT_EQ((length<Delayed8b, Cuda>(sequences, once)), once) << tokens;
      EXPECT_GE(once, tokens);
      EXPECT_EQ(sequences * once % 16, 0);
    }
  }
}

TEST(RunShape, KeepsInvalidLengths) {
  EXPECT_EQ((length<Delayed8b, Cuda>(1, -20)), -20);
  EXPECT_EQ((length<Delayed8b, Cpu>(3, -20)), -20);
  Context<Cpu> context{1};
  SessionOptions options = support::small_options();
  options.batch.tokens = -20;
  try {
    const SmallSession<Fp8Recipe<Delayed>> session(options, context);
    FAIL() << "nothing is said";
  } catch (const ConfigError& error) {
    EXPECT_NE(
        std::string(error.what())
            .find("the sequence length must be at least 1, but is -20; pass at least 1 token"),
        std::string::npos)
        << error.what();
  }
}

TEST(RunShape, NoteReportsPadding) {
  EXPECT_EQ(run_shape_note(48, {1, 48}), "");
  EXPECT_EQ(run_shape_note(40, {1, 48}),
            "sequences of 40 tokens are padded to 48, as FP8 GEMMs, tensor parallelism or fast "
            "GEMMs require");
}

/// Says of itself that its sequences are to be shorter.
struct Shortened : PresetModel<support::small, Fp32, Cpu> {
  using Base = PresetModel<support::small, Fp32, Cpu>;
  using Base::Base;
  static BatchShape run_shape(BatchShape batch) {
    batch.tokens -= 1;
    return batch;
  }
};

TEST(RunShape, SessionRejectsModelThatShortensSequences) {
  Context<Cpu> context{1};
  try {
    ModelSession<Shortened> session(support::small_options(), context);
    FAIL() << "nothing is said";
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("it may only lengthen sequences"), std::string::npos)
        << error.what();
  }
}

/// Says that batches are to run with so many more sequences, tokens and documents.
template <Index Sequences, Index Tokens, Index Documents>
struct Changed {
  static ModelFacts facts() { return {.name = "changed"}; }
  static BatchShape run_shape(BatchShape batch) {
    return {batch.sequences + Sequences, batch.tokens + Tokens, batch.most_documents + Documents};
  }
};

TEST(RunShape, MayOnlyLengthenSequences) {
  SessionOptions options = support::small_options();
  options.batch = {2, 5, 3};
  EXPECT_EQ((octavo::detail::with_run_shape<Changed<0, 3, 0>>(options).batch.tokens), 8);
  EXPECT_EQ((octavo::detail::with_run_shape<Changed<0, 0, 0>>(options).batch.tokens), 5);
  EXPECT_THROW((void)(octavo::detail::with_run_shape<Changed<0, -1, 0>>(options)), UsageError);
  EXPECT_THROW((void)(octavo::detail::with_run_shape<Changed<1, 0, 0>>(options)), UsageError);
  EXPECT_THROW((void)(octavo::detail::with_run_shape<Changed<0, 0, 1>>(options)), UsageError);
}

/// The batch with sequences of `to` tokens in place of `from`: each goes on with itself.
TokenBatch filled(const TokenBatch& batch, std::size_t from, std::size_t to) {
  TokenBatch result;
  for (std::size_t begin = 0; begin < batch.tokens.size(); begin += from) {
    for (std::size_t i = 0; i < to; ++i) {
      result.tokens.push_back(batch.tokens[begin + i % from]);
      result.targets.push_back(i < from ? batch.targets[begin + i] : -1);
    }
  }
  return result;
}

/// Steps of 3 x 5 tokens are those of 3 x 16 that are filled by hand, to the bit.
TEST(AnyLength, IsBitwiseEqualToManualPadding) {
  for (const bool documents : {false, true}) {
    SessionOptions options = support::small_options();
    options.micro_batches = 2;
    options.batch = {3, 5, documents ? 6 : 0};
    SessionOptions longer = options;
    longer.batch.tokens = 16;
    Context<Cpu> context{1};
    using Session = SmallSession<Fp8Recipe<Delayed>>;
    Session session(options, context);
    Session by_hand(longer, context);
    ASSERT_EQ(session.facts().run_shape, longer.batch);
    const std::vector<Index> begins =
        documents ? std::vector<Index>{3, 10, 17} : std::vector<Index>{};
    const std::vector<Index> their_begins =
        documents ? std::vector<Index>{3, 32, 3 * 16 + 2} : std::vector<Index>{};
    for (unsigned step = 0; step < 4; ++step) {
      const TokenBatch batch = support::step_batch(options, step);
      const TokenBatch same = filled(batch, 5, 16);
      const StepResult result = session.step({batch.tokens, batch.targets, begins}, 3e-3);
      EXPECT_EQ(result.loss, by_hand.step({same.tokens, same.targets, their_begins}, 3e-3).loss);
      EXPECT_FALSE(result.skipped);
    }
    EXPECT_EQ(support::weights(session), support::weights(by_hand));
    EXPECT_EQ(support::scaling_state(session), support::scaling_state(by_hand));
  }
}

/// With a scale a row nothing of a sequence depends on what follows it: its losses are those that
/// it has beside another sequence, in a batch that needs no filler.
TEST(AnyLength, LossesAreIndependentOfPadding) {
  SessionOptions alone = support::small_options();
  alone.batch = {1, 40};
  SessionOptions pair = alone;
  pair.batch = {2, 40};
  Context<Cpu> context{1};
  using Session = SmallSession<Fp8Recipe<Rowwise>>;
  Session session(alone, context);
  Session both(pair, context);
  ASSERT_EQ(session.facts().run_shape.tokens, 48);
  ASSERT_EQ(both.facts().run_shape, pair.batch);
  const TokenBatch batch = support::step_batch(pair, 0);
  std::vector<float> losses(80);
  (void)both.evaluate({batch.tokens, batch.targets}, losses);
  for (std::size_t sequence : {0u, 1u}) {
    const auto part = [&](const std::vector<std::int32_t>& of) {
      return std::span(of).subspan(40 * sequence, 40);
    };
    std::vector<float> own(40);
    const LossSum sum = session.evaluate({part(batch.tokens), part(batch.targets)}, own);
    EXPECT_EQ(sum.tokens, 40);
    EXPECT_TRUE(
        std::equal(own.begin(), own.end(), losses.begin() + 40 * static_cast<int>(sequence)));
  }
  // Several sequences, of which each has its own rows of losses.
  SessionOptions three = alone;
  three.batch = {3, 37};
  Session odd(three, context);
  const TokenBatch own_batch = support::step_batch(three, 1);
  std::vector<float> of_three(3 * 37);
  const LossSum sum = odd.evaluate({own_batch.tokens, own_batch.targets}, of_three);
  double total = 0;
  for (const float loss : of_three) {
    EXPECT_GT(loss, 0.0f);
    total += static_cast<double>(loss);
  }
  EXPECT_NEAR(total, sum.sum, 1e-4);
}

/// Losses of one step, and the weights after it, of 40 tokens that are filled up by hand.
template <class Precision>
auto after_filler(unsigned offset) {
  SessionOptions options = support::small_options();
  options.batch = {1, 40};
  const TokenBatch batch = support::step_batch(options, 0);
  options.batch.tokens = 48;
  TokenBatch longer = filled(batch, 40, 48);
  for (std::size_t i = 40; i < 48; ++i) {
    longer.tokens[i] = static_cast<std::int32_t>(offset + i) % support::small.vocabulary;
  }
  Context<Cpu> context{1};
  SmallSession<Precision> session(options, context);
  const StepResult result = session.step({longer.tokens, longer.targets}, 1e-3);
  return std::tuple(result.loss, result.gradient_norm, support::weights(session));
}

TEST(AnyLength, FillerDoesNotAffectGradients) {
  EXPECT_EQ(after_filler<Fp32>(0), after_filler<Fp32>(17));
  EXPECT_EQ(after_filler<Bf16>(0), after_filler<Bf16>(17));
}

/// Gradients of weights sum over rows, which share a scale a feature: filler may round them
/// otherwise, by far less than the 2^-4 that E4M3 may round a value by.
TEST(AnyLength, FillerAffectsFp8GradientsOnlyByRounding) {
  const auto one = after_filler<Fp8Recipe<Rowwise>>(0);
  const auto other = after_filler<Fp8Recipe<Rowwise>>(17);
  EXPECT_EQ(std::get<0>(one), std::get<0>(other));
  EXPECT_NEAR(std::get<1>(one), std::get<1>(other), 1e-3 * std::get<1>(one));
}

TEST(AnyLength, GeneratesUpToMaximumLength) {
  SessionOptions options = support::small_options();
  options.batch = {1, 41};
  Context<Cpu> context{1};
  SmallSession<Fp8Recipe<Rowwise>> session(options, context);
  const TokenBatch batch = support::step_batch(options, 0);
  std::vector<float> logits(static_cast<std::size_t>(support::small.vocabulary));
  session.next_token_logits(batch.tokens, logits);
  EXPECT_NE(logits.front(), logits.back());
  std::vector<std::int32_t> more(batch.tokens);
  more.push_back(1);
  EXPECT_THROW(session.next_token_logits(more, logits), ShapeError);
}

}  // namespace run_shape_test
