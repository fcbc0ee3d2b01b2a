#include <octavo/kernels/gelu.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <type_traits>
#include <vector>

#include "support/matrix.hpp"
#include "support/quantized_operand.hpp"

namespace gelu_test {

using namespace octavo;
using support::Matrix;
using support::random_matrix;

double gelu(double x) {
  return 0.5 * x *
         (1.0 + std::tanh(std::sqrt(2.0 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
}

template <class T>
class Gelu : public testing::Test {
 protected:
  static constexpr double unit = std::is_same_v<T, float> ? 2e-6 : 0x1p-8;
};
using Storages = testing::Types<float, Bf16>;
TYPED_TEST_SUITE(Gelu, Storages);

/// Some far out, where the gate is 0 or 1.
template <class T>
Matrix<T> inputs(Index tokens, Index ffn) {
  auto values = random_matrix<T>(tokens, ffn, 1, 3.0f);
  values.at(0, 0) = T(0.0f);
  values.at(0, 1) = T(60.0f);
  values.at(0, 2) = T(-60.0f);
  values.at(0, 3) = T(1e4f);
  values.at(0, 4) = T(-1e4f);
  return values;
}

TYPED_TEST(Gelu, ForwardMatchesFormula) {
  using T = TypeParam;
  for (const Index ffn : {6, 33, 130}) {
    const auto x = inputs<T>(3, ffn);
    Matrix<T> y(3, ffn);
    support::ContextWithWorkspace place;
    gelu_forward(x.input(), support::dense_input(y), place.context);
    for (Index t = 0; t < 3; ++t) {
      for (Index i = 0; i < ffn; ++i) {
        const double expected = gelu(x(t, i));
        // The double formula itself cancels where tanh is near −1.
        EXPECT_NEAR(y(t, i), expected, this->unit * std::abs(expected) + 1e-15 * std::abs(x(t, i)))
            << t << ' ' << i;
      }
    }
  }
}

TYPED_TEST(Gelu, BackwardMatchesCentralDifferenceAndSumsColumns) {
  using T = TypeParam;
  constexpr Index tokens = 4;
  constexpr Index ffn = 70;
  const auto x = inputs<T>(tokens, ffn);
  const auto dy = random_matrix<T>(tokens, ffn, 2);
  Matrix<T> gradient(tokens, ffn);
  Matrix<float> sums(1, ffn, 0.5f);
  support::ContextWithWorkspace place(2, column_sums_workspace(tokens, ffn));
  gelu_backward(dy.input(), x.input(), support::dense_gradient(gradient), sums.flat(),
                place.context);
  for (Index i = 0; i < ffn; ++i) {
    double sum = 0.5;
    for (Index t = 0; t < tokens; ++t) {
      double value = x(t, i);
      const auto loss = [&] { return dy(t, i) * gelu(value); };
      const double expected = support::central_difference(value, 1e-4, loss);
      EXPECT_NEAR(gradient(t, i), expected, this->unit * std::abs(expected) + 1e-6)
          << t << ' ' << i;
      sum += gradient(t, i);
    }
    EXPECT_NEAR(sums(0, i), sum, 1e-5) << i;
  }
}

TYPED_TEST(Gelu, BackwardWithoutBiasHasSameGradient) {
  using T = TypeParam;
  const auto x = inputs<T>(2, 40);
  const auto dy = random_matrix<T>(2, 40, 2);
  Matrix<T> with(2, 40);
  Matrix<T> without(2, 40);
  Matrix<float> sums(1, 40);
  support::ContextWithWorkspace place(2, column_sums_workspace(2, 40));
  gelu_backward(dy.input(), x.input(), support::dense_gradient(with), sums.flat(), place.context);
  gelu_backward(dy.input(), x.input(), support::dense_gradient(without),
                TensorView<float, 1, Cpu>(), place.context);
  for (Index i = 0; i < 40; ++i) EXPECT_EQ(with(1, i), without(1, i));
}

TEST(GeluQuantized, ForwardAndBackwardWriteTheCopies) {
  using P = Fp8Recipe<Blockwise>;
  const auto x = random_matrix<Bf16>(33, 64, 3);
  const auto dy = random_matrix<Bf16>(33, 64, 4);
  support::ContextWithWorkspace place(2, column_sums_workspace(33, 64));
  support::QuantizedOperand<P, OperandKind::input> y{Matrix<Bf16>(33, 64)};
  gelu_forward(x.input(), y.operand, place.context);
  support::QuantizedOperand<P, OperandKind::input> y_again(y.values);
  quantize(y_again.operand, place.context);
  EXPECT_NE(y.slot.amax_bits, 0u);
  EXPECT_EQ(y.row_major, y_again.row_major);
  EXPECT_EQ(y.transposed, y_again.transposed);
  support::QuantizedOperand<P, OperandKind::output_gradient> gradient{Matrix<Bf16>(33, 64)};
  Matrix<Bf16> sums(1, 64);
  gelu_backward(dy.input(), x.input(), gradient.operand, sums.flat(), place.context);
  support::QuantizedOperand<P, OperandKind::output_gradient> gradient_again(gradient.values);
  quantize(gradient_again.operand, place.context);
  EXPECT_NE(gradient.slot.amax_bits, 0u);
  EXPECT_EQ(gradient.row_major, gradient_again.row_major);
  EXPECT_EQ(gradient.transposed, gradient_again.transposed);
}

TEST(GeluErrors, ShapesMustAgree) {
  Matrix<float> x(4, 16);
  Matrix<float> y(4, 7);
  Matrix<float> sums(1, 15);
  support::ContextWithWorkspace place;
  EXPECT_THROW(gelu_forward(x.input(), support::dense_input(y), place.context), ShapeError);
  EXPECT_THROW(
      gelu_backward(y.input(), x.input(), support::dense_gradient(x), sums.flat(), place.context),
      ShapeError);
  EXPECT_THROW(
      gelu_backward(x.input(), x.input(), support::dense_gradient(x), sums.flat(), place.context),
      ShapeError);
}

// Sums are made from the values, not from what the cast leaves of them.
TEST(BiasBackward, SumsColumnsAndQuantizes) {
  using P = Fp8Recipe<Delayed>;
  constexpr Index rows = 37;
  constexpr Index columns = 80;
  support::QuantizedOperand<P, OperandKind::output_gradient> dy(
      random_matrix<Bf16>(rows, columns, 5, 1e-3f));
  support::QuantizedOperand<P, OperandKind::output_gradient> again(dy.values);
  Matrix<float> sums(1, columns, 0.25f);
  support::ContextWithWorkspace place(2, column_sums_workspace(rows, columns));
  bias_backward(dy.operand, sums.flat(), place.context);
  quantize(again.operand, place.context);
  EXPECT_NE(dy.slot.amax_bits, 0u);
  EXPECT_EQ(dy.row_major, again.row_major);
  EXPECT_EQ(dy.transposed, again.transposed);
  for (Index c = 0; c < columns; ++c) {
    double expected = 0.25;
    for (Index r = 0; r < rows; ++r) expected += dy.values(r, c);
    EXPECT_NEAR(sums(0, c), expected, 1e-6);
  }
  Matrix<float> short_sums(1, columns - 1);
  EXPECT_THROW(bias_backward(dy.operand, short_sums.flat(), place.context), ShapeError);
}

}  // namespace gelu_test
