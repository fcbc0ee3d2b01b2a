// Muon's steps against PyTorch's, and which parameters it updates.
#include <octavo/layers/flat_parameters.hpp>
#include <octavo/optim/muon.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <barrier>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/golden.hpp"

namespace muon_test {

using namespace octavo;

/// make_muon_golden.py's noise().
float noise(std::size_t element, int salt) {
  const auto number = (static_cast<int>(element) * 37 + salt * 101) * (salt + 3) % 64;
  return static_cast<float>(number - 32) / 32.0f;
}

/// For an element of a part of a parameter, as for that element of the whole.
float noise_of(const Parameter<float, float, Cpu>& parameter, Index element, int salt) {
  const Index whole = parameter.part.place_in_whole(parameter.weight.shape(), element);
  return noise(static_cast<std::size_t>(whole), salt);
}

/// Ranks as threads.
class ThreadExchange final : public ShardExchange<Cpu> {
 public:
  struct Shared {
    explicit Shared(std::ptrdiff_t ranks) : meeting(ranks), rows(static_cast<std::size_t>(ranks)) {}
    std::barrier<> meeting;
    std::vector<const std::byte*> rows;
  };
  ThreadExchange(Shared& shared, std::size_t rank) : shared_(shared), rank_(rank) {}

  void exchange_shards(TensorView<const std::byte, 2, Cpu> rows,
                       TensorView<std::byte, 2, Cpu> received, const Context<Cpu>&) override {
    const auto bytes = static_cast<std::size_t>(rows.extent(1));
    shared_.rows[rank_] = rows.data();
    shared_.meeting.arrive_and_wait();
    for (std::size_t from = 0; from < shared_.rows.size(); ++from) {
      std::memcpy(received.row(static_cast<Index>(from)), shared_.rows[from] + rank_ * bytes,
                  bytes);
    }
    shared_.meeting.arrive_and_wait();
  }

 private:
  Shared& shared_;
  std::size_t rank_;
};

/// The shard of one of several ranks; of its part of the model, if ranks share layers.
struct RanksShare {
  Index rank = 0;
  Index ranks = 1;
  ShardExchange<Cpu>* exchange = nullptr;
  int degree = 1;
  int place = 0;
};

/// Flat parameters in FP32: a block's matrices between parameters that AdamW updates.
struct Block {
  /// @param count  number of experts
  explicit Block(Arena<Cpu>& arena, int degree = 1, int place = 0, Index count = 2) {
    const auto divide_rows = [&](auto& parameter, std::array<Index, 3> rows) {
      if (degree != 1) parameter.part = ParameterPart::rows(degree, place, rows);
    };
    embedding.declare("embedding", 8 / degree, 16, Initial::ones());
    divide_rows(embedding, {8 / degree, 0, 0});
    qkv.declare("qkv", 40 / degree, 16, Initial::ones());
    qkv.matrices.rows = {24 / degree, 8 / degree, 8 / degree};
    divide_rows(qkv, qkv.matrices.rows);
    norm.declare("norm", 1, 16, Initial::ones());
    gate_up.declare("gate_up", 40 / degree, 12, Initial::ones());
    gate_up.matrices.rows = {20 / degree, 20 / degree, 0};
    divide_rows(gate_up, gate_up.matrices.rows);
    down.declare("down", 12, 20 / degree, Initial::ones());
    down.matrices.rows = {12, 0, 0};
    if (degree != 1) down.part = ParameterPart::columns(degree, place, 12);
    experts.declare("experts", 40 * count, 12, Initial::ones());
    experts.matrices = {{28, 12, 0}, count};
    expert.declare("expert", 40, 12, Initial::ones());
    expert.matrices.rows = {28, 12, 0};
    const auto each = [this](const auto& body) {
      for (Parameter<float, float, Cpu>* parameter : all()) body(*parameter);
    };
    run.allocate_weights(arena, each, {.multiple = 8 * allocation_alignment});
    run.allocate_gradients(arena, each);
  }
  [[nodiscard]] std::vector<Parameter<float, float, Cpu>*> all() {
    return {&embedding, &qkv, &norm, &gate_up, &down, &experts, &expert};
  }
  [[nodiscard]] std::vector<FlatShard<float, float, Cpu>> shards(const RanksShare& share) {
    const StageParameters<float, float, Cpu> whole{&run, all()};
    const Index size = run.size() / share.ranks;
    const Index begin = share.rank * size;
    return {{run.weights().rows(begin, size), run.gradients().rows(begin, size), begin,
             whole.places(), run.size()}};
  }

