#include <octavo/gemm/matmul.hpp>

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <string>
#include <type_traits>

#include "gemm/matmul_reference.hpp"
#include "kernels/recipe_definition.hpp"
#include "support/quantized_operand.hpp"
#include "support/test_types.hpp"

namespace matmul_test {

using namespace octavo;
using reference::check_gemm;
using reference::Product;
using support::Matrix;
using support::QuantizedOperand;
using support::random_matrix;

struct Sizes {
  Index tokens;
  Index out;
  Index in;
};

template <class T>
class DenseMatmul : public testing::Test {};
using Storages = testing::Types<float, Bf16>;
TYPED_TEST_SUITE(DenseMatmul, Storages);

constexpr std::array<Sizes, 4> dense_sizes{{{1, 1, 1}, {3, 17, 5}, {33, 145, 301}, {130, 129, 7}}};

TYPED_TEST(DenseMatmul, EveryPassMatchesReference) {
  using T = TypeParam;
  for (const auto& [tokens, out, in] : dense_sizes) {
    SCOPED_TRACE(testing::Message() << tokens << " x " << out << " x " << in);
    const auto x = random_matrix<T>(tokens, in, 1);
    const auto w = random_matrix<T>(out, in, 2);
    const auto dy = random_matrix<T>(tokens, out, 3);
    const std::string name = FormatTraits<T>::name;
    check_gemm<T>(tokens, out, in, Product(tokens, out, in, x, w),
                  [&](const auto& y, const auto& context) {
                    const GemmRun run = matmul_forward(x.input(), w.input(), y, context);
                    EXPECT_TRUE(run.a == name && run.b == name && !run.is_fp8());
                  });
    check_gemm<T>(tokens, in, out,
                  Product(tokens, in, out, dy, [&](Index j, Index p) { return w(p, j); }),
                  [&](const auto& y, const auto& context) {
                    (void)matmul_input_gradient(dy.input(), w.input(), y, context);
                  });
    const Product weight_gradient(
        out, in, tokens, [&](Index i, Index p) { return dy(p, i); },
        [&](Index j, Index p) { return x(p, j); });
    const auto run = [&](const auto& y, const auto& context) {
      (void)matmul_weight_gradient(dy.input(), x.input(), y, context);
    };
    check_gemm<float>(out, in, tokens, weight_gradient, run);
    check_gemm<T>(out, in, tokens, weight_gradient, run);
  }
}

template <class P>
class QuantizedMatmul : public testing::Test {
 protected:
  template <OperandKind Kind>
  struct Operand : QuantizedOperand<P, Kind> {
    Operand(Index rows, Index columns, unsigned seed)
        : QuantizedOperand<P, Kind>(random_matrix<Bf16>(rows, columns, seed)) {
      this->slot.scale = 3.0f;
      this->slot.scale_inverse = 1.0f / 3.0f;
      support::ContextWithWorkspace place;
      quantize(this->operand, place.context);
    }
  };
  using Input = Operand<OperandKind::input>;
  using Weight = Operand<OperandKind::weight>;
  using Gradient = Operand<OperandKind::output_gradient>;

