#include <octavo/kernels/swiglu.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <numbers>
#include <type_traits>
#include <utility>

#include "support/matrix.hpp"
#include "support/quantized_operand.hpp"

namespace swiglu_test {

using namespace octavo;
using support::Matrix;
using support::random_matrix;

double swiglu(double gate, double up) { return gate / (1.0 + std::exp(-gate)) * up; }

template <class T>
class SwiGlu : public testing::Test {
 protected:
  static constexpr double unit = std::is_same_v<T, float> ? 2e-6 : 0x1p-8;
};
using Storages = testing::Types<float, Bf16>;
TYPED_TEST_SUITE(SwiGlu, Storages);

/// Gates and ups, some far out where the sigmoid is 0 or 1.
template <class T>
Matrix<T> gate_up_values(Index tokens, Index ffn) {
  auto values = random_matrix<T>(tokens, 2 * ffn, 1, 3.0f);
  values.at(0, 0) = T(0.0f);
  values.at(0, 1) = T(60.0f);
  values.at(0, 2) = T(-60.0f);
  values.at(0, 3) = T(-120.0f);
  values.at(0, 4) = T(1e4f);
  values.at(0, 5) = T(-1e4f);
  return values;
}

TYPED_TEST(SwiGlu, ForwardMatchesFormula) {
  using T = TypeParam;
  for (const Index ffn : {6, 33, 130}) {
    const auto gate_up = gate_up_values<T>(3, ffn);
    Matrix<T> y(3, ffn);
    support::ContextWithWorkspace place;
    swiglu_forward(gate_up.input(), support::dense_input(y), place.context);
    for (Index t = 0; t < 3; ++t) {
      for (Index i = 0; i < ffn; ++i) {
        const double expected = swiglu(gate_up(t, i), gate_up(t, ffn + i));
        EXPECT_NEAR(y(t, i), expected, this->unit * std::abs(expected) + 1e-30) << t << ' ' << i;
      }
    }
  }
}

TYPED_TEST(SwiGlu, BackwardMatchesCentralDifference) {
  using T = TypeParam;
  constexpr Index ffn = 33;
  const auto gate_up = gate_up_values<T>(4, ffn);
  const auto dy = random_matrix<T>(4, ffn, 2);
  Matrix<T> gradient(4, 2 * ffn);
  support::ContextWithWorkspace place;
  swiglu_backward(dy.input(), gate_up.input(), support::dense_gradient(gradient), place.context);
  for (Index t = 0; t < 4; ++t) {
    for (Index i = 0; i < ffn; ++i) {
      double gate = gate_up(t, i);
      double up = gate_up(t, ffn + i);
      const auto loss = [&] { return dy(t, i) * swiglu(gate, up); };
      const double d_gate = support::central_difference(gate, 1e-4, loss);
      const double d_up = support::central_difference(up, 1e-4, loss);
      EXPECT_NEAR(gradient(t, i), d_gate, this->unit * std::abs(d_gate) + 1e-6) << t << ' ' << i;
      EXPECT_NEAR(gradient(t, ffn + i), d_up, this->unit * std::abs(d_up) + 1e-6) << t << ' ' << i;
    }
  }
}

/// The tanh approximation of GELU, by its definition.
double geglu(double gate, double up) {
  const double z = std::sqrt(2.0 / std::numbers::pi) * (gate + 0.044715 * gate * gate * gate);
  return gate / 2 * (1 + std::tanh(z)) * up;
}

TYPED_TEST(SwiGlu, GegluMatchesFormulaAndCentralDifference) {
  using T = TypeParam;
  constexpr Index ffn = 33;
  const auto gate_up = random_matrix<T>(4, 2 * ffn, 1, 3.0f);
  const auto dy = random_matrix<T>(4, ffn, 2);
  Matrix<T> y(4, ffn);
  Matrix<T> gradient(4, 2 * ffn);
  support::ContextWithWorkspace place;
  geglu_forward(gate_up.input(), support::dense_input(y), place.context);
  geglu_backward(dy.input(), gate_up.input(), support::dense_gradient(gradient), place.context);
  for (Index t = 0; t < 4; ++t) {
    for (Index i = 0; i < ffn; ++i) {
      double gate = gate_up(t, i);
      double up = gate_up(t, ffn + i);
      const double expected = geglu(gate, up);
      EXPECT_NEAR(y(t, i), expected, this->unit * std::abs(expected) + 1e-6) << t << ' ' << i;
      const auto loss = [&] { return dy(t, i) * geglu(gate, up); };
      const double d_gate = support::central_difference(gate, 1e-4, loss);
      const double d_up = support::central_difference(up, 1e-4, loss);
      EXPECT_NEAR(gradient(t, i), d_gate, this->unit * std::abs(d_gate) + 1e-5) << t << ' ' << i;
      EXPECT_NEAR(gradient(t, ffn + i), d_up, this->unit * std::abs(d_up) + 1e-5) << t << ' ' << i;
    }
  }
}

// A gated activation that reads E4M3 has the bits of one that reads the same values in T.
TYPED_TEST(SwiGlu, ReadsE4M3) {
  using T = TypeParam;
  constexpr Index ffn = 33;
  const auto codes = random_matrix<E4M3>(4, 2 * ffn, 1, 3.0f);
  Matrix<T> values(4, 2 * ffn);
  for (std::size_t i = 0; i < codes.elements.size(); ++i) {
    values.elements[i] = T(static_cast<float>(codes.elements[i]));
  }
  const auto dy = random_matrix<T>(4, ffn, 2);
  support::ContextWithWorkspace place;
  const auto results = [&](const auto& gate_up, const auto& forward, const auto& backward) {
    Matrix<T> y(4, ffn);
    Matrix<T> gradient(4, 2 * ffn);
    forward(gate_up.input(), support::dense_input(y), place.context);
    backward(dy.input(), gate_up.input(), support::dense_gradient(gradient), place.context);
    return std::pair(support::bytes_of(y.elements), support::bytes_of(gradient.elements));
  };
  const auto silu = [](const auto&... arguments) { swiglu_forward(arguments...); };
  const auto silu_gradient = [](const auto&... arguments) { swiglu_backward(arguments...); };
  const auto gelu = [](const auto&... arguments) { geglu_forward(arguments...); };
  const auto gelu_gradient = [](const auto&... arguments) { geglu_backward(arguments...); };
  EXPECT_EQ(results(codes, silu, silu_gradient), results(values, silu, silu_gradient));
  EXPECT_EQ(results(codes, gelu, gelu_gradient), results(values, gelu, gelu_gradient));
  EXPECT_NE(results(codes, silu, silu_gradient), results(codes, gelu, gelu_gradient));
}

/// Gates and ups in E4M3, some of which are at the ends of the format.
Matrix<E4M3> codes_at_the_ends(Index tokens, Index ffn) {
  auto codes = random_matrix<E4M3>(tokens, 2 * ffn, 5, 3.0f);
  constexpr float ends[] = {448.0f, -448.0f, 416.0f, -416.0f, 500.0f, 0x1p-9f, 0.0f, 432.0f};
  for (std::size_t i = 0; i < codes.elements.size(); i += 7) {
    codes.elements[i] = E4M3(ends[i / 7 % std::size(ends)]);
  }
  codes.at(0, ffn) = E4M3(std::numeric_limits<float>::quiet_NaN());
  return codes;
}

TEST(SwiGluOfE4M3, CountsValuesAtTheLargestMagnitude) {
  for (const Index ffn : {1, 33, 136}) {
    const auto codes = codes_at_the_ends(5, ffn);
    std::uint64_t expected = 0;
    for (const E4M3 code : codes.elements) {
      expected += std::abs(static_cast<double>(static_cast<float>(code))) < 447 ? 0 : 1;
    }
    ASSERT_GT(expected, 0U);
    support::ContextWithWorkspace place(3);
    Matrix<Bf16> y(5, ffn);
    Matrix<Bf16> uncounted(5, ffn);
    OperandStatistics statistics{};
    const auto check = [&](const auto& forward, std::uint64_t times) {
      forward(codes.input(), support::dense_input(y), &statistics, place.context);
      EXPECT_EQ(statistics.elements, times * codes.elements.size());
      EXPECT_EQ(statistics.saturated, times * expected);
      EXPECT_EQ(statistics.flushed, 0U);
      forward(codes.input(), support::dense_input(uncounted), nullptr, place.context);
      EXPECT_EQ(support::bytes_of(y.elements), support::bytes_of(uncounted.elements));
    };
    check([](const auto&... arguments) { swiglu_forward(arguments...); }, 1);
    check([](const auto&... arguments) { geglu_forward(arguments...); }, 2);
  }
}

TEST(SwiGluQuantized, ForwardAndBackwardWriteTheCopies) {
  using P = Fp8Recipe<Blockwise>;
  const auto gate_up = random_matrix<Bf16>(33, 64, 3);
  const auto dy = random_matrix<Bf16>(33, 32, 4);
  support::ContextWithWorkspace place;
  support::QuantizedOperand<P, OperandKind::input> y{Matrix<Bf16>(33, 32)};
  swiglu_forward(gate_up.input(), y.operand, place.context);
  support::QuantizedOperand<P, OperandKind::input> y_again(y.values);
  quantize(y_again.operand, place.context);
  EXPECT_NE(y.slot.amax_bits, 0u);
  EXPECT_EQ(y.row_major, y_again.row_major);
  EXPECT_EQ(y.transposed, y_again.transposed);
  support::QuantizedOperand<P, OperandKind::output_gradient> gradient{Matrix<Bf16>(33, 64)};
  swiglu_backward(dy.input(), gate_up.input(), gradient.operand, place.context);
  support::QuantizedOperand<P, OperandKind::output_gradient> gradient_again(gradient.values);
  quantize(gradient_again.operand, place.context);
  EXPECT_NE(gradient.slot.amax_bits, 0u);
  EXPECT_EQ(gradient.row_major, gradient_again.row_major);
  EXPECT_EQ(gradient.transposed, gradient_again.transposed);
}

TEST(SwiGluErrors, ShapesMustAgree) {
  Matrix<float> gate_up(4, 16);
  Matrix<float> y(4, 7);
  support::ContextWithWorkspace place;
  EXPECT_THROW(swiglu_forward(gate_up.input(), support::dense_input(y), place.context), ShapeError);
  EXPECT_THROW(
      swiglu_backward(y.input(), gate_up.input(), support::dense_gradient(gate_up), place.context),
      ShapeError);
}

}  // namespace swiglu_test
