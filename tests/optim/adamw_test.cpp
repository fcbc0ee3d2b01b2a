// What the optimizer of a model keeps, and says that it keeps.
#include <octavo/layers/parameter_run.hpp>
#include <octavo/optim/adamw.hpp>

#include <gtest/gtest.h>

#include <string>
#include <vector>

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
  /// All of it.
  [[nodiscard]] std::vector<octavo::RunShard<T, G, Cpu>> shards() {
    const octavo::ModelRun<T, G, Cpu> whole{&run, {&matrix}};
    return {{run.weights(), run.gradients(), 0, whole.places()}};
  }

  ParameterRun<T, G, Cpu> run;
  Parameter<T, G, Cpu> matrix;
};

template <class Master, class Moment, class Weight>
std::string name() {
  return AdamW<MasterWeights<Master>, Moments<Moment>>::template For<Weight, Weight, Cpu>::name();
}

TEST(AdamW, NamesTheFormatsOfItsState) {
  EXPECT_EQ((name<Fp32, Bf16, Bf16>()), "AdamW with fp32 master weights and bf16 moments");
  EXPECT_EQ((name<Bf16, Fp32, Bf16>()), "AdamW with bf16 master weights and fp32 moments");
  EXPECT_EQ((name<Bf16, Bf16, Fp32>()), "AdamW with fp32 weights and bf16 moments");
}

TEST(AdamW, BeginsAnewWhereItIsInitialised) {
  using Model = OneMatrix<Bf16>;
  using Optimizer = AdamW<>::For<Bf16, Bf16, Cpu>;
  const Context<Cpu> context(1);
  Arena<Cpu> measuring;
  Model measured(measuring);
  const Optimizer sized(measuring, measured.shards(), {}, 1);
  Arena<Cpu> arena(measuring.plan(), context);
  Model model(arena);
  Optimizer optimizer(arena, model.shards(), {}, 1);
  optimizer.initialize(context);
  EXPECT_EQ(optimizer.steps(), 0);
  optimizer.advance();
  optimizer.advance();
  EXPECT_EQ(optimizer.steps(), 2);
  optimizer.initialize(context);
  EXPECT_EQ(optimizer.steps(), 0);
}

}  // namespace adamw_test
