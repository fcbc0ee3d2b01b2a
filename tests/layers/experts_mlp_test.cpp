#include <octavo/layers/layers.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <numeric>
#include <string>
#include <type_traits>
#include <vector>

#include "support/golden.hpp"
#include "support/matrix.hpp"
#include "support/test_types.hpp"

namespace experts_mlp_test {

using namespace octavo;
using support::Matrix;
using support::random_matrix;

/// Memory, manifest and scaling table of a layer, and the load-balancing loss.
class Workbench {
 public:
  explicit Workbench(Index experts)
      : counts(1, experts, 0), probabilities(1, experts), arena({.peak = 64 << 20}, context) {
    loss.sums = {counts.flat(), probabilities.flat()};
  }
  [[nodiscard]] LayerRegistry<Cpu> registry() {
    LayerRegistry<Cpu> result{&scaling, &manifest, nullptr};
    result.expert_loss = &loss;
    return result;
  }
  void bind_workspace(Index tokens) {
    std::size_t bytes = 0;
    for (const GemmEntry& gemm : manifest.entries()) {
      bytes = std::max(bytes, experts_workspace<Cpu>(gemm, tokens, context));
    }
    const auto count = static_cast<Index>(bytes);
    context.bind_workspace({arena.allocate<std::byte>(MemoryKind::workspace, count), bytes});
  }

  Context<Cpu> context{2};
  Matrix<std::int32_t> counts;
  Matrix<float> probabilities;
  ExpertLoss<Cpu> loss;
  Manifest manifest;
  ScalingTable<Cpu> scaling;
  Arena<Cpu> arena;
};

template <BlockShape Shape, ExpertShape Experts, class P>
using PartOf = ExpertsMLP<Shape, Experts, typename PrecisionTraits<P>::Storage, P, P,
                          typename PrecisionTraits<P>::Storage, Cpu>;

/// A mixture of experts that is not in a block.
template <BlockShape Shape, ExpertShape Experts, class P>
class Layer {
 public:
  using Part = PartOf<Shape, Experts, P>;
  using T = typename PrecisionTraits<P>::Storage;

  explicit Layer(Index tokens)
      : bench_(Experts.experts),
        x_(tokens, Shape.hidden),
        y_(tokens, Shape.hidden),
        x_gradient_(tokens, Shape.hidden) {
    auto& arena = bench_.arena;
    part_.declare("block", bench_.registry(), {}, {});
    run_.allocate_weights(arena, [this](const auto& visitor) { part_.visit(visitor); });
    part_.allocate_weight_copies(arena);
    run_.allocate_gradients(arena, [this](const auto& visitor) { part_.visit(visitor); });
    bench_.scaling.allocate(arena);
    Part::allocate_shared_buffers(arena, saved_, tokens);
    Part::allocate_saved(arena, saved_, tokens, [](Recompute) { return true; });
    Part::allocate_scratch(arena, scratch_, tokens);
    bench_.bind_workspace(tokens);
    bench_.scaling.reset_sync(bench_.context);
    saved_.input.values = x_.elements.data();
  }

  /// Sets the weights in the order router, gate and up, down.
  void set_weights(const std::vector<std::vector<double>>& weights) {
    std::size_t number = 0;
    part_.visit([&](auto& parameter) {
      const auto& values = weights.at(number++);
      ASSERT_EQ(static_cast<Index>(values.size()), parameter.weight.size()) << parameter.name;
      for (std::size_t i = 0; i < values.size(); ++i) {
        parameter.weight.data()[i] = T(static_cast<float>(values[i]));
      }
    });
    part_.template quantize_weights<Mode::train>(bench_.context);
  }