  /// Makes the other parameter the second expert.
  void copy_expert() {
    const Index size = expert.weight.size();
    std::copy_n(experts.weight.data() + size, size, expert.weight.data());
    std::copy_n(experts.gradient.data() + size, size, expert.gradient.data());
  }

  FlatParameters<float, float, Cpu> run;
  Parameter<float, float, Cpu> embedding, qkv, norm, gate_up, down, experts, expert;
};

/// Two blocks of one size and a larger one.
class Model {
 public:
  explicit Model(Arena<Cpu>& arena, const RanksShare& share = {}) {
    for (const Index experts : {2, 2, 40}) {
      blocks.emplace_back(arena, share.degree, share.place, experts);
    }
  }
  [[nodiscard]] std::vector<FlatShard<float, float, Cpu>> shards(const RanksShare& share) {
    std::vector<FlatShard<float, float, Cpu>> all;
    for (Block& block : blocks) all.push_back(block.shards(share)[0]);
    return all;
  }

  std::deque<Block> blocks;
};

/// Blocks, their optimizer and their memory.
template <class Optimizer>
class Training {
  using For = typename Optimizer::template For<float, float, Cpu>;
  using Settings = typename Optimizer::Settings;

 public:
  explicit Training(const Settings& settings, const Offload& offload = {},
                    const RanksShare& share = {})
      : share_(share), offload_(offload), arena_(plan(settings), context) {
    model.emplace(arena_, share);
    for (Block& block : model->blocks) {
      clear_weights(WeightRange<float, Cpu>{block.run.weights()}, context);
      fill_zero(block.run.gradients().data(), block.run.gradients().bytes(), context);
      for (Parameter<float, float, Cpu>* parameter : block.all()) {
        for (Index i = 0; i < parameter->weight.size(); ++i) {
          parameter->weight.data()[i] = noise_of(*parameter, i, 50) * 0.25f;
        }
      }
    }
    optimizer.emplace(arena_, model->shards(share), settings, 1, offload);
    optimizer->initialize(context);
  }

  void step(double rate, bool skips = false) {
    StepStatus status{};
    status.clip_coefficient = 1.0f;
    status.skip = skips ? 1 : 0;
    Staging<Cpu> staging(optimizer->staged_bytes(), context);
    optimizer->prepare(rate, staging, context);
    optimizer->step({&status, {1}}, share_.exchange == nullptr ? alone_ : *share_.exchange,
                    untimed_, context);
    if (!skips) optimizer->advance();
  }

  const Context<Cpu> context{1};

 private:
  MemoryPlan plan(const Settings& settings) {
    Arena<Cpu> measuring;
    Model measured(measuring, share_);
    const For sized(measuring, measured.shards(share_), settings, 1, offload_);
    return measuring.plan();
  }

  RanksShare share_;
  Offload offload_;
  Arena<Cpu> arena_;
  ShardExchange<Cpu> alone_;
  Timeline<Cpu> untimed_;

 public:
  std::optional<Model> model;
  std::optional<For> optimizer;
};

/// A matrix of the file, and its place in a parameter.
struct Matrix {
  std::string name;
  Parameter<float, float, Cpu>* of;
  Index first_row, rows;

