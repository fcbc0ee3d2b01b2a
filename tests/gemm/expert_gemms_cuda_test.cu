#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "kernels/cuda_support.cuh"

/// The experts' products on the Cuda device, against those on the Cpu device.
namespace octavo::expert_gemms_cuda_test {

using namespace support;

/// The sizes of a mixture of experts with one choice per token.
struct Sizes {
  Index tokens, experts, out, in;
};

/// Experts of tokens, of which the second last has none.
std::vector<std::int32_t> random_choices(const Sizes& sizes) {
  std::mt19937 random(1);
  std::uniform_int_distribution<std::int32_t> distribution(
      0, static_cast<std::int32_t>(sizes.experts) - 1);
  std::vector<std::int32_t> result;
  for (Index t = 0; t < sizes.tokens; ++t) {
    const std::int32_t expert = distribution(random);
    result.push_back(expert == sizes.experts - 2 ? 0 : expert);
  }
  return result;
}

/// Which tensor cores multiply: those of this GPU, those of every GPU from 8.9 on, or those of 8.6,
/// which have no FP8.
enum class Cores { best, generic, older };

/// A device with the experts' rows, and a workspace for every operation.
template <Device D>
class Bench {
 public:
  explicit Bench(const Sizes& sizes, Cores cores = Cores::best)
      : count(expert_row_count(sizes.tokens, sizes.experts)), device_(workspace(sizes, count)) {
    if constexpr (std::is_same_v<D, Cuda>) {
      if (cores == Cores::generic) device_.context().set_gpu(features_of(89));
      if (cores == Cores::older) device_.context().set_gpu(features_of(86));
    }
    const auto allocate = [&](Index size) {
      return device_.template make_poisoned<std::int32_t>(size);
    };
    rows = {{allocate(count), {count}},
            {allocate(sizes.tokens), {sizes.tokens, 1}},
            {allocate(sizes.experts + 1), {sizes.experts + 1}},
            {allocate(count / expert_tile), {count / expert_tile}}};
    order_by_expert(constant(device_.matrix(random_choices(sizes), 1)), rows, device_.context());
    pairs = device_.read(rows.pairs);
  }

  [[nodiscard]] TestDevice<D>& device() { return device_; }
  [[nodiscard]] const Context<D>& context() const { return device_.context(); }
  /// Random values, with zeros in padding and unused rows.
  template <class T>
  [[nodiscard]] std::vector<T> random_rows(Index columns, unsigned seed) const {
    auto values = normal_values<T>(count * columns, 1.0f, seed);
    for (Index row = 0; row < count; ++row) {
      if (pairs[static_cast<std::size_t>(row)] >= 0) continue;
      std::fill_n(values.begin() + row * columns, columns, T(0.0f));
    }
    return values;
  }
  template <class T>
  [[nodiscard]] TensorView<T, 2, D> result(Index row_count, Index columns) {
    return {device_.template make_poisoned<T>(row_count * columns), {row_count, columns}};
  }

  Index count;
  ExpertRows<D> rows;
  std::vector<std::int32_t> pairs;

