#include <octavo/kernels/embedding.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "support/matrix.hpp"

namespace embedding_test {

using namespace octavo;
using support::Matrix;
using support::random_matrix;

constexpr Index vocabulary = 11;
constexpr Index hidden = 130;
// Token 3 five times, token 10 (the last row) once, most rows never.
const std::vector<std::int32_t> tokens{3, 0, 3, 10, 7, 3, 3, 0, 3};
const auto count = static_cast<Index>(tokens.size());

TensorView<const std::int32_t, 1, Cpu> token_view() { return {tokens.data(), {count}}; }

TEST(Embedding, ForwardCopiesTheRows) {
  const auto table = random_matrix<Bf16>(vocabulary, hidden, 1);
  Matrix<Bf16> y(count, hidden);
  support::ContextWithWorkspace place;
  embedding_forward(token_view(), table.input(), y.view(), place.context);
  for (Index t = 0; t < count; ++t) {
    for (Index c = 0; c < hidden; ++c)
      ASSERT_EQ(y(t, c), table(tokens[static_cast<std::size_t>(t)], c)) << t << ' ' << c;
  }
}

template <class G>
void check_backward(double unit) {
  const auto dy = random_matrix<Bf16>(count, hidden, 2);
  Matrix<G> gradient = random_matrix<G>(vocabulary, hidden, 3);
  const Matrix<G> before = gradient;
  support::ContextWithWorkspace place(2, embedding_workspace(count));
  embedding_backward(token_view(), dy.input(), gradient.view(), place.context);
  for (Index row = 0; row < vocabulary; ++row) {
    for (Index c = 0; c < hidden; ++c) {
      double expected = before(row, c);
      for (Index t = 0; t < count; ++t)
        expected += tokens[static_cast<std::size_t>(t)] == row ? dy(t, c) : 0.0;
      ASSERT_NEAR(gradient(row, c), expected, unit * (1.0 + std::abs(expected))) << row << ' ' << c;
    }
  }
}

TEST(Embedding, BackwardAddsEveryOccurrence) {
  check_backward<float>(1e-6);
  check_backward<Bf16>(0x1p-8);
}

TEST(Embedding, BackwardDoesNotDependOnTheNumberOfThreads) {
  const auto dy = random_matrix<float>(count, hidden, 4, 100.0f);
  Matrix<float> first(vocabulary, hidden);
  Matrix<float> second(vocabulary, hidden);
  support::ContextWithWorkspace one(1, embedding_workspace(count));
  support::ContextWithWorkspace four(4, embedding_workspace(count));
  embedding_backward(token_view(), dy.input(), first.view(), one.context);
  embedding_backward(token_view(), dy.input(), second.view(), four.context);
  EXPECT_EQ(support::bytes_of(first.elements), support::bytes_of(second.elements));
}

// The rows next to the table's are another tensor's.
TEST(Embedding, OutOfRangeTokensReadAndWriteNothing) {
  const std::vector<std::int32_t> some{1, vocabulary, -1, vocabulary + 1000, 2};
  const TensorView<const std::int32_t, 1, Cpu> view{some.data(), {5}};
  const auto table = random_matrix<Bf16>(vocabulary + 1, hidden, 1);
  const TensorView<const Bf16, 2, Cpu> most{table.elements.data(), {vocabulary, hidden}};
  Matrix<Bf16> y(5, hidden);
  support::ContextWithWorkspace place(2, embedding_workspace(5));
  embedding_forward(view, most, y.view(), place.context);
  const auto dy = random_matrix<Bf16>(5, hidden, 2);
  Matrix<float> gradient(vocabulary + 1, hidden);
  const TensorView<float, 2, Cpu> part{gradient.elements.data(), {vocabulary, hidden}};
  embedding_backward(view, dy.input(), part, place.context);
  for (Index c = 0; c < hidden; ++c) {
    ASSERT_EQ(y(0, c), table(1, c));
    ASSERT_TRUE(std::isnan(y(1, c)) && std::isnan(y(3, c)));
    ASSERT_EQ(y(2, c), 0.0);
    ASSERT_EQ(y(4, c), table(2, c));
    ASSERT_EQ(gradient(1, c), dy(0, c));
    ASSERT_EQ(gradient(2, c), dy(4, c));
    for (const Index row : {Index{0}, Index{3}, vocabulary}) ASSERT_EQ(gradient(row, c), 0.0);
  }
}

TEST(EmbeddingErrors, ShapesMustAgree) {
  Matrix<float> table(vocabulary, hidden);
  Matrix<float> y(count - 1, hidden);
  support::ContextWithWorkspace place(1, embedding_workspace(count));
  EXPECT_THROW(embedding_forward(token_view(), table.input(), y.view(), place.context), ShapeError);
  EXPECT_THROW(embedding_backward(token_view(), y.input(), table.view(), place.context),
               ShapeError);
}

}  // namespace embedding_test
