// GPT-2, Qwen2, Qwen3, Gemma 3 and Mixtral in every precision: what a family has, no policy, mode
// or number of threads changes.
#include <octavo/precision/named_precisions.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <type_traits>
#include <vector>

#include "support/gradients.hpp"
#include "support/llama_weights.hpp"
#include "support/small_model.hpp"
#include "support/test_types.hpp"

namespace families_test {

using namespace octavo;

/// Every recipe can serve their shapes: all features are multiples of 128.
constexpr Gpt2Config small_gpt2{.name = "small_gpt2",
                                .layers = 3,
                                .hidden = 128,
                                .heads = 2,
                                .vocabulary = 96,
                                .positions = 48};
constexpr LlamaConfig small_qwen3 = [] {
  LlamaConfig config = support::small;
  config.tied_embeddings = true;
  config.qk_norm = true;
  return config;
}();

constexpr LlamaConfig small_qwen2 = [] {
  LlamaConfig config = support::small;
  config.qkv_bias = true;
  config.window = 20;
  config.first_windowed_layer = 1;
  return config;
}();
constexpr LlamaConfig small_mixtral = [] {
  LlamaConfig config = support::small;
  config.experts = {.experts = 4, .choices = 2};
  config.experts.balance_coefficient = 0.02f;
  return config;
}();
constexpr Gemma3Config small_gemma3{.name = "small_gemma3",
                                    .layers = 3,
                                    .hidden = 128,
                                    .ffn = 256,
                                    .heads = 4,
                                    .kv_heads = 2,
                                    .head_dim = 32,
                                    .vocabulary = 96,
                                    .window = 20,
                                    .global_every = 2,
                                    .query_scalar = 32.0f};

template <class P>
struct Gpt2In {
  using Precision = P;
  template <class Q>
  using Model = Gpt2<small_gpt2, Q, Cpu>;
};
template <class P>
struct Qwen3In {
  using Precision = P;
  template <class Q>
  using Model = Qwen3<small_qwen3, Q, Cpu>;
};

template <class P>
struct Qwen2In {
  using Precision = P;
  template <class Q>
  using Model = Llama<small_qwen2, Q, Cpu>;
};
template <class P>
struct Gemma3In {
  using Precision = P;
  template <class Q>
  using Model = Gemma3<small_gemma3, Q, Cpu>;
};

template <class P>
struct MixtralIn {
  using Precision = P;
  template <class Q>
  using Model = Llama<small_mixtral, Q, Cpu>;
};

using HeadInFp8 = PrecisionNamed<"fp8-delayed-fp8-head">;

/// What a run leaves behind, bit for bit.
struct Trace {
  std::vector<double> losses;
  std::vector<std::byte> gradients;
  std::vector<std::byte> weights;
  std::vector<std::byte> scaling;

  friend bool operator==(const Trace&, const Trace&) = default;
};

template <class T>
class Families : public testing::Test {
 protected:
  using Model = typename T::template Model<typename T::Precision>;
  using Session = ModelSession<Model>;

