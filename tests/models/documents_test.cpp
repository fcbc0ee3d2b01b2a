// Documents in a batch on the Cpu device: each is trained on as if it were alone.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "support/gradients.hpp"
#include "support/small_model.hpp"

namespace model_documents_test {

using octavo::Batch;
using octavo::BatchShape;
using octavo::Bf16;
using octavo::Cpu;
using octavo::Fp32;
using octavo::Index;
using octavo::SessionOptions;
using support::TokenBatch;

constexpr octavo::LlamaConfig with_qk_norm = [] {
  octavo::LlamaConfig config = support::small;
  config.qk_norm = true;
  config.tied_embeddings = true;
  return config;
}();

using Begins = std::vector<Index>;

SessionOptions options_of(BatchShape batch, Index micro_batches = 1) {
  SessionOptions options = support::small_options();
  options.batch = batch;
  options.micro_batches = micro_batches;
  return options;
}

struct Trace {
  std::vector<double> losses, norms;
  std::vector<std::byte> weights, scaling;
  bool operator==(const Trace&) const = default;
};

/// Three steps on one text, divided anew in each, and an evaluation.
template <class Session>
Trace train(const SessionOptions& options, const std::vector<Begins>& documents) {
  octavo::Context<Cpu> context{2};
  Session session(options, context);
  Trace run;
  for (unsigned i = 0; i < 3; ++i) {
    const TokenBatch text = support::step_batch(options, i);
    const octavo::StepResult result =
        session.step({text.tokens, text.targets, documents.at(i)}, 1e-3);
    EXPECT_FALSE(result.skipped);
    run.losses.push_back(result.loss);
    run.norms.push_back(result.gradient_norm);
  }
  run.weights = support::weights(session);
  run.scaling = support::scaling_state(session);
  const TokenBatch text = support::make_batch(static_cast<std::size_t>(options.batch.rows()),
                                              support::small.vocabulary, 9);
  Begins evaluated = documents.at(0);
  std::erase_if(evaluated, [&](Index begin) { return begin >= options.batch.rows(); });
  session.begin_evaluation();
  run.losses.push_back(session.evaluate({text.tokens, text.targets, evaluated}).sum);
  return run;
}

template <class Session>
void expect_documents_like_sequences(SessionOptions options) {
  const Begins twelves{12, 24, 36, 60, 72, 84};
  options.batch = {4, 12};
  const Trace sequences = train<Session>(options, {{}, {}, {}});
  const Begins one = options.micro_batches == 2 ? twelves : Begins{12, 24, 36};
  options.batch = {1, 48, 4};
  EXPECT_TRUE(train<Session>(options, {one, one, one}) == sequences) << "in one sequence";
  options.batch = {2, 24, 9};
  EXPECT_TRUE(train<Session>(options, {one, one, one}) == sequences) << "in two sequences";
  Begins fewer = one;
  fewer.erase(fewer.begin());
  EXPECT_FALSE(train<Session>(options, {fewer, fewer, fewer}).losses == sequences.losses);
}

// Documents of 12 tokens are what sequences of 12 tokens are: the same rows in the same order, so
// every sum is the same, to the bit.
TEST(Documents, EqualLengthDocumentsMatchSequences) {
  using octavo::Fp8Recipe;
  expect_documents_like_sequences<support::SmallSession<Fp32>>(options_of({}));
  expect_documents_like_sequences<support::SmallSession<Bf16>>(options_of({}, 2));
  expect_documents_like_sequences<support::SmallSession<Fp8Recipe<octavo::Delayed>>>(
      options_of({}));
  using QkNorm = octavo::ModelSession<octavo::Llama<with_qk_norm, Bf16, Cpu>>;
  expect_documents_like_sequences<QkNorm>(options_of({}));
}

TEST(Documents, RecomputedDocumentsMatchSequences) {
  SessionOptions options = options_of({}, 2);
  options.model.recompute = octavo::Recompute::block;
  expect_documents_like_sequences<support::SmallSession<Bf16>>(options);
}

TEST(Documents, WholeSequenceDocumentsAreBitwiseEqualToNone) {
  const Trace none = train<support::SmallSession<Bf16>>(options_of({2, 24}), {{}, {}, {}});
  const Trace listed =
      train<support::SmallSession<Bf16>>(options_of({2, 24, 3}), {{}, {0, 24}, {24}});
  EXPECT_TRUE(listed == none);
}

// Against the sequences of one micro-batch; at a learning rate of 0, each step has the same
// weights.
TEST(Documents, MicroBatchesHaveSeparateDocuments) {
  octavo::Context<Cpu> context{2};
  support::SmallSession<Fp32> two(options_of({1, 48, 8}, 2), context);
  support::SmallSession<Fp32> one(options_of({2, 48, 8}), context);
  const TokenBatch text = support::make_batch(96, support::small.vocabulary, 6);
  for (const Begins& begins : {Begins{5, 20, 53, 90}, Begins{40, 61}}) {
    const octavo::StepResult parts = two.step({text.tokens, text.targets, begins}, 0.0);
    const octavo::StepResult whole = one.step({text.tokens, text.targets, begins}, 0.0);
    EXPECT_NEAR(parts.loss, whole.loss, 1e-9);
    EXPECT_NEAR(parts.gradient_norm, whole.gradient_norm, 1e-5 * whole.gradient_norm);
  }
}

// A step leaves places behind that are not those of the batch to evaluate.
TEST(Documents, EvaluationIgnoresDocumentsOfPreviousStep) {
  octavo::Context<Cpu> context{2};
  const SessionOptions options = options_of({1, 48, 8}, 2);
  support::SmallSession<Fp32> stepped(options, context);
  support::SmallSession<Fp32> fresh(options, context);
  const TokenBatch text = support::make_batch(96, support::small.vocabulary, 6);
  EXPECT_FALSE(stepped.step({text.tokens, text.targets, Begins{5, 20, 53, 90}}, 0.0).skipped);
  const auto evaluate = [&](octavo::TrainingSession& session, const Begins& begins) {
    session.begin_evaluation();
    return session
        .evaluate({std::span(text.tokens).first(48), std::span(text.targets).first(48), begins})
        .sum;
  };
  const double divided = evaluate(stepped, {30});
  EXPECT_EQ(divided, evaluate(fresh, {30}));
  EXPECT_NE(divided, evaluate(fresh, {5}));
}

/// A model's losses and gradients of one micro-batch. Every target counts as much as in a batch of
/// 48.
struct Trained {
  std::vector<float> losses;
  reference::Weights gradients;
};

template <class Model>
Trained train_once(BatchShape shape, std::span<const std::int32_t> tokens,
                   std::span<const std::int32_t> targets, const Begins& begins) {
  octavo::Context<Cpu> context{2};
  octavo::Arena<Cpu> arena;
  {
    const Model measured(arena, shape, {}, context);
  }
  arena = {arena.plan(), context};
  Model model(arena, shape, {}, context);
  octavo::HooksOf<Model> hooks;
  model.initialize_sync(7, hooks, context);
  model.template invalidate_weight_copies<octavo::Mode::train>(hooks, context);
  std::vector<std::int32_t> tables(
      static_cast<std::size_t>(octavo::document_table_elements(shape)));
  if (!tables.empty()) octavo::write_document_tables(begins, 0, shape, tables);
  const float gradient_scale = 1.0f / 48.0f;
  Trained result{std::vector<float>(tokens.size()), {}};
  model.train_micro_batch({{tokens.data(), {shape.rows()}},
                           {targets.data(), {shape.rows()}},
                           octavo::documents_over<Cpu>(tables.data(), shape)},
                          {result.losses.data(), {shape.rows()}}, {&gradient_scale, {1}}, {}, hooks,
                          context);
  result.gradients = support::gradients(model);
  return result;
}

/// Documents of 1, 16, 7, 20 and 4 tokens, two of which begin with a sequence.
template <class Model>
void expect_uneven_documents_as_alone() {
  const Begins begins{0, 1, 17, 24, 44};
  const TokenBatch text = support::make_batch(48, support::small.vocabulary, 3);
  const Trained all = train_once<Model>({2, 24, 6}, text.tokens, text.targets, begins);
  reference::Weights sum;
  for (std::size_t i = 0; i < begins.size(); ++i) {
    const auto first = static_cast<std::size_t>(begins[i]);
    const std::size_t count =
        (i + 1 < begins.size() ? static_cast<std::size_t>(begins[i + 1]) : 48) - first;
    const Trained alone = train_once<Model>({1, static_cast<Index>(count)},
                                            std::span(text.tokens).subspan(first, count),
                                            std::span(text.targets).subspan(first, count), {});
    for (std::size_t row = 0; row < count; ++row) {
      ASSERT_EQ(all.losses[first + row], alone.losses[row]) << "row " << first + row;
    }
    for (const auto& [name, gradient] : alone.gradients) {
      std::vector<double>& total = sum[name];
      total.resize(gradient.size());
      for (std::size_t k = 0; k < total.size(); ++k) total[k] += gradient[k];
    }
  }
  // What rows give to a weight's gradient is the same; their sum has another order.
  EXPECT_TRUE(support::beyond(support::distances(all.gradients, sum),
                              support::gradient_bounds<typename Model::T>())
                  .empty());
}

TEST(Documents, UnevenDocumentsMatchSeparateDocuments) {
  expect_uneven_documents_as_alone<support::SmallModel<Fp32>>();
  expect_uneven_documents_as_alone<support::SmallModel<Bf16>>();
}

// Its positions are learned.
TEST(Documents, UnevenDocumentsOfGpt2MatchSeparateDocuments) {
  expect_uneven_documents_as_alone<octavo::Gpt2<octavo::gpt2_tiny, Fp32, Cpu>>();
  expect_uneven_documents_as_alone<octavo::Gpt2<octavo::gpt2_tiny, Bf16, Cpu>>();
}

TEST(Documents, DoNotAffectGeneratedText) {
  octavo::Context<Cpu> context{2};
  support::SmallSession<Bf16> plain(options_of({2, 24}), context);
  support::SmallSession<Bf16> divided(options_of({2, 24, 5}), context);
  const TokenBatch text = support::make_batch(48, support::small.vocabulary, 4);
  std::vector<float> expected(support::small.vocabulary);
  std::vector<float> logits(support::small.vocabulary);
  divided.begin_evaluation();
  EXPECT_EQ(divided.evaluate({text.tokens, text.targets, Begins{3, 30}}).tokens, 48);
  plain.begin_evaluation();
  plain.next_token_logits(std::span(text.tokens).first(20), expected);
  divided.next_token_logits(std::span(text.tokens).first(20), logits);
  EXPECT_EQ(logits, expected);
}

TEST(Documents, AppearInManifest) {
  octavo::Context<Cpu> context{1};
  const support::SmallSession<Bf16> divided(options_of({2, 24, 5}), context);
  const support::SmallSession<Bf16> plain(options_of({2, 24}), context);
  EXPECT_EQ(divided.manifest().attentions().front().shape,
            "2 x 24, up to 5 documents, 2/1 heads of 64");
  EXPECT_EQ(plain.manifest().attentions().front().shape, "2 x 24, 2/1 heads of 64");
}

/// What a session of two micro-batches of 2 x 8 tokens and at most 3 documents says of these.
std::string refusal(const Begins& begins, Index most = 3) {
  octavo::Context<Cpu> context{1};
  support::SmallSession<Bf16> session(options_of({2, 8, most}, 2), context);
  const TokenBatch text = support::make_batch(32, support::small.vocabulary, 5);
  try {
    EXPECT_FALSE(session.step({text.tokens, text.targets, begins}, 1e-3).skipped);
  } catch (const octavo::ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(Documents, RejectsInvalidBegins) {
  const auto expect = [](const Begins& begins, const std::string& text, Index most = 3) {
    const std::string said = refusal(begins, most);
    EXPECT_NE(said.find(text), std::string::npos) << said;
  };
  EXPECT_EQ(refusal({0, 3, 8, 24, 31}), "");
  expect({-2, 3}, "begins at token -2, but the batch has tokens 0 to 31");
  expect({3, 32}, "begins at token 32, but");
  expect({3, 9, 9}, "begin at tokens 9 and then 9");
  expect({3, 9, 5}, "begin at tokens 9 and then 5");
  expect({20, 22}, "has 4 documents");
  expect({3}, "the batch marks documents, but most_documents of the session's batch shape is 0", 0);
  octavo::Context<Cpu> context{1};
  EXPECT_THROW(support::SmallSession<Bf16>(options_of({2, 8, 1}), context), octavo::ConfigError);
  EXPECT_THROW(support::SmallSession<Bf16>(options_of({2, 8, 17}), context), octavo::ConfigError);
}

// A step that is refused changes nothing, and the next one is as it would have been.
TEST(Documents, RejectedBatchHasNoEffect) {
  octavo::Context<Cpu> context{1};
  support::SmallSession<Bf16> session(options_of({2, 8, 3}), context);
  support::SmallSession<Bf16> other(options_of({2, 8, 3}), context);
  const TokenBatch text = support::make_batch(16, support::small.vocabulary, 5);
  EXPECT_THROW((void)session.step({text.tokens, text.targets, Begins{3, 5}}, 1e-3),
               octavo::ConfigError);
  const Begins good{3};
  EXPECT_EQ(session.step({text.tokens, text.targets, good}, 1e-3).loss,
            other.step({text.tokens, text.targets, good}, 1e-3).loss);
  EXPECT_TRUE(support::weights(session) == support::weights(other));
}

}  // namespace model_documents_test
