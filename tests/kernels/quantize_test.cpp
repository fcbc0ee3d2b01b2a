#include <octavo/kernels/quantize.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <random>
#include <type_traits>
#include <vector>

#include "kernels/recipe_definition.hpp"
#include "support/quantized_operand.hpp"
#include "support/test_types.hpp"

namespace quantize_test {

using namespace octavo;
using reference::Block;
using reference::scale_position;
using support::Matrix;
using support::QuantizedOperand;

/// One operand of one recipe, and what it must become by the recipe's definition.
template <class Precision, OperandKind K>
struct Case {
  using P = Precision;
  static constexpr OperandKind kind = K;
  static constexpr reference::Format format =
      K == OperandKind::output_gradient &&
              std::is_same_v<typename PrecisionTraits<P>::BackwardFormat, E5M2>
          ? reference::e5m2
          : reference::e4m3;
};

/// Values over many binades, with zeros, a block of zeros, subnormals, huge values and extremes.
Matrix<Bf16> finite_values(Index rows, Index columns) {
  Matrix<Bf16> values = support::random_matrix<Bf16>(rows, columns, 7);
  std::mt19937 generator(11);
  std::uniform_int_distribution<int> binade(-22, 9);
  for (Bf16& x : values.elements) x = Bf16(std::ldexp(static_cast<float>(x), binade(generator)));
  for (std::size_t i = 3; i < values.elements.size(); i += 41) values.elements[i] = Bf16(-0.0f);
  for (std::size_t i = 5; i < values.elements.size(); i += 97) values.elements[i] = Bf16(0x1p-131f);
  if (rows > 16) {
    for (Index c = 0; c < columns; ++c) {
      values.at(2, c) = Bf16(0.0f);
      values.at(4, c) = Bf16(c % 3 == 0 ? -0x1p-133f : 0x1.8p-130f);
      values.at(6, c) = Bf16(c % 2 == 0 ? 0x1.fep127f : -1e36f);
      values.at(8, c) = Bf16(c == 1 ? 448.0f : 464.0f / static_cast<float>(c + 1));
    }
  }
  return values;
}

/// The same with Inf and NaN in some rows.
Matrix<Bf16> values_with_specials(Index rows, Index columns) {
  Matrix<Bf16> values = finite_values(rows, columns);
  constexpr float infinity = std::numeric_limits<float>::infinity();
  values.at(0, columns / 2) = Bf16(infinity);
  values.at(rows / 2, 0) = Bf16(-infinity);
  values.at(rows - 1, columns - 1) = Bf16(std::numeric_limits<float>::quiet_NaN());
  return values;
}

template <class C>
class Quantize : public testing::Test {
 protected:
  using P = typename C::P;
  using Operand = QuantizedOperand<P, C::kind>;
  using Rule = reference::Definition<typename PrecisionTraits<P>::ScalingType>;
  static constexpr Block block = Rule::block(C::kind);

  static reference::Quantized expected(const Matrix<Bf16>& values, bool transpose, double scale) {
    const int rows = static_cast<int>(transpose ? values.columns : values.rows);
    const int columns = static_cast<int>(transpose ? values.rows : values.columns);
    std::vector<double> source;
    for (int r = 0; r < rows; ++r) {
      for (int c = 0; c < columns; ++c) source.push_back(transpose ? values(c, r) : values(r, c));
    }
    return reference::quantize(source, rows, columns, C::format, Rule::recipe, block, scale);
  }

  /// Compares codes bit for bit, and the scale that stands where the GEMM looks for it.
  template <class View>
  static void compare(const View& view, const reference::Quantized& oracle) {
    const int outer = static_cast<int>(view.outer());
    const int inner = static_cast<int>(view.inner());
    int strays = 0;
    for (int r = 0; r < outer; ++r) {
      for (int c = 0; c < inner && strays < 5; ++c) {
        const auto i = static_cast<std::size_t>(r) * static_cast<std::size_t>(inner) +
                       static_cast<std::size_t>(c);
        const auto scale = static_cast<double>(static_cast<float>(
            view.scale_inverses()[scale_position(Rule::recipe, block, r, c, outer, inner)]));
        const bool same_scale = scale == oracle.scale_inverse[i] ||
                                (std::isnan(scale) && std::isnan(oracle.scale_inverse[i]));
        const bool same = view.data()[i].bits == oracle.codes[i] && same_scale;
        strays += same ? 0 : 1;
        EXPECT_TRUE(same) << "element " << r << ", " << c << ": code "
                          << static_cast<int>(view.data()[i].bits) << " scale " << scale
                          << ", expected " << oracle.codes[i] << " and " << oracle.scale_inverse[i];
      }
    }
  }

