// What a Llama promises beside its gradients: padding, ties, accumulation, memory, causality.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "support/llama_weights.hpp"
#include "support/small_model.hpp"

namespace llama_test {

using octavo::Bf16;
using octavo::Fp32;
using octavo::Index;
using octavo::MasterWeights;
using octavo::MemoryKind;
using octavo::Moments;
using octavo::Recompute;
using octavo::SessionOptions;
using support::TokenBatch;

constexpr octavo::LlamaConfig small_tied = [] {
  octavo::LlamaConfig config = support::small;
  config.tied_embeddings = true;
  return config;
}();

template <octavo::LlamaConfig Config>
using Fp32Session = octavo::ModelSession<octavo::Llama<Config, Fp32, octavo::Cpu>>;

void expect_close(const reference::Weights& a, const reference::Weights& b, double tolerance) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, values] : a) {
    double error = 0;
    double magnitude = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      error = std::max(error, std::abs(values[i] - b.at(name)[i]));
      magnitude = std::max(magnitude, std::abs(values[i]));
    }
    EXPECT_GT(magnitude, 0.0) << name;
    EXPECT_LE(error, tolerance * magnitude) << name;
  }
}

/// Sets the rows beyond the vocabulary, of the embedding and the head.
template <class Session>
void set_padding(Session& session, float value) {
  session.model().visit([&](auto& parameter) {
    if (parameter.weight.extent(0) != support::small.padded_vocabulary()) return;
    if (!parameter.name.starts_with("embedding") && !parameter.name.starts_with("head")) return;
    const auto padding = parameter.weight.rows(
        support::small.vocabulary, parameter.weight.extent(0) - support::small.vocabulary);
    std::fill(padding.data(), padding.data() + padding.size(), value);
  });
}

/// Calls `check(value, gradient)` for every element beyond the vocabulary; returns their number.
template <class Session, class Check>
Index visit_padding(Session& session, const Check& check) {
  Index count = 0;
  session.model().visit([&](auto& parameter) {
    if (!parameter.name.starts_with("embedding") && !parameter.name.starts_with("head")) return;
    const Index begin = support::small.vocabulary * parameter.weight.extent(1);
    for (Index i = begin; i < parameter.weight.size(); ++i, ++count) {
      check(parameter.weight.data()[i], parameter.gradient.data()[i]);
    }
  });
  return count;
}

template <octavo::LlamaConfig Config>
void expect_invisible_padding() {
  const SessionOptions options = support::small_options();
  const TokenBatch batch = support::step_batch(options, 0);
  octavo::Context<octavo::Cpu> context{2};
  Fp32Session<Config> plain(options, context);
  Fp32Session<Config> padded(options, context);
  set_padding(padded, 3.0f);
  const octavo::StepResult a = plain.step({batch.tokens, batch.targets}, 0.0);
  const octavo::StepResult b = padded.step({batch.tokens, batch.targets}, 0.0);
  EXPECT_NEAR(a.loss, std::log(96.0), 0.2) << "a fresh model knows nothing of 96 tokens";
  EXPECT_EQ(a.loss, b.loss);
  EXPECT_EQ(a.gradient_norm, b.gradient_norm);
  EXPECT_TRUE(support::gradients(plain.model()) == support::gradients(padded.model()));
  const auto no_gradient = [](float, float gradient) { ASSERT_EQ(gradient, 0.0f); };
  EXPECT_EQ(visit_padding(padded, no_gradient), 32 * 128 * (Config.tied_embeddings ? 1 : 2));
}

TEST(Llama, PaddedVocabularyIsInvisible) { expect_invisible_padding<support::small>(); }
TEST(Llama, PaddedVocabularyOfATiedTableIsInvisible) { expect_invisible_padding<small_tied>(); }

