#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "cuda_support.cuh"

/// The router and the experts' rows on the Cuda device, against those on the Cpu device.
namespace octavo::experts_cuda_test {

using namespace support;

/// The sizes of a mixture of experts.
struct Sizes {
  Index tokens, hidden, experts, choices;
  bool renormalised;
};
constexpr Sizes all_sizes[] = {
    {300, 64, 8, 2, true}, {257, 37, 5, 3, false}, {1000, 136, 128, 8, true}, {1, 520, 3, 1, true}};

/// What a router computes, forwards and backwards.
template <class T>
struct Routed {
  std::vector<float> logits, probabilities, weights, sums, loss, logits_gradient;
  std::vector<std::int32_t> experts, counts;
  std::vector<T> x_gradient, w_gradient;
};

/// @param given  the Cpu's results, from which the Cuda device's backwards begin; null: its own
template <class T, Device D>
Routed<T> route(const Sizes& sizes, const Routed<T>* given = nullptr) {
  const auto [tokens, hidden, experts, choices, renormalised] = sizes;
  TestDevice<D> device(router_workspace(experts, hidden));
  const auto& context = device.context();
  const auto x = device.matrix(normal_values<T>(tokens * hidden, 1.0f, 1), hidden);
  const auto w = device.matrix(normal_values<T>(experts * hidden, 0.2f, 2), hidden);
  const TensorView<float, 2, D> logits{device.template make<float>(tokens * experts),
                                       {tokens, experts}};
  router_logits(constant(x), constant(w), logits, context);
  Routed<T> result;
  result.logits = device.read(logits);

  ExpertChoices<D> chosen{
      {device.template make_poisoned<float>(tokens * experts), {tokens, experts}},
      {device.template make_poisoned<std::int32_t>(tokens * choices), {tokens, choices}},
      {device.template make_poisoned<float>(tokens * choices), {tokens, choices}},
      renormalised};
  choose_experts(constant(logits), chosen, context);
  const ExpertBalance<D> balance{
      device.vector(std::vector<std::int32_t>(static_cast<std::size_t>(experts), 3)),
      device.vector(std::vector<float>(static_cast<std::size_t>(experts), 0.5f))};
  add_expert_balance(chosen, balance, context);
  const auto loss = device.vector(std::vector<float>{-1.0f});
  expert_balance_loss(balance, tokens, loss, context);
  result.probabilities = device.read(chosen.probabilities);
  result.experts = device.read(chosen.experts);
  result.weights = device.read(chosen.weights);
  result.counts = device.read(balance.counts);
  result.sums = device.read(balance.probabilities);
  result.loss = device.read(loss);

  const auto dw = device.matrix(normal_values<float>(tokens * choices, 1.0f, 3), choices);
  TensorView<float, 2, D> gradient{device.template make_poisoned<float>(tokens * experts),
                                   {tokens, experts}};
  choose_experts_backward(chosen, constant(dw), BalanceTerm<D>::of(balance, 1.0f, tokens), gradient,
                          context);
  result.logits_gradient = device.read(gradient);
  if (given != nullptr) gradient = device.matrix(given->logits_gradient, experts);
  const auto dx = device.matrix(normal_values<T>(tokens * hidden, 1.0f, 4), hidden);
  const auto w_gradient = device.matrix(normal_values<T>(experts * hidden, 1.0f, 5), hidden);
  add_router_input_gradient(constant(gradient), constant(w), dx, context);
  router_weight_gradient(constant(gradient), constant(x), w_gradient, true, context);
  result.x_gradient = device.read(dx);
  result.w_gradient = device.read(w_gradient);
  return result;
}

template <class T>
class RouterOnCuda : public OnGpu {};
using Formats = testing::Types<float, Bf16>;
TYPED_TEST_SUITE(RouterOnCuda, Formats);

TYPED_TEST(RouterOnCuda, AgreesWithTheCpu) {
  using T = TypeParam;
  for (const Sizes& sizes : all_sizes) {
    SCOPED_TRACE(sizes.experts);
    const auto expected = route<T, Cpu>(sizes);
    const auto actual = route<T, Cuda>(sizes, &expected);
    if (std::is_same_v<T, Bf16>) {
      EXPECT_EQ(expected.logits, actual.logits);
      EXPECT_EQ(expected.experts, actual.experts);
      EXPECT_EQ(expected.counts, actual.counts);
      expect_close(expected.weights, actual.weights, 1e-6);
      expect_close(expected.logits_gradient, actual.logits_gradient, 1e-5);
    }
    expect_close(expected.logits, actual.logits, 1e-4);
    expect_close(expected.probabilities, actual.probabilities, 1e-5);
    expect_close(expected.sums, actual.sums, 1e-3);
    expect_close(expected.loss, actual.loss, 1e-4);
    expect_close(expected.x_gradient, actual.x_gradient, 1e-4);
    expect_close(expected.w_gradient, actual.w_gradient, 1e-3);
  }
}

class RouterTiesOnCuda : public OnGpu {};

TEST_F(RouterTiesOnCuda, PreferLowerExpertAndRankNanLast) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  TestDevice<Cuda> device;
  const auto logits = device.matrix(std::vector<float>{1, 3, 3, 1, 3,       //
                                                       -0.0f, 0, -1, 0, 0,  //
                                                       nan, 1, -2, -nan, nan},
                                    5);
  const ExpertChoices<Cuda> chosen{{device.make<float>(15), {3, 5}},
                                   {device.make<std::int32_t>(12), {3, 4}},
                                   {device.make<float>(12), {3, 4}},
                                   true};
  choose_experts(constant(logits), chosen, device.context());
  EXPECT_EQ(device.read(chosen.experts),
            (std::vector<std::int32_t>{1, 2, 4, 0, 0, 1, 3, 4, 1, 2, 0, 3}));
}

