// What a linear layer that only infers leaves to the product, and what it does first.
#include <octavo/layers/activation.hpp>
#include <octavo/layers/inference_linear.hpp>
#include <octavo/layers/projection.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "support/matrix.hpp"

namespace inference_linear_test {

using namespace octavo;
using support::Matrix;
using support::random_matrix;

constexpr int in = 16;
constexpr int out = 6;

/// Writes ones for every row that it is to normalise, and says how to normalise a row by weights of
/// 2: so a result tells who did.
struct Norm {
  template <class Input>
  void forward(TensorView<const float, 2, Cpu> x, const Input& normalised,
               TensorView<float, 1, Cpu>, const Context<Cpu>&) const {
    std::fill_n(normalised.values.data(), x.size(), 1.0f);
  }
  [[nodiscard]] RowNorm<float, Cpu> row_norm() const { return {weight.flat_input(), 0.0f}; }

  Matrix<float> weight = Matrix<float>(1, in, 2.0f);
};

class InferenceLinear : public testing::Test {
 protected:
  using Layer = Linear<Inference<Fp32>, in, out, float, Cpu>;

  InferenceLinear() {
    place_.bind(std::max(few_rows_workspace(in, place_.context),
                         matmul_workspace(max_few_rows + 1, out, in, place_.context)));
    Parameter<float, float, Cpu> parameter;
    parameter.declare("weight", out, in, Initial::zeros());
    parameter.weight = weight_.view();
    Arena<Cpu> arena;
    layer_.allocate_weight_copies(arena, parameter);
  }

  /// What the layer makes of rows of ones, and whether `wide` was written.
  /// @param is_gated  by `forward_gated`
  Matrix<float> result(Index rows, bool is_gated) {
    const Matrix<float> x(rows, in, 1.0f);
    Matrix<float> normalised(rows, in), statistics(1, rows);
    Matrix<float> y(rows, is_gated ? out / 2 : out);
    const Layer::Input input{normalised.view()};
    const BeforeNorm before{norm_, x.input(), input, statistics.flat()};
    wide_ = Matrix<float>(rows, out, 77.0f);
    if (is_gated) {
      layer_.forward_gated<SwiGlu>(before, wide_.view(), Layer::Input{y.view()}, place_.context);
    } else {
      layer_.forward(before, {}, y.view(), place_.context);
    }
    return y;
  }
  /// The sum of the weights of an output, times what every normalised element is.
  [[nodiscard]] double expected(Index output, double element) const {
    double sum = 0;
    for (Index i = 0; i < in; ++i) sum += weight_(output, i) * element;
    return sum;
  }

