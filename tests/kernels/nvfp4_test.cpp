// NVFP4's copies have the bits of Transformer Engine's reference, where values are rounded to
// nearest. Where they are rounded stochastically, the mean is kept and equal numbers give equal
// bits.
#include <octavo/gemm/few_rows.hpp>
#include <octavo/gemm/matmul.hpp>
#include <octavo/kernels/dequantize.hpp>
#include <octavo/kernels/quantize.hpp>

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "support/golden.hpp"
#include "support/quantized_operand.hpp"

namespace nvfp4_test {

using namespace octavo;
using support::Matrix;
using support::QuantizedOperand;

using Tensors = std::map<std::string, std::vector<double>>;

const Tensors& golden() {
  static const Tensors tensors = [] {
    Tensors read;
    reference::golden_detail::read_tensors(
        reference::golden_path("block_scales.golden"),
        [&](const std::string& name, std::vector<double> values) { read[name] = values; });
    return read;
  }();
  return tensors;
}

constexpr std::array matrices{"plain", "mixed", "zeros"};

Matrix<Bf16> values_of(const std::string& name) {
  const std::vector<double>& values = golden().at(name + ":values");
  const auto side = static_cast<Index>(std::lround(std::sqrt(static_cast<double>(values.size()))));
  Matrix<Bf16> matrix(side, side);
  for (std::size_t i = 0; i < values.size(); ++i)
    matrix.elements[i] = Bf16(static_cast<float>(values[i]));
  return matrix;
}

/// Compares a copy with the golden file's, whose scales are in row-major order.
template <class View>
void expect_golden(const View& copy, const std::string& name, Index block_rows) {
  SCOPED_TRACE(name);
  const Tensors& expected = golden();
  EXPECT_EQ(tensor_scale_inverse(copy), static_cast<float>(expected.at(name + ".scale")[0]));
  const std::vector<double>& codes = expected.at(name + ".codes");
  const std::vector<double>& scales = expected.at(name + ".scales");
  ASSERT_EQ(codes.size(), static_cast<std::size_t>(copy.outer() * copy.inner()));
  const Index across = copy.inner() / 16;
  for (Index r = 0; r < copy.outer(); ++r) {
    for (Index c = 0; c < copy.inner(); ++c) {
      const Index place = r * copy.inner() + c;
      ASSERT_EQ(copy.data()[place].bits, codes[static_cast<std::size_t>(place)]) << r << ", " << c;
      const Index block = scale_index<PerBlock<1, 16, E4M3>>(r, c, copy.outer(), copy.inner());
      const Index square = scale_index<PerBlock<16, 16, E4M3>>(r, c, copy.outer(), copy.inner());
      const Index at = block_rows == 1 ? block : square;
      ASSERT_EQ(copy.scale_inverses()[at].bits,
                scales[static_cast<std::size_t>(r / block_rows * across + c / 16)])
          << r << ", " << c;
    }
  }
}

TEST(Nvfp4, InputsMatchTransformerEngine) {
  for (const std::string name : matrices) {
    QuantizedOperand<Nvfp4, OperandKind::input> operand(values_of(name));
    support::ContextWithWorkspace place;
    quantize(operand.operand, place.context);
    expect_golden(operand.operand.row_major, name + ":rows", 1);
    expect_golden(operand.operand.transposed, name + ":rotated", 1);
  }
}

// Both copies of a weight are the same numbers, so that forward and backward use one weight.
TEST(Nvfp4, WeightsHaveSquareScaleBlocks) {
  for (const std::string name : matrices) {
    QuantizedOperand<Nvfp4, OperandKind::weight> operand(values_of(name));
    support::ContextWithWorkspace place;
    quantize(operand.operand, place.context);
    expect_golden(operand.operand.row_major, name + ":square", 16);
    const Index side = operand.values.rows;
    EXPECT_EQ(tensor_scale_inverse(operand.operand.transposed),
              tensor_scale_inverse(operand.operand.row_major));
    for (Index r = 0; r < side; ++r) {
      for (Index c = 0; c < side; ++c) {
        const auto at = static_cast<std::size_t>(r * side + c);
        const auto turned = static_cast<std::size_t>(c * side + r);
        ASSERT_EQ(operand.row_major[at], operand.transposed[turned]) << r << ", " << c;
        ASSERT_EQ(operand.row_major_scales[static_cast<std::size_t>(
                      scale_index<PerBlock<16, 16, E4M3>>(r, c, side, side))],
                  operand.transposed_scales[static_cast<std::size_t>(
                      scale_index<PerBlock<16, 16, E4M3>>(c, r, side, side))]);
      }
    }
  }
}

TEST(Nvfp4, CountsFlushedValuesAndRecordsAmax) {
  const Matrix<Bf16> values = values_of("mixed");
  QuantizedOperand<Nvfp4, OperandKind::input> operand(values);
  support::ContextWithWorkspace place;
  quantize(operand.operand, place.context);
  std::uint64_t flushed = 0;
  double amax = 0;
  for (std::size_t i = 0; i < values.elements.size(); ++i) {
    const auto value = static_cast<double>(static_cast<float>(values.elements[i]));
    const auto code = golden().at("mixed:rows.codes")[i];
    flushed += value != 0 && (code == 0 || code == 8) ? 1 : 0;
    amax = std::max(amax, std::abs(value));
  }
  EXPECT_GT(flushed, 100u);
  EXPECT_EQ(operand.slot.flushed, flushed);
  EXPECT_EQ(operand.slot.elements, values.elements.size());
  EXPECT_EQ(static_cast<double>(float_from_bits(operand.slot.amax_bits)), amax);
}

/// The values of a copy.
template <class View>
std::vector<double> dequantized(const View& copy) {
  std::vector<double> values;
  for (Index r = 0; r < copy.outer(); ++r) {
    for (Index c = 0; c < copy.inner(); ++c) {
      const Index scale = scale_index<PerBlock<1, 16, E4M3>>(r, c, copy.outer(), copy.inner());
      values.push_back(static_cast<double>(static_cast<float>(copy.data()[r * copy.inner() + c])) *
                       static_cast<double>(static_cast<float>(copy.scale_inverses()[scale])) *
                       static_cast<double>(tensor_scale_inverse(copy)));
    }
  }
  return values;
}

/// v · S · H / 4, by the definition of a Hadamard matrix: the sign of entry (i, j) is the parity of
/// the ones that i and j have in common.
std::vector<double> rotated(const Matrix<Bf16>& values) {
  constexpr std::array signs{1, 1, 1, -1, 1, -1, -1, -1, -1, -1, -1, 1, -1, 1, -1, -1};
  std::vector<double> result(values.elements.size());
  for (Index c = 0; c < values.columns; ++c) {
    for (Index r = 0; r < values.rows; ++r) {
      double sum = 0;
      for (Index i = 0; i < 16; ++i) {
        const auto ones = static_cast<unsigned>(i) & static_cast<unsigned>(r % 16);
        const int sign = __builtin_popcount(ones) % 2 == 0 ? 1 : -1;
        sum += signs[static_cast<std::size_t>(i)] * sign * values(r / 16 * 16 + i, c) / 4;
      }
      result[static_cast<std::size_t>(c * values.rows + r)] = sum;
    }
  }
  return result;
}

TEST(Nvfp4, GradientsRoundToNeighbourWithoutBias) {
  const Matrix<Bf16> values = support::random_matrix<Bf16>(32, 32, 5);
  QuantizedOperand<Nvfp4, OperandKind::output_gradient> operand(values);
  support::ContextWithWorkspace place;
  constexpr int casts = 2000;
  std::vector<double> row_means(values.elements.size());
  std::vector<double> turned_means(values.elements.size());
  for (int i = 0; i < casts; ++i) {
    quantize(operand.operand, place.context);
    const auto rows = dequantized(operand.operand.row_major);
    const auto turned = dequantized(operand.operand.transposed);
    for (std::size_t e = 0; e < rows.size(); ++e) {
      row_means[e] += rows[e] / casts;
      turned_means[e] += turned[e] / casts;
    }
  }
  const std::vector<double> turned_values = rotated(values);
  double largest_turned = 0;
  for (const double value : turned_values)
    largest_turned = std::max(largest_turned, std::abs(value));
  for (std::size_t e = 0; e < row_means.size(); ++e) {
    // The distance of two levels is at most a third of the block's amax, here below 4, and the
    // deviation of the mean of 2000 draws at most half of that / sqrt(2000): five of them. A scale
    // rounded down saturates by a further 1/16.
    const auto value = static_cast<double>(static_cast<float>(values.elements[e]));
    EXPECT_NEAR(row_means[e], value, 0.075 + std::abs(value) / 16) << e;
    EXPECT_NEAR(turned_means[e], turned_values[e], 0.075 + std::abs(turned_values[e]) / 16) << e;
  }
  double bias = 0;
  for (std::size_t e = 0; e < row_means.size(); ++e) {
    const auto value = static_cast<double>(static_cast<float>(values.elements[e]));
    if (std::abs(value) < 1) bias += (row_means[e] - value) * (value < 0 ? -1 : 1);
  }
  EXPECT_NEAR(bias / 1024, 0, 0.002);
}

// Random numbers are a function of operand, cast, copy and element, and of nothing else.
TEST(Nvfp4, GradientRoundingIsReproducible) {
  const Matrix<Bf16> values = support::random_matrix<Bf16>(144, 160, 5);
  using Gradient = QuantizedOperand<Nvfp4, OperandKind::output_gradient>;
  const auto cast = [&](std::uint64_t number, std::uint32_t casts, int threads) {
    Gradient operand(values);
    operand.operand.number = number;
    operand.slot.position = casts;
    support::ContextWithWorkspace place(threads);
    quantize(operand.operand, place.context);
    EXPECT_EQ(operand.slot.position, casts + 1);
    return std::pair(operand.row_major, operand.transposed);
  };
  const auto first = cast(3, 7, 1);
  EXPECT_EQ(cast(3, 7, 4), first);
  EXPECT_NE(cast(3, 8, 1).first, first.first);
  EXPECT_NE(cast(3, 8, 1).second, first.second);
  EXPECT_NE(cast(4, 7, 1).first, first.first);
  EXPECT_NE(cast(4, 7, 1).second, first.second);

  Gradient rows(values, true, {true, false});
  Gradient columns(values, true, {false, true});
  for (Gradient* one : {&rows, &columns}) {
    one->operand.number = 3;
    one->slot.position = 7;
    support::ContextWithWorkspace place;
    quantize(one->operand, place.context);
  }
  EXPECT_EQ(rows.row_major, first.first);
  EXPECT_EQ(columns.transposed, first.second);
}

TEST(Nvfp4, StochasticRoundingProbabilityFollowsDistance) {
  for (const float sign : {1.0f, -1.0f}) {
    for (int i = 0; i <= 6 * 64; ++i) {
      const float value = sign * static_cast<float>(i) / 64;
      int ups = 0;
      for (std::uint32_t random = 0; random < 0x10000; random += 16) {
        const E2M1 rounded = E2M1::rounded_stochastically(value, random + 7);
        const E2M1 nearest(value);
        ups += rounded == nearest ? 1 : 0;
        const float distance = std::abs(value) < 2 ? 0.5f : std::abs(value) < 4 ? 1.0f : 2.0f;
        ASSERT_LT(std::abs(static_cast<float>(rounded) - value), distance) << value;
      }
      const float distance = std::abs(value) < 2 ? 0.5f : std::abs(value) < 4 ? 1.0f : 2.0f;
      const float share = 1 - std::abs(static_cast<float>(E2M1(value)) - value) / distance;
      EXPECT_NEAR(ups / 4096.0, static_cast<double>(share), 1e-3) << value;
    }
  }
  // With 16 random bits, a probability is off by at most half of 2^-16.
  for (const int quarters : {1, 2, 3, 4, 1001, 131'070, 262'141, 262'143}) {
    const double share = quarters * 0x1p-18;
    int ups = 0;
    for (std::uint32_t random = 0; random < 0x10000; ++random) {
      ups += E2M1::rounded_stochastically(2 + static_cast<float>(share), random) == E2M1(3.0f);
    }
    EXPECT_NEAR(ups * 0x1p-16, share, 0x1p-17) << quarters;
  }
  EXPECT_EQ(E2M1::rounded_stochastically(7.5f, 0xffff).bits, 0x7);
  EXPECT_EQ(E2M1::rounded_stochastically(-INFINITY, 0).bits, 0xf);
  EXPECT_EQ(E2M1::rounded_stochastically(NAN, 0).bits, 0x7);
  EXPECT_EQ(E2M1::rounded_stochastically(-0.0f, 0).bits, 0x8);
}

/// Σ a · b of two copies.
template <class A, class B>
std::vector<double> product(const A& a, const B& b) {
  const auto left = dequantized(a);
  const auto right = dequantized(b);
  std::vector<double> result;
  for (Index r = 0; r < a.outer(); ++r) {
    for (Index c = 0; c < b.outer(); ++c) {
      double sum = 0;
      for (Index k = 0; k < a.inner(); ++k) {
        sum += left[static_cast<std::size_t>(r * a.inner() + k)] *
               right[static_cast<std::size_t>(c * b.inner() + k)];
      }
      result.push_back(sum);
    }
  }
  return result;
}

// Rotations cancel: the weight gradient is that of the unrotated values.
TEST(Nvfp4, ProductsUndoScalesAndRotation) {
  const Matrix<Bf16> x = support::random_matrix<Bf16>(64, 32, 1);
  const Matrix<Bf16> dy = support::random_matrix<Bf16>(64, 48, 2);
  QuantizedOperand<Nvfp4, OperandKind::input> input(x);
  QuantizedOperand<Nvfp4, OperandKind::output_gradient> gradient(dy);
  support::ContextWithWorkspace place(
      2, matmul_workspace(48, 32, 64, DeviceLimits<Cpu>{.threads = 2}));
  quantize(input.operand, place.context);
  quantize(gradient.operand, place.context);
  Matrix<float> result(48, 32);
  (void)matmul_weight_gradient(gradient.operand.transposed, input.operand.transposed,
                               GemmOutput<float, Cpu>{result.view(), {}}, place.context);
  const auto expected = product(gradient.operand.transposed, input.operand.transposed);
  double error = 0;
  double size = 0;
  for (Index r = 0; r < 48; ++r) {
    for (Index c = 0; c < 32; ++c) {
      const double found = result(r, c);
      EXPECT_NEAR(found, expected[static_cast<std::size_t>(r * 32 + c)], 1e-4);
      double exact = 0;
      for (Index k = 0; k < 64; ++k) exact += dy(k, r) * x(k, c);
      error += (found - exact) * (found - exact);
      size += exact * exact;
    }
  }
  EXPECT_LT(std::sqrt(error / size), 0.25);
}

// Generation multiplies activations by the values of a weight.
TEST(Nvfp4, FewRowsForwardAppliesBothScales) {
  QuantizedOperand<Nvfp4, OperandKind::weight> w(support::random_matrix<Bf16>(48, 64, 1));
  const Matrix<float> x = support::random_matrix<float>(3, 64, 2);
  support::ContextWithWorkspace place(2, few_rows_workspace(64, DeviceLimits<Cpu>{.threads = 2}));
  quantize(w.operand, place.context);
  Matrix<float> values(48, 64);
  dequantize(w.operand.row_major, values.view(), place.context);
  Matrix<float> result(3, 48);
  (void)few_rows_forward(x.input(), w.operand.row_major, GemmOutput<float, Cpu>{result.view(), {}},
                         place.context, {});
  const auto scale = static_cast<double>(tensor_scale_inverse(w.operand.row_major));
  EXPECT_NE(scale, 1);
  for (Index r = 0; r < 48; ++r) {
    std::array<double, 3> sums{};
    for (Index c = 0; c < 64; ++c) {
      const Index at = scale_index<PerBlock<16, 16, E4M3>>(r, c, 48, 64);
      const double value =
          static_cast<double>(
              static_cast<float>(w.row_major[static_cast<std::size_t>(r * 64 + c)])) *
          static_cast<double>(
              static_cast<float>(w.row_major_scales[static_cast<std::size_t>(at)])) *
          scale;
      EXPECT_EQ(values(r, c), static_cast<double>(static_cast<float>(value)));
      for (Index i = 0; i < 3; ++i) sums[static_cast<std::size_t>(i)] += x(i, c) * value;
    }
    for (Index i = 0; i < 3; ++i)
      EXPECT_NEAR(result(i, r), sums[static_cast<std::size_t>(i)], 1e-4);
  }
}

TEST(Nvfp4, RejectsUnrotatableRowCount) {
  QuantizedOperand<Nvfp4, OperandKind::input> operand(support::random_matrix<Bf16>(24, 32, 1));
  support::ContextWithWorkspace place;
  EXPECT_THROW(quantize(operand.operand, place.context), ShapeError);
  operand.operand.transposed = {};
  EXPECT_NO_THROW(quantize(operand.operand, place.context));
}

}  // namespace nvfp4_test
