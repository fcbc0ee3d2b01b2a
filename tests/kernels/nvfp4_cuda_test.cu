// NVFP4's copies on the Cuda device, and their values, are those of the Cpu device to the bit.
#include "kernels/cuda_support.cuh"

namespace octavo {
namespace nvfp4_cuda_test {

using support::normal_values;
using support::OperandBytes;
using support::TestDevice;
using support::TestOperand;

class Nvfp4OnCuda : public support::OnGpu {};

/// Values whose magnitudes differ between blocks, with zeros, subnormal numbers and, where asked
/// for, every bit pattern of BF16.
std::vector<Bf16> mixed_values(Index rows, Index columns, unsigned seed, bool every_pattern) {
  std::vector<Bf16> values = normal_values<Bf16>(rows * columns, 1.0f, seed);
  std::uint32_t number = 0;
  for (Bf16& value : values) {
    const std::uint32_t i = number++;
    const int exponent = static_cast<int>((i / 16 % 13 + seed) % 7) * 5 - 15;
    value = Bf16(std::ldexp(static_cast<float>(value), exponent));
    if (i % 37 < 2) value.bits = static_cast<std::uint16_t>(i % 37 * 0x8000u);
    if (i % 41 == 0) value.bits = static_cast<std::uint16_t>(i % 0x80u);
    if (every_pattern) value.bits = static_cast<std::uint16_t>(40503u * i);
  }
  return values;
}

struct Cast {
  OperandCopies copies{};
  bool record = true;
  std::uint64_t number = 0;
  std::uint32_t casts = 0;  ///< earlier ones
};

template <OperandKind Kind, Device D>
OperandBytes cast_on(const std::vector<Bf16>& values, Index columns, const Cast& cast) {
  TestDevice<D> device;
  const TestOperand<Nvfp4, Kind, D> memory(device, values, columns, 1.0f);
  auto operand = memory.operand(cast.copies, cast.record);
  operand.number = cast.number;
  copy_to_device_sync(&operand.slot.scaling->position, &cast.casts, sizeof(cast.casts),
                      device.context());
  quantize(operand, device.context());
  return memory.read();
}

template <OperandKind Kind>
void compare(const std::vector<Bf16>& values, Index columns, const Cast& cast) {
  SCOPED_TRACE(message(name_of(Kind), ", ", static_cast<Index>(values.size()) / columns, " x ",
                       columns, ", copies ", cast.copies.row_major, cast.copies.transposed));
  support::expect_same(cast_on<Kind, Cpu>(values, columns, cast),
                       cast_on<Kind, Cuda>(values, columns, cast));
}

constexpr std::pair<Index, Index> shapes[] = {{16, 16},   {16, 144},  {48, 64},
                                              {128, 128}, {272, 528}, {400, 80}};
constexpr OperandCopies all_copies[] = {{true, true}, {true, false}, {false, true}, {false, false}};

template <OperandKind Kind>
void compare_shapes() {
  unsigned seed = 0;
  for (const auto& [rows, columns] : shapes) {
    for (const OperandCopies copies : all_copies) {
      for (const bool every_pattern : {false, true}) {
        ++seed;
        compare<Kind>(mixed_values(rows, columns, seed, every_pattern), columns,
                      {copies, seed % 3 != 0, seed, 5 * seed});
      }
    }
  }
}

TEST_F(Nvfp4OnCuda, InputsAreBitwiseEqualToCpu) { compare_shapes<OperandKind::input>(); }
TEST_F(Nvfp4OnCuda, WeightsAreBitwiseEqualToCpu) { compare_shapes<OperandKind::weight>(); }
TEST_F(Nvfp4OnCuda, GradientsAreBitwiseEqualToCpu) {
  compare_shapes<OperandKind::output_gradient>();
}

TEST_F(Nvfp4OnCuda, UnrotatedCopyAcceptsAnyRowCount) {
  for (const Index rows : {1, 7, 130}) {
    const auto values = mixed_values(rows, 48, 3, false);
    compare<OperandKind::input>(values, 48, {{true, false}});
    compare<OperandKind::output_gradient>(values, 48, {{true, false}});
  }
}

TEST_F(Nvfp4OnCuda, InfNanZerosAndExtremesMatchCpu) {
  constexpr Index rows = 48;
  constexpr Index columns = 64;
  for (const std::uint16_t bits : {0x7f80u, 0xff80u, 0x7fc1u, 0x7f7fu, 0x0001u, 0x8000u}) {
    for (const float deviation : {0.0f, 1e-38f, 1.0f, 3e37f}) {
      std::vector<Bf16> values = normal_values<Bf16>(rows * columns, deviation, bits);
      values[static_cast<std::size_t>(17 * columns + 5)].bits = bits;
      compare<OperandKind::input>(values, columns, {});
      compare<OperandKind::weight>(values, columns, {});
      compare<OperandKind::output_gradient>(values, columns, {});
    }
  }
}

// Every magnitude of BF16 is the largest of a tensor once.
TEST_F(Nvfp4OnCuda, ScalesMatchCpuForEveryAmax) {
  constexpr Index columns = 16;
  for (std::uint32_t bits = 0; bits < 0x7f80u; bits += 127) {
    std::vector<Bf16> values = normal_values<Bf16>(16 * columns, 0.0f, 1);
    values[35].bits = static_cast<std::uint16_t>(bits);
    values[200] = Bf16(0.4f * static_cast<float>(values[35]));
    compare<OperandKind::input>(values, columns, {});
    compare<OperandKind::weight>(values, columns, {});
  }
}

TEST_F(Nvfp4OnCuda, RejectsPartialBlocks) {
  TestDevice<Cuda> device;
  const TestOperand<Nvfp4, OperandKind::weight, Cuda> weight(
      device, normal_values<Bf16>(24 * 32, 1.0f, 1), 32, 1.0f);
  EXPECT_THROW(quantize(weight.operand(), device.context()), ShapeError);
  const TestOperand<Nvfp4, OperandKind::input, Cuda> input(
      device, normal_values<Bf16>(16 * 24, 1.0f, 1), 24, 1.0f);
  EXPECT_THROW(quantize(input.operand({true, false}), device.context()), ShapeError);
}

template <Device D>
std::vector<std::uint32_t> values_of_copy(const std::vector<Bf16>& values, Index columns) {
  TestDevice<D> device;
  const TestOperand<Nvfp4, OperandKind::weight, D> memory(device, values, columns, 1.0f);
  const auto operand = memory.operand();
  quantize(operand, device.context());
  const Index rows = static_cast<Index>(values.size()) / columns;
  const TensorView<float, 2, D> result{device.template make<float>(rows * columns),
                                       {rows, columns}};
  dequantize(operand.row_major, result, device.context());
  std::vector<std::uint32_t> bits;
  for (const float value : device.read(result)) bits.push_back(float_bits(value));
  return bits;
}

TEST_F(Nvfp4OnCuda, DequantizedWeightsAreBitwiseEqualToCpu) {
  const auto values = mixed_values(144, 272, 9, false);
  EXPECT_TRUE(values_of_copy<Cpu>(values, 272) == values_of_copy<Cuda>(values, 272));
}

}  // namespace nvfp4_cuda_test
}  // namespace octavo
