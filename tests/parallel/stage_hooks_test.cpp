// Places between the stages of a step, what is done there, and what ranks add up.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "support/copied_gradients.hpp"
#include "support/faulty_model.hpp"
#include "support/small_model.hpp"
#include "support/test_types.hpp"

namespace stage_hooks_test {

using namespace octavo;
using support::TokenBatch;

constexpr LlamaConfig tied = [] {
  LlamaConfig config = support::small;
  config.tied_embeddings = true;
  return config;
}();

/// Writes down what it is called for.
struct Diary {
  template <class W, class G, Device D>
  class For : public SingleRank::For<W, G, D> {
   public:
    using Parameters = FlatParameters<W, G, D>;

    For(Arena<D>& arena, const ModelParameters<W, G, D>& parameters, const Sharding& sharding)
        : SingleRank::For<W, G, D>(arena, parameters, sharding) {
      for (const StageParameters<W, G, D>& stage : parameters) {
        const std::size_t number = numbers_.size();
        numbers_[stage.flat] = number == 0 ? "embedding" : "block " + std::to_string(number - 1);
      }
      numbers_[parameters.back().flat] = "head";
    }

    void before_quantize(const Parameters& flat, const Context<D>&) override {
      note("casts of " + numbers_.at(&flat));
    }
    void before_forward(const Parameters& flat, const Context<D>&) override {
      note("forward of " + numbers_.at(&flat));
    }
    void before_backward(const Parameters& flat, const Context<D>&) override {
      note("backward of " + numbers_.at(&flat));
    }
    void weights_read(const Parameters& flat, const Context<D>&) override {
      note("read: " + numbers_.at(&flat));
    }
    void gradients_final(const Parameters& flat, const Context<D>&) override {
      note("final: " + numbers_.at(&flat));
    }
    void join(const Context<D>&) override { note("join"); }
    void maximum(TensorView<std::uint32_t, 1, D> amaxes, const Context<D>&) override {
      const bool are_new = std::all_of(amaxes.data(), amaxes.data() + amaxes.size(),
                                       [](std::uint32_t bits) { return bits != 0; });
      note(are_new ? "maximum" : "maximum after the update");
    }
    void sum(TensorView<StepStatus, 1, D>, const Context<D>&) override { note("sum"); }

    std::vector<std::string> lines;
    int calls_until_error = 0;  ///< including the call that throws; 0: none throws

   private:
    void note(const std::string& line) {
      lines.push_back(line);
      if (calls_until_error != 0 && --calls_until_error == 0)
        throw ConfigError("a fault that the test asked for");
    }