  /// Runs a training micro-batch.
  /// @param coefficient  of the load-balancing loss
  void run(const std::vector<double>& x, const std::vector<double>& residual,
           const std::vector<double>& y_gradient, float coefficient, bool accumulate = false) {
    const Index tokens = x_.rows;
    const BatchShape batch{1, tokens, 0};
    auto dy = matrix_of(y_gradient);
    const auto addend = matrix_of(residual);
    x_ = matrix_of(x);
    saved_.input.values = x_.elements.data();
    std::fill(bench_.counts.elements.begin(), bench_.counts.elements.end(), 0);
    std::fill(bench_.probabilities.elements.begin(), bench_.probabilities.elements.end(), 0.0f);
    const auto input = part_.template input<Mode::train>(saved_, tokens, {});
    part_.template forward<Mode::train>(input, addend.input(), y_.view(), batch, 0, saved_,
                                        bench_.context);
    bench_.loss.term = BalanceTerm<Cpu>::of(bench_.loss.sums, coefficient, tokens);
    part_.backward(dy.view(), input, x_gradient_.view(), batch, 0, saved_, scratch_, accumulate,
                   bench_.context);
  }

  /// The load-balancing loss of the last micro-batch.
  [[nodiscard]] double balance_loss() {
    Matrix<float> loss(1, 1);
    expert_balance_loss(bench_.loss.sums, x_.rows, loss.flat(), bench_.context);
    return loss(0, 0);
  }
  [[nodiscard]] std::vector<double> y() const { return values_of(y_.input()); }
  [[nodiscard]] std::vector<double> x_gradient() const { return values_of(x_gradient_.input()); }
  /// The gradients of the weights, in their order.
  [[nodiscard]] std::vector<std::vector<double>> gradients() {
    std::vector<std::vector<double>> result;
    part_.visit([&](auto& parameter) {
      result.push_back(values_of(TensorView<const T, 2, Cpu>(parameter.gradient)));
    });
    return result;
  }
  [[nodiscard]] Manifest& manifest() { return bench_.manifest; }

 private:
  [[nodiscard]] Matrix<T> matrix_of(const std::vector<double>& values) const {
    Matrix<T> result(x_.rows, Shape.hidden);
    for (std::size_t i = 0; i < values.size(); ++i) {
      result.elements[i] = T(static_cast<float>(values[i]));
    }
    return result;
  }
  static std::vector<double> values_of(TensorView<const T, 2, Cpu> view) {
    std::vector<double> result;
    for (Index i = 0; i < view.size(); ++i) result.push_back(support::value_of(view.data()[i]));
    return result;
  }

  Workbench bench_;
  Part part_;
  FlatParameters<T, T, Cpu> run_;
  typename Part::Saved saved_;
  typename Part::Scratch scratch_;
  Matrix<T> x_;
  Matrix<T> y_;
  Matrix<T> x_gradient_;
};

/// ‖actual − expected‖ / ‖expected‖.
double relative_error(const std::vector<double>& actual, const std::vector<double>& expected) {
  double error = 0;
  double norm = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    error += (actual.at(i) - expected[i]) * (actual.at(i) - expected[i]);
    norm += expected[i] * expected[i];
  }
  return std::sqrt(error / norm);
}

constexpr std::array weight_names{"gate.weight", "experts.gate_up_proj", "experts.down_proj"};

/// Expects the results of transformers.
template <BlockShape Shape, ExpertShape Experts>
void expect_golden(const std::string& file) {
  std::map<std::string, std::vector<double>> tensors;
  const auto header = reference::golden_detail::read_tensors(
      reference::golden_path(file), [&](const std::string& name, std::vector<double> values) {
        tensors[name] = std::move(values);
      });
  ASSERT_EQ(header.integer("experts"), Experts.experts);
  ASSERT_EQ(header.flag("renormalised"), Experts.renormalised);
  Layer<Shape, Experts, Fp32> layer(header.integer("tokens"));
  std::vector<std::vector<double>> weights;
  weights.reserve(weight_names.size());
  for (const std::string name : weight_names) weights.push_back(tensors.at("weight:" + name));
  layer.set_weights(weights);
  const std::vector<double> nothing(tensors["x"].size());
  layer.run(tensors["x"], nothing, tensors["y_gradient"],
            static_cast<float>(header.value("coefficient")));
  EXPECT_LT(relative_error(layer.y(), tensors["y"]), 1e-6);
  EXPECT_LT(relative_error(layer.x_gradient(), tensors["x_gradient"]), 2e-6);
  EXPECT_NEAR(layer.balance_loss(), header.value("loss"), 1e-6);
  const auto gradients = layer.gradients();
  for (std::size_t i = 0; i < weight_names.size(); ++i) {
    const auto& expected = tensors.at(std::string("gradient:") + weight_names[i]);
    EXPECT_LT(relative_error(gradients[i], expected), 2e-6) << weight_names[i];
  }
}

