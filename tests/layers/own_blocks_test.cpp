#include <octavo/layers/layers.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

/// The policy of docs/recipes.md.
struct Own {};

template <>
struct octavo::PrecisionTraits<Own> {
  using Storage = octavo::Bf16;
  static constexpr bool is_quantized = true;
  static constexpr int shape_multiple = 64;
  static std::string name() { return "own"; }
  using ScalingType = octavo::DelayedScaling<16, octavo::AmaxReduction::most_recent>;
  using ForwardFormat = octavo::E4M3;
  using BackwardFormat = octavo::E4M3;
};

namespace own_blocks_test {

using namespace octavo;

constexpr int features = 64;
constexpr Index tokens = 48;
using Matrix = TensorView<Bf16, 2, Cpu>;
using ConstMatrix = TensorView<const Bf16, 2, Cpu>;

/// A block as a user writes one: y = x + W · norm(x), with a layer of each kind by value.
template <class P>
struct OwnBlock {
  using Projection = Linear<P, features, features, Bf16, Cpu>;

  void allocate(Arena<Cpu>& arena, const std::string& name, LayerRegistry<Cpu> registry) {
    norm.declare(name + ".norm", 1e-5f);
    weight.declare(name + ".weight", features, features, Initial::normal(0.2f));
    weight.is_overwritten = true;
    flat.allocate_weights(arena, [this](const auto& visitor) { this->visit(visitor); });
    projection.declare(name, registry);
    projection.allocate_weight_copies(arena, weight);
  }
  void allocate_buffers(Arena<Cpu>& arena) {
    flat.allocate_gradients(arena, [this](const auto& visitor) { this->visit(visitor); });
    constexpr auto kind = MemoryKind::activations;
    input.allocate_kept(arena, tokens, features);
    input.allocate_transient(arena, tokens, features);
    inverse_rms = {arena.allocate<float>(kind, tokens), {tokens}};
    gradient.allocate_row_major(arena, kind, tokens, features);
    gradient.allocate_transposed(arena, kind, tokens, features);
    input_gradient = {arena.allocate<Bf16>(kind, tokens * features), {tokens, features}};
  }
  void visit(auto&& visitor) { norm.visit(visitor), visitor(weight); }

  void forward(ConstMatrix x, Matrix y, const Context<Cpu>& context) {
    projection.template quantize_weight<Mode::train>(context);
    const auto operand = projection.template input<Mode::train>(input, tokens, {});
    norm.forward(x, operand, inverse_rms, context);
    projection.forward(operand, x, y, context);
  }
  /// Turns the gradient of y into that of x.
  void backward(ConstMatrix x, Matrix dy, const Context<Cpu>& context) {
    flat.clear_gradients([this](const auto& visitor) { this->visit(visitor); }, context);
    gradient.values = dy.data();
    const auto operand = projection.output_gradient(gradient, tokens);
    quantize(operand, context);
    const auto kept = projection.template input<Mode::recompute>(input, tokens, {false, true});
    projection.backward_weight(operand, kept, weight.gradient, false, context);
    projection.backward_input(operand, input_gradient, context);
    norm.backward(input_gradient, x, inverse_rms, dy, context);
  }