  Matrix<float> weight_ = random_matrix<float>(out, in, 1);
  Matrix<float> wide_{1, out};
  Norm norm_;
  support::ContextWithWorkspace place_{2};
  Layer layer_;
};

// Ones have the root mean square 1: times the weights that is 2, where the product does it.
TEST_F(InferenceLinear, ProductNormalizesSingleRow) {
  for (const Index rows : {Index{1}, Index{2}, max_few_rows + 1}) {
    const Matrix<float> y = result(rows, false);
    for (Index i = 0; i < out; ++i) {
      EXPECT_NEAR(y(rows - 1, i), expected(i, rows == 1 ? 2 : 1), 1e-4) << rows << ", " << i;
    }
  }
}

TEST_F(InferenceLinear, ProductGatesFewRows) {
  for (const Index rows : {Index{1}, Index{2}, max_few_rows, max_few_rows + 1}) {
    const Matrix<float> y = result(rows, true);
    const double element = rows == 1 ? 2 : 1;
    for (Index i = 0; i < out / 2; ++i) {
      const double gate = expected(i, element);
      const double gated = gate / (1 + std::exp(-gate)) * expected(out / 2 + i, element);
      EXPECT_NEAR(y(rows - 1, i), gated, 1e-4) << rows << ", " << i;
    }
    const bool is_untouched = wide_(rows - 1, 0) == 77.0;
    EXPECT_EQ(is_untouched, rows <= max_few_rows) << rows;
  }
}

// Of few the product caches them, of many an operation of its own.
TEST_F(InferenceLinear, CachesAnyNumberOfRows) {
  const HeadLayout layout{1, 1, 2};
  const Matrix<float> rotation(max_few_rows + 1, 2, 0.5f);  // cosine and sine
  for (const Index rows : {Index{1}, max_few_rows, max_few_rows + 1}) {
    const Matrix<float> x(rows, in, 1.0f), bias(1, out, 0.25f);
    Matrix<float> normalised(rows, in), statistics(1, rows), qkv(rows, out, 77.0f);
    Matrix<float> keys(max_few_rows + 1, 2), values(max_few_rows + 1, 2);
    std::vector<std::int32_t> positions(static_cast<std::size_t>(rows));
    std::iota(positions.begin(), positions.end(), 0);
    const Layer::Input input{normalised.view()};
    const BeforeNorm before{norm_, x.input(), input, statistics.flat()};
    layer_.forward_cached(
        before, bias.flat_input(), qkv.view(),
        {layout, rotation.input(), {positions.data(), {rows}}, {keys.view(), values.view()}},
        place_.context);
    const auto made = [&](Index output) { return expected(output, rows == 1 ? 2 : 1) + 0.25; };
    for (Index i = 0; i < 2; ++i) {
      const double sign = i == 0 ? -0.5 : 0.5;
      EXPECT_NEAR(qkv(rows - 1, i), 0.5 * made(i) + sign * made(1 - i), 1e-4) << rows;
      EXPECT_NEAR(keys(rows - 1, i), 0.5 * made(2 + i) + sign * made(3 - i), 1e-4) << rows;
      EXPECT_NEAR(values(rows - 1, i), made(4 + i), 1e-4) << rows;
    }
  }
}

/// An activation whose forward makes threes, so that a result tells whether it was asked.
struct Threes {
  template <class T, class Y>
  static void forward(TensorView<const T, 2, Cpu>, const Y& y, const Context<Cpu>&) {
    std::fill_n(y.values.data(), y.values.size(), T(3));
  }
};
struct GatingThrees : Threes {
  static constexpr bool is_silu_gate = true;
};

/// Whether a projection of so many rows asked the activation.
template <class Activation, bool bias>
bool asks_activation(Index rows) {
  support::ContextWithWorkspace place{2};
  place.bind(std::max(few_rows_workspace(in, place.context),
                      matmul_workspace(rows, out, in, place.context)));
  Matrix<float> weight = random_matrix<float>(out, in, 1), biases(1, out, 0.5f);
  Projection<Inference<Fp32>, in, out, bias, float, Cpu> projection;
  projection.declare("up", {}, Initial::zeros());
  projection.visit_weight([&](auto& parameter) { parameter.weight = weight.view(); });
  projection.visit_bias([&](auto& parameter) { parameter.weight = biases.view(); });
  Arena<Cpu> arena;
  projection.allocate_weight_copies(arena);
  Matrix<float> x(rows, in, 1.0f), wide(rows, out), y(rows, out / 2);
  using Input = Operand<Inference<Fp32>, OperandKind::input, Cpu>;
  projection.template forward_activated<Activation, Mode::generate>(Input{x.view()}, wide.view(),
                                                                    Input{y.view()}, place.context);
  return y(rows - 1, 0) == 3.0;
}

// A product knows SiLU only, and adds no bias to what it gates.
TEST(FusedActivation, IsUsedOnlyForSiluWithoutBias) {
  EXPECT_FALSE((asks_activation<GatingThrees, false>(1)));
  EXPECT_TRUE((asks_activation<GatingThrees, false>(max_few_rows + 1)));
  EXPECT_TRUE((asks_activation<GatingThrees, true>(1)));
  EXPECT_TRUE((asks_activation<Threes, false>(1)));
}

}  // namespace inference_linear_test