 private:
  static std::size_t workspace(const Sizes& sizes, Index count) {
    const Context<D> context;
    return std::max({expert_gemm_workspace(count, sizes.experts, sizes.out, sizes.in, context),
                     expert_order_workspace(sizes.tokens),
                     row_amaxes_workspace(std::max(count, sizes.experts * sizes.out),
                                          std::max(sizes.out, sizes.in))});
  }
  TestDevice<D> device_;
};

template <class T, class G>
struct Results {
  std::vector<T> y, x_gradient;
  std::vector<G> overwritten, accumulated;
};

template <class T, class G, Device D>
Results<T, G> multiply_dense(const Sizes& sizes, Cores cores = Cores::best) {
  const auto [tokens, experts, out, in] = sizes;
  Bench<D> bench(sizes, cores);
  auto& device = bench.device();
  const auto& context = bench.context();
  const auto x = device.matrix(bench.template random_rows<T>(in, 2), in);
  const auto dy = device.matrix(bench.template random_rows<T>(out, 3), out);
  const auto w = device.matrix(normal_values<T>(experts * out * in, 1.0f, 4), in);
  const auto y = bench.template result<T>(bench.count, out);
  const auto dx = bench.template result<T>(bench.count, in);
  const auto dw = bench.template result<G>(experts * out, in);
  const auto sum = device.matrix(normal_values<G>(experts * out * in, 1.0f, 5), in);
  (void)experts_forward(constant(x), constant(w), bench.rows, y, context);
  (void)experts_input_gradient(constant(dy), constant(w), bench.rows, dx, context);
  (void)experts_weight_gradient(constant(dy), constant(x), bench.rows, dw, false, context);
  (void)experts_weight_gradient(constant(dy), constant(x), bench.rows, sum, true, context);
  return {device.read(y), device.read(dx), device.read(dw), device.read(sum)};
}

/// @param tolerance  of sums of products of normal values
template <class T, class G>
void expect_same_products(const Results<T, G>& expected, const Results<T, G>& actual,
                          double tolerance) {
  expect_close(expected.y, actual.y, tolerance);
  expect_close(expected.x_gradient, actual.x_gradient, tolerance);
  expect_close(expected.overwritten, actual.overwritten, tolerance);
  expect_close(expected.accumulated, actual.accumulated, tolerance);
}

class ExpertGemmsOnCuda : public OnGpu {};

TEST_F(ExpertGemmsOnCuda, MatchCpuInBf16) {
  for (const Sizes& sizes : {Sizes{300, 4, 128, 64}, Sizes{1000, 8, 392, 200}, Sizes{5, 3, 8, 1032},
                             Sizes{2000, 2, 136, 264}}) {
    const auto expected = multiply_dense<Bf16, Bf16, Cpu>(sizes);
    const auto expected_in_fp32 = multiply_dense<Bf16, float, Cpu>(sizes);
    for (const Cores cores : {Cores::best, Cores::older}) {
      SCOPED_TRACE(message(sizes.out, cores == Cores::older ? ", generic" : ""));
      expect_same_products(expected, multiply_dense<Bf16, Bf16, Cuda>(sizes, cores), 1e-3);
      expect_same_products(expected_in_fp32, multiply_dense<Bf16, float, Cuda>(sizes, cores), 1e-3);
    }
  }
}

TEST_F(ExpertGemmsOnCuda, MatchCpuForAnyShape) {
  const Sizes odd{300, 5, 70, 37};
  expect_same_products(multiply_dense<Bf16, Bf16, Cpu>(odd), multiply_dense<Bf16, Bf16, Cuda>(odd),
                       1e-3);
  for (const Sizes& sizes : {odd, Sizes{300, 4, 128, 64}}) {
    expect_same_products(multiply_dense<float, float, Cpu>(sizes),
                         multiply_dense<float, float, Cuda>(sizes), 1e-3);
  }
}

TEST_F(ExpertGemmsOnCuda, AreDeterministic) {
  const Sizes sizes{1000, 8, 392, 200};
  const auto first = multiply_dense<Bf16, float, Cuda>(sizes);
  const auto second = multiply_dense<Bf16, float, Cuda>(sizes);
  EXPECT_EQ(first.overwritten, second.overwritten);
}

template <class P, Device D>
Results<Bf16, float> multiply_quantized(const Sizes& sizes, Cores cores = Cores::best) {
  const auto [tokens, experts, out, in] = sizes;
  Bench<D> bench(sizes, cores);
  auto& device = bench.device();
  const auto& context = bench.context();
  const TestOperand<P, OperandKind::input, D> x(device, bench.template random_rows<Bf16>(in, 2), in,
                                                1.0f);
  const TestOperand<P, OperandKind::output_gradient, D> dy(
      device, bench.template random_rows<Bf16>(out, 3), out, 1.0f);
  const TestOperand<P, OperandKind::weight, D> w(
      device, normal_values<Bf16>(experts * out * in, 1.0f, 4), in, 1.0f);
  quantize(x.operand(), context);
  quantize(dy.operand(), context);
  quantize(w.operand(), context);
  const auto y = bench.template result<Bf16>(bench.count, out);
  const auto dx = bench.template result<Bf16>(bench.count, in);
  const auto dw = bench.template result<float>(experts * out, in);
  const auto sum = device.matrix(normal_values<float>(experts * out * in, 1.0f, 5), in);
  (void)experts_forward(x.operand().row_major, w.operand().row_major, bench.rows, y, context);
  (void)experts_input_gradient(dy.operand().row_major, w.operand().transposed, bench.rows, dx,
                               context);
  (void)experts_weight_gradient(dy.operand().transposed, x.operand().transposed, bench.rows, dw,
                                false, context);
  (void)experts_weight_gradient(dy.operand().transposed, x.operand().transposed, bench.rows, sum,
                                true, context);
  return {device.read(y), device.read(dx), device.read(dw), device.read(sum)};
}

TEST_F(ExpertGemmsOnCuda, InFp8AreRefusedWhereTheGpuHasNone) {
  using P = Fp8Recipe<Tensorwise>;
  EXPECT_THROW((multiply_quantized<P, Cuda>({300, 4, 128, 256}, Cores::older)), ConfigError);
}

/// Octavo's kernels take scales of every kind.
template <class P>
class QuantizedExpertGemmsOnCuda : public OnGpuIn<Fp8Recipe<Tensorwise>> {};
using Recipes = testing::Types<Fp8Recipe<Delayed>, Fp8Recipe<Tensorwise>, Fp8Recipe<Rowwise>,
                               Fp8Recipe<Blockwise>, Fp8Recipe<Tensorwise, E4M3Only>>;
TYPED_TEST_SUITE(QuantizedExpertGemmsOnCuda, Recipes);

TYPED_TEST(QuantizedExpertGemmsOnCuda, AgreeWithTheCpu) {
  // The tensor cores keep about 14 bits of the sums of 128 terms.
  for (const Sizes& sizes : {Sizes{300, 4, 128, 256}, Sizes{900, 6, 384, 128}}) {
    const auto expected = multiply_quantized<TypeParam, Cpu>(sizes);
    for (const Cores cores : {Cores::best, Cores::generic}) {
      SCOPED_TRACE(message(sizes.out, cores == Cores::generic ? ", generic" : ""));
      expect_same_products(expected, multiply_quantized<TypeParam, Cuda>(sizes, cores), 0.05);
    }
  }
}

}  // namespace octavo::expert_gemms_cuda_test
