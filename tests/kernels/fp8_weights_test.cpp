// Casts of weights in parts: scales from amaxes that were found before, and transposed copies.
#include <octavo/kernels/kernels.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <utility>
#include <vector>

namespace fp8_weights_test {

using namespace octavo;

TEST(RaiseAmax, KeepsTheLargestMagnitude) {
  const Context<Cpu> context{3};
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  for (const Index size : {1, 7, 5000, 9000}) {
    std::vector<Bf16> values(static_cast<std::size_t>(size));
    for (Bf16& value : values) value = Bf16(normal(random));
    float largest = 0;
    for (const Bf16 value : values)
      largest = std::max(largest, std::abs(static_cast<float>(value)));
    const TensorView<Bf16, 1, Cpu> view{values.data(), {size}};
    const auto raised = [&](float before) {
      std::uint32_t bits = float_bits(before);
      raise_amax(view, TensorView<std::uint32_t, 1, Cpu>{&bits, {1}}, context);
      return bits;
    };
    EXPECT_EQ(raised(0), float_bits(largest));
    EXPECT_EQ(raised(largest + 1), float_bits(largest + 1));
    values.back() = Bf16(-std::numeric_limits<float>::infinity());
    EXPECT_EQ(raised(largest), 0x7f800000u);
  }
}

/// The scale that current scaling makes of a tensor with this amax.
template <class Scaling>
OperandScale scale_of(float amax) {
  std::vector<Bf16> values{Bf16(amax)};
  E4M3 code{};
  OperandScaling state{};
  Operand<Fp8Recipe<Scaling>, OperandKind::weight, Cpu> operand;
  operand.values = {values.data(), {1, 1}};
  operand.row_major = {&code, &state.scale_inverse, 1, 1};
  operand.slot = &state;
  quantize(operand, Context<Cpu>{1});
  return state;
}

TEST(SetCurrentScales, MatchesScalesOfQuantize) {
  using PowersOfTwo = TensorwiseScaling<ScaleRounding::power_of_two>;
  const std::vector<float> amaxes{0.0f, 0.0078125f, 3.0f, 448.0f,
                                  std::numeric_limits<float>::infinity()};
  const auto count = static_cast<Index>(amaxes.size());
  for (const bool record : {false, true}) {
    for (const bool power_of_two : {false, true}) {
      std::vector<std::uint32_t> found, recorded(amaxes.size(), float_bits(1.0f));
      for (const float amax : amaxes) found.push_back(float_bits(amax));
      std::vector<OperandScale> scales(amaxes.size(), OperandScale{7, 7, 7, 7});
      std::vector<OperandStatistics> statistics(amaxes.size());
      const std::vector<ScalingRule> rules(amaxes.size(),
                                           ScalingRule{448.0f, 0, 0, power_of_two ? 1 : 0});
      const ScalingArrays<Cpu> operands{
          {recorded.data(), {count}}, {scales.data(), {count}}, {statistics.data(), {count}}};
      set_current_scales(TensorView<const std::uint32_t, 1, Cpu>{found.data(), {count}}, operands,
                         TensorView<const ScalingRule, 1, Cpu>{rules.data(), {count}}, record,
                         Context<Cpu>{1});
      for (std::size_t i = 0; i < amaxes.size(); ++i) {
        const OperandScale expected =
            power_of_two ? scale_of<PowersOfTwo>(amaxes[i]) : scale_of<Tensorwise>(amaxes[i]);
        EXPECT_EQ(scales[i].scale, expected.scale) << amaxes[i];
        EXPECT_EQ(scales[i].scale_inverse, expected.scale_inverse) << amaxes[i];
        EXPECT_EQ(scales[i].position, 7u);
        EXPECT_EQ(float_from_bits(recorded[i]), record ? std::max(1.0f, amaxes[i]) : 1.0f);
      }
    }
  }
}

TEST(TransposeFp8Values, TransposesEveryElement) {
  for (const auto& [rows, columns] : {std::pair<Index, Index>{1, 5}, {33, 64}, {48, 31}, {0, 4}}) {
    std::vector<E4M3> fp8_values(static_cast<std::size_t>(rows * columns)),
        turned(fp8_values.size());
    for (std::size_t i = 0; i < fp8_values.size(); ++i) {
      fp8_values[i].bits = static_cast<std::uint8_t>(i * 37 % 251);
    }
    const QuantizedView<E4M3, PerTensor, Layout::row_major, Cpu> from{fp8_values.data(), nullptr,
                                                                      rows, columns};
    const QuantizedView<E4M3, PerTensor, Layout::transposed, Cpu> to{turned.data(), nullptr,
                                                                     columns, rows};
    transpose_fp8_values(from, to, Context<Cpu>{2});
    for (Index r = 0; r < rows; ++r) {
      for (Index c = 0; c < columns; ++c) {
        EXPECT_EQ(turned[static_cast<std::size_t>(c * rows + r)].bits,
                  fp8_values[static_cast<std::size_t>(r * columns + c)].bits);
      }
    }
  }
  std::vector<E4M3> fp8_values(6);
  const QuantizedView<E4M3, PerTensor, Layout::row_major, Cpu> from{fp8_values.data(), nullptr, 2,
                                                                    3};
  const QuantizedView<E4M3, PerTensor, Layout::transposed, Cpu> to{fp8_values.data(), nullptr, 2,
                                                                   3};
  EXPECT_THROW(transpose_fp8_values(from, to, Context<Cpu>{1}), ShapeError);
}

}  // namespace fp8_weights_test
