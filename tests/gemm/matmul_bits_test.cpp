// An element of a product has the same bits however many rows and columns stand beside it, on
// however many threads: a sequence's results depend neither on the batch nor on what pads it.

#include <octavo/gemm/matmul.hpp>

#include <gtest/gtest.h>

#include <array>
#include <cstddef>

#include "gemm/matmul_reference.hpp"
#include "gemm/other_flags.hpp"
#include "support/quantized_operand.hpp"

namespace matmul_bits_test {

using namespace octavo;
using support::Matrix;
using support::random_matrix;

/// Sides of the products: around the sides of registers, strips, packed blocks and tiles.
constexpr std::array<Index, 17> sides{1,  2,  5,  6,  7,  8,   9,   15, 16,
                                      17, 31, 33, 64, 65, 127, 128, 129};
constexpr Index largest = 147;

/// The first rows and columns of a matrix.
template <class T>
Matrix<T> corner(const Matrix<T>& whole, Index rows, Index columns) {
  Matrix<T> part(rows, columns);
  for (Index r = 0; r < rows; ++r) {
    for (Index c = 0; c < columns; ++c)
      part.at(r, c) = whole.elements[static_cast<std::size_t>(r * whole.columns + c)];
  }
  return part;
}

/// Calls `product(m, n, output, context)` for many sizes and compares each result with the largest,
/// of all sides and of one thread.
template <class T, class Product>
void expect_equal_bits(Index k, const Product& product) {
  const auto addend = random_matrix<T>(largest, largest, 99, 3.0f);
  const auto run = [&](Index m, Index n, bool add, int threads) {
    support::ContextWithWorkspace place(threads);
    place.bind(matmul_workspace(m, n, k, place.context));
    Matrix<T> result(m, n, T(77.0f));
    const Matrix<T> part = corner(addend, m, n);
    GemmOutput<T, Cpu> output{result.view(), {}};
    if (add) output.addend = part.input();
    product(m, n, output, place.context);
    return result;
  };
  for (const bool add : {false, true}) {
    const Matrix<T> whole = run(largest, largest, add, 1);
    const auto expect_corner = [&](Index m, Index n, int threads) {
      EXPECT_EQ(support::bytes_of(run(m, n, add, threads).elements),
                support::bytes_of(corner(whole, m, n).elements))
          << m << " x " << n << " x " << k << (add ? " with an addend, " : ", ") << threads
          << " threads";
    };
    expect_corner(largest, largest, 3);
    for (const Index side : sides) {
      expect_corner(side, largest, 1);
      expect_corner(largest, side, 2);
      expect_corner(side, side, 3);
    }
  }
}

template <class T>
class MatmulBits : public testing::Test {};
using Storages = testing::Types<float, Bf16>;
TYPED_TEST_SUITE(MatmulBits, Storages);

/// Reduced dimensions around the depth that is packed together.
constexpr std::array<Index, 6> depths{1, 7, 31, 256, 263, 530};

TYPED_TEST(MatmulBits, ForwardDoesNotDependOnOtherRowsAndColumns) {
  for (const Index k : depths) {
    const auto x = random_matrix<TypeParam>(largest, k, 1);
    const auto w = random_matrix<TypeParam>(largest, k, 2);
    expect_equal_bits<TypeParam>(k, [&](Index m, Index n, const auto& y, const auto& context) {
      (void)matmul_forward(corner(x, m, k).input(), corner(w, n, k).input(), y, context);
    });
  }
}

TYPED_TEST(MatmulBits, InputGradientDoesNotDependOnOtherRowsAndColumns) {
  for (const Index k : depths) {
    const auto dy = random_matrix<TypeParam>(largest, k, 3);
    const auto w = random_matrix<TypeParam>(k, largest, 4);
    expect_equal_bits<TypeParam>(k, [&](Index m, Index n, const auto& dx, const auto& context) {
      (void)matmul_input_gradient(corner(dy, m, k).input(), corner(w, k, n).input(), dx, context);
    });
  }
}

TYPED_TEST(MatmulBits, WeightGradientDoesNotDependOnOtherRowsAndColumns) {
  for (const Index k : depths) {
    const auto dy = random_matrix<TypeParam>(k, largest, 5);
    const auto x = random_matrix<TypeParam>(k, largest, 6);
    expect_equal_bits<TypeParam>(k, [&](Index m, Index n, const auto& dw, const auto& context) {
      (void)matmul_weight_gradient(corner(dy, k, m).input(), corner(x, k, n).input(), dw, context);
    });
  }
}

/// The products of scaled operands are multiplied by a factor that rounds.
template <class P>
void expect_equal_bits_of_quantised() {
  for (const Index k : {16, 272, 528}) {
    const auto x = random_matrix<Bf16>(largest, k, 7);
    const auto w = random_matrix<Bf16>(largest, k, 8);
    expect_equal_bits<float>(k, [&](Index m, Index n, const auto& y, const auto& context) {
      const auto quantised = [&](auto& operand) {
        operand.slot.scale = 3.0f;
        operand.slot.scale_inverse = 1.0f / 3.0f;
        quantize(operand.operand, context);
        return operand.operand.row_major;
      };
      support::QuantizedOperand<P, OperandKind::input> left(corner(x, m, k));
      support::QuantizedOperand<P, OperandKind::weight> right(corner(w, n, k));
      (void)matmul_forward(quantised(left), quantised(right), y, context);
    });
  }
}

TEST(QuantizedMatmulBits, ScaledProductDoesNotDependOnOtherRowsAndColumns) {
  expect_equal_bits_of_quantised<Fp8Recipe<Delayed>>();
}

TEST(QuantizedMatmulBits, BlockScaledProductDoesNotDependOnOtherRows) {
  expect_equal_bits_of_quantised<Mxfp8>();
}

// The linker keeps one of the functions of one name: a loop with sixteen lanes must not get the
// kernel with four.
TEST(MixedCompilerFlags, KeepTheirOwnKernels) {
  const other_flags::Parts others = other_flags::parts();
  EXPECT_EQ(reinterpret_cast<const void*>(&octavo::detail::sgemm) == others.sgemm,
            octavo::detail::sgemm_lanes == others.lanes);
}

TEST(MixedCompilerFlags, MultiplyCorrectly) {
  const auto x = random_matrix<float>(259, 300, 9);
  const auto w = random_matrix<float>(131, 300, 10);
  const reference::Product expected(x.rows, w.rows, x.columns, x, w);
  expected.check(other_flags::product(x, w));
  for (const int threads : {1, 4}) {
    support::ContextWithWorkspace place(threads);
    place.bind(matmul_workspace(x.rows, w.rows, x.columns, place.context));
    Matrix<float> here(x.rows, w.rows);
    (void)matmul_forward(x.input(), w.input(), GemmOutput<float, Cpu>{here.view(), {}},
                         place.context);
    expected.check(here);
  }
}

}  // namespace matmul_bits_test