  FlatParameters<Bf16, Bf16, Cpu> flat;
  RMSNorm<Bf16, features, Bf16, Cpu> norm;
  Parameter<Bf16, Bf16, Cpu> weight;
  Projection projection;
  typename Projection::InputMemory input;
  typename Projection::OutputGradientMemory gradient;
  TensorView<float, 1, Cpu> inverse_rms;
  Matrix input_gradient;
};

constexpr std::size_t blocks = 3;

/// Blocks that never move.
template <class P>
struct InPlace {
  std::array<OwnBlock<P>, blocks> all;
  auto& add(std::size_t i) { return all[i]; }
};

/// Blocks that move when the vector grows, after they were laid out.
template <class P>
struct Growing {
  std::vector<OwnBlock<P>> all;
  auto& add(std::size_t) { return all.emplace_back(); }
};

/// Trains the blocks for some steps by plain gradient descent; returns the bits of all weights and
/// of the last gradients.
template <class P, template <class> class Blocks>
std::vector<std::uint16_t> train(bool staged) {
  Context<Cpu> context(1);
  Arena<Cpu> arena({.peak = 4 << 20}, context);
  Manifest manifest;
  ScalingTable<Cpu> scaling;
  WeightStage<Cpu> stage;
  Blocks<P> chain;
  for (std::size_t i = 0; i < blocks; ++i) {
    chain.add(i).allocate(arena, "block" + std::to_string(i),
                          {&scaling, &manifest, staged ? &stage : nullptr});
  }
  scaling.allocate(arena);
  stage.allocate(arena);
  for (auto& block : chain.all) block.allocate_buffers(arena);
  std::array<Matrix, blocks + 1> states;
  for (Matrix& state : states) {
    state = {arena.allocate<Bf16>(MemoryKind::activations, tokens * features), {tokens, features}};
  }
  const Matrix gradient{arena.allocate<Bf16>(MemoryKind::activations, tokens * features),
                        {tokens, features}};
  const std::size_t bytes = matmul_workspace(features, features, features, context);
  context.bind_workspace(
      {arena.allocate<std::byte>(MemoryKind::workspace, static_cast<Index>(bytes)), bytes});
  scaling.reset_sync(context);
  const auto visit = [&](auto visitor) {
    for (auto& block : chain.all) block.visit(visitor);
  };
  std::uint64_t stream = 0;
  visit([&](auto& parameter) { initialize(parameter, {1, stream++}, context); });

  for (unsigned step = 0; step < 3; ++step) {
    for (unsigned i = 0; i < tokens * features; ++i) {
      states[0].data()[i] = Bf16(normal({2, step}, i));
    }
    for (std::size_t i = 0; i < blocks; ++i) {
      chain.all[i].forward(states[i], states[i + 1], context);
    }
    std::memcpy(gradient.data(), states[blocks].data(), gradient.bytes());  // of Σ y² / 2
    for (std::size_t i = blocks; i-- > 0;) chain.all[i].backward(states[i], gradient, context);
    scaling.update(context);
    visit([](auto& parameter) {
      for (Index i = 0; i < parameter.weight.size(); ++i) {
        Bf16& weight = parameter.weight.data()[i];
        weight = Bf16(static_cast<float>(weight) -
                      1e-4f * static_cast<float>(parameter.gradient.data()[i]));
      }
    });
  }
  for (const GemmEntry& entry : manifest.entries()) EXPECT_EQ(entry.executed, 3U) << entry.layer;

  std::vector<std::uint16_t> bits;
  visit([&](auto& parameter) {
    for (Index i = 0; i < parameter.weight.size(); ++i) {
      bits.push_back(parameter.weight.data()[i].bits);
      bits.push_back(parameter.gradient.data()[i].bits);
    }
  });
  return bits;
}

template <class P>
void expect_equal_bits() {
  for (const bool staged : {false, true}) {
    const auto in_place = train<P, InPlace>(staged);
    ASSERT_EQ(in_place.size(), 2 * blocks * (features * features + features));
    EXPECT_LT(std::count(in_place.begin(), in_place.end(), 0), 100) << "nothing was trained";
    EXPECT_EQ((train<P, Growing>(staged)), in_place) << (staged ? "staged" : "kept");
  }
}

TEST(OwnBlocks, TrainBitwiseEquallyInGrowingVector) {
  expect_equal_bits<Bf16>();
  expect_equal_bits<Fp8Recipe<Delayed>>();
  expect_equal_bits<Fp8Recipe<Tensorwise>>();
  expect_equal_bits<Mxfp8>();
}

/// The Cpu device multiplies the values of every recipe in FP32, as Emulated does.
template <class P>
void expect_that_emulation_changes_no_bit() {
  EXPECT_EQ((train<Emulated<P>, InPlace>(false)), (train<P, InPlace>(false)));
}

TEST(Emulated, IsBitwiseEqualToRecipeOnCpu) {
  expect_that_emulation_changes_no_bit<Fp8Recipe<Delayed>>();
  expect_that_emulation_changes_no_bit<Nvfp4>();
}

TEST(OwnPolicy, MatchesRecipeOfItsParts) {
  using Recipe = Fp8Recipe<DelayedScaling<16, AmaxReduction::most_recent>, E4M3Only>;
  EXPECT_EQ((train<Own, InPlace>(false)), (train<Recipe, InPlace>(false)));
  EXPECT_NE((train<Own, InPlace>(false)), (train<Bf16, InPlace>(false)));
}

// A layer moves without a throw, as a growing vector asks, but has no copy, which would take no
// gradient of its own and would count as the same layer.
template <class T>
constexpr bool only_moves =
    std::is_nothrow_move_constructible_v<T> && std::is_nothrow_move_assignable_v<T> &&
    !std::is_copy_constructible_v<T> && !std::is_copy_assignable_v<T>;
using Fp8 = Fp8Recipe<Delayed>;
constexpr BlockShape shape{64, 128, 4, 2, 16, 1e-5f};
constexpr BlockShape with_bias{64, 128, 4, 4, 16, 1e-5f, true};
using Norm = RMSNorm<Bf16, 64, Bf16, Cpu>;
using Attention = GroupedQueryAttention<shape, NormalisedRotation<shape, Bf16, Bf16, Cpu>, Bf16,
                                        Fp8, Bf16, Bf16, Cpu>;
using Mlp = MLP<shape, SwiGlu, Bf16, Fp8, Bf16, Bf16, Cpu>;
static_assert(only_moves<Parameter<Bf16, float, Cpu>>);
static_assert(only_moves<Linear<Bf16, 64, 64, float, Cpu>>);
static_assert(only_moves<Linear<Fp8, 64, 64, Bf16, Cpu>>);
static_assert(only_moves<RMSNorm<Bf16, 64, Bf16, Cpu>>);
static_assert(only_moves<Embedding<Bf16, 64, Bf16, Cpu>>);
static_assert(only_moves<Mlp>);
static_assert(only_moves<MLP<with_bias, Gelu, Bf16, Fp8, Bf16, Bf16, Cpu>>);
static_assert(only_moves<Projection<Fp8, 64, 64, true, Bf16, Cpu>>);
static_assert(only_moves<PositionEmbedding<Bf16, 64, 16, Bf16, Cpu>>);
static_assert(only_moves<Attention>);
static_assert(only_moves<LanguageModelHead<Bf16, Bf16, Norm, 64, 128, Bf16, Cpu>>);
static_assert(only_moves<AttentionMlpBlock<Bf16, 64, Bf16, Cpu, Norm, Attention, Mlp>>);
static_assert(only_moves<OwnBlock<Fp8>>);

// Otherwise the model would run attention in BF16 although its type has the 8-bit forward.
TEST(OwnBlocks, RejectAttentionWithoutForwardOfPrecision) {
  Attention attention;
  LayerRegistry<Cpu> registry;
  registry.attention_forward = AttentionForward::eight_bit;
  EXPECT_THROW(attention.declare("blocks.0", registry, {}, {}), ConfigError);
}

TEST(OwnBlocks, RejectMlpWithoutActivationInputOfPrecision) {
  Mlp mlp;
  LayerRegistry<Cpu> registry;
  registry.activation_input = ActivationInput::e4m3;
  EXPECT_THROW(mlp.declare("blocks.0", registry, {}, {}), ConfigError);
}

// What layers point to stays where it is.
template <class T>
constexpr bool stays = !std::is_copy_constructible_v<T> && !std::is_move_constructible_v<T> &&
                       !std::is_copy_assignable_v<T> && !std::is_move_assignable_v<T>;
static_assert(stays<ScalingTable<Cpu>> && stays<Manifest> && stays<WeightStage<Cpu>>);

}  // namespace own_blocks_test
