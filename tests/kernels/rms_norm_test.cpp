#include <octavo/kernels/rms_norm.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <tuple>
#include <type_traits>
#include <vector>

#include "support/matrix.hpp"
#include "support/quantized_operand.hpp"

namespace rms_norm_test {

using namespace octavo;
using support::Matrix;
using support::random_matrix;

constexpr double epsilon = 1e-3;

/// The definition, in double.
struct Reference {
  std::vector<double> x;
  std::vector<double> weight;

  [[nodiscard]] double inverse_rms() const {
    double squares = 0.0;
    for (const double value : x) squares += value * value;
    return 1.0 / std::sqrt(squares / static_cast<double>(x.size()) + epsilon);
  }
  /// Σ dy · y
  [[nodiscard]] double loss(const std::vector<double>& dy) const {
    double sum = 0.0;
    for (std::size_t i = 0; i < x.size(); ++i) sum += dy[i] * x[i] * weight[i];
    return sum * inverse_rms();
  }
};

template <class T>
std::vector<double> row_of(const Matrix<T>& matrix, Index row) {
  std::vector<double> values;
  for (Index c = 0; c < matrix.columns; ++c) values.push_back(matrix(row, c));
  return values;
}

template <class T>
class RmsNorm : public testing::Test {
 protected:
  /// Relative rounding error of one stored value.
  static constexpr double unit = std::is_same_v<T, float> ? 4e-6 : 0x1p-8;
};
using Storages = testing::Types<float, Bf16>;
TYPED_TEST_SUITE(RmsNorm, Storages);

TYPED_TEST(RmsNorm, ForwardMatchesFormula) {
  using T = TypeParam;
  for (const Index hidden : {1, 16, 33, 130}) {
    const auto x = random_matrix<T>(5, hidden, 1, 3.0f);
    const auto weight = random_matrix<T>(1, hidden, 2);
    Matrix<T> y(5, hidden);
    Matrix<float> inverse(1, 5);
    support::ContextWithWorkspace place;
    rms_norm_forward(x.input(), weight.flat_input(), static_cast<float>(epsilon),
                     support::dense_input(y), inverse.flat(), place.context);
    for (Index t = 0; t < 5; ++t) {
      const Reference reference{row_of(x, t), row_of(weight, 0)};
      const double r = reference.inverse_rms();
      EXPECT_NEAR(inverse(0, t), r, 2e-6 * r);
      for (Index c = 0; c < hidden; ++c) {
        const double expected = x(t, c) * r * weight(0, c);
        EXPECT_NEAR(y(t, c), expected, this->unit * std::abs(expected)) << hidden << ' ' << c;
      }
    }
  }
}

TYPED_TEST(RmsNorm, AccumulatedGradientsMatchCentralDifferences) {
  using T = TypeParam;
  constexpr Index tokens = 3;
  constexpr Index hidden = 70;
  const auto x = random_matrix<T>(tokens, hidden, 3, 2.0f);
  const auto weight = random_matrix<T>(1, hidden, 4);
  const auto dy = random_matrix<T>(tokens, hidden, 5);
  Matrix<T> y(tokens, hidden);
  Matrix<float> inverse(1, tokens);
  Matrix<T> dx(tokens, hidden, T(0.5f));
  Matrix<float> dw(1, hidden, 0.25f);
  support::ContextWithWorkspace place;
  rms_norm_forward(x.input(), weight.flat_input(), static_cast<float>(epsilon),
                   support::dense_input(y), inverse.flat(), place.context);
  rms_norm_backward(dy.input(), x.input(), weight.flat_input(), inverse.flat_input(), dx.view(),
                    dw.flat(), place.context);
  std::vector<double> expected_dw(hidden, 0.25);
  for (Index t = 0; t < tokens; ++t) {
    Reference reference{row_of(x, t), row_of(weight, 0)};
    const auto gradient = row_of(dy, t);
    const auto loss = [&] { return reference.loss(gradient); };
    for (std::size_t c = 0; c < static_cast<std::size_t>(hidden); ++c) {
      const double expected = 0.5 + support::central_difference(reference.x[c], 1e-4, loss);
      EXPECT_NEAR(dx(t, static_cast<Index>(c)), expected, this->unit * (1.0 + std::abs(expected)));
      expected_dw[c] += support::central_difference(reference.weight[c], 1e-4, loss);
    }
  }
  for (Index c = 0; c < hidden; ++c)
    EXPECT_NEAR(dw(0, c), expected_dw[static_cast<std::size_t>(c)], 1e-5);
}

// A weight that is stored as its difference from 1 has the results of the whole one.
TEST(RmsNormOffset, IsAddedToTheWeight) {
  const auto x = random_matrix<float>(3, 70, 3, 2.0f);
  const auto dy = random_matrix<float>(3, 70, 5);
  auto difference = random_matrix<float>(1, 70, 4);
  Matrix<float> whole = difference;
  for (Index c = 0; c < 70; ++c) {
    difference.at(0, c) = std::round(256.0f * static_cast<float>(difference(0, c))) / 256.0f;
    whole.at(0, c) = static_cast<float>(difference(0, c)) + 1.0f;
  }
  support::ContextWithWorkspace place;
  const auto run = [&](const Matrix<float>& weight, float offset) {
    Matrix<float> y(3, 70);
    Matrix<float> dx(3, 70);
    Matrix<float> dw(1, 70);
    Matrix<float> inverse(1, 3);
    const NormWeight<float, Cpu> of{weight.flat_input(), offset};
    rms_norm_forward(x.input(), of, 1e-5f, support::dense_input(y), inverse.flat(), place.context);
    rms_norm_backward(dy.input(), x.input(), of, inverse.flat_input(), dx.view(), dw.flat(),
                      place.context);
    return std::tuple(y.elements, dx.elements, dw.elements);
  };
  EXPECT_EQ(run(difference, 1.0f), run(whole, 0.0f));
  EXPECT_NE(run(difference, 0.0f), run(whole, 0.0f));
}

TEST(RmsNormQuantized, CopiesMatchQuantizedOutput) {
  using P = Fp8Recipe<Tensorwise>;
  const auto x = random_matrix<Bf16>(33, 48, 6);
  const auto weight = random_matrix<Bf16>(1, 48, 7);
  support::QuantizedOperand<P, OperandKind::input> fused{Matrix<Bf16>(33, 48)};
  Matrix<float> inverse(1, 33);
  support::ContextWithWorkspace place;
  rms_norm_forward(x.input(), weight.flat_input(), 1e-5f, fused.operand, inverse.flat(),
                   place.context);
  support::QuantizedOperand<P, OperandKind::input> separate(fused.values);
  quantize(separate.operand, place.context);
  EXPECT_NE(fused.slot.amax_bits, 0u);
  EXPECT_EQ(fused.row_major, separate.row_major);
  EXPECT_EQ(fused.transposed, separate.transposed);
  EXPECT_EQ(fused.slot.scale, separate.slot.scale);
}

TEST(RmsNormErrors, ShapesMustAgree) {
  Matrix<float> x(4, 8);
  Matrix<float> y(4, 8);
  Matrix<float> short_weight(1, 7);
  Matrix<float> weight(1, 8);
  Matrix<float> inverse(1, 4);
  Matrix<float> short_inverse(1, 3);
  support::ContextWithWorkspace place;
  EXPECT_THROW(rms_norm_forward(x.input(), short_weight.flat_input(), 0.0f, support::dense_input(y),
                                inverse.flat(), place.context),
               ShapeError);
  EXPECT_THROW(rms_norm_forward(x.input(), weight.flat_input(), 0.0f, support::dense_input(y),
                                short_inverse.flat(), place.context),
               ShapeError);
  EXPECT_THROW(rms_norm_backward(y.input(), x.input(), weight.flat_input(), inverse.flat_input(),
                                 y.view(), short_weight.flat(), place.context),
               ShapeError);
}

}  // namespace rms_norm_test
