#include <octavo/kernels/layer_norm.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <type_traits>
#include <vector>

#include "support/matrix.hpp"
#include "support/quantized_operand.hpp"

namespace layer_norm_test {

using namespace octavo;
using support::Matrix;
using support::random_matrix;

constexpr double epsilon = 1e-3;

template <class T>
std::vector<double> row_of(const Matrix<T>& matrix, Index row) {
  std::vector<double> values;
  for (Index c = 0; c < matrix.columns; ++c) values.push_back(matrix(row, c));
  return values;
}

/// The definition, in double.
struct Reference {
  std::vector<double> x;
  std::vector<double> weight;
  std::vector<double> bias;

  [[nodiscard]] double mean() const {
    double sum = 0.0;
    for (const double value : x) sum += value;
    return sum / static_cast<double>(x.size());
  }
  [[nodiscard]] double inverse() const {
    double squares = 0.0;
    for (const double value : x) squares += (value - mean()) * (value - mean());
    return 1.0 / std::sqrt(squares / static_cast<double>(x.size()) + epsilon);
  }
  [[nodiscard]] double y(std::size_t i, double m, double r) const {
    return (x[i] - m) * r * weight[i] + bias[i];
  }
  /// Σ dy · y
  [[nodiscard]] double loss(const std::vector<double>& dy) const {
    const double m = mean();
    const double r = inverse();
    double sum = 0.0;
    for (std::size_t i = 0; i < x.size(); ++i) sum += dy[i] * y(i, m, r);
    return sum;
  }
};

/// Rows that lie far from zero beside their spread: a variance as E[x²] − E[x]² would show.
template <class T>
Matrix<T> shifted_rows(Index tokens, Index hidden, unsigned seed) {
  auto x = random_matrix<T>(tokens, hidden, seed, 2.0f);
  for (Index t = 0; t < tokens; ++t) {
    for (Index c = 0; c < hidden; ++c) x.at(t, c) = T(static_cast<float>(x(t, c)) + 20.0f);
  }
  return x;
}

template <class T>
class LayerNorm : public testing::Test {
 protected:
  /// Relative rounding error of one stored value.
  static constexpr double unit = std::is_same_v<T, float> ? 8e-6 : 0x1p-8;
};
using Storages = testing::Types<float, Bf16>;
TYPED_TEST_SUITE(LayerNorm, Storages);

TYPED_TEST(LayerNorm, ForwardMatchesFormula) {
  using T = TypeParam;
  for (const Index hidden : {1, 16, 33, 130}) {
    const auto x = shifted_rows<T>(5, hidden, 1);
    const auto weight = random_matrix<T>(1, hidden, 2);
    const auto bias = random_matrix<T>(1, hidden, 3);
    Matrix<T> y(5, hidden);
    Matrix<float> statistics(5, 2);
    support::ContextWithWorkspace place;
    layer_norm_forward(x.input(), weight.flat_input(), bias.flat_input(),
                       static_cast<float>(epsilon), support::dense_input(y), statistics.flat(),
                       place.context);
    for (Index t = 0; t < 5; ++t) {
      const Reference reference{row_of(x, t), row_of(weight, 0), row_of(bias, 0)};
      const double m = reference.mean();
      const double r = reference.inverse();
      EXPECT_NEAR(statistics(t, 0), m, 1e-6 * std::abs(m));
      EXPECT_NEAR(statistics(t, 1), r, 1e-5 * r);
      for (Index c = 0; c < hidden; ++c) {
        const auto i = static_cast<std::size_t>(c);
        const double expected = reference.y(i, m, r);
        const double parts = std::abs(expected - bias(0, c)) + std::abs(bias(0, c));
        EXPECT_NEAR(y(t, c), expected, this->unit * parts + 1e-6) << hidden << ' ' << c;
      }
    }
  }
}

TYPED_TEST(LayerNorm, AccumulatedGradientsMatchCentralDifferences) {
  using T = TypeParam;
  constexpr Index tokens = 3;
  constexpr Index hidden = 70;
  const auto x = shifted_rows<T>(tokens, hidden, 3);
  const auto weight = random_matrix<T>(1, hidden, 4);
  const auto bias = random_matrix<T>(1, hidden, 5);
  const auto dy = random_matrix<T>(tokens, hidden, 6);
  Matrix<T> y(tokens, hidden);
  Matrix<float> statistics(tokens, 2);
  Matrix<T> dx(tokens, hidden, T(0.5f));
  Matrix<float> dw(1, hidden, 0.25f);
  Matrix<float> db(1, hidden, 0.75f);
  support::ContextWithWorkspace place;
  layer_norm_forward(x.input(), weight.flat_input(), bias.flat_input(), static_cast<float>(epsilon),
                     support::dense_input(y), statistics.flat(), place.context);
  layer_norm_backward(dy.input(), x.input(), weight.flat_input(), statistics.flat_input(),
                      dx.view(), dw.flat(), db.flat(), place.context);
  std::vector<double> expected_dw(hidden, 0.25);
  std::vector<double> expected_db(hidden, 0.75);
  for (Index t = 0; t < tokens; ++t) {
    Reference reference{row_of(x, t), row_of(weight, 0), row_of(bias, 0)};
    const auto gradient = row_of(dy, t);
    const auto loss = [&] { return reference.loss(gradient); };
    for (std::size_t c = 0; c < static_cast<std::size_t>(hidden); ++c) {
      const double expected = 0.5 + support::central_difference(reference.x[c], 1e-4, loss);
      EXPECT_NEAR(dx(t, static_cast<Index>(c)), expected, this->unit * (1.0 + std::abs(expected)));
      expected_dw[c] += support::central_difference(reference.weight[c], 1e-4, loss);
      expected_db[c] += gradient[c];
    }
  }
  for (Index c = 0; c < hidden; ++c) {
    EXPECT_NEAR(dw(0, c), expected_dw[static_cast<std::size_t>(c)], 3e-5);
    EXPECT_NEAR(db(0, c), expected_db[static_cast<std::size_t>(c)], 1e-5);
  }
}

TEST(LayerNormQuantized, CopiesMatchQuantizedOutput) {
  using P = Fp8Recipe<Tensorwise>;
  const auto x = random_matrix<Bf16>(33, 48, 6);
  const auto weight = random_matrix<Bf16>(1, 48, 7);
  const auto bias = random_matrix<Bf16>(1, 48, 8);
  support::QuantizedOperand<P, OperandKind::input> fused{Matrix<Bf16>(33, 48)};
  Matrix<float> statistics(33, 2);
  support::ContextWithWorkspace place;
  layer_norm_forward(x.input(), weight.flat_input(), bias.flat_input(), 1e-5f, fused.operand,
                     statistics.flat(), place.context);
  support::QuantizedOperand<P, OperandKind::input> separate(fused.values);
  quantize(separate.operand, place.context);
  EXPECT_NE(fused.slot.amax_bits, 0u);
  EXPECT_EQ(fused.row_major, separate.row_major);
  EXPECT_EQ(fused.transposed, separate.transposed);
  EXPECT_EQ(fused.slot.scale, separate.slot.scale);
}

TEST(LayerNormErrors, ShapesMustAgree) {
  Matrix<float> x(4, 8);
  Matrix<float> y(4, 8);
  Matrix<float> short_weight(1, 7);
  Matrix<float> weight(1, 8);
  Matrix<float> statistics(4, 2);
  Matrix<float> short_statistics(1, 4);
  support::ContextWithWorkspace place;
  const auto forward = [&](auto& w, auto& b, auto& s) {
    layer_norm_forward(x.input(), w.flat_input(), b.flat_input(), 0.0f, support::dense_input(y),
                       s.flat(), place.context);
  };
  EXPECT_THROW(forward(short_weight, weight, statistics), ShapeError);
  EXPECT_THROW(forward(weight, short_weight, statistics), ShapeError);
  EXPECT_THROW(forward(weight, weight, short_statistics), ShapeError);
  const auto backward = [&](auto& dw, auto& db) {
    layer_norm_backward(y.input(), x.input(), weight.flat_input(), statistics.flat_input(),
                        y.view(), dw.flat(), db.flat(), place.context);
  };
  EXPECT_THROW(backward(short_weight, weight), ShapeError);
  EXPECT_THROW(backward(weight, short_weight), ShapeError);
}

}  // namespace layer_norm_test