TEST(Llama, PaddingStaysZeroWhileItTrains) {
  const SessionOptions options = support::small_options();
  octavo::Context<octavo::Cpu> context{2};
  Fp32Session<support::small> session(options, context);
  for (unsigned i = 0; i < 3; ++i) {
    const TokenBatch batch = support::step_batch(options, i);
    EXPECT_FALSE(session.step({batch.tokens, batch.targets}, 1e-2).skipped);
  }
  visit_padding(session, [](float value, float) { ASSERT_EQ(value, 0.0f); });
}

TEST(Llama, RejectsTokensOutsideVocabulary) {
  const SessionOptions options = support::small_options();
  octavo::Context<octavo::Cpu> context{1};
  Fp32Session<support::small> session(options, context);
  for (const std::int32_t wrong : {-1, 96, 127}) {
    TokenBatch batch = support::step_batch(options, 0);
    batch.tokens[5] = wrong;
    EXPECT_THROW((void)session.step({batch.tokens, batch.targets}, 0.0), octavo::ConfigError);
  }
  TokenBatch batch = support::step_batch(options, 0);
  batch.targets[5] = 96;
  EXPECT_THROW((void)session.step({batch.tokens, batch.targets}, 0.0), octavo::ConfigError);
  batch.tokens.pop_back();
  EXPECT_THROW((void)session.step({batch.tokens, batch.targets}, 0.0), octavo::ShapeError);
}

TEST(Llama, TiedEmbeddingsHaveOneTable) {
  octavo::Context<octavo::Cpu> context{1};
  Fp32Session<small_tied> session(support::small_options(), context);
  Index elements = 0;
  session.model().visit([&](auto& parameter) {
    EXPECT_NE(parameter.name, "head.weight");
    elements += parameter.weight.size();
  });
  EXPECT_EQ(elements, small_tied.parameters() + Index{32} * support::small.hidden);
}

/// Bytes of the gradients of the embedding and of all blocks but the last: the first runs.
std::size_t bytes_of_early_gradients(const SessionOptions& options) {
  octavo::Context<octavo::Cpu> context{1};
  Fp32Session<support::small> session(options, context);
  std::size_t bytes = 0;
  int number = 0;
  for (const auto& stage : session.model().parameters()) {
    if (number++ < support::small.layers) bytes += stage.flat->gradients().bytes();
  }
  return bytes;
}

// What a block saved for the backward is more than the gradients of the block before it, here.
TEST(Llama, GradientsReuseMemoryOfDeadActivations) {
  using Model = octavo::Llama<support::small, Fp32, octavo::Cpu>;
  SessionOptions options = support::small_options();
  options.batch = {1, 1024};
  options.micro_batches = 1;
  const octavo::DeviceLimits<octavo::Cpu> limits;
  const std::size_t shared = octavo::plan_memory<Model, octavo::AdamW<>>(options, limits).peak;
  options.micro_batches = 2;
  const std::size_t apart = octavo::plan_memory<Model, octavo::AdamW<>>(options, limits).peak;
  const std::size_t inputs = 2 * 1024 * sizeof(std::int32_t);  // of the second micro-batch
  EXPECT_EQ(shared + bytes_of_early_gradients(options), apart - inputs);
}

TEST(Llama, TwoMicroBatchesEqualOneBatchOfBoth) {
  SessionOptions whole = support::small_options();
  SessionOptions parts = whole;
  parts.batch.sequences = 1;
  parts.micro_batches = 2;
  octavo::Context<octavo::Cpu> context{2};
  Fp32Session<support::small> one(whole, context);
  Fp32Session<support::small> two(parts, context);
  TokenBatch batch = support::step_batch(whole, 0);
  // Parts with unequal numbers of targets still weigh every target alike.
  std::fill(batch.targets.begin(), batch.targets.begin() + 20, -1);
  const octavo::StepResult a = one.step({batch.tokens, batch.targets}, 0.0);
  const octavo::StepResult b = two.step({batch.tokens, batch.targets}, 0.0);
  EXPECT_NEAR(a.loss, b.loss, 1e-6 * a.loss);
  EXPECT_NEAR(a.gradient_norm, b.gradient_norm, 1e-5 * a.gradient_norm);
  expect_close(support::gradients(one.model()), support::gradients(two.model()), 1e-5);
}

