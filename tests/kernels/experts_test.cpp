#include <octavo/kernels/experts.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <vector>

#include "support/expert_order.hpp"
#include "support/matrix.hpp"
#include "support/quantized_operand.hpp"

namespace experts_test {

using namespace octavo;
using support::ExpertOrder;
using support::Matrix;
using support::random_choices;
using support::random_matrix;

/// Expects the order that ExpertRows describes.
void expect_order(const ExpertOrder& order) {
  std::size_t row = 0;
  for (Index e = 0; e < order.experts; ++e) {
    EXPECT_EQ(order.offsets.elements[static_cast<std::size_t>(e)], row);
    for (Index i = 0; i < order.choices.size(); ++i) {
      if (order.choices.elements[static_cast<std::size_t>(i)] != e) continue;
      ASSERT_EQ(order.pairs.elements[row], i);
      ASSERT_EQ(order.places.elements[static_cast<std::size_t>(i)], row);
      ASSERT_EQ(order.tiles.elements[row / expert_tile], e);
      ++row;
    }
    for (; row % expert_tile != 0; ++row) ASSERT_EQ(order.pairs.elements[row], -1);
  }
  EXPECT_EQ(order.offsets.elements.back(), row);
  ASSERT_LE(row, order.pairs.elements.size());
  for (; row < order.pairs.elements.size(); ++row) {
    ASSERT_EQ(order.pairs.elements[row], -1);
    ASSERT_EQ(order.tiles.elements[row / expert_tile], -1);
  }
}

TEST(ExpertRowOrder, IsStableAndPadded) {
  ExpertOrder balanced(random_choices(300, 2, 8, 1), 8);
  balanced.compute();
  expect_order(balanced);
  ExpertOrder some_unused(random_choices(65, 3, 4, 2), 16);
  some_unused.compute();
  expect_order(some_unused);
  ExpertOrder one_expert(Matrix<std::int32_t>(257, 1, 2), 3);
  one_expert.compute();
  expect_order(one_expert);
  ExpertOrder one_token(random_choices(1, 8, 8, 3), 8);
  one_token.compute();
  expect_order(one_token);
}

TEST(ExpertRowOrder, TheWorstCaseFits) {
  // Each expert has one row more than whole tiles.
  Matrix<std::int32_t> chosen(4 * (expert_tile + 1), 1, 0);
  for (std::size_t i = 0; i < chosen.elements.size(); ++i) {
    chosen.elements[i] = static_cast<std::int32_t>(i % 4);
  }
  ExpertOrder order(chosen, 4);
  order.compute();
  expect_order(order);
  EXPECT_EQ(order.offsets.elements.back(), 8 * expert_tile);
}

template <class T>
class Experts : public testing::Test {
 protected:
  static constexpr double unit = std::is_same_v<T, float> ? 2e-6 : 0x1p-8;
};
using Storages = testing::Types<float, Bf16>;
TYPED_TEST_SUITE(Experts, Storages);

TYPED_TEST(Experts, RowsAreCopiedAndSummed) {
  using T = TypeParam;
  constexpr Index columns = 37;
  ExpertOrder order(random_choices(50, 3, 5, 1), 5);
  order.compute();
  const auto x = random_matrix<T>(50, columns, 2);
  const auto addend = random_matrix<T>(50, columns, 3);
  Matrix<T> rows(order.rows, columns, T(7.0f));
  Matrix<T> sum(50, columns);
  auto with_addend = addend;
  support::ContextWithWorkspace place;
  copy_to_experts(x.input(), order.view(), support::dense_input(rows), place.context);
  for (Index row = 0; row < order.rows; ++row) {
    const auto pair = order.pairs.elements[static_cast<std::size_t>(row)];
    for (Index i = 0; i < columns; ++i) EXPECT_EQ(rows(row, i), pair < 0 ? 0 : x(pair / 3, i));
  }
  for (Index row = 0; row < order.rows; ++row) {  // rows of a token differ
    for (Index i = 0; i < columns; ++i) rows.at(row, i) = T(static_cast<float>(row % 7 - 3) * 0.5f);
  }
  sum_of_experts(rows.input(), order.view(), {}, sum.view(), place.context);
  sum_of_experts(rows.input(), order.view(), TensorView<const T, 2, Cpu>(with_addend.view()),
                 with_addend.view(), place.context);
  for (Index t = 0; t < 50; ++t) {
    double expected = 0;
    for (Index j = 0; j < 3; ++j) expected += (order.places.at(t, j) % 7 - 3) * 0.5;
    for (Index i = 0; i < columns; ++i) {
      EXPECT_EQ(sum(t, i), expected);
      const double all = expected + addend(t, i);
      EXPECT_NEAR(with_addend(t, i), all, this->unit * std::abs(all));
    }
  }
}

double swiglu(double gate, double up) { return gate / (1.0 + std::exp(-gate)) * up; }

TYPED_TEST(Experts, ActivationIsWeighted) {
  using T = TypeParam;
  constexpr Index ffn = 33;
  ExpertOrder order(random_choices(20, 2, 4, 1), 4);
  order.compute();
  const auto gate_up = random_matrix<T>(order.rows, 2 * ffn, 2, 2.0f);
  const auto weights = random_matrix<float>(20, 2, 3);
  const auto dy = random_matrix<T>(order.rows, ffn, 4);
  Matrix<T> y(order.rows, ffn);
  Matrix<T> gradient(order.rows, 2 * ffn);
  Matrix<float> weight_gradient(20, 2);
  support::ContextWithWorkspace place;
  experts_swiglu_forward(gate_up.input(), weights.input(), order.view(), support::dense_input(y),
                         place.context);
  experts_swiglu_backward(dy.input(), gate_up.input(), weights.input(), order.view(),
                          support::dense_gradient(gradient), weight_gradient.view(), place.context);
  for (Index row = 0; row < order.rows; ++row) {
    const auto pair = order.pairs.elements[static_cast<std::size_t>(row)];
    const double weight = pair < 0 ? 0.0 : weights(pair / 2, pair % 2);
    double of_weight = 0;
    for (Index i = 0; i < ffn; ++i) {
      double gate = gate_up(row, i);
      double up = gate_up(row, ffn + i);
      const double expected = weight * swiglu(gate, up);
      EXPECT_NEAR(y(row, i), expected, this->unit * std::abs(expected) + 1e-30);
      of_weight += dy(row, i) * swiglu(gate, up);
      const auto loss = [&] { return dy(row, i) * weight * swiglu(gate, up); };
      const double of_gate = support::central_difference(gate, 1e-4, loss);
      const double of_up = support::central_difference(up, 1e-4, loss);
      EXPECT_NEAR(gradient(row, i), of_gate, this->unit * std::abs(of_gate) + 1e-6);
      EXPECT_NEAR(gradient(row, ffn + i), of_up, this->unit * std::abs(of_up) + 1e-6);
    }
    if (pair < 0) continue;
    EXPECT_NEAR(weight_gradient(pair / 2, pair % 2), of_weight, 1e-4);
  }
}

TEST(ExpertsQuantized, CopiesMatchQuantize) {
  using P = Fp8Recipe<Blockwise>;
  constexpr Index columns = 128;
  ExpertOrder order(random_choices(40, 2, 4, 1), 4);
  order.compute();
  const auto x = random_matrix<Bf16>(40, columns, 2);
  support::QuantizedOperand<P, OperandKind::input> actual(Matrix<Bf16>(order.rows, columns));
  support::ContextWithWorkspace place(2, row_amaxes_workspace(order.rows, columns));
  copy_to_experts(x.input(), order.view(), actual.operand, place.context);
  support::QuantizedOperand<P, OperandKind::input> expected(actual.values);
  quantize(expected.operand, place.context);
  EXPECT_EQ(support::bytes_of(expected.row_major), support::bytes_of(actual.row_major));
  EXPECT_EQ(support::bytes_of(expected.transposed), support::bytes_of(actual.transposed));
  EXPECT_EQ(expected.transposed_scales, actual.transposed_scales);
}

}  // namespace experts_test