  /// The values that a quantised copy stands for.
  template <class Format, class G, Layout L>
  static Matrix<float> decoded(QuantizedView<Format, G, L, Cpu> view, OperandKind kind) {
    const auto& format = std::is_same_v<Format, E5M2> ? reference::e5m2 : reference::e4m3;
    using Rule = reference::Definition<typename PrecisionTraits<P>::ScalingType>;
    Matrix<float> result(view.outer(), view.inner());
    for (Index r = 0; r < view.outer(); ++r) {
      for (Index c = 0; c < view.inner(); ++c) {
        const int at = reference::scale_position(
            Rule::recipe, Rule::block(kind), static_cast<int>(r), static_cast<int>(c),
            static_cast<int>(view.outer()), static_cast<int>(view.inner()));
        // A code times an FP32 scale is rounded to FP32, as the emulation does; 2^-24 at most.
        result.at(r, c) =
            static_cast<float>(reference::decode(format, view.data()[r * view.inner() + c].bits) *
                               static_cast<double>(static_cast<float>(view.scale_inverses()[at])));
      }
    }
    return result;
  }
};
using Precisions =
    support::TestTypes<Fp8Recipe<Delayed>, Fp8Recipe<Tensorwise>, Fp8Recipe<Tensorwise, E4M3Only>,
                       Fp8Recipe<Rowwise>, Fp8Recipe<Blockwise>, Mxfp8,
                       Fp8Recipe<support::BlocksOf64>, Fp8Recipe<support::RowsOf16>>;
TYPED_TEST_SUITE(QuantizedMatmul, Precisions);

TYPED_TEST(QuantizedMatmul, ForwardMatchesProductOfQuantizedOperands) {
  for (const auto& [tokens, out, in] : {Sizes{1, 1, 16}, Sizes{33, 145, 272}}) {
    const typename TestFixture::Input x(tokens, in, 1);
    const typename TestFixture::Weight w(out, in, 2);
    const Product product(tokens, out, in, this->decoded(x.operand.row_major, OperandKind::input),
                          this->decoded(w.operand.row_major, OperandKind::weight));
    check_gemm<Bf16>(tokens, out, in, product, [&](const auto& y, const auto& context) {
      const GemmRun run = matmul_forward(x.operand.row_major, w.operand.row_major, y, context);
      EXPECT_STREQ(run.a, "E4M3");
      EXPECT_STREQ(run.b, "E4M3");
      EXPECT_TRUE(run.is_fp8());
    });
  }
}

// A result in E4M3 is the nearest code of the FP32 sums, ties to even, saturated at 448.
TYPED_TEST(QuantizedMatmul, ForwardRoundsToE4M3) {
  const typename TestFixture::Input x(33, 272, 1);
  const typename TestFixture::Weight w(145, 272, 2);
  const auto product = [&]<class Y>(Matrix<Y> y) {
    support::ContextWithWorkspace place(2);
    place.bind(matmul_workspace(33, 145, 272, place.context));
    (void)matmul_forward(x.operand.row_major, w.operand.row_major, GemmOutput<Y, Cpu>{y.view(), {}},
                         place.context);
    return y;
  };
  const auto sums = product(Matrix<float>(33, 145));
  const auto rounded = product(Matrix<E4M3>(33, 145));
  const reference::NearestCode nearest(reference::e4m3);
  for (std::size_t i = 0; i < sums.elements.size(); ++i) {
    const float sum = sums.elements[i];
    EXPECT_EQ(rounded.elements[i].bits, nearest(static_cast<double>(sum))) << sum;
  }
}

TYPED_TEST(QuantizedMatmul, InputGradientMatchesProductOfQuantizedOperands) {
  for (const auto& [tokens, out, in] : {Sizes{1, 16, 1}, Sizes{33, 272, 145}}) {
    const typename TestFixture::Gradient dy(tokens, out, 3);
    const typename TestFixture::Weight w(out, in, 4);
    const Product product(tokens, in, out,
                          this->decoded(dy.operand.row_major, OperandKind::output_gradient),
                          this->decoded(w.operand.transposed, OperandKind::weight));
    check_gemm<Bf16>(tokens, in, out, product, [&](const auto& y, const auto& context) {
      const GemmRun run =
          matmul_input_gradient(dy.operand.row_major, w.operand.transposed, y, context);
      using Backward = typename PrecisionTraits<TypeParam>::BackwardFormat;
      EXPECT_STREQ(run.a, (std::is_same_v<Backward, E5M2>) ? "E5M2" : "E4M3");
      EXPECT_STREQ(run.b, "E4M3");
    });
  }
}

// The Cpu device always accumulates in FP32.
TYPED_TEST(QuantizedMatmul, FastAccumulationDoesNotChangeInputGradient) {
  const typename TestFixture::Gradient dy(33, 272, 3);
  const typename TestFixture::Weight w(272, 145, 4);
  const auto product = [&](GemmAccumulation accumulation) {
    support::ContextWithWorkspace place(2);
    place.bind(matmul_workspace(33, 145, 272, place.context));
    Matrix<float> result(33, 145);
    (void)matmul_input_gradient(dy.operand.row_major, w.operand.transposed,
                                GemmOutput<float, Cpu>{result.view(), {}}, accumulation,
                                place.context);
    return support::bytes_of(result.elements);
  };
  EXPECT_EQ(product(GemmAccumulation::fast), product(GemmAccumulation::full));
}

TYPED_TEST(QuantizedMatmul, WeightGradientMatchesProductOfQuantizedOperands) {
  for (const auto& [tokens, out, in] : {Sizes{16, 1, 1}, Sizes{272, 131, 67}}) {
    const typename TestFixture::Gradient dy(tokens, out, 5);
    const typename TestFixture::Input x(tokens, in, 6);
    const Product product(out, in, tokens,
                          this->decoded(dy.operand.transposed, OperandKind::output_gradient),
                          this->decoded(x.operand.transposed, OperandKind::input));
    const auto run = [&](const auto& y, const auto& context) {
      (void)matmul_weight_gradient(dy.operand.transposed, x.operand.transposed, y, context);
    };
    check_gemm<float>(out, in, tokens, product, run);
    check_gemm<Bf16>(out, in, tokens, product, run);
  }
}

TYPED_TEST(QuantizedMatmul, FastAccumulationDoesNotChangeWeightGradient) {
  const typename TestFixture::Gradient dy(272, 131, 5);
  const typename TestFixture::Input x(272, 67, 6);
  const auto product = [&](GemmAccumulation accumulation) {
    support::ContextWithWorkspace place(2);
    place.bind(matmul_workspace(131, 67, 272, place.context));
    Matrix<float> result(131, 67);
    (void)matmul_weight_gradient(dy.operand.transposed, x.operand.transposed,
                                 GemmOutput<float, Cpu>{result.view(), {}}, accumulation,
                                 place.context);
    return support::bytes_of(result.elements);
  };
  EXPECT_EQ(product(GemmAccumulation::fast), product(GemmAccumulation::full));
}

TYPED_TEST(QuantizedMatmul, ReducedDimensionMustBeAMultipleOf16) {
  const typename TestFixture::Input x(24, 24, 1);
  const typename TestFixture::Weight w(24, 24, 2);
  const typename TestFixture::Gradient dy(24, 24, 3);
  Matrix<Bf16> y(24, 24);
  const GemmOutput<Bf16, Cpu> output{y.view(), {}};
  support::ContextWithWorkspace place;
  place.bind(matmul_workspace(24, 24, 24, place.context));
  EXPECT_THROW(
      (void)matmul_forward(x.operand.row_major, w.operand.row_major, output, place.context),
      ShapeError);
  EXPECT_THROW((void)matmul_input_gradient(dy.operand.row_major, w.operand.transposed, output,
                                           place.context),
               ShapeError);
  EXPECT_THROW((void)matmul_weight_gradient(dy.operand.transposed, x.operand.transposed, output,
                                            place.context),
               ShapeError);
}

TEST(MatmulErrors, ShapesAndWorkspaceMustFit) {
  const Matrix<float> x(4, 8);
  const Matrix<float> w(6, 8);
  const Matrix<float> narrow(6, 7);
  Matrix<float> y(4, 6);
  Matrix<float> wrong(4, 5);
  support::ContextWithWorkspace place;
  const std::size_t needed = matmul_workspace(4, 6, 8, place.context);
  place.bind(needed);
  const GemmOutput<float, Cpu> output{y.view(), {}};
  const auto forward = [&](const Matrix<float>& weight, const GemmOutput<float, Cpu>& target) {
    return matmul_forward(x.input(), weight.input(), target, place.context);
  };
  EXPECT_NO_THROW(forward(w, output));
  EXPECT_THROW(forward(narrow, output), ShapeError);
  EXPECT_THROW(forward(w, {wrong.view(), {}}), ShapeError);
  EXPECT_THROW(forward(w, {y.view(), wrong.input()}), ShapeError);
  EXPECT_THROW((void)matmul_input_gradient(x.input(), w.input(), output, place.context),
               ShapeError);
  EXPECT_THROW((void)matmul_weight_gradient(x.input(), w.input(), output, place.context),
               ShapeError);
  place.bind(needed - 1);
  EXPECT_THROW(forward(w, output), UsageError);
}

}  // namespace matmul_test