TEST(Llama, TiedGradientsAccumulateToo) {
  SessionOptions whole = support::small_options();
  SessionOptions parts = whole;
  parts.batch.sequences = 1;
  parts.micro_batches = 2;
  octavo::Context<octavo::Cpu> context{2};
  Fp32Session<small_tied> two(parts, context);
  for (unsigned i = 0; i < 2; ++i) {
    // New in each round: it has no gradients of a step before.
    Fp32Session<small_tied> one(whole, context);
    const TokenBatch batch = support::step_batch(whole, i);
    EXPECT_FALSE(one.step({batch.tokens, batch.targets}, 0.0).skipped);
    EXPECT_FALSE(two.step({batch.tokens, batch.targets}, 0.0).skipped);
    expect_close(support::gradients(one.model()), support::gradients(two.model()), 1e-5);
  }
}

TEST(Llama, ResultsAreIndependentOfHeadChunk) {
  const SessionOptions whole = support::small_options();
  octavo::Context<octavo::Cpu> context{2};
  Fp32Session<support::small> one(whole, context);
  const TokenBatch batch = support::step_batch(whole, 0);
  const octavo::StepResult expected = one.step({batch.tokens, batch.targets}, 0.0);
  const double loss = one.evaluate({batch.tokens, batch.targets}).mean();
  EXPECT_EQ(one.facts().head_chunks, 1);
  for (const Index chunk : {1, 7, 48, 95}) {
    SCOPED_TRACE("chunk " + std::to_string(chunk));
    SessionOptions chunked = whole;
    chunked.model.head_chunk = chunk;
    Fp32Session<support::small> several(chunked, context);
    const octavo::StepResult result = several.step({batch.tokens, batch.targets}, 0.0);
    EXPECT_EQ(several.facts().head_chunks, (96 + chunk - 1) / chunk);
    EXPECT_NEAR(result.loss, expected.loss, 1e-6 * expected.loss);
    EXPECT_NEAR(several.evaluate({batch.tokens, batch.targets}).mean(), loss, 1e-6 * loss);
    expect_close(support::gradients(one.model()), support::gradients(several.model()), 1e-5);
  }
}

TEST(Llama, RejectsMoreLogitsThanHeadChunk) {
  SessionOptions options = support::small_options();
  options.model.head_chunk = 16;
  octavo::Context<octavo::Cpu> context{2};
  Fp32Session<support::small> session(options, context);
  const TokenBatch batch = support::step_batch(options, 3);
  session.begin_evaluation();
  const auto logits = [&](octavo::BatchShape shape, Index count) {
    octavo::StageHooks<float, float, octavo::Cpu> hooks;
    (void)session.model().logits({batch.tokens.data(), {shape.rows()}}, shape, 0, count, hooks,
                                 context);
  };
  EXPECT_EQ(session.model().logits_rows(), 16);
  EXPECT_NO_THROW(logits({1, 48}, 16));
  EXPECT_THROW(logits({1, 48}, 17), octavo::ShapeError);
  EXPECT_THROW(logits({1, 96}, 1), octavo::ShapeError) << "sequences are of 48 tokens at most";
}

