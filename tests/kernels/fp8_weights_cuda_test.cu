// Casts of weights in parts on the Cuda device are those of the Cpu.
#include "cuda_support.cuh"

namespace octavo::fp8_weights_cuda_test {

using support::TestDevice;

class Fp8WeightsOnCuda : public support::OnGpu {};

template <Device D>
std::uint32_t raised(const std::vector<Bf16>& values, Index first) {
  TestDevice<D> device;
  const TensorView<Bf16, 1, D> all = device.vector(values);
  std::uint32_t* amax = device.make(std::vector<std::uint32_t>{float_bits(0.5f)});
  raise_amax(support::constant(all.rows(first, all.size() - first)),
             TensorView<std::uint32_t, 1, D>{amax, {1}}, device.context());
  return device.read(amax, 1)[0];
}

TEST_F(Fp8WeightsOnCuda, AmaxesMatchCpu) {
  for (const Index size : {2, 9, 4096, 300001}) {
    auto values = support::normal_values<Bf16>(size, 1.0f, 3);
    for (const Index first : {0, 1}) {
      EXPECT_EQ(raised<Cuda>(values, first), raised<Cpu>(values, first)) << size;
    }
    values.back() = Bf16(std::numeric_limits<float>::quiet_NaN());
    EXPECT_EQ(raised<Cuda>(values, 0), raised<Cpu>(values, 0));
  }
}

/// Scales and recorded amaxes after set_current_scales.
template <Device D>
std::vector<std::uint32_t> scales(const std::vector<float>& amaxes, bool power_of_two) {
  TestDevice<D> device;
  const auto count = static_cast<Index>(amaxes.size());
  std::vector<std::uint32_t> found;
  for (const float amax : amaxes) found.push_back(float_bits(amax));
  const ScalingArrays<D> operands{
      device.vector(std::vector<std::uint32_t>(amaxes.size(), float_bits(1.0f))),
      device.vector(std::vector<OperandScale>(amaxes.size(), OperandScale{7, 7, 7, 7})),
      device.vector(std::vector<OperandStatistics>(amaxes.size()))};
  const std::vector<ScalingRule> rules(amaxes.size(),
                                       ScalingRule{448.0f, 0, 0, power_of_two ? 1 : 0});
  set_current_scales(support::constant(device.vector(found)), operands,
                     support::constant(device.vector(rules)), true, device.context());
  std::vector<std::uint32_t> bits = device.read(operands.amax_bits);
  for (const OperandScale& scale : device.read(operands.scales)) {
    bits.insert(bits.end(), {float_bits(scale.scale), float_bits(scale.scale_inverse)});
  }
  EXPECT_EQ(bits.size(), static_cast<std::size_t>(3 * count));
  return bits;
}

TEST_F(Fp8WeightsOnCuda, ScalesMatchCpu) {
  const std::vector<float> amaxes{
      0.0f, 1e-38f, 0.0123f, 3.0f, 448.0f, 5e4f, std::numeric_limits<float>::infinity()};
  for (const bool power_of_two : {false, true}) {
    EXPECT_EQ(scales<Cuda>(amaxes, power_of_two), scales<Cpu>(amaxes, power_of_two));
  }
}

template <Device D>
std::vector<std::uint8_t> turned(const std::vector<E4M3>& fp8_values, Index rows, Index columns,
                                 Index begin) {
  TestDevice<D> device;
  E4M3* target = device.template make_poisoned<E4M3>(rows * columns);
  transpose_fp8_values(
      QuantizedView<E4M3, PerTensor, Layout::row_major, D>{device.make(fp8_values) + begin, nullptr,
                                                           rows, columns},
      QuantizedView<E4M3, PerTensor, Layout::transposed, D>{target, nullptr, columns, rows},
      device.context());
  std::vector<std::uint8_t> bytes;
  for (const E4M3 code : device.read(target, rows * columns)) bytes.push_back(code.bits);
  return bytes;
}

TEST_F(Fp8WeightsOnCuda, TransposedCopiesMatchCpu) {
  // Whole tiles, whole vectors, and neither.
  for (const auto& [rows, columns, begin] : {std::array<Index, 3>{256, 384, 0},
                                             {16, 48, 0},
                                             {144, 272, 0},
                                             {128, 128, 1},
                                             {33, 130, 0},
                                             {1, 7, 0}}) {
    std::vector<E4M3> fp8_values(static_cast<std::size_t>(begin + rows * columns));
    for (std::size_t i = 0; i < fp8_values.size(); ++i) {
      fp8_values[i].bits = static_cast<std::uint8_t>(i * 37 % 251);
    }
    EXPECT_EQ(turned<Cuda>(fp8_values, rows, columns, begin),
              turned<Cpu>(fp8_values, rows, columns, begin))
        << rows << " x " << columns;
  }
}

}  // namespace octavo::fp8_weights_cuda_test
