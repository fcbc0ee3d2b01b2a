#include <octavo/kernels/positions.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "support/matrix.hpp"

namespace positions_test {

using namespace octavo;
using support::Matrix;
using support::random_matrix;

constexpr Index vocabulary = 7;
constexpr Index hidden = 37;
constexpr Index sequence = 5;
const std::vector<std::int32_t> tokens{3, 0, 3, 6, 1, 3, 3, 0, 2, 5, 6, 6, 4, 1, 0};
const auto count = static_cast<Index>(tokens.size());

TensorView<const std::int32_t, 1, Cpu> token_view() { return {tokens.data(), {count}}; }

TEST(Positions, ForwardAddsThePositionOfEachToken) {
  const auto table = random_matrix<Bf16>(vocabulary, hidden, 1);
  const auto positions = random_matrix<Bf16>(sequence + 3, hidden, 2);
  Matrix<Bf16> y(count, hidden);
  support::ContextWithWorkspace place;
  position_embedding_forward(token_view(), table.input(), positions.input(), {nullptr, sequence},
                             y.view(), place.context);
  for (Index t = 0; t < count; ++t) {
    for (Index c = 0; c < hidden; ++c) {
      const double expected =
          table(tokens[static_cast<std::size_t>(t)], c) + positions(t % sequence, c);
      ASSERT_NEAR(y(t, c), expected, 0x1p-8 * std::abs(expected)) << t << ' ' << c;
    }
  }
}

// A sequence may take every position that there is.
TEST(Positions, SequenceMayUseAllPositions) {
  const auto table = random_matrix<float>(vocabulary, hidden, 1);
  const auto positions = random_matrix<float>(sequence, hidden, 2);
  Matrix<float> y(count, hidden);
  support::ContextWithWorkspace place;
  position_embedding_forward(token_view(), table.input(), positions.input(), {nullptr, sequence},
                             y.view(), place.context);
  Matrix<float> gradient(sequence, hidden);
  positions_backward(y.input(), sequence, gradient.view(), place.context);
  for (Index p = 0; p < sequence; ++p) {
    for (Index c = 0; c < hidden; ++c) {
      double sum = 0;
      for (Index t = p; t < count; t += sequence) {
        const double expected =
            table(tokens[static_cast<std::size_t>(t)], c) + positions(t % sequence, c);
        ASSERT_NEAR(y(t, c), expected, 1e-6) << t << ' ' << c;
        sum += expected;
      }
      ASSERT_NEAR(gradient(p, c), sum, 1e-5) << p << ' ' << c;
    }
  }
}

TEST(Positions, BackwardAddsOverTheSequences) {
  const auto dy = random_matrix<Bf16>(count, hidden, 3);
  auto gradient = random_matrix<float>(sequence + 3, hidden, 4);
  const auto before = gradient;
  support::ContextWithWorkspace place;
  positions_backward(dy.input(), sequence, gradient.view(), place.context);
  for (Index p = 0; p < sequence + 3; ++p) {
    for (Index c = 0; c < hidden; ++c) {
      double expected = before(p, c);
      for (Index t = p; p < sequence && t < count; t += sequence) expected += dy(t, c);
      ASSERT_NEAR(gradient(p, c), expected, 1e-6 * (1.0 + std::abs(expected))) << p << ' ' << c;
    }
  }
}

TEST(PositionsErrors, RejectsPartialAndTooLongSequences) {
  const auto table = random_matrix<float>(vocabulary, hidden, 1);
  auto positions = random_matrix<float>(sequence, hidden, 2);
  Matrix<float> y(count, hidden);
  support::ContextWithWorkspace place;
  for (const Index wrong : {Index{0}, Index{4}, sequence + 10}) {
    EXPECT_THROW(position_embedding_forward(token_view(), table.input(), positions.input(),
                                            {nullptr, wrong}, y.view(), place.context),
                 ShapeError);
    EXPECT_THROW(positions_backward(y.input(), wrong, positions.view(), place.context), ShapeError);
  }
}

}  // namespace positions_test