/// Distinct random experts of each token.
std::vector<std::int32_t> random_choices(const Sizes& sizes, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::int32_t> all, result;
  // Half of the experts, so that some have no rows.
  const Index used = std::max(sizes.choices, sizes.experts / 2);
  for (Index e = 0; e < used; ++e) all.push_back(static_cast<std::int32_t>(e));
  for (Index t = 0; t < sizes.tokens; ++t) {
    std::shuffle(all.begin(), all.end(), random);
    result.insert(result.end(), all.begin(), all.begin() + sizes.choices);
  }
  return result;
}

/// The experts' rows with their memory.
template <Device D>
ExpertRows<D> make_rows(TestDevice<D>& device, const Sizes& sizes) {
  const Index rows = expert_row_count(sizes.tokens * sizes.choices, sizes.experts);
  const auto allocate = [&](Index count) {
    return device.template make_poisoned<std::int32_t>(count);
  };
  const ExpertRows<D> result{
      {allocate(rows), {rows}},
      {allocate(sizes.tokens * sizes.choices), {sizes.tokens, sizes.choices}},
      {allocate(sizes.experts + 1), {sizes.experts + 1}},
      {allocate(rows / expert_tile), {rows / expert_tile}}};
  const auto experts = device.matrix(random_choices(sizes, 1), sizes.choices);
  order_by_expert(constant(experts), result, device.context());
  return result;
}

/// What the kernels of rows write.
template <class T>
struct Rows {
  std::vector<std::int32_t> pairs, places, offsets, tiles;
  std::vector<T> copies, sum, activated, gradient;
  std::vector<float> weight_gradient;
};

