// What the optimizer of a model keeps, and says that it keeps.
#include <octavo/layers/flat_parameters.hpp>
#include <octavo/optim/adamw.hpp>

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
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
    run.allocate_weights(arena, each);
    run.allocate_gradients(arena, each);
  }
  /// All of it.
  [[nodiscard]] std::vector<octavo::FlatShard<T, G, Cpu>> shards() {
    const octavo::StageParameters<T, G, Cpu> whole{&run, {&matrix}};
    return {{run.weights(), run.gradients(), 0, whole.places()}};
  }

  FlatParameters<T, G, Cpu> run;
  Parameter<T, G, Cpu> matrix;
};

template <class Master, class Moment, class Weight>
std::string name() {
  return AdamW<MasterWeights<Master>, Moments<Moment>>::template For<Weight, Weight, Cpu>::name();
}

TEST(AdamW, NameListsStateFormats) {
  EXPECT_EQ((name<Fp32, Bf16, Bf16>()), "AdamW with fp32 master weights and bf16 moments");
  EXPECT_EQ((name<Bf16, Fp32, Bf16>()), "AdamW with bf16 master weights and fp32 moments");
  EXPECT_EQ((name<Bf16, Bf16, Fp32>()), "AdamW with fp32 weights and bf16 moments");
  EXPECT_EQ((name<Bf16, EightBit, Bf16>()), "AdamW with bf16 master weights and 8-bit moments");
}

TEST(AdamW, InitializeResetsStepCount) {
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

/// A model of a matrix and a vector, neither of which ends with a group of moments.
struct TwoParameters {
  using T = Bf16;
  using G = Bf16;

  [[nodiscard]] auto each() {
    return [this](const auto& body) {
      body(matrix);
      body(vector);
    };
  }
  explicit TwoParameters(Arena<Cpu>& arena) {
    matrix.declare("matrix", 5, 200, octavo::Initial::ones());
    vector.declare("vector", 1, 300, octavo::Initial::ones());
    run.allocate_weights(arena, each());
    run.allocate_gradients(arena, each());
  }
  /// What one of some ranks updates.
  [[nodiscard]] FlatShard<T, G, Cpu> shard(Index rank, Index ranks) {
    const StageParameters<T, G, Cpu> whole{&run, {&matrix, &vector}};
    const Index size = run.size() / ranks;
    return {run.weights().rows(rank * size, size), run.gradients().rows(rank * size, size),
            rank * size, whole.places()};
  }

  FlatParameters<T, G, Cpu> run;
  Parameter<T, G, Cpu> matrix;
  Parameter<T, G, Cpu> vector;
};

/// What is kept of each parameter, as bytes by name: parts in the order in which they are shown.
class Kept final : public StateVisitor<Cpu> {
 public:
  using StateVisitor<Cpu>::operator();
  void add(StateTensor tensor) override {
    const std::vector<unsigned char>& kept = bytes[tensor.name];
    Index elements = 1;
    for (const Index extent : tensor.shape) elements *= extent;
    EXPECT_EQ(tensor.begin * static_cast<Index>(tensor.bytes), elements * std::ssize(kept));
    append(tensor.name, tensor.data, tensor.bytes);
  }
  void add(const std::string&, std::int64_t&) override {}

  void append(const std::string& name, const void* data, std::size_t count) {
    const auto* begin = static_cast<const unsigned char*>(data);
    bytes[name].insert(bytes[name].end(), begin, begin + count);
  }

  std::map<std::string, std::vector<unsigned char>> bytes;
};

/// What ranks keep, and the weights, after three steps.
std::map<std::string, std::vector<unsigned char>> kept_by(Index ranks) {
  using Optimizer = AdamW<MasterWeights<Fp32>, Moments<EightBit>>::For<Bf16, Bf16, Cpu>;
  const Context<Cpu> context(1);
  Kept kept;
  for (Index rank = 0; rank < ranks; ++rank) {
    Arena<Cpu> measuring;
    TwoParameters measured(measuring);
    const Optimizer sized(measuring, {measured.shard(rank, ranks)}, {}, 1);
    Arena<Cpu> arena(measuring.plan(), context);
    TwoParameters model(arena);
    clear_weights(WeightRange<Bf16, Cpu>{model.run.weights()}, context);
    Optimizer optimizer(arena, {model.shard(rank, ranks)}, {}, 1);
    optimizer.initialize(context);
    Timeline<Cpu> untimed;
    ShardExchange<Cpu> alone;
    Staging<Cpu> staging(sizeof(AdamWStep), context);
    StepStatus status{};
    status.clip_coefficient = 1.0f;
    for (int step = 0; step < 3; ++step) {
      for (Index i = 0; i < model.run.size(); ++i) {
        model.run.gradients().data()[i] = Bf16(static_cast<float>((7 * i + step) % 13 - 6));
      }
      optimizer.prepare(0.1, staging, context);
      optimizer.step({&status, {1}}, alone, untimed, context);
      optimizer.advance();
    }
    optimizer.visit_state(kept);
    const TensorView<Bf16, 1, Cpu> weights = model.shard(rank, ranks).weights;
    kept.append("weights", weights.data(), weights.bytes());
  }
  return kept.bytes;
}

TEST(AdamW, ShardedEightBitMomentsAreBitwiseEqualToUnsharded) {
  const auto whole = kept_by(1);
  EXPECT_EQ(whole.at("optimizer.first_moment_scale.matrix").size(), 8U);  // ⌈1000 / 128⌉
  EXPECT_EQ(whole.at("optimizer.second_moment_scale.vector").size(), 3U);
  EXPECT_EQ(kept_by(2), whole);
  EXPECT_EQ(kept_by(3), whole);
}

}  // namespace adamw_test
