#include <octavo/gemm/expert_gemms.hpp>
#include <octavo/kernels/quantize.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <type_traits>
#include <vector>

#include "support/expert_order.hpp"
#include "support/matrix.hpp"
#include "support/quantized_operand.hpp"

namespace expert_gemms_test {

using namespace octavo;
using support::ExpertOrder;
using support::Matrix;
using support::random_matrix;

constexpr Index experts = 4;

/// An order in which expert 0 has more rows than a tile, and expert 2 none.
ExpertOrder make_order() {
  Matrix<std::int32_t> chosen(250, 1, 0);
  for (std::size_t i = 0; i < 250; ++i) chosen.elements[i] = i % 5 < 3 ? 0 : (i % 5 == 3 ? 1 : 3);
  ExpertOrder order(chosen, experts);
  order.compute();
  return order;
}

/// Random values in the rows of pairs, and zeros elsewhere.
template <class T>
Matrix<T> random_rows(const ExpertOrder& order, Index columns, unsigned seed) {
  auto result = random_matrix<T>(order.rows, columns, seed);
  for (Index row = 0; row < order.rows; ++row) {
    if (order.pairs.elements[static_cast<std::size_t>(row)] >= 0) continue;
    for (Index i = 0; i < columns; ++i) result.at(row, i) = T(0.0f);
  }
  return result;
}

/// Reads an element of an operand, in double.
using Element = std::function<double(Index, Index)>;

/// The expert of a row; -1 for unused rows.
Index expert_of(const ExpertOrder& order, Index row) {
  return order.tiles.elements[static_cast<std::size_t>(row / expert_tile)];
}

/// Expects y = x · wᵀ, with `w(expert, output, input)`.
template <class T, class Weight>
void expect_rows(const ExpertOrder& order, const Matrix<T>& y, const Element& x, Index inputs,
                 const Weight& w, double unit) {
  for (Index row = 0; row < order.rows; ++row) {
    const Index expert = expert_of(order, row);
    for (Index o = 0; o < y.columns; ++o) {
      double expected = 0;
      for (Index i = 0; expert >= 0 && i < inputs; ++i) expected += x(row, i) * w(expert, o, i);
      ASSERT_NEAR(y(row, o), expected, unit * (1 + std::abs(expected))) << row << ' ' << o;
    }
  }
}

/// Expects w = dyᵀ · x + before for each expert.
template <class G>
void expect_weights(const ExpertOrder& order, const Matrix<G>& w, const Element& dy,
                    const Element& x, const Matrix<G>& before, double unit) {
  const Index out = w.rows / experts;
  std::vector<double> expected(static_cast<std::size_t>(w.size()));
  for (Index row = 0; row < order.rows; ++row) {
    const Index expert = expert_of(order, row);
    if (expert < 0) continue;
    for (Index o = 0; o < out; ++o) {
      for (Index i = 0; i < w.columns; ++i) {
        expected[static_cast<std::size_t>((expert * out + o) * w.columns + i)] +=
            dy(row, o) * x(row, i);
      }
    }
  }
  for (Index r = 0; r < w.rows; ++r) {
    for (Index i = 0; i < w.columns; ++i) {
      const double value = expected[static_cast<std::size_t>(r * w.columns + i)] + before(r, i);
      ASSERT_NEAR(w(r, i), value, unit * (1 + std::abs(value))) << r << ' ' << i;
    }
  }
}

template <class T>
class ExpertGemms : public testing::Test {};
using Storages = testing::Types<float, Bf16>;
TYPED_TEST_SUITE(ExpertGemms, Storages);

TYPED_TEST(ExpertGemms, MatchProductsOfEachExpert) {
  using T = TypeParam;
  constexpr double unit = std::is_same_v<T, float> ? 1e-5 : 0x1p-8;
  constexpr Index in = 24;
  constexpr Index out = 40;
  auto order = make_order();
  const auto x = random_rows<T>(order, in, 1);
  const auto dy = random_rows<T>(order, out, 2);
  const auto w = random_matrix<T>(experts * out, in, 3);
  support::ContextWithWorkspace place(2, 0);
  place.bind(expert_gemm_workspace(order.rows, experts, out, in, place.context));
  Matrix<T> y(order.rows, out, T(7.0f));
  Matrix<T> dx(order.rows, in, T(7.0f));
  Matrix<T> dw(experts * out, in, T(7.0f));
  auto sum = random_matrix<T>(experts * out, in, 4);
  const auto before = sum;
  const Matrix<T> zeros(experts * out, in);
  const auto rows = order.view();
  (void)experts_forward(x.input(), w.input(), rows, y.view(), place.context);
  (void)experts_input_gradient(dy.input(), w.input(), rows, dx.view(), place.context);
  (void)experts_weight_gradient(dy.input(), x.input(), rows, dw.view(), false, place.context);
  (void)experts_weight_gradient(dy.input(), x.input(), rows, sum.view(), true, place.context);
  expect_rows(order, y, x, in, [&](Index e, Index o, Index i) { return w(e * out + o, i); }, unit);
  expect_rows(
      order, dx, dy, out, [&](Index e, Index i, Index o) { return w(e * out + o, i); }, unit);
  expect_weights(order, dw, dy, x, zeros, unit);
  expect_weights(order, sum, dy, x, before, unit);
}

/// Reads elements of a quantised copy, with rows and columns exchanged if it is transposed.
template <class View>
Element values_of(View view) {
  return [view](Index row, Index column) {
    if (View::layout == Layout::transposed) std::swap(row, column);
    const Index scale = view.scale_at(row, column);
    return support::value_of(view.data()[row * view.inner() + column]) *
           support::value_of(view.scale_inverses()[scale]);
  };
}

/// A quantised view that knows where its scales are.
template <class Format, class Granularity, Layout L>
struct Scaled : QuantizedView<Format, Granularity, L, Cpu> {
  explicit Scaled(QuantizedView<Format, Granularity, L, Cpu> view)
      : QuantizedView<Format, Granularity, L, Cpu>(view) {}
  [[nodiscard]] Index scale_at(Index row, Index column) const {
    return scale_index<Granularity>(row, column, this->outer(), this->inner());
  }
};

template <class P>
class QuantizedExpertGemms : public testing::Test {};
using Recipes =
    testing::Types<Fp8Recipe<Tensorwise>, Fp8Recipe<Rowwise>, Fp8Recipe<Blockwise>, Mxfp8>;
TYPED_TEST_SUITE(QuantizedExpertGemms, Recipes);

TYPED_TEST(QuantizedExpertGemms, MatchProductsOfEachExpert) {
  using P = TypeParam;
  constexpr Index in = 128;
  constexpr Index out = 128;
  constexpr double unit = 0x1p-8;
  auto order = make_order();
  support::QuantizedOperand<P, OperandKind::input> x(random_rows<Bf16>(order, in, 1));
  support::QuantizedOperand<P, OperandKind::output_gradient> dy(random_rows<Bf16>(order, out, 2));
  support::QuantizedOperand<P, OperandKind::weight> w(random_matrix<Bf16>(experts * out, in, 3));
  support::ContextWithWorkspace place(2, 0);
  place.bind(expert_gemm_workspace(order.rows, experts, out, in, place.context));
  quantize(x.operand, place.context);
  quantize(dy.operand, place.context);
  quantize(w.operand, place.context);
  Matrix<Bf16> y(order.rows, out);
  Matrix<Bf16> dx(order.rows, in);
  Matrix<float> dw(experts * out, in, 7.0f);
  const Matrix<float> zeros(experts * out, in);
  const auto rows = order.view();
  (void)experts_forward(x.operand.row_major, w.operand.row_major, rows, y.view(), place.context);
  (void)experts_input_gradient(dy.operand.row_major, w.operand.transposed, rows, dx.view(),
                               place.context);
  (void)experts_weight_gradient(dy.operand.transposed, x.operand.transposed, rows, dw.view(), false,
                                place.context);
  const auto weight = values_of(Scaled(w.operand.row_major));
  const auto transposed = values_of(Scaled(w.operand.transposed));
  expect_rows(
      order, y, values_of(Scaled(x.operand.row_major)), in,
      [&](Index e, Index o, Index i) { return weight(e * out + o, i); }, unit);
  expect_rows(
      order, dx, values_of(Scaled(dy.operand.row_major)), out,
      [&](Index e, Index i, Index o) { return transposed(e * out + o, i); }, unit);
  expect_weights(order, dw, values_of(Scaled(dy.operand.transposed)),
                 values_of(Scaled(x.operand.transposed)), zeros, 1e-4);
}

}  // namespace expert_gemms_test
