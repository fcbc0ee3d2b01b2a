#include <octavo/kernels/rope.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "support/matrix.hpp"
#include "support/quantized_operand.hpp"

namespace rope_test {

using namespace octavo;
using support::Matrix;
using support::random_matrix;

constexpr HeadLayout layout{4, 2, 6};
constexpr Index sequence = 5;
constexpr Index tokens = 2 * sequence;
constexpr double epsilon = 1e-3;

double angle(Index position, Index pair) {
  return static_cast<double>(position) *
         std::pow(100.0, -2.0 * static_cast<double>(pair) / static_cast<double>(layout.head_dim));
}

/// Cosines and sines of more positions than a sequence has.
Matrix<float> rotation_table() {
  Matrix<float> table(sequence + 3, layout.head_dim);
  for (Index p = 0; p < table.rows; ++p) {
    for (Index j = 0; j < layout.head_dim / 2; ++j) {
      table.at(p, j) = static_cast<float>(std::cos(angle(p, j)));
      table.at(p, j + layout.head_dim / 2) = static_cast<float>(std::sin(angle(p, j)));
    }
  }
  return table;
}

/// The definition in double: complex numbers (x[j], x[j + half]) times e^(i · angle).
struct Reference {
  std::vector<double> qkv;
  std::vector<double> query_weight;  ///< empty: no normalisation
  std::vector<double> key_weight;

  [[nodiscard]] std::vector<double> rotate() const {
    std::vector<double> result = qkv;
    const auto dim = static_cast<std::size_t>(layout.head_dim);
    const auto columns = static_cast<std::size_t>(layout.columns());
    for (std::size_t t = 0; t < qkv.size() / columns; ++t) {
      for (std::size_t h = 0; h < static_cast<std::size_t>(layout.heads + layout.kv_heads); ++h) {
        std::vector<double> head(qkv.begin() + static_cast<Index>(t * columns + h * dim),
                                 qkv.begin() + static_cast<Index>(t * columns + (h + 1) * dim));
        const auto& weight = h < static_cast<std::size_t>(layout.heads) ? query_weight : key_weight;
        if (!weight.empty()) normalise(head, weight);
        for (std::size_t j = 0; j < dim / 2; ++j) {
          const double turn = angle(static_cast<Index>(t) % sequence, static_cast<Index>(j));
          double* target = &result[t * columns + h * dim + j];
          target[0] = head[j] * std::cos(turn) - head[j + dim / 2] * std::sin(turn);
          target[dim / 2] = head[j] * std::sin(turn) + head[j + dim / 2] * std::cos(turn);
        }
      }
    }
    return result;
  }

 private:
  static void normalise(std::vector<double>& head, const std::vector<double>& weight) {
    double squares = 0.0;
    for (const double value : head) squares += value * value;
    const double r = 1.0 / std::sqrt(squares / static_cast<double>(head.size()) + epsilon);
    for (std::size_t j = 0; j < head.size(); ++j) head[j] *= r * weight[j];
  }
};

template <class T>
std::vector<double> doubles(const Matrix<T>& matrix) {
  std::vector<double> values;
  values.reserve(matrix.elements.size());
  for (const T element : matrix.elements) values.push_back(support::value_of(element));
  return values;
}

/// Everything a forward and a backward need, with or without QkNorm.
template <class T>
struct Inputs {
  explicit Inputs(bool with_norm)
      : qkv(random_matrix<T>(tokens, layout.columns(), 1, 2.0f)),
        query(random_matrix<T>(1, layout.head_dim, 2)),
        key(random_matrix<T>(1, layout.head_dim, 3)),
        reference{doubles(qkv), {}, {}} {
    if (!with_norm) return;
    norm = {query.flat_input(), key.flat_input(), static_cast<float>(epsilon)};
    reference.query_weight = doubles(query);
    reference.key_weight = doubles(key);
  }