TEST(ExpertsMlp, AgreesWithMixtral) {
  expect_golden<BlockShape{.hidden = 16, .ffn = 24}, ExpertShape{6, 2, true}>(
      "mixtral_experts.golden");
}
TEST(ExpertsMlp, AgreesWithQwen3) {
  expect_golden<BlockShape{.hidden = 16, .ffn = 8}, ExpertShape{16, 4, false}>(
      "qwen3_experts.golden");
}

constexpr BlockShape shape{.hidden = 128, .ffn = 128};
constexpr ExpertShape four_experts{4, 2, true};
constexpr Index tokens = 48;

/// BF16 values, so that all recipes route alike.
std::vector<double> values(Index count, unsigned seed, float deviation) {
  const auto matrix = random_matrix<Bf16>(1, count, seed, deviation);
  std::vector<double> result;
  for (Index i = 0; i < count; ++i) result.push_back(matrix(0, i));
  return result;
}

struct Results {
  std::vector<double> y;
  std::vector<double> x_gradient;
  std::vector<std::vector<double>> gradients;
};

template <class P>
Results train(bool twice = false) {
  Layer<shape, four_experts, P> layer(tokens);
  layer.set_weights(
      {values(4 * 128, 1, 0.1f), values(4 * 256 * 128, 2, 0.1f), values(4 * 128 * 128, 3, 0.1f)});
  const auto x = values(tokens * 128, 4, 1.0f);
  const auto dy = values(tokens * 128, 5, 1.0f);
  const auto residual = values(tokens * 128, 6, 1.0f);
  layer.run(x, residual, dy, 1.0f);
  if (twice) layer.run(x, residual, dy, 1.0f, true);
  EXPECT_NO_THROW(layer.manifest().verify_step(twice ? 2 : 1, 1));
  return {layer.y(), layer.x_gradient(), layer.gradients()};
}

template <class P>
class ExpertsMlpRecipes : public testing::Test {
 protected:
  static constexpr double bound = QuantizedPrecision<P> ? 0.12 : 0.006;
};
using Recipes = support::TestTypes<Bf16, Fp8Recipe<Tensorwise>, Fp8Recipe<Rowwise>, Mxfp8,
                                   Fp8Recipe<Blockwise>>;
TYPED_TEST_SUITE(ExpertsMlpRecipes, Recipes);

TYPED_TEST(ExpertsMlpRecipes, AgreeWithFp32) {
  const Results expected = train<Fp32>();
  const Results actual = train<TypeParam>();
  EXPECT_LT(relative_error(actual.y, expected.y), this->bound);
  EXPECT_LT(relative_error(actual.x_gradient, expected.x_gradient), this->bound);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_LT(relative_error(actual.gradients[i], expected.gradients[i]), this->bound) << i;
  }
}