  static Trace train(ModelOptions model, int threads = 2, Index micro_batches = 2) {
    Context<Cpu> context{threads};
    SessionOptions options = support::small_options();
    options.batch = {2 / micro_batches, 48};
    options.micro_batches = micro_batches;
    options.model = model;
    Session session(options, context);
    Trace trace;
    for (unsigned i = 0; i < 3; ++i) {
      const support::TokenBatch batch = support::step_batch(options, i);
      const StepResult result = session.step({batch.tokens, batch.targets}, 3e-3);
      EXPECT_FALSE(result.skipped);
      trace.losses.push_back(result.loss);
    }
    trace.gradients = support::weight_gradients(session);
    trace.weights = support::weights(session);
    trace.scaling = support::scaling_state(session);
    return trace;
  }
};

// One family in every recipe, and every family in recipes whose kernels differ: one scale from
// earlier steps, a scale for each row, and blocks. Other tests cover `Tensorwise`, which shares the
// kernels of `Delayed`.
using All = support::TypesAlways<
    Gpt2In<Fp32>, Gpt2In<Bf16>, Gpt2In<Fp8Recipe<Delayed>>, Gpt2In<Fp8Recipe<Rowwise>>,
    Gpt2In<HeadInFp8>, Gpt2In<Fp8Recipe<Blockwise>>, Gpt2In<support::MixedPrecision>, Gpt2In<Mxfp8>,
    Qwen3In<Fp8Recipe<Tensorwise>>, Qwen2In<Fp8Recipe<Rowwise>>, Gemma3In<Fp8Recipe<Delayed>>,
    Gemma3In<Fp8Recipe<Blockwise>>, MixtralIn<Bf16>,
    MixtralIn<Fp8Recipe<Blockwise>>>::And<Qwen3In<Bf16>, Qwen3In<Fp8Recipe<Blockwise>>,
                                          Qwen2In<Bf16>, Qwen2In<Fp8Recipe<Delayed>>,
                                          Gemma3In<Bf16>, Gemma3In<Fp8Recipe<Rowwise>>,
                                          Gemma3In<Mxfp8>, MixtralIn<Fp8Recipe<Delayed>>>;
TYPED_TEST_SUITE(Families, All);

TYPED_TEST(Families, MemorySavingOptionsAreBitwiseEqual) {
  const Trace none = this->train({.recompute = Recompute::none});
  EXPECT_NE(none.losses[0], none.losses[2]);
  for (const Recompute policy :
       {Recompute::norms, Recompute::swiglu, Recompute::ffn, Recompute::block}) {
    EXPECT_TRUE(this->train({.recompute = policy}) == none) << static_cast<int>(policy);
  }
  EXPECT_TRUE(this->train({.recompute = Recompute::block, .weight_copies = WeightCopies::remade}) ==
              none);
  // One micro-batch: gradients share memory with activations.
  EXPECT_TRUE(this->train({.recompute = Recompute::ffn}, 2, 1) == this->train({}, 2, 1));
}

TYPED_TEST(Families, ThreadCountsAreBitwiseEqual) {
  EXPECT_TRUE(this->train({}, 1) == this->train({}, 4));
}

// A fresh model is at log 96 = 4.56; the text's own noise leaves 1.69.
TYPED_TEST(Families, TrainingReducesLossOnUnseenText) {
  using Trained = typename TestFixture::Session;
  Context<Cpu> context{2};
  const SessionOptions options = support::small_options();
  Trained session(options, context);
  const support::TokenBatch unseen = support::step_batch(options, 1000);
  const auto loss = [&] {
    session.begin_evaluation();
    return session.evaluate({unseen.tokens, unseen.targets}).mean();
  };
  EXPECT_NEAR(loss(), std::log(96.0), 0.1);
  for (unsigned i = 0; i < 60; ++i) {
    const support::TokenBatch batch = support::step_batch(options, i);
    EXPECT_FALSE(session.step({batch.tokens, batch.targets}, 3e-3).skipped);
  }
  EXPECT_LT(loss(), 2.6);
}

TYPED_TEST(Families, ManifestMatchesExecutedGemms) {
  using Trained = typename TestFixture::Session;
  Context<Cpu> context{2};
  SessionOptions options = support::small_options();
  options.model.recompute = Recompute::ffn;
  options.model.head_chunk = 32;
  Trained session(options, context);
  ASSERT_EQ(session.manifest().entries().size(), 39U) << "3 blocks of 4 linear layers, the head";
  const support::TokenBatch batch = support::step_batch(options, 0);
  EXPECT_FALSE(session.step({batch.tokens, batch.targets}, 1e-3).skipped);
  EXPECT_NO_THROW(session.manifest().verify_step(1, 3));
  const bool is_gpt2 = std::is_same_v<TypeParam, Gpt2In<typename TypeParam::Precision>>;
  const bool is_qwen2 = std::is_same_v<TypeParam, Qwen2In<typename TypeParam::Precision>>;
  for (const GemmEntry& entry : session.manifest().entries()) {
    const bool is_biased_layer =
        (is_gpt2 && entry.layer != "head") || (is_qwen2 && entry.layer.ends_with(".qkv"));
    const bool biased = is_biased_layer && entry.pass == GemmPass::forward;
    EXPECT_EQ(entry.bias, biased) << entry.layer;
  }
}

// Quantisation takes gradients no farther from those of FP32 than in a Llama, which has bounds.
TYPED_TEST(Families, GradientsAreCloseToFp32) {
  using Trained = typename TestFixture::Session;
  using Precision = typename TypeParam::Precision;
  using Exact = ModelSession<typename TypeParam::template Model<Fp32>>;
  Context<Cpu> context{2};
  const SessionOptions options = support::small_options();
  const support::TokenBatch batch = support::step_batch(options, 0);
  const auto exact = support::nontrivial_gradients<Exact>(options, batch, context);
  const auto own = support::nontrivial_gradients<Trained>(options, batch, context);
  ASSERT_EQ(exact.size(), own.size());
  // At its initial values, a Gemma 3 normalises small results of its sublayers, which doubles their
  // relative errors. A router's gradient depends on differences between experts.
  const double times = std::is_same_v<TypeParam, Gemma3In<Precision>>    ? 2.8
                       : std::is_same_v<TypeParam, MixtralIn<Precision>> ? 1.5
                                                                         : 1;
  const double most = times * (std::is_same_v<Precision, Fp32>   ? 1e-9
                               : std::is_same_v<Precision, Bf16> ? 0.06
                                                                 : 0.6);
  for (const support::Distance& one : support::distances(own, exact)) {
    EXPECT_LE(one.error, most) << one.name;
    EXPECT_NEAR(one.factor, 1.0, most / 2) << one.name;
  }
}

// The table that it shares with the embedding has 96 rows, which are padded to 128.
TEST(Gpt2, Fp8HeadIsRowwiseBesideDelayedLayers) {
  Context<Cpu> context{2};
  const SessionOptions options = support::small_options();
  ModelSession<Gpt2<small_gpt2, HeadInFp8, Cpu>> session(options, context);
  const support::TokenBatch batch = support::step_batch(options, 0);
  EXPECT_FALSE(session.step({batch.tokens, batch.targets}, 1e-3).skipped);
  for (const GemmEntry& entry : session.manifest().entries()) {
    const bool is_head = entry.layer == "head";
    EXPECT_TRUE(entry.expected.is_fp8()) << entry.layer;
    EXPECT_EQ(entry.precision, is_head ? "fp8-rowwise" : "fp8-delayed") << entry.layer;
    EXPECT_EQ(entry.scales_a, is_head ? GemmScales::row : GemmScales::tensor) << entry.layer;
    EXPECT_EQ(entry.scales_b, entry.scales_a) << entry.layer;
  }
  int of_head = 0;
  for (const OperandReport& operand : session.operands()) {
    const bool is_head = operand.name.starts_with("head.");
    EXPECT_EQ(operand.granularity, is_head ? "row" : "tensor") << operand.name;
    EXPECT_EQ(std::isnan(operand.scale), is_head) << operand.name;
    EXPECT_GT(operand.amax, 0) << operand.name;
    of_head += is_head ? 1 : 0;
  }
  EXPECT_EQ(of_head, 3);
}

TEST(Gpt2, InitialValuesMatchGpt2) {
  Context<Cpu> context{2};
  ModelSession<Gpt2<small_gpt2, Fp32, Cpu>> session(support::small_options(), context);
  std::set<std::string> names;
  session.model().visit([&](auto& parameter) {
    names.insert(parameter.name);
    double squares = 0;
    const auto view = parameter.weight;
    for (Index i = 0; i < view.size(); ++i) {
      const double value = static_cast<double>(view.data()[i]);
      squares += value * value;
    }
    const Index live = parameter.initialised_rows * view.extent(1);
    const double deviation = std::sqrt(squares / static_cast<double>(live));
    const std::string& name = parameter.name;
    const bool writes = name.ends_with("output.weight") || name.ends_with("down.weight");
    const double expected = name.ends_with(".bias")         ? 0.0
                            : name.ends_with("norm.weight") ? 1.0
                            : writes                        ? 0.02 / std::sqrt(6.0)
                                                            : 0.02;
    EXPECT_NEAR(deviation, expected, 0.03 * expected) << name;
  });
  EXPECT_EQ(names.size(), 3U * 12U + 4U);
  EXPECT_TRUE(names.contains("blocks.2.up.bias") && names.contains("positions.weight"));
  EXPECT_EQ(session.facts().parameters, small_gpt2.parameters());
  EXPECT_EQ(session.facts().name, "small_gpt2");
}

TEST(Gpt2, RejectsSequencesBeyondPositions) {
  Context<Cpu> context{2};
  SessionOptions options = support::small_options();
  options.batch = {1, 49};
  try {
    const ModelSession<Gpt2<small_gpt2, Fp32, Cpu>> session(options, context);
    FAIL() << "49 tokens have no 49th position";
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("small_gpt2 has positions for 48 tokens"),
              std::string::npos)
        << error.what();
  }
}