    std::map<const void*, std::string> numbers_;
  };
};

using Lines = std::vector<std::string>;

Lines operator+(Lines lines, const Lines& more) {
  lines.insert(lines.end(), more.begin(), more.end());
  return lines;
}

/// Of the forwards of embedding and blocks, where the weights of some blocks are cast.
Lines forwards(const std::vector<int>& cast_blocks = {}) {
  Lines lines{"forward of embedding", "read: embedding"};
  for (int i = 0; i < 3; ++i) {
    const std::string block = "block " + std::to_string(i);
    if (std::count(cast_blocks.begin(), cast_blocks.end(), i) != 0) {
      lines = lines + Lines{"casts of " + block, "read: " + block};
    }
    lines = lines + Lines{"forward of " + block, "read: " + block};
  }
  return lines;
}

/// Of the head's stage in training.
Lines head_lines(bool is_tied) {
  if (!is_tied) return {"forward of head", "backward of head", "read: head"};
  return {"forward of embedding",  "forward of head", "backward of head",
          "backward of embedding", "read: embedding", "read: head"};
}

Lines expected_lines(bool is_tied, bool last_micro_batch, const std::vector<int>& cast_blocks) {
  Lines lines = forwards(cast_blocks) + head_lines(is_tied);
  if (last_micro_batch) lines.emplace_back("final: head");
  for (const char* name : {"block 2", "block 1", "block 0", "embedding"}) {
    lines.push_back(std::string("backward of ") + name);
    lines.push_back(std::string("read: ") + name);
    if (last_micro_batch) lines.push_back(std::string("final: ") + name);
  }
  return lines;
}

/// What stands in the diary of a step of two micro-batches.
struct ExpectedStep {
  bool is_tied = false;
  std::vector<int> cast_blocks{};  ///< whose weights are, in the first micro-batch
  Lines calibration{};             ///< before the first step
  Lines end{};                     ///< the lines after those of the stages
};

template <class Model>
void check_order(const ExpectedStep& expected, WeightCopies weight_copies = WeightCopies::kept) {
  SessionOptions options = support::small_options();
  options.micro_batches = 2;
  options.model.weight_copies = weight_copies;
  Context<Cpu> context{2};
  ModelSession<Model, AdamW<>, Diary> session(options, context);
  Lines& lines = session.collectives().lines;
  EXPECT_EQ(lines, Lines());
  const Lines of_step = expected_lines(expected.is_tied, false, expected.cast_blocks) +
                        expected_lines(expected.is_tied, true, {}) + expected.end;
  for (unsigned step = 0; step < 2; ++step) {
    const TokenBatch batch = support::step_batch(options, step);
    lines.clear();
    EXPECT_FALSE(session.step({batch.tokens, batch.targets}, 1e-3).skipped);
    EXPECT_EQ(lines, step == 0 ? expected.calibration + of_step : of_step) << "step " << step;
  }

  const TokenBatch batch = support::make_batch(96, support::small.vocabulary, 3);
  lines.clear();
  session.begin_evaluation();
  Lines of_head = head_lines(expected.is_tied);
  std::erase_if(of_head, [](const std::string& line) { return line.starts_with("backward"); });
  of_head.emplace_back("join");
  (void)session.evaluate({batch.tokens, batch.targets});
  EXPECT_EQ(lines, forwards(expected.cast_blocks) + of_head);
  lines.clear();
  std::vector<float> logits(static_cast<std::size_t>(support::small.vocabulary));
  session.next_token_logits(std::span(batch.tokens).first(20), logits);
  EXPECT_EQ(lines, forwards() + of_head);

  lines.clear();
  session.weights().read_sync([](const WeightInfo&, Index, std::span<const float>) {});
  const auto stages = static_cast<std::ptrdiff_t>(session.model().parameters().size());
  for (const char* hook : {"forward of ", "read: "}) {
    EXPECT_EQ(
        std::ranges::count_if(lines, [&](const auto& line) { return line.starts_with(hook); }),
        stages)
        << hook;
  }
  EXPECT_EQ(lines.back(), "join");
}

TEST(StageHooks, AreCalledBetweenStages) {
  check_order<support::SmallModel<Bf16>>({.end = {"join", "sum"}});
}
TEST(StageHooks, AreCalledForTiedTable) {
  check_order<Llama<tied, Bf16, Cpu>>({.is_tied = true, .end = {"join", "sum"}});
}
TEST(StageHooks, PrecedeKeptCasts) {
  check_order<support::SmallModel<Fp8Recipe<Tensorwise>>>(
      {.cast_blocks = {0, 1, 2}, .end = {"join", "sum"}});
  check_order<support::SmallModel<Fp8Recipe<Tensorwise>>>({.end = {"join", "sum"}},
                                                          WeightCopies::remade);
}
TEST(StageHooks, PrecedeCastsOfLayerwiseRecipes) {
  check_order<support::SmallModel<Layerwise<First<1, Bf16>, Fp8Recipe<Tensorwise>>>>(
      {.cast_blocks = {1, 2}, .end = {"join", "sum"}});
}

// Both passes of the calibration go through the step's micro-batches, and end in an update.
TEST(StageHooks, ReduceAmaxesBeforeHistoriesAreUpdated) {
  const Lines pass = expected_lines(false, false, {0, 1, 2}) + expected_lines(false, false, {}) +
                     Lines{"join", "maximum"};
  check_order<support::SmallModel<Fp8Recipe<Delayed>>>(
      {.cast_blocks = {0, 1, 2}, .calibration = pass + pass, .end = {"join", "maximum", "sum"}});
}

// A micro-batch that stands alone is a whole step's.
static_assert(Accumulation{}.first && Accumulation{}.last);

// Lanes beside the step are to be waited for, wherever it ended.
TEST(StageHooks, AreJoinedAfterStepThatThrew) {
  const SessionOptions options = support::small_options();
  Context<Cpu> context{2};
  using Model = support::FaultyModel<support::SmallModel<Bf16>>;
  ModelSession<Model, AdamW<>, Diary> session(options, context);
  const TokenBatch batch = support::step_batch(options, 0);
  session.model().calls_until_error = 1;
  EXPECT_THROW((void)session.step({batch.tokens, batch.targets}, 1e-3), ConfigError);
  ASSERT_FALSE(session.collectives().lines.empty());
  EXPECT_EQ(session.collectives().lines.back(), "join");
}

// Likewise, and what was read is of no use to the next one.
TEST(StageHooks, AreJoinedAfterEvaluationThatThrew) {
  const SessionOptions options = support::small_options();
  Context<Cpu> context{2};
  ModelSession<support::SmallModel<Bf16>, AdamW<>, Diary> session(options, context);
  const TokenBatch batch = support::step_batch(options, 0);
  std::vector<float> logits(static_cast<std::size_t>(support::small.vocabulary));
  const auto evaluate = [&] { return session.evaluate({batch.tokens, batch.targets}).sum; };
  const auto predict = [&] {
    session.next_token_logits(std::span(batch.tokens).first(20), logits);
    return logits;
  };
  const double sum = evaluate();
  const std::vector<float> predicted = predict();

  session.collectives().calls_until_error = 3;
  EXPECT_THROW((void)evaluate(), ConfigError);
  EXPECT_EQ(session.collectives().lines.back(), "join");
  EXPECT_EQ(evaluate(), sum);
  session.collectives().calls_until_error = 3;
  EXPECT_THROW((void)predict(), ConfigError);
  EXPECT_EQ(session.collectives().lines.back(), "join");
  EXPECT_EQ(predict(), predicted);
}

template <class Precision>
class StageHooksPrecisions : public testing::Test {};
using Precisions = support::TestTypes<Fp32, Bf16, Fp8Recipe<Delayed>, Fp8Recipe<Blockwise>>;
TYPED_TEST_SUITE(StageHooksPrecisions, Precisions);

TYPED_TEST(StageHooksPrecisions, SeeFinalGradients) {
  using Model = support::SmallModel<TypeParam>;
  for (const Index micro_batches : {1, 2}) {
    SessionOptions options = support::small_options();
    options.micro_batches = micro_batches;
    Context<Cpu> context{2};
    ModelSession<Model, AdamW<>, support::CopiedGradients> session(options, context);
    ModelSession<Model> alone(options, context);
    for (unsigned i = 0; i < 2; ++i) {
      const TokenBatch batch = support::step_batch(options, i);
      EXPECT_FALSE(session.step({batch.tokens, batch.targets}, 1e-3).skipped);
      EXPECT_FALSE(alone.step({batch.tokens, batch.targets}, 1e-3).skipped);
      std::vector<std::byte> copied;
      for (const auto& [flat, parameters] : session.model().parameters()) {
        const auto copy = session.collectives().copy_of(*flat);
        for (const auto* parameter : parameters) {
          support::append_bytes(copied, copy.rows(parameter->offset, parameter->weight.size()));
        }
      }
      EXPECT_TRUE(copied == support::weight_gradients(alone)) << micro_batches << ", step " << i;
    }
    EXPECT_TRUE(support::weights(session) == support::weights(alone));
  }
}

/// Beside another rank, which has other sums.
struct BesideAnother {
  template <class W, class G, Device D>
  struct For : SingleRank::For<W, G, D> {
    using Base = SingleRank::For<W, G, D>;
    using Base::Base;