TEST(Llama, PrefixLogitsAreIndependentOfLaterTokens) {
  const SessionOptions options = support::small_options();
  octavo::Context<octavo::Cpu> context{2};
  Fp32Session<support::small> session(options, context);
  TokenBatch batch = support::step_batch(options, 3);
  session.begin_evaluation();
  octavo::StageHooks<float, float, octavo::Cpu> hooks;
  const auto row = [&](Index sequences, Index length, Index index) {
    const octavo::TensorView<const std::int32_t, 1, octavo::Cpu> tokens{batch.tokens.data(),
                                                                        {sequences * length}};
    const auto view = session.model().logits(tokens, {sequences, length}, index, 1, hooks, context);
    return std::vector<float>(view.data(), view.data() + support::small.vocabulary);
  };
  const std::vector<float> prefix = row(1, 20, 19);
  const std::vector<float> within = row(1, 48, 19);
  const std::vector<float> batched = row(2, 48, 19);
  EXPECT_EQ(prefix, within);
  EXPECT_EQ(prefix, batched);
  std::vector<float> next(prefix.size());
  std::vector<float> too_few(next.size() - 1);
  EXPECT_THROW(session.next_token_logits(std::span(batch.tokens).first(20), too_few),
               octavo::ShapeError);
  for (const std::int32_t wrong : {static_cast<std::int32_t>(next.size()), -1}) {
    const std::vector<std::int32_t> beyond{0, wrong};
    EXPECT_THROW(session.next_token_logits(beyond, next), octavo::ConfigError) << wrong;
  }
  session.next_token_logits(std::span(batch.tokens).first(20), next);
  EXPECT_EQ(next, prefix);

  batch.tokens[20] = (batch.tokens[20] + 1) % support::small.vocabulary;
  EXPECT_EQ(row(1, 48, 19), within);
  batch.tokens[19] = (batch.tokens[19] + 1) % support::small.vocabulary;
  EXPECT_NE(row(1, 48, 19), within);
  EXPECT_THROW(session.next_token_logits({}, next), octavo::ShapeError);
  EXPECT_THROW(session.next_token_logits(std::span(batch.tokens).first(49), next),
               octavo::ShapeError);
}

template <class Precision, class Optimizer = octavo::AdamW<>>
octavo::MemoryPlan expect_exact_plan(const SessionOptions& options) {
  using Session = support::SmallSession<Precision, Optimizer>;
  octavo::Context<octavo::Cpu> context{2};
  const octavo::MemoryPlan plan =
      octavo::plan_memory<support::SmallModel<Precision>, Optimizer>(options, context);
  const Session session(options, context);
  EXPECT_EQ(plan.peak, session.facts().allocated_bytes);
  EXPECT_EQ(plan.peak, session.facts().memory.peak);
  EXPECT_EQ(plan.by_kind, session.facts().memory.by_kind);
  EXPECT_EQ(std::accumulate(plan.by_kind.begin(), plan.by_kind.end(), std::size_t{0}), plan.peak);
  return plan;
}

template <class Precision>
void expect_less_memory_with_more_recomputation() {
  SessionOptions options = support::small_options();
  options.batch = {4, 64};
  std::size_t before = ~std::size_t{0};
  for (const Recompute policy :
       {Recompute::none, Recompute::norms, Recompute::swiglu, Recompute::ffn, Recompute::block}) {
    options.model.recompute = policy;
    const octavo::MemoryPlan plan = expect_exact_plan<Precision>(options);
    EXPECT_LT(plan.peak, before) << "policy " << static_cast<int>(policy);
    before = plan.peak;
  }
}

TEST(MemoryPlan, MatchesArenaAndShrinksWithRecomputation) {
  expect_less_memory_with_more_recomputation<Bf16>();
}

TEST(MemoryPlan, MatchesArenaAndShrinksWithRecomputationInFp8) {
  expect_less_memory_with_more_recomputation<octavo::Fp8Recipe<octavo::Delayed>>();
}