TEST(ExpertLoss, RejectsCoefficientWithoutMeaning) {
  for (const float wrong :
       {-0.01f, std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    ExpertLoss<Cpu> loss;
    EXPECT_THROW(loss.add_router(8, wrong), ConfigError) << wrong;
  }
}

TEST(ExpertsMlp, AccumulatesGradients) {
  const Results once = train<Fp32>();
  const Results twice = train<Fp32>(true);
  for (std::size_t i = 0; i < 3; ++i) {
    auto doubled = once.gradients[i];
    for (double& value : doubled) value *= 2;
    EXPECT_LT(relative_error(twice.gradients[i], doubled), 1e-6) << i;
  }
}

/// Runs two branches of experts, of which the first runs again as a whole under Recompute::block.
/// Returns the bytes of the result, the input's gradient and the parameters' gradients.
template <class P>
std::vector<unsigned char> train_block(Recompute recompute) {
  using T = typename PrecisionTraits<P>::Storage;
  using Norm = RMSNorm<T, 128, T, Cpu>;
  using Part = PartOf<shape, four_experts, P>;
  using Block =
      PreNormBlock<T, 128, T, Cpu, ResidualBranch<"first_norm", "first", Norm, Part, T, 128, Cpu>,
                   ResidualBranch<"last_norm", "last", Norm, Part, T, 128, Cpu>>;
  Workbench bench(four_experts.experts);
  Block block;
  typename Block::Shared shared;
  block.allocate(bench.arena, "block", bench.registry(),
                 {Initial::normal(0.1f), Initial::normal(0.1f)}, recompute);
  block.allocate_gradients(bench.arena);
  bench.scaling.allocate(bench.arena);
  Block::allocate_shared_buffers(bench.arena, shared, tokens, recompute);
  block.allocate_saved(bench.arena, shared, tokens);
  bench.bind_workspace(tokens);
  bench.scaling.reset_sync(bench.context);
  std::uint64_t stream = 0;
  block.visit([&](auto& parameter) { initialize(parameter, {1, stream++}, bench.context); });
  block.template quantize_weights<Mode::train>(bench.context);
  block.flat_parameters().clear_gradients([&](const auto& visitor) { block.visit(visitor); },
                                          bench.context);

  const auto x = random_matrix<T>(tokens, 128, 4);
  auto gradient = random_matrix<T>(tokens, 128, 5);
  Matrix<T> y(tokens, 128);
  const BatchView<Cpu> batch{{1, tokens, 0}};
  block.template forward<Mode::train>(x.input(), y.view(), batch, 0, bench.context);
  bench.loss.term = BalanceTerm<Cpu>::of(bench.loss.sums, 1.0f, 2 * tokens);
  block.backward(x.input(), gradient.view(), batch, 0, shared, false, bench.context);
  EXPECT_NO_THROW(bench.manifest.verify_step(1, 1));
  EXPECT_EQ(std::accumulate(bench.counts.elements.begin(), bench.counts.elements.end(), 0),
            2 * tokens * four_experts.choices);
  auto bytes = support::bytes_of(y.elements);
  const auto add = [&](const auto* data, Index count) {
    const auto* begin = reinterpret_cast<const unsigned char*>(data);
    bytes.insert(bytes.end(), begin, begin + count * static_cast<Index>(sizeof(*data)));
  };
  add(gradient.elements.data(), gradient.size());
  block.visit([&](auto& parameter) { add(parameter.gradient.data(), parameter.gradient.size()); });
  return bytes;
}

template <class P>
class ExpertsMlpRecompute : public testing::Test {};
using RecomputeRecipes = support::TestTypes<Fp32, Fp8Recipe<Delayed>, Fp8Recipe<Tensorwise>>;
TYPED_TEST_SUITE(ExpertsMlpRecompute, RecomputeRecipes);

TYPED_TEST(ExpertsMlpRecompute, ChangesNoBit) {
  const auto expected = train_block<TypeParam>(Recompute::none);
  for (const Recompute recompute :
       {Recompute::norms, Recompute::swiglu, Recompute::ffn, Recompute::block}) {
    EXPECT_EQ(train_block<TypeParam>(recompute), expected) << static_cast<int>(recompute);
  }
}

}  // namespace experts_mlp_test