template <class T, Device D>
Rows<T> run_rows(const Sizes& sizes) {
  const auto [tokens, hidden, experts, choices, renormalised] = sizes;
  TestDevice<D> device(expert_order_workspace(tokens * choices));
  const auto& context = device.context();
  const auto rows = make_rows(device, sizes);
  const Index count = rows.rows();
  const auto make = [&](Index columns) {
    return TensorView<T, 2, D>{device.template make_poisoned<T>(count * columns), {count, columns}};
  };
  const auto x = device.matrix(normal_values<T>(tokens * hidden, 1.0f, 2), hidden);
  const auto copies = make(hidden);
  copy_to_experts(constant(x), rows, Operand<T, OperandKind::input, D>{copies}, context);
  const auto outputs = device.matrix(normal_values<T>(count * hidden, 1.0f, 3), hidden);
  const TensorView<T, 2, D> sum{device.template make_poisoned<T>(tokens * hidden),
                                {tokens, hidden}};
  sum_of_experts(constant(outputs), rows, constant(x), sum, context);
  const auto gate_up = device.matrix(normal_values<T>(count * 2 * hidden, 2.0f, 4), 2 * hidden);
  const auto weights = device.matrix(normal_values<float>(tokens * choices, 1.0f, 5), choices);
  const auto dy = device.matrix(normal_values<T>(count * hidden, 1.0f, 6), hidden);
  const auto activated = make(hidden);
  const auto gradient = make(2 * hidden);
  const TensorView<float, 2, D> weight_gradient{
      device.template make_poisoned<float>(tokens * choices), {tokens, choices}};
  experts_swiglu_forward(constant(gate_up), constant(weights), rows,
                         Operand<T, OperandKind::input, D>{activated}, context);
  experts_swiglu_backward(constant(dy), constant(gate_up), constant(weights), rows,
                          Operand<T, OperandKind::output_gradient, D>{gradient}, weight_gradient,
                          context);
  return {device.read(rows.pairs), device.read(rows.places), device.read(rows.offsets),
          device.read(rows.tiles), device.read(copies),      device.read(sum),
          device.read(activated),  device.read(gradient),    device.read(weight_gradient)};
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

template <class T>
class ExpertRowsOnCuda : public OnGpu {};
TYPED_TEST_SUITE(ExpertRowsOnCuda, Formats);

TYPED_TEST(ExpertRowsOnCuda, AgreeWithTheCpu) {
  for (const Sizes& sizes : all_sizes) {
    SCOPED_TRACE(sizes.experts);
    const auto expected = run_rows<TypeParam, Cpu>(sizes);
    const auto actual = run_rows<TypeParam, Cuda>(sizes);
    EXPECT_EQ(expected.pairs, actual.pairs);
    EXPECT_EQ(expected.places, actual.places);
    EXPECT_EQ(expected.offsets, actual.offsets);
    EXPECT_EQ(expected.tiles, actual.tiles);
    EXPECT_TRUE(same_bits(expected.copies, actual.copies));
    EXPECT_TRUE(same_bits(expected.sum, actual.sum));
    expect_close(expected.activated, actual.activated, 1e-5);
    expect_close(expected.gradient, actual.gradient, 1e-4);
    expect_close(expected.weight_gradient, actual.weight_gradient, 1e-2);
  }
}

/// Copies of tokens in a recipe, as bytes.
template <class P, Device D>
OperandBytes cast_copies(const Sizes& sizes) {
  const Index count = expert_row_count(sizes.tokens * sizes.choices, sizes.experts);
  TestDevice<D> device(std::max(expert_order_workspace(sizes.tokens * sizes.choices),
                                row_amaxes_workspace(count, sizes.hidden)));
  const auto rows = make_rows(device, sizes);
  const auto x =
      device.matrix(normal_values<Bf16>(sizes.tokens * sizes.hidden, 1.0f, 2), sizes.hidden);
  const std::vector<Bf16> before(static_cast<std::size_t>(count * sizes.hidden));
  const TestOperand<P, OperandKind::input, D> y(device, before, sizes.hidden, 4.0f);
  copy_to_experts(constant(x), rows, y.operand(), device.context());
  return y.read();
}

template <class P>
class ExpertCastsOnCuda : public OnGpu {};
using Recipes = testing::Types<Fp8Recipe<Delayed>, Fp8Recipe<Tensorwise>, Fp8Recipe<Rowwise>,
                               Fp8Recipe<Blockwise>>;
TYPED_TEST_SUITE(ExpertCastsOnCuda, Recipes);

TYPED_TEST(ExpertCastsOnCuda, AreBitwiseEqualToCpu) {
  for (const Sizes& sizes : {Sizes{300, 128, 8, 2, true}, Sizes{77, 384, 16, 3, true}}) {
    expect_same(cast_copies<TypeParam, Cpu>(sizes), cast_copies<TypeParam, Cuda>(sizes));
  }
}

}  // namespace octavo::experts_cuda_test