TEST(MemoryPlan, CountsByKind) {
  SessionOptions options = support::small_options();
  options.micro_batches = 2;
  // 3 blocks of 6 tensors, 2 tables of 128 rows, the final norm; each begins at a multiple of 256
  // elements, which a norm of 128 does not fill.
  const std::size_t norm = 256;
  const std::size_t in_block = 2 * norm + 128 * 256 + 128 * 128 + 3 * 128 * 128;
  const std::size_t in_table = 128 * 128;
  const std::size_t values = 3 * in_block + 2 * in_table + norm;
  const octavo::MemoryPlan bf16 = expect_exact_plan<Bf16>(options);
  EXPECT_EQ(bf16.bytes(MemoryKind::weights), 2 * values);
  EXPECT_EQ(bf16.bytes(MemoryKind::gradients), 2 * values);
  EXPECT_EQ(bf16.bytes(MemoryKind::optimizer), 12 * values + 256);
  EXPECT_EQ(bf16.bytes(MemoryKind::quantized_weights), 0U);
  EXPECT_EQ(bf16.bytes(MemoryKind::scaling), 0U);
  const octavo::MemoryPlan fp8 = expect_exact_plan<octavo::Fp8Recipe<octavo::Delayed>>(options);
  const std::size_t in_linears = 3U * (128 * 256 + 128 * 128 + 3 * 128 * 128);
  EXPECT_EQ(fp8.bytes(MemoryKind::quantized_weights), 2 * in_linears);
  EXPECT_EQ(fp8.bytes(MemoryKind::weights), 2 * values);
  // 4 linear layers of 3 operands a block, with 1024 floats of history each, and a snapshot.
  EXPECT_GE(fp8.bytes(MemoryKind::scaling), 2U * 3 * 12 * 1024 * 4);

  // In steps of one micro-batch, only gradients that are made while all activations are alive have
  // memory of their own: those of the head, the final norm and the last block.
  options.micro_batches = 1;
  const octavo::MemoryPlan sharing = expect_exact_plan<Bf16>(options);
  EXPECT_EQ(sharing.bytes(MemoryKind::gradients), 2 * (in_block + in_table + norm));
  EXPECT_LT(sharing.peak, bf16.peak - 2 * (in_block + in_table));

  // Where copies of weights are remade, there is room for the largest: gate and up together.
  options.model.weight_copies = octavo::WeightCopies::remade;
  const octavo::MemoryPlan remade = expect_exact_plan<octavo::Fp8Recipe<octavo::Delayed>>(options);
  EXPECT_EQ(remade.bytes(MemoryKind::quantized_weights), 2U * 128 * 128);
}

template <class Optimizer>
double loss_after_training(double optimizer_bytes_a_weight) {
  const SessionOptions options = support::small_options();
  octavo::Context<octavo::Cpu> context{2};
  support::SmallSession<Bf16, Optimizer> session(options, context);
  const double weights =
      static_cast<double>(session.facts().memory.bytes(MemoryKind::weights)) / 2.0;
  EXPECT_NEAR(static_cast<double>(session.facts().memory.bytes(MemoryKind::optimizer)) / weights,
              optimizer_bytes_a_weight, 0.01);
  double loss = 0;
  for (unsigned i = 0; i < 25; ++i) {
    const TokenBatch batch = support::step_batch(options, i);
    loss = session.step({batch.tokens, batch.targets}, 3e-3).loss;
  }
  return loss;
}

TEST(AdamWState, EveryFormatTrains) {
  using octavo::AdamW;
  const double full = loss_after_training<AdamW<MasterWeights<Fp32>, Moments<Fp32>>>(12);
  EXPECT_LT(full, std::log(96.0) - 0.5);
  EXPECT_NEAR((loss_after_training<AdamW<MasterWeights<Fp32>, Moments<Bf16>>>(8)), full, 0.1);
  EXPECT_NEAR((loss_after_training<AdamW<MasterWeights<Bf16>, Moments<Fp32>>>(8)), full, 0.1);
  EXPECT_NEAR((loss_after_training<AdamW<MasterWeights<Bf16>, Moments<Bf16>>>(4)), full, 0.1);
  using EightBit = AdamW<MasterWeights<Fp32>, Moments<octavo::EightBit>>;
  EXPECT_NEAR(loss_after_training<EightBit>(4 + 2 + 2.0 / 128), full, 0.1);
}

