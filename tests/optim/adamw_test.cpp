// What the optimizer of a model keeps, and says that it keeps.
#include <octavo/layers/parameter.hpp>
#include <octavo/optim/adamw.hpp>
#include <octavo/train/one_rank.hpp>

#include <gtest/gtest.h>

#include <string>

namespace adamw_test {

using namespace octavo;

/// A model of one matrix.
template <class Weight>
struct OneMatrix {
  using DeviceType = Cpu;
  using T = Weight;
  using G = Weight;

  explicit OneMatrix(Arena<Cpu>& arena) {
    const auto each = [this](const auto& body) { body(matrix); };
    matrix.declare("matrix", 2, 3, octavo::Initial::ones());
    run.take_weights(arena, each);
    run.take_gradients(arena, each);
  }
  template <class Visitor>
  void visit_runs(const Visitor& visitor) {
    visitor(run, [this](const auto& body) { body(matrix); });
  }

  ParameterRun<T, G, Cpu> run;
  Parameter<T, G, Cpu> matrix;
};

template <class Master, class Moment, class Weight>
std::string name() {
  return AdamW<MasterWeights<Master>, Moments<Moment>>::template For<OneMatrix<Weight>>::name();
}

TEST(AdamW, NamesTheFormatsOfItsState) {
  EXPECT_EQ((name<Fp32, Bf16, Bf16>()), "AdamW with fp32 master weights and bf16 moments");
  EXPECT_EQ((name<Bf16, Fp32, Bf16>()), "AdamW with bf16 master weights and fp32 moments");
  EXPECT_EQ((name<Bf16, Bf16, Fp32>()), "AdamW with fp32 weights and bf16 moments");
}

TEST(AdamW, BeginsAnewWhereItIsInitialised) {
  using Model = OneMatrix<Bf16>;
  using Optimizer = AdamW<>::For<Model>;
  const Context<Cpu> context(1);
  Arena<Cpu> measuring;
  Model measured(measuring);
  const OneRank::For<Model> planned(measuring, measured, {});
  const Optimizer sized(measuring, measured, planned, {}, 1);
  Arena<Cpu> arena(measuring.plan(), context);
  Model model(arena);
  const OneRank::For<Model> alone(arena, model, {});
  Optimizer optimizer(arena, model, alone, {}, 1);
  optimizer.initialize(context);
  EXPECT_EQ(optimizer.steps(), 0);
  optimizer.advance();
  optimizer.advance();
  EXPECT_EQ(optimizer.steps(), 2);
  optimizer.initialize(context);
  EXPECT_EQ(optimizer.steps(), 0);
}

}  // namespace adamw_test
