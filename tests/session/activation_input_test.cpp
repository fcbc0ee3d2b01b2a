// Training with activations that read E4M3.
#include <octavo/parallel/data_parallel.hpp>
#include <octavo/precision/named_precisions.hpp>
#include <octavo/session/state.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "session/short_training.hpp"
#include "support/small_model.hpp"
#include "support/thread_ranks.hpp"

namespace activation_input_session_test {

using namespace octavo;
using short_training::step;
using short_training::trained_loss;
using support::SmallSession;

using Plain = Fp8Recipe<Delayed>;
using ReadsE4M3 = Layerwise<Fp8Recipe<Delayed>, ForActivation<E4M3>>;

TEST(ActivationInputSession, LearnsAboutAsWellAsStorageFormat) {
  const double plain = trained_loss<Plain>();
  const double narrow = trained_loss<ReadsE4M3>();
  EXPECT_LT(plain, 3.6) << "nothing was learnt";
  EXPECT_NEAR(narrow, plain, 0.05 * plain);
  EXPECT_NE(narrow, plain);
}

/// The forward GEMM of the first projection writes E4M3, and no other GEMM does.
TEST(ActivationInputSession, ManifestNamesTheResult) {
  Context<Cpu> context(2);
  SmallSession<ReadsE4M3> session(support::small_options(), context);
  (void)step(session, 0);
  int narrow = 0;
  for (const GemmEntry& entry : session.manifest().entries()) {
    const bool expected = entry.layer.ends_with(".gate_up") && entry.pass == GemmPass::forward;
    EXPECT_EQ(entry.output_format == "E4M3", expected) << entry.layer;
    narrow += static_cast<int>(expected);
    EXPECT_EQ(entry.executed, 1U) << entry.layer;
  }
  EXPECT_GT(narrow, 0);
}

/// A block in BF16 keeps BF16, because the GEMM of its projection does.
TEST(ActivationInputSession, BlocksInBf16KeepTheirFormat) {
  using Edges = Layerwise<First<1, Bf16>, Fp8Recipe<Delayed>, ForActivation<E4M3>>;
  Context<Cpu> context(2);
  SmallSession<Edges> session(support::small_options(), context);
  (void)step(session, 0);
  int projections = 0;
  for (const GemmEntry& entry : session.manifest().entries()) {
    if (!entry.layer.ends_with(".gate_up") || entry.pass != GemmPass::forward) continue;
    ++projections;
    EXPECT_EQ(entry.output_format, entry.layer.starts_with("blocks.0.") ? "bf16" : "E4M3");
  }
  EXPECT_EQ(projections, support::small.layers);
}

TEST(ActivationInputSession, NeedsLessMemory) {
  Context<Cpu> context(1);
  SmallSession<Plain> plain(support::small_options(), context);
  SmallSession<ReadsE4M3> narrow(support::small_options(), context);
  EXPECT_LT(narrow.facts().allocated_bytes, plain.facts().allocated_bytes);
}

TEST(ActivationInputSession, RecomputationAndThreadsChangeNoBit) {
  Context<Cpu> context(1);
  for (const Recompute recompute : {Recompute::swiglu, Recompute::ffn, Recompute::block}) {
    SessionOptions options = support::small_options();
    options.model.recompute = recompute;
    Context<Cpu> another(3);
    SmallSession<ReadsE4M3> second(options, another);
    SmallSession<ReadsE4M3> whole(support::small_options(), context);
    for (unsigned i = 0; i < 3; ++i) EXPECT_EQ(step(second, i).loss, step(whole, i).loss) << i;
    EXPECT_TRUE(save_state_sync(second.state().entries()) ==
                save_state_sync(whole.state().entries()));
  }
}

/// Rows of the projection in block 1 that `saturate_some` changes.
constexpr Index saturated_gates = 37;
constexpr const char* saturated_result = "blocks.1.gate_up.output";

/// Makes some gates of block 1 saturate for every token, one half with each sign: feature 5 of
/// every row of the residual stream is much larger than the others, so after the norm it is about
/// 11, which the changed rows multiply by 100.
template <class AnySession>
void saturate_some(AnySession& session) {
  const auto change = [&](const std::string& name, Index rows, const auto& change_row) {
    const auto weight = support::weight(session, name);
    std::vector<float> values;
    for (Index row = 0; row < rows; ++row) {
      std::vector<float> changed(weight.row(row), weight.row(row) + weight.extent(1));
      change_row(row, changed);
      values.insert(values.end(), changed.begin(), changed.end());
    }
    session.weights().set(name, values);
  };
  change("embedding.weight", support::small.vocabulary,
         [](Index, std::vector<float>& row) { row[5] = 10; });
  change("blocks.1.gate_up.weight", 2 * support::small.ffn, [](Index i, std::vector<float>& row) {
    if (i >= saturated_gates) return;
    std::fill(row.begin(), row.end(), 0.0f);
    row[5] = i % 2 == 0 ? 100.0f : -100.0f;
  });
}

/// The elements and the saturated values that a session counted in the last step, by the name of
/// the result, of all results in E4M3.
using Counted = std::tuple<std::string, std::uint64_t, std::uint64_t>;
template <class AnySession>
std::vector<Counted> counted(AnySession& session) {
  std::vector<Counted> all;
  const std::vector<OperandReport> reports = session.operands();
  for (std::size_t i = 0; i < reports.size(); ++i) {
    if (!reports[i].name.ends_with(".output")) continue;
    const OperandStatistics& statistics = *session.model().scaling().slot(i).statistics;
    all.push_back({reports[i].name, statistics.elements, statistics.saturated});
    EXPECT_EQ(reports[i].saturated,
              static_cast<double>(statistics.saturated) / static_cast<double>(statistics.elements));
  }
  return all;
}

/// What `counted` must return after a step of so many tokens.
std::vector<Counted> expected_counts(Index tokens) {
  const auto elements = static_cast<std::uint64_t>(tokens * 2 * support::small.ffn);
  return {{"blocks.0.gate_up.output", elements, 0},
          {saturated_result, elements, static_cast<std::uint64_t>(tokens * saturated_gates)},
          {"blocks.2.gate_up.output", elements, 0}};
}

TEST(SaturatedResults, AreReportedAsShareOfTheirValues) {
  Context<Cpu> context(2);
  SmallSession<ReadsE4M3> session(support::small_options(), context);
  saturate_some(session);
  (void)step(session, 0);
  const std::vector<OperandReport> reports = session.operands();
  const auto found = std::find_if(reports.begin(), reports.end(), [](const OperandReport& one) {
    return one.name == saturated_result;
  });
  ASSERT_NE(found, reports.end());
  EXPECT_STREQ(found->format, "E4M3");
  EXPECT_EQ(found->scale, 1.0f);
  EXPECT_EQ(found->saturated, static_cast<double>(saturated_gates) / (2 * support::small.ffn));
}

/// Neither micro-batches, recomputation nor an evaluation counts a value twice or omits one.
TEST(SaturatedResults, AreCountedOncePerStep) {
  for (const Index micro_batches : {1, 2}) {
    for (const Recompute recompute :
         {Recompute::none, Recompute::norms, Recompute::swiglu, Recompute::ffn, Recompute::block}) {
      SCOPED_TRACE(message(micro_batches, " micro-batches, recompute ", int(recompute)));
      SessionOptions options = support::small_options();
      options.micro_batches = micro_batches;
      options.model.recompute = recompute;
      Context<Cpu> context(3);
      SmallSession<ReadsE4M3> session(options, context);
      saturate_some(session);
      const support::TokenBatch batch = support::step_batch(options, 0);
      (void)session.step({batch.tokens, batch.targets}, 1e-6);
      const auto expected = expected_counts(micro_batches * options.batch.rows());
      EXPECT_EQ(counted(session), expected);
      const support::TokenBatch other = support::step_batch(support::small_options(), 1);
      session.begin_evaluation();
      (void)session.evaluate({other.tokens, other.targets});
      EXPECT_EQ(counted(session), expected);
      (void)session.step({batch.tokens, batch.targets}, 1e-6);
      EXPECT_EQ(counted(session), expected);
    }
  }
}

/// A rank counts the tokens that it computes.
TEST(SaturatedResults, AreCountedByEachRank) {
  support::on_ranks(2, [](support::ThreadComm& communicator) {
    SessionOptions options = support::small_options();
    options.sharding.ranks = 2;
    Context<Cpu> context(1);
    ModelSession<support::SmallModel<ReadsE4M3>, AdamW<>, DataParallel<>> session(options, context,
                                                                                  communicator);
    saturate_some(session);
    const auto share = support::step_batch(options, static_cast<unsigned>(communicator.rank()));
    (void)session.step({share.tokens, share.targets}, 1e-6);
    EXPECT_EQ(counted(session), expected_counts(options.batch.rows()));
  });
}

TEST(SaturatedResults, AddNothingToTheSavedState) {
  const auto names = [](auto& session) {
    std::vector<std::string> all;
    for (const auto& entry : session.state().entries()) all.push_back(entry.name);
    return all;
  };
  Context<Cpu> context(1);
  SmallSession<Plain> plain(support::small_options(), context);
  SmallSession<ReadsE4M3> narrow(support::small_options(), context);
  EXPECT_EQ(names(narrow), names(plain));
  EXPECT_EQ(narrow.operands().size(), plain.operands().size() + support::small.layers);
}

}  // namespace activation_input_session_test