/// The mean loss of a training's last steps.
template <class Optimizer>
double mean_loss() {
  constexpr unsigned steps = 100;
  constexpr unsigned counted = 50;
  const SessionOptions options = support::small_options();
  octavo::Context<octavo::Cpu> context{2};
  support::SmallSession<Bf16, Optimizer> session(options, context);
  double sum = 0;
  for (unsigned i = 0; i < steps; ++i) {
    const TokenBatch batch = support::step_batch(options, i);
    const double loss = session.step({batch.tokens, batch.targets}, 1e-3).loss;
    if (i >= steps - counted) sum += loss;
  }
  return sum / counted;
}

TEST(AdamWState, EightBitMomentsTrainLikeFp32) {
  using octavo::AdamW;
  const double full = mean_loss<AdamW<MasterWeights<Fp32>, Moments<Fp32>>>();
  const double eight = mean_loss<AdamW<MasterWeights<Fp32>, Moments<octavo::EightBit>>>();
  EXPECT_NEAR(eight, full, 1e-3 * full);
}

TEST(LlamaBadInput, RejectsEmptyBatches) {
  octavo::Context<octavo::Cpu> context{1};
  using Model = support::SmallModel<Fp32>;
  const auto plan = [&](octavo::BatchShape batch, Index micro_batches) {
    SessionOptions options;
    options.batch = batch;
    options.micro_batches = micro_batches;
    return octavo::plan_memory<Model, octavo::AdamW<>>(options, context);
  };
  EXPECT_THROW(plan({0, 48}, 1), octavo::ConfigError);
  EXPECT_THROW(plan({2, 0}, 1), octavo::ConfigError);
  EXPECT_THROW(plan({2, 48}, 0), octavo::ConfigError);
  EXPECT_NO_THROW(plan({1, 1}, 1));
}

TEST(LlamaBadInput, RejectsBatchesWhoseSizesOverflow) {
  octavo::Context<octavo::Cpu> context{1};
  using Model = support::SmallModel<Fp32>;
  const auto plan = [&](Index sequences, Index tokens) {
    SessionOptions options;
    options.batch = {sequences, tokens};
    return octavo::plan_memory<Model, octavo::AdamW<>>(options, context);
  };
  EXPECT_THROW(plan(Index{1} << 60, 16), octavo::ConfigError) << "2^64 rows are 0 in 64 bits";
  EXPECT_THROW(plan(16, Index{1} << 60), octavo::ConfigError);
  EXPECT_THROW(plan(1 << 16, 1 << 15), octavo::ConfigError);
  EXPECT_GT(plan(1 << 16, (1 << 15) - 1).peak, std::size_t{1} << 40);
}

// FP8 GEMMs reduce runs of 16: known before the first step, not in its middle.
TEST(LlamaBadInput, RejectsTokenCountsUnsupportedByFp8Gemm) {
  octavo::Context<octavo::Cpu> context{1};
  using Delayed = support::SmallModel<octavo::Fp8Recipe<octavo::Delayed>>;
  const auto lay_out = [&]<class Model>(octavo::BatchShape batch) {
    octavo::Arena<octavo::Cpu> arena;
    const Model model(arena, batch, {}, context);
  };
  EXPECT_THROW(lay_out.template operator()<Delayed>({1, 40}), octavo::ConfigError);
  EXPECT_NO_THROW(lay_out.template operator()<support::SmallModel<Bf16>>({1, 40}));
  EXPECT_NO_THROW(lay_out.template operator()<Delayed>({2, 40}));
  SessionOptions options;
  options.batch = {2, 40};
  options.model.head_chunk = 24;
  EXPECT_NO_THROW((void)(octavo::plan_memory<Delayed, octavo::AdamW<>>(options, context)));
  using HeadInFp8 =
      support::SmallModel<octavo::Layerwise<octavo::Fp8Recipe<octavo::Delayed>,
                                            octavo::Head<octavo::Fp8Recipe<octavo::Delayed>>>>;
  EXPECT_THROW((void)(octavo::plan_memory<HeadInFp8, octavo::AdamW<>>(options, context)),
               octavo::ConfigError);
}

}  // namespace llama_test