  [[nodiscard]] std::size_t size() const {
    return static_cast<std::size_t>(rows * of->weight.extent(1));
  }
  [[nodiscard]] float* weights() const {
    return of->weight.data() + first_row * of->weight.extent(1);
  }
  [[nodiscard]] float* gradients() const {
    return of->gradient.data() + first_row * of->weight.extent(1);
  }
};

/// In the order of the file.
std::vector<Matrix> matrices_of(Block& block) {
  return {{"query", &block.qkv, 0, 24},   {"key", &block.qkv, 24, 8},
          {"value", &block.qkv, 32, 8},   {"gate", &block.gate_up, 0, 20},
          {"up", &block.gate_up, 20, 20}, {"down", &block.down, 0, 12}};
}

void set_gradients(const std::vector<Matrix>& matrices, int step) {
  for (std::size_t number = 0; number < matrices.size(); ++number) {
    const auto salt = static_cast<int>(number);
    for (std::size_t i = 0; i < matrices[number].size(); ++i) {
      matrices[number].gradients()[i] =
          (matrices[number].weights()[i] - noise(i, salt)) * 0.5f + noise(i, salt + 7 * step);
    }
  }
}

struct GoldenRun {
  std::string name;
  double rate;
  MuonSettings settings;
};

/// make_muon_golden.py's RUNS.
std::vector<GoldenRun> runs() {
  return {{"first", 0.02, {.rate = MuonRate::original}},
          {"second",
           0.01,
           {.momentum = 0.8f,
            .nesterov = false,
            .newton_schulz = {.iterations = 4},
            .rate = MuonRate::match_rms_adamw,
            .weight_decay = 0.3f}}};
}

TEST(Muon, StepsMatchPyTorch) {
  std::map<std::string, std::vector<double>> expected;
  reference::golden_detail::read_tensors(
      reference::golden_path("muon.golden"),
      [&](const std::string& name, std::vector<double> values) { expected[name] = values; });
  int compared = 0;
  for (const GoldenRun& run : runs()) {
    Training<Muon<>> training(run.settings);
    const std::vector<Matrix> matrices = matrices_of(training.model->blocks[0]);
    for (std::size_t number = 0; number < matrices.size(); ++number) {
      for (std::size_t i = 0; i < matrices[number].size(); ++i) {
        matrices[number].weights()[i] = noise(i, static_cast<int>(number) + 50) * 0.25f;
      }
    }
    for (int step = 1; step <= 50; ++step) {
      set_gradients(matrices, step);
      training.step(run.rate);
      for (const Matrix& matrix : matrices) {
        const std::string name = message(run.name, ".step", step, ':', matrix.name);
        if (!expected.contains(name)) continue;
        ++compared;
        double error = 0;
        for (std::size_t i = 0; i < matrix.size(); ++i) {
          error = std::max(
              error, std::abs(static_cast<double>(matrix.weights()[i]) - expected.at(name)[i]));
        }
        // Products of BF16 values are rounded alike but for their sums' order, which may change
        // a rounding to BF16 by 2^-8 of an entry of at most 1.
        const double factor =
            static_cast<double>(run.settings.rate_factor(matrix.rows, matrix.of->weight.extent(1)));
        EXPECT_LE(error, 0x1p-8 * run.rate * factor * step) << name;
      }
    }
  }
  EXPECT_EQ(compared, 2 * 3 * 6);
}

/// All gradients of a step, of whatever weights; other ones in each block.
void set_all_gradients(Model& model, int step) {
  int salt = 1 + step;
  for (Block& block : model.blocks) {
    for (Parameter<float, float, Cpu>* parameter : block.all()) {
      for (Index i = 0; i < parameter->gradient.size(); ++i) {
        parameter->gradient.data()[i] = noise_of(*parameter, i, salt);
      }
    }
    salt += 10;
  }
}

template <class Optimizer>
std::vector<float> weights_after(Training<Optimizer>& training, int steps, double rate = 0.01) {
  for (int step = 0; step < steps; ++step) {
    set_all_gradients(*training.model, step);
    training.step(rate);
  }
  std::vector<float> all;
  for (const Block& block : training.model->blocks) {
    const TensorView<float, 1, Cpu> weights = block.run.weights();
    all.insert(all.end(), weights.data(), weights.data() + weights.size());
  }
  return all;
}

TEST(Muon, UpdatesOtherParametersWithAdamW) {
  const AdamWSettings adamw{.beta1 = 0.8f, .weight_decay = 0.5f};
  Training<Muon<>> muon({.adamw = adamw});
  Training<AdamW<>> alone(adamw);
  const std::vector<float> weights = weights_after(muon, 3);
  const std::vector<float> expected = weights_after(alone, 3);
  for (const auto* parameter : muon.model->blocks[0].all()) {
    const auto begin = static_cast<std::ptrdiff_t>(parameter->offset);
    const auto end = begin + static_cast<std::ptrdiff_t>(parameter->weight.size());
    EXPECT_EQ(std::equal(weights.begin() + begin, weights.begin() + end, expected.begin() + begin),
              parameter->matrices.empty())
        << parameter->name;
  }
  Training<Muon<>> scaled({.adamw = adamw, .adamw_rate = 0.5f});
  EXPECT_EQ(weights_after(scaled, 3, 0.02)[0], expected[0]);
}

/// Compares the weights that a rank has updated, its shard of its part, with those of one rank.
template <class Optimizer>
void expect_weights_of_whole(Training<Optimizer>& training, Training<Optimizer>& alone,
                             const RanksShare& share) {
  for (std::size_t number = 0; number < alone.model->blocks.size(); ++number) {
    Block& block = training.model->blocks[number];
    const Index size = block.run.size() / share.ranks;
    const auto parameters = block.all();
    const auto whole = alone.model->blocks[number].all();
    for (std::size_t p = 0; p < parameters.size(); ++p) {
      const auto& parameter = *parameters[p];
      for (Index i = 0; i < parameter.weight.size(); ++i) {
        if ((parameter.offset + i) / size != share.rank) continue;
        const Index place = parameter.part.place_in_whole(parameter.weight.shape(), i);
        ASSERT_EQ(parameter.weight.data()[i], whole[p]->weight.data()[place])
            << parameter.name << " of block " << number << ", element " << place << ", rank "
            << share.rank << " of " << share.ranks << ", place " << share.place << " of "
            << share.degree;
      }
    }
  }
}

/// Trains on groups of ranks that share layers.
template <class Optimizer>
void expect_bits_of_one_rank(const MuonSettings& settings, int degree,
                             const std::vector<Index>& groups) {
  Training<Optimizer> alone(settings);
  (void)weights_after(alone, 3);
  for (const Index ranks : groups) {
    ThreadExchange::Shared shared(ranks * degree);
    std::vector<std::thread> threads;
    for (Index rank = 0; rank < ranks * degree; ++rank) {
      threads.emplace_back([&, rank] {
        ThreadExchange exchange(shared, static_cast<std::size_t>(rank));
        const RanksShare share{rank / degree, ranks, &exchange, degree,
                               static_cast<int>(rank % degree)};
        Training<Optimizer> training(settings, {}, share);
        (void)weights_after(training, 3);
        expect_weights_of_whole(training, alone, share);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
}

TEST(Muon, TensorParallelRanksAreBitwiseEqualToOneRank) {
  for (const int degree : {2, 4}) {
    expect_bits_of_one_rank<Muon<>>({.rate = MuonRate::original}, degree, {1, 2, 4});
  }
}

using EightBitMuon = Muon<MasterWeights<Fp32>, Moments<EightBit>>;

TEST(Muon, ShardedRanksAreBitwiseEqualToOneRank) {
  expect_bits_of_one_rank<Muon<>>({}, 1, {2, 4, 8});
}

TEST(Muon, ShardedEightBitMomentumIsBitwiseEqualToOneRank) {
  expect_bits_of_one_rank<EightBitMuon>({}, 1, {2, 4, 8});
}

/// Codes of a group are floats with 4 bits of mantissa, from 16 of their scale on.
TEST(Muon, EightBitMomentumIsRoundedFp32Momentum) {
  constexpr Index count = 300;
  const Context<Cpu> context{1};
  std::vector<float> weights(count), gradients(count), whole(count);
  std::vector<EightBit> codes(count);
  std::vector<E8M0> scales(3, E8M0::from_bits(110));
  std::vector<Bf16> directions(count), expected(count);
  AdamWStep step{1e-2f, 1.0f, 1.0f, 0, 7};
  StepStatus status{};
  status.clip_coefficient = 0.5f;
  double bias = 0;
  for (int i = 0; i < 40; ++i) {
    ++step.step;
    for (Index e = 0; e < count; ++e) {
      gradients[static_cast<std::size_t>(e)] = noise(static_cast<std::size_t>(e), i);
      whole[static_cast<std::size_t>(e)] = FirstMomentCode::decode(
          codes[static_cast<std::size_t>(e)], scales[static_cast<std::size_t>(e / 128)]);
    }
    const auto run = [&]<class M>(TensorView<M, 1, Cpu> momentum, TensorView<E8M0, 1, Cpu> scale,
                                  std::vector<Bf16>& direction) {
      const MuonElements<float, float, M, Cpu> elements{.weight = {weights.data(), {count}},
                                                        .gradient = {gradients.data(), {count}},
                                                        .master = {},
                                                        .momentum = momentum,
                                                        .momentum_scale = scale,
                                                        .direction = {direction.data(), {count}}};
      muon_momentum(elements, MuonMomentum{}, TensorView<const AdamWStep, 1, Cpu>{&step, {1}},
                    TensorView<const StepStatus, 1, Cpu>{&status, {1}}, context);
    };
    run(TensorView<float, 1, Cpu>{whole.data(), {count}}, {}, expected);
    run(TensorView<EightBit, 1, Cpu>{codes.data(), {count}}, {scales.data(), {3}}, directions);
    for (std::size_t e = 0; e < whole.size(); ++e) {
      ASSERT_EQ(directions[e].bits, expected[e].bits) << e;
      const auto scale = static_cast<double>(static_cast<float>(scales[e / 128]));
      const double level =
          std::max(scale, (std::abs(static_cast<double>(whole[e])) + 16 * scale) / 16);
      const double error = static_cast<double>(FirstMomentCode::decode(codes[e], scales[e / 128])) -
                           static_cast<double>(whole[e]);
      ASSERT_LT(std::abs(error), level * 1.001) << e;
      bias += error / level;
    }
  }
  // Of 12,000 errors of at most one level, each with a standard deviation of half a level at most.
  EXPECT_LT(std::abs(bias), 5 * 0.5 * std::sqrt(40.0 * count));
}

TEST(Muon, OrthogonalisesEachExpertSeparately) {
  Training<Muon<>> training({.rate = MuonRate::original});
  Block& block = training.model->blocks[0];
  for (int step = 0; step < 3; ++step) {
    set_all_gradients(*training.model, step);
    block.copy_expert();
    training.step(0.01);
    const float* second = block.experts.weight.data() + block.expert.weight.size();
    EXPECT_TRUE(std::equal(second, second + block.expert.weight.size(), block.expert.weight.data()))
        << "step " << step;
  }
}

TEST(Muon, RanksUseEqualMemory) {
  std::vector<std::size_t> bytes;
  for (Index rank = 0; rank < 4; ++rank) {
    Arena<Cpu> measuring;
    Model measured(measuring);
    const Muon<>::Memory<float, float, Cpu> sized(measuring, measured.shards({rank, 4}), {}, 1, {});
    bytes.push_back(measuring.plan().peak);
  }
  for (const std::size_t of_rank : bytes) EXPECT_EQ(of_rank, bytes[0]);
}

TEST(Muon, OffloadingIsBitwiseNeutral) {
  Training<Muon<>> alone(MuonSettings{});
  Training<Muon<>> offloaded(MuonSettings{}, {.optimizer = true, .chunk = 256});
  EXPECT_EQ(weights_after(offloaded, 3), weights_after(alone, 3));
  Training<EightBitMuon> small(MuonSettings{});
  Training<EightBitMuon> small_offloaded(MuonSettings{}, {.optimizer = true, .chunk = 256});
  EXPECT_EQ(weights_after(small_offloaded, 3), weights_after(small, 3));
}

TEST(Muon, SkippedStepChangesNothing) {
  Training<Muon<>> never(MuonSettings{});
  Training<Muon<>> once(MuonSettings{});
  set_all_gradients(*once.model, 9);
  once.step(0.01, true);
  EXPECT_EQ(weights_after(once, 2), weights_after(never, 2));
}

TEST(Muon, RejectsInvalidSettings) {
  const auto refuses = [](const MuonSettings& settings) {
    EXPECT_THROW(Training<Muon<>>{settings}, ConfigError);
  };
  refuses({.momentum = 1.0f});
  refuses({.newton_schulz = {.iterations = 0}});
  refuses({.newton_schulz = {.epsilon = 0.0f}});
  refuses({.weight_decay = -0.1f});
  refuses({.adamw = {.beta2 = 1.0f}});
  refuses({.adamw_rate = -1.0f});
}

TEST(Muon, RejectsModelWithoutHiddenMatrices) {
  Arena<Cpu> arena;
  Block block(arena);
  for (auto* parameter : block.all()) parameter->matrices = {};
  EXPECT_THROW((Muon<>::For<float, float, Cpu>(arena, block.shards({}), {}, 1)), ConfigError);
  block.qkv.matrices.rows = {24, 8, 0};
  EXPECT_THROW((Muon<>::For<float, float, Cpu>(arena, block.shards({}), {}, 1)), UsageError);
  block.qkv.matrices.rows = {24, 8, 8};
  block.qkv.part = ParameterPart::rows(2, 0, {32, 8, 0});
  EXPECT_THROW((Muon<>::For<float, float, Cpu>(arena, block.shards({}), {}, 1)), UsageError);
}

}  // namespace muon_test