// The published counts, which include no padding.
TEST(Presets, HaveThePublishedSizes) {
  EXPECT_EQ(gpt2_124m.parameters(), 124'439'808);
  EXPECT_EQ(gpt2_1558m.parameters(), 1'557'611'200);
  EXPECT_EQ(qwen3_0_6b.parameters(), 596'049'920);
  EXPECT_EQ(qwen3_8b.parameters(), 8'190'735'360);
  EXPECT_EQ(mistral_7b.parameters(), 7'241'732'096);
  EXPECT_EQ(mixtral_8x7b.parameters(), 46'702'792'704);
  EXPECT_EQ(qwen3_30b_a3b.parameters(), 30'532'122'624);
  EXPECT_EQ(qwen2_5_0_5b.parameters(), 494'032'768);
  EXPECT_EQ(qwen2_5_7b.parameters(), 7'615'616'512);
  EXPECT_EQ(gemma3_1b.parameters(), 999'885'952);
  EXPECT_EQ(gemma3_270m.parameters(), 268'098'176);
  EXPECT_EQ(llama3_8b.parameters(), 8'030'261'248);
  EXPECT_EQ(gpt2_124m.padded_vocabulary(), 50'304);
  EXPECT_EQ(qwen3_8b.padded_vocabulary(), 151'936);
  EXPECT_EQ(gpt2_1558m.head_dim(), 64);
}

// A token is looked up in a table of its own, but multiplied by one that the head shares.
TEST(Presets, CountFlopsPerToken) {
  EXPECT_EQ(gpt2_124m.facts().multiplying, 124'439'808 - Index{1024} * 768);
  EXPECT_EQ(gpt2_124m.facts().attention_columns, 12 * 768);
  EXPECT_EQ(llama3_8b.facts().multiplying, 8'030'261'248 - Index{128'256} * 4096);
  EXPECT_EQ(qwen3_0_6b.facts().multiplying, 596'049'920);
  // 6 · (10 + 5 · 3)
  constexpr Index sequence = 5;
  const ModelFacts facts{.multiplying = 10, .attention_columns = 3};
  EXPECT_EQ(facts.training_flops_per_token(sequence), 150.0);
  // Two of the columns attend to 4 of 16 tokens: 6 · 10 + 12 · (8 + 2 · (4 − 1 / 2))
  const ModelFacts windowed{
      .multiplying = 10, .attention_columns = 3, .window = 4, .windowed_columns = 2};
  EXPECT_EQ(windowed.training_flops_per_token(16), 240.0);
  EXPECT_EQ(windowed.training_flops_per_token(4), 6.0 * (10 + 4 * 3));
}

}  // namespace families_test