  Matrix<T> qkv;
  Matrix<T> query;
  Matrix<T> key;
  QkNorm<const T, Cpu> norm;
  Reference reference;
  Matrix<float> rotation = rotation_table();
  support::ContextWithWorkspace place;
};

template <class T>
void check_forward(bool with_norm, double unit) {
  Inputs<T> s(with_norm);
  Matrix<T> rotated(tokens, layout.columns());
  rope_forward(s.qkv.input(), layout, s.norm, s.rotation.input(), sequence, rotated.view(),
               s.place.context);
  const auto expected = s.reference.rotate();
  for (std::size_t i = 0; i < expected.size(); ++i)
    EXPECT_NEAR(support::value_of(rotated.elements[i]), expected[i],
                unit * (std::abs(expected[i]) + 0.1));
  const Index values = (layout.heads + layout.kv_heads) * layout.head_dim;
  for (Index t = 0; t < tokens; ++t) {
    for (Index c = values; c < layout.columns(); ++c) EXPECT_EQ(rotated(t, c), s.qkv(t, c));
  }
}

TEST(Rope, ForwardMatchesRotation) {
  check_forward<float>(false, 2e-6);
  check_forward<Bf16>(false, 0x1p-8);
}

TEST(Rope, ForwardNormalisesQueriesAndKeysFirst) {
  check_forward<float>(true, 4e-6);
  check_forward<Bf16>(true, 0x1p-8);
}

TEST(Rope, InPlaceMatchesOutOfPlace) {
  Inputs<Bf16> s(false);
  Matrix<Bf16> rotated(tokens, layout.columns());
  rope_forward(s.qkv.input(), layout, s.norm, s.rotation.input(), sequence, rotated.view(),
               s.place.context);
  rope_forward(s.qkv.input(), layout, s.norm, s.rotation.input(), sequence, s.qkv.view(),
               s.place.context);
  EXPECT_EQ(s.qkv.elements, rotated.elements);
}

void check_backward(bool with_norm) {
  Inputs<float> s(with_norm);
  const auto gradient = random_matrix<float>(tokens, layout.columns(), 4);
  Matrix<float> scratch = gradient;
  Matrix<float> d_qkv(tokens, layout.columns());
  Matrix<float> d_query(1, layout.head_dim, 0.5f);
  Matrix<float> d_key(1, layout.head_dim, 0.25f);
  QkNorm<float, Cpu> norm_gradient;
  if (with_norm) norm_gradient = {d_query.flat(), d_key.flat(), 0.0f};
  rope_backward(scratch.view(), layout, s.qkv.input(), s.norm, norm_gradient, s.rotation.input(),
                sequence, support::dense_gradient(d_qkv), s.place.context);
  const auto loss = [&] {
    const auto y = s.reference.rotate();
    double sum = 0.0;
    for (std::size_t i = 0; i < y.size(); ++i)
      sum += y[i] * support::value_of(gradient.elements[i]);
    return sum;
  };
  for (std::size_t i = 0; i < s.reference.qkv.size(); ++i)
    EXPECT_NEAR(support::value_of(d_qkv.elements[i]),
                support::central_difference(s.reference.qkv[i], 1e-4, loss), 5e-6)
        << i;
  for (std::size_t j = 0; with_norm && j < s.reference.query_weight.size(); ++j) {
    const double query = support::central_difference(s.reference.query_weight[j], 1e-4, loss);
    const double key = support::central_difference(s.reference.key_weight[j], 1e-4, loss);
    EXPECT_NEAR(support::value_of(d_query.elements[j]), 0.5 + query, 2e-5);
    EXPECT_NEAR(support::value_of(d_key.elements[j]), 0.25 + key, 2e-5);
  }
}

TEST(Rope, BackwardMatchesCentralDifference) { check_backward(false); }

TEST(Rope, BackwardThroughNormMatchesCentralDifference) { check_backward(true); }

TEST(Rope, BackwardWritesTheQuantisedCopies) {
  using P = Fp8Recipe<Tensorwise>;
  Inputs<Bf16> s(false);
  auto gradient = random_matrix<Bf16>(tokens, layout.columns(), 5);
  support::QuantizedOperand<P, OperandKind::output_gradient> fused(
      Matrix<Bf16>(tokens, layout.columns()));
  rope_backward(gradient.view(), layout, s.qkv.input(), s.norm, QkNorm<float, Cpu>{},
                s.rotation.input(), sequence, fused.operand, s.place.context);
  support::QuantizedOperand<P, OperandKind::output_gradient> separate(fused.values);
  quantize(separate.operand, s.place.context);
  EXPECT_NE(fused.slot.amax_bits, 0u);
  EXPECT_EQ(fused.row_major, separate.row_major);
  EXPECT_EQ(fused.transposed, separate.transposed);
}

TEST(RopeErrors, RejectsTooFewRotationsAndAliasedNorm) {
  Inputs<float> s(true);
  Matrix<float> rotated(tokens, layout.columns());
  EXPECT_THROW(rope_forward(s.qkv.input(), layout, s.norm, s.rotation.input(), Index{9},
                            rotated.view(), s.place.context),
               ShapeError);
  EXPECT_THROW(rope_forward(s.qkv.input(), layout, s.norm, s.rotation.input(), sequence,
                            s.qkv.view(), s.place.context),
               ShapeError);
}

}  // namespace rope_test