    void sum(TensorView<StepStatus, 1, D> status, const Context<D>&) override {
      static_assert(StepStatus::sums == 3);
      seen = *status.data();
      status.data()->squared_norm += other.squared_norm;
      status.data()->loss_sum += other.loss_sum;
      status.data()->nonfinite += other.nonfinite;
    }

    StepStatus other{};
    StepStatus seen{};  ///< this rank's own sums, of the last step
  };
};

TEST(StepSums, AreCombinedOverAllRanks) {
  using Model = support::SmallModel<Bf16>;
  const SessionOptions options = support::small_options();
  const TokenBatch batch = support::step_batch(options, 0);
  Context<Cpu> context{2};
  ModelSession<Model> alone(options, context);
  const StepResult own = alone.step({batch.tokens, batch.targets}, 1e-3);
  ModelSession<Model, AdamW<>, BesideAnother> session(options, context);
  const std::vector<std::byte> before = support::weights(session);

  for (const double bad : {INFINITY, NAN}) {
    session.collectives().other = {};
    session.collectives().other.squared_norm = bad;
    EXPECT_TRUE(session.step({batch.tokens, batch.targets}, 1e-3).skipped) << bad;
    session.collectives().other = {};
    session.collectives().other.loss_sum = bad;
    EXPECT_TRUE(session.step({batch.tokens, batch.targets}, 1e-3).skipped) << bad;
  }
  session.collectives().other = {};
  session.collectives().other.nonfinite = 1;
  EXPECT_TRUE(session.step({batch.tokens, batch.targets}, 1e-3).skipped);
  EXPECT_TRUE(support::weights(session) == before);

  session.collectives().other = {};
  session.collectives().other.squared_norm = 9.0;
  const StepResult both = session.step({batch.tokens, batch.targets}, 1e-3);
  EXPECT_FALSE(both.skipped);
  EXPECT_NEAR(both.gradient_norm, std::sqrt(own.gradient_norm * own.gradient_norm + 9.0), 1e-5);
}

// What one rank met, all have to know.
TEST(StepSums, ContainSumsOfOwnRank) {
  using Model = support::SmallModel<Fp8Recipe<Tensorwise>>;
  const SessionOptions options = support::small_options();
  const TokenBatch batch = support::step_batch(options, 0);
  Context<Cpu> context{2};
  ModelSession<Model, AdamW<>, BesideAnother> session(options, context);
  const StepStatus& seen = session.collectives().seen;
  const StepResult result = session.step({batch.tokens, batch.targets}, 1e-3);
  EXPECT_FALSE(result.skipped);
  EXPECT_EQ(seen.nonfinite, 0.0);
  EXPECT_NEAR(seen.loss_sum, 96.0 * result.loss, 1e-9 * seen.loss_sum);
  EXPECT_NEAR(std::sqrt(seen.squared_norm), result.gradient_norm, 1e-6 * result.gradient_norm);

  support::weight(session, "blocks.1.qkv.weight").data()[11] =
      Bf16(std::numeric_limits<float>::quiet_NaN());
  EXPECT_TRUE(session.step({batch.tokens, batch.targets}, 1e-3).skipped);
  EXPECT_GT(seen.nonfinite, 0.0);
}

}  // namespace stage_hooks_test