  static void check(const Matrix<Bf16>& values, float given) {
    SCOPED_TRACE(testing::Message() << values.rows << " x " << values.columns);
    Operand operand(values);
    operand.slot.scale = given;
    operand.slot.scale_inverse = 1.0f / given;
    support::ContextWithWorkspace place;
    quantize(operand.operand, place.context);
    const auto row_major = expected(values, false, static_cast<double>(given));
    compare(operand.operand.row_major, row_major);
    compare(operand.operand.transposed, expected(values, true, static_cast<double>(given)));
    EXPECT_EQ(operand.slot.elements, static_cast<std::uint64_t>(values.size()));
    EXPECT_EQ(operand.slot.saturated, row_major.saturated);
    EXPECT_EQ(operand.slot.flushed, row_major.flushed);
    std::uint32_t amax = 0;
    for (const Bf16 x : values.elements)
      amax = std::max(amax, static_cast<std::uint32_t>(x.bits & 0x7fffu) << 16);
    EXPECT_EQ(operand.slot.amax_bits, amax);
  }
};

using PowerRows = Fp8Recipe<RowwiseScaling<ScaleRounding::power_of_two>>;

using Cases = support::TestTypes<
    Case<Fp8Recipe<Delayed>, OperandKind::input>,
    Case<Fp8Recipe<Delayed>, OperandKind::output_gradient>,
    Case<Fp8Recipe<Tensorwise>, OperandKind::weight>,
    Case<Fp8Recipe<Tensorwise>, OperandKind::output_gradient>,
    Case<Fp8Recipe<TensorwiseScaling<ScaleRounding::power_of_two>>, OperandKind::input>,
    Case<Fp8Recipe<Rowwise>, OperandKind::input>, Case<Fp8Recipe<Rowwise>, OperandKind::weight>,
    Case<PowerRows, OperandKind::input>, Case<PowerRows, OperandKind::output_gradient>,
    Case<Fp8Recipe<Blockwise>, OperandKind::input>, Case<Fp8Recipe<Blockwise>, OperandKind::weight>,
    Case<Fp8Recipe<BlockwiseScaling<ScaleRounding::exact>>, OperandKind::output_gradient>,
    Case<Fp8Recipe<BlockwiseScaling<ScaleRounding::exact>>, OperandKind::weight>,
    Case<Mxfp8, OperandKind::input>, Case<Mxfp8, OperandKind::weight>,
    Case<Fp8Recipe<support::BlocksOf64>, OperandKind::input>,
    Case<Fp8Recipe<support::BlocksOf64>, OperandKind::weight>,
    Case<Fp8Recipe<support::RowsOf16>, OperandKind::weight>>;
TYPED_TEST_SUITE(Quantize, Cases);

constexpr std::array<std::array<Index, 2>, 4> shapes{{{1, 16}, {17, 33}, {129, 257}, {130, 300}}};

TYPED_TEST(Quantize, BytesAndScalesMatchOracle) {
  for (const auto& [rows, columns] : shapes) {
    for (const float scale : {1.0f, 37.3f}) TestFixture::check(finite_values(rows, columns), scale);
  }
}

TYPED_TEST(Quantize, InfinityAndNanMatchOracle) {
  for (const auto& [rows, columns] : shapes)
    TestFixture::check(values_with_specials(rows, columns), 0.125f);
}

TYPED_TEST(Quantize, ZerosStayZerosWithFiniteScales) {
  const Matrix<Bf16> zeros(33, 160);
  TestFixture::check(zeros, 4.0f);
  typename TestFixture::Operand operand(zeros);
  support::ContextWithWorkspace place;
  quantize(operand.operand, place.context);
  for (const auto scale : operand.row_major_scales)
    EXPECT_TRUE(is_finite(static_cast<float>(scale)));
}

TYPED_TEST(Quantize, PreservesStatisticsWithoutRecord) {
  const Matrix<Bf16> values = values_with_specials(17, 33);
  typename TestFixture::Operand silent(values, false);
  typename TestFixture::Operand recording(values, true);
  support::ContextWithWorkspace place;
  for (auto* slot : {&silent.slot, &recording.slot}) {
    slot->amax_bits = 1;
    slot->last_amax_bits = 2;
    slot->position = 3;
    slot->nonfinite = 4;
    slot->elements = 5;
    slot->saturated = 6;
    slot->flushed = 7;
  }
  quantize(silent.operand, place.context);
  quantize(recording.operand, place.context);
  EXPECT_EQ(silent.slot.amax_bits, 1u);
  EXPECT_EQ(silent.slot.last_amax_bits, 2u);
  EXPECT_EQ(silent.slot.position, 3u);
  EXPECT_EQ(silent.slot.nonfinite, 4u);
  EXPECT_EQ(silent.slot.elements, 5u);
  EXPECT_EQ(silent.slot.saturated, 6u);
  EXPECT_EQ(silent.slot.flushed, 7u);
  EXPECT_EQ(recording.slot.elements, 5u + 17u * 33u) << "statistics add up over casts";
  EXPECT_EQ(silent.row_major, recording.row_major);
  EXPECT_EQ(silent.transposed, recording.transposed);
  EXPECT_EQ(silent.slot.scale, recording.slot.scale);
}

// A micro-batch casts some operands piece by piece; their scales move once, at its end.
TYPED_TEST(Quantize, AmaxCoversAllCastsSinceLastUpdate) {
  support::ContextWithWorkspace place;
  typename TestFixture::Operand operand(Matrix<Bf16>(17, 33, Bf16(0.5f)));
  for (const float value : {0.5f, -3.0f, 0.25f}) {
    for (Bf16& element : operand.values.elements) element = Bf16(value);
    quantize(operand.operand, place.context);
  }
  EXPECT_EQ(float_from_bits(operand.slot.amax_bits), 3.0f);
}

TYPED_TEST(Quantize, EachCopyAloneMatchesBothTogether) {
  const Matrix<Bf16> values = finite_values(129, 257);
  typename TestFixture::Operand both(values);
  typename TestFixture::Operand rows(values, true, {true, false});
  typename TestFixture::Operand columns(values, true, {false, true});
  support::ContextWithWorkspace place;
  for (auto* operand : {&both, &rows, &columns}) quantize(operand->operand, place.context);
  EXPECT_EQ(rows.row_major, both.row_major);
  EXPECT_EQ(columns.transposed, both.transposed);
  EXPECT_EQ(rows.row_major_scales, both.row_major_scales);
  EXPECT_EQ(columns.transposed_scales, both.transposed_scales);
  EXPECT_EQ(columns.slot.amax_bits, both.slot.amax_bits);
  for (const auto code : rows.transposed) ASSERT_EQ(code.bits, 0) << "a copy nobody asked for";
}

TYPED_TEST(Quantize, RecordsOnlyAmaxWithoutCopies) {
  const Matrix<Bf16> values = finite_values(129, 257);
  typename TestFixture::Operand both(values);
  typename TestFixture::Operand neither(values, true, {false, false});
  support::ContextWithWorkspace place;
  for (auto* operand : {&both, &neither}) quantize(operand->operand, place.context);
  EXPECT_NE(neither.slot.amax_bits, 0u);
  EXPECT_EQ(neither.slot.amax_bits, both.slot.amax_bits);
  EXPECT_EQ(neither.slot.elements, both.slot.elements);
  EXPECT_EQ(neither.slot.saturated, 0u);
  EXPECT_EQ(neither.slot.flushed, 0u);
}

TYPED_TEST(Quantize, DoesNotDependOnTheNumberOfThreads) {
  const Matrix<Bf16> values = values_with_specials(130, 300);
  typename TestFixture::Operand one(values);
  typename TestFixture::Operand four(values);
  support::ContextWithWorkspace single(1);
  support::ContextWithWorkspace several(4);
  quantize(one.operand, single.context);
  quantize(four.operand, several.context);
  EXPECT_EQ(one.row_major, four.row_major);
  EXPECT_EQ(one.transposed, four.transposed);
  EXPECT_EQ(one.slot.saturated, four.slot.saturated);
  EXPECT_EQ(one.slot.flushed, four.slot.flushed);
}

TEST(QuantizeBlockwise, TransposedCopyHasScalesOfItsOwnBlocks) {
  // Column 0 is large: 1x128 blocks along the rows all see it, of the transpose only row 0 does.
  Matrix<Bf16> values(128, 128, Bf16(1.0f));
  for (Index r = 0; r < 128; ++r) values.at(r, 0) = Bf16(448.0f);
  QuantizedOperand<Fp8Recipe<Blockwise>, OperandKind::input> operand(values);
  support::ContextWithWorkspace place;
  quantize(operand.operand, place.context);
  for (std::size_t r = 0; r < 128; ++r) {
    EXPECT_EQ(operand.row_major_scales[r], 1.0f);
    EXPECT_EQ(operand.transposed_scales[r], r == 0 ? 1.0f : 1.0f / 256.0f);
  }
}

TEST(QuantizeRowwise, EachCopyHasScalesOfItsOwnRows) {
  // Row 1 and column 2 are large: each copy sees one of them in all of its rows.
  Matrix<Bf16> values(160, 272, Bf16(1.0f));
  for (Index c = 0; c < values.columns; ++c) values.at(1, c) = Bf16(2.0f);
  for (Index r = 0; r < values.rows; ++r) values.at(r, 2) = Bf16(448.0f);
  values.at(159, 271) = Bf16(4.0f);  // in the last tile alone
  QuantizedOperand<PowerRows, OperandKind::input> operand(values);
  support::ContextWithWorkspace place;
  quantize(operand.operand, place.context);
  for (const float inverse : operand.row_major_scales) EXPECT_EQ(inverse, 1.0f);
  for (std::size_t c = 0; c < 272; ++c) {
    const float inverse = c == 2 ? 1.0f : c == 271 ? 1.0f / 64 : 1.0f / 128;
    EXPECT_EQ(operand.transposed_scales[c], inverse) << "column " << c;
  }
  EXPECT_EQ(operand.slot.scale, 1.0f) << "the slot has no scale for all";
}

// The values that decide most of a product are not rounded.
TEST(QuantizeRowwise, LargestValueOfEachRowIsExact) {
  const Matrix<Bf16> values = support::random_matrix<Bf16>(33, 50, 4);
  QuantizedOperand<Fp8Recipe<Rowwise>, OperandKind::input> operand(values);
  support::ContextWithWorkspace place;
  quantize(operand.operand, place.context);
  for (Index r = 0; r < 33; ++r) {
    Index largest = 0;
    for (Index c = 1; c < 50; ++c) {
      if (std::abs(values(r, c)) > std::abs(values(r, largest))) largest = c;
    }
    const auto place_of = static_cast<std::size_t>(r * 50 + largest);
    const double cast = static_cast<double>(static_cast<float>(operand.row_major[place_of])) *
                        static_cast<double>(operand.row_major_scales[static_cast<std::size_t>(r)]);
    EXPECT_NEAR(cast, values(r, largest), 1e-6 * std::abs(values(r, largest))) << "row " << r;
  }
}

// So forward and backward work on one weight, though its copies have other scales.
TEST(QuantizeRowwise, CopiesRoundEquallyWithPowerOfTwoScales) {
  const Matrix<Bf16> values = support::random_matrix<Bf16>(65, 130, 3);
  QuantizedOperand<PowerRows, OperandKind::weight> operand(values);
  support::ContextWithWorkspace place;
  quantize(operand.operand, place.context);
  const auto value = [](E4M3 code, float inverse) { return static_cast<float>(code) * inverse; };
  int compared = 0;
  for (std::size_t r = 0; r < 65; ++r) {
    for (std::size_t c = 0; c < 130; ++c) {
      const float of_row = operand.row_major_scales[r];
      const float of_column = operand.transposed_scales[c];
      const float least = std::max(of_row, of_column) * 0x1p-6f;  // of E4M3's normal numbers
      if (std::abs(values(static_cast<Index>(r), static_cast<Index>(c))) <
          static_cast<double>(least)) {
        continue;
      }
      ++compared;
      ASSERT_EQ(value(operand.row_major[r * 130 + c], of_row),
                value(operand.transposed[c * 65 + r], of_column))
          << r << ", " << c;
    }
  }
  EXPECT_GT(compared, 60 * 130);
}

template <OperandKind Kind>
void check_every_amax(const reference::Format& format) {
  constexpr Index magnitudes = 0x7f80;  // of BF16, all finite ones
  Matrix<Bf16> values(magnitudes, 1);
  for (Index r = 0; r < magnitudes; ++r)
    values.at(r, 0) = Bf16::from_bits(static_cast<std::uint16_t>(r));
  QuantizedOperand<Fp8Recipe<Blockwise, Hybrid>, Kind> operand(values);
  support::ContextWithWorkspace place;
  quantize(operand.operand, place.context);
  for (Index r = 1; r < magnitudes; ++r) {
    const auto amax = static_cast<double>(static_cast<float>(values(r, 0)));
    const auto expected = reference::current_scale(format, amax, true).scale_inverse;
    ASSERT_EQ(static_cast<double>(operand.row_major_scales[static_cast<std::size_t>(r)]), expected)
        << "amax " << amax;
  }
}

TEST(QuantizeBlockwise, ScaleIsPowerOfTwoBelowRatioForEveryAmax) {
  check_every_amax<OperandKind::input>(reference::e4m3);
  check_every_amax<OperandKind::output_gradient>(reference::e5m2);
}

/// What one operand counts of these values, cast by this scale where it is delayed.
template <class P, OperandKind Kind>
std::uint64_t count_saturated(const std::vector<float>& values, float scale) {
  Matrix<Bf16> matrix(1, static_cast<Index>(values.size()));
  for (std::size_t i = 0; i < values.size(); ++i) matrix.elements[i] = Bf16(values[i]);
  QuantizedOperand<P, Kind> operand(matrix);
  operand.slot.scale = scale;
  support::ContextWithWorkspace place;
  quantize(operand.operand, place.context);
  return operand.slot.saturated;
}

/// Every mantissa of BF16, with the exponents of subnormals, of some numbers, and the largest.
template <class P, OperandKind Kind>
void expect_no_amax_saturates() {
  for (const std::uint32_t exponent : {0u, 1u, 127u, 140u, 254u}) {
    for (std::uint32_t mantissa = 0; mantissa < 128; ++mantissa) {
      const float amax = float_from_bits((exponent << 7 | mantissa) << 16);
      ASSERT_EQ((count_saturated<P, Kind>({amax, -amax, amax / 2}, 1.0f)), 0u) << "amax " << amax;
    }
  }
}

TEST(QuantizeSaturation, CurrentScalesSaturateNoFiniteValue) {
  expect_no_amax_saturates<Fp8Recipe<Tensorwise>, OperandKind::input>();
  expect_no_amax_saturates<Fp8Recipe<Tensorwise>, OperandKind::output_gradient>();
  expect_no_amax_saturates<Fp8Recipe<BlockwiseScaling<ScaleRounding::exact>>, OperandKind::input>();
  expect_no_amax_saturates<Fp8Recipe<Blockwise>, OperandKind::weight>();
  expect_no_amax_saturates<Fp8Recipe<Rowwise>, OperandKind::output_gradient>();
  expect_no_amax_saturates<PowerRows, OperandKind::input>();
}

TEST(QuantizeSaturation, DelayedScalesSaturateLargerValues) {
  using P = Fp8Recipe<Delayed>;
  // The scale of an amax of 7 in E4M3; one unit of 1/64 is worth one unit of the format's 448.
  EXPECT_EQ((count_saturated<P, OperandKind::input>({7.0f, -7.0f, 3.0f}, 64.0f)), 0u);
  EXPECT_EQ((count_saturated<P, OperandKind::input>({7.0f, -14.0f, 28.0f}, 64.0f)), 2u);
  // 464 lies between 448 and 480, which would be the next: it rounds to the even 448.
  EXPECT_EQ((count_saturated<P, OperandKind::input>({450.0f, 464.0f, -464.0f}, 1.0f)), 0u);
  EXPECT_EQ((count_saturated<P, OperandKind::input>({466.0f, -466.0f, 464.0f}, 1.0f)), 2u);
  // 61440 lies between 57344, which is odd, and 65536.
  EXPECT_EQ((count_saturated<P, OperandKind::output_gradient>({61184.0f, -57600.0f}, 1.0f)), 0u);
  EXPECT_EQ((count_saturated<P, OperandKind::output_gradient>({61440.0f, -61440.0f}, 1.0f)), 2u);
}

TEST(QuantizeTensorwise, UsesPrecomputedScale) {
  const Matrix<Bf16> values = finite_values(17, 33);
  QuantizedOperand<Fp8Recipe<Tensorwise>, OperandKind::weight> operand(values, false);
  operand.slot.scale = 37.3f;
  operand.slot.scale_inverse = 0.5f;
  operand.operand.scale_is_found = true;
  support::ContextWithWorkspace place;
  quantize(operand.operand, place.context);
  EXPECT_EQ(operand.slot.scale, 37.3f);
  EXPECT_EQ(operand.slot.scale_inverse, 0.5f);
  std::vector<double> source;
  source.reserve(values.elements.size());
  for (const Bf16 x : values.elements) source.push_back(static_cast<double>(static_cast<float>(x)));
  const auto oracle =
      reference::quantize(source, 17, 33, reference::e4m3, reference::Recipe::given, {}, 37.3f);
  for (std::size_t i = 0; i < source.size(); ++i) {
    ASSERT_EQ(operand.row_major[i].bits, oracle.codes[i]) << "element " << i;
  }
}

TEST(QuantizeErrors, RejectsCopiesOfOtherShape) {
  QuantizedOperand<Fp8Recipe<Delayed>, OperandKind::input> operand(Matrix<Bf16>(16, 32));
  operand.operand.values = {operand.values.elements.data(), {16, 16}};
  support::ContextWithWorkspace place;
  EXPECT_THROW(quantize(operand.operand, place.context), ShapeError);
}

}  // namespace quantize_test
