#include <octavo/kernels/dequantize.hpp>

#include <gtest/gtest.h>

#include <type_traits>

#include "support/matrix.hpp"
#include "support/quantized_operand.hpp"

namespace dequantize_test {

using namespace octavo;
using support::Matrix;

/// Scales of few bits, so that no product is rounded before its last rounding.
template <class Scale>
Scale scale_at(Index i) {
  return std::is_same_v<Scale, E8M0> ? Scale(static_cast<float>(1 << i % 7))
                                     : Scale(static_cast<float>(3 + i % 11) / 8);
}

template <class W, class Granularity, class T>
void check() {
  constexpr Index rows = 130;
  constexpr Index columns = 147;
  auto codes = support::random_matrix<W>(rows, columns, 1, 20.0f);
  const Index count = scale_count<Granularity>(rows, columns);
  Matrix<typename Granularity::Scale> scales(1, count);
  for (Index i = 0; i < count; ++i) scales.at(0, i) = scale_at<typename Granularity::Scale>(i);
  Matrix<T> values(rows, columns);
  support::ContextWithWorkspace place;
  dequantize(
      QuantizedView<W, Granularity, Layout::row_major, Cpu>{codes.elements.data(),
                                                            scales.elements.data(), rows, columns},
      values.view(), place.context);
  for (Index row = 0; row < rows; ++row) {
    for (Index column = 0; column < columns; ++column) {
      const Index scale = scale_index<Granularity>(row, column, rows, columns);
      const double exact = codes(row, column) * scales(0, scale);
      ASSERT_EQ(values(row, column),
                static_cast<double>(static_cast<float>(T(static_cast<float>(exact)))))
          << row << ' ' << column;
    }
  }
}

TEST(Dequantize, MultipliesElementsByTheirScale) {
  check<E4M3, PerTensor, Bf16>();
  check<E4M3, PerRow, float>();
  check<E5M2, PerBlock<128, 128>, Bf16>();
  check<E4M3, PerBlock<1, 32, E8M0>, Bf16>();
}

// Of three experts, the second has no rows.
TEST(Dequantize, DoesNotWriteExpertsWithoutRows) {
  auto codes = support::random_matrix<E4M3>(6, 5, 1, 20.0f);
  Matrix<float> scales(1, 6);
  for (Index i = 0; i < 6; ++i) scales.at(0, i) = scale_at<float>(i);
  Matrix<float> values(6, 5, -7.0f);
  Matrix<std::int32_t> offsets(1, 4, 128);
  offsets.at(0, 0) = 0;
  offsets.at(0, 3) = 256;
  ExpertRows<Cpu> rows;
  rows.offsets = offsets.flat();
  support::ContextWithWorkspace place;
  const QuantizedView<E4M3, PerRow, Layout::row_major, Cpu> source{codes.elements.data(),
                                                                   scales.elements.data(), 6, 5};
  dequantize_experts(source, rows, values.view(), place.context);
  for (Index row = 0; row < 6; ++row) {
    for (Index i = 0; i < 5; ++i) {
      const double expected = row / 2 == 1 ? -7.0 : codes(row, i) * scales(0, row);
      EXPECT_EQ(values(row, i), expected) << row << ' ' << i;
    }
  }
  rows.offsets = {offsets.elements.data(), {3}};
  EXPECT_NO_THROW(dequantize_experts(source, rows, values.view(), place.context));
  Matrix<std::int32_t> of_five(1, 6, 0);
  rows.offsets = of_five.flat();
  EXPECT_THROW(dequantize_experts(source, rows, values.view(), place.context), ShapeError);
}

TEST(Dequantize, RejectsMismatchedShapes) {
  Matrix<E4M3> codes(4, 6);
  float scale = 1;
  Matrix<float> values(6, 4);
  support::ContextWithWorkspace place;
  const QuantizedView<E4M3, PerTensor, Layout::row_major, Cpu> source{codes.elements.data(), &scale,
                                                                      4, 6};
  EXPECT_THROW(dequantize(source, values.view(), place.context), ShapeError);
}

}  // namespace dequantize_test
