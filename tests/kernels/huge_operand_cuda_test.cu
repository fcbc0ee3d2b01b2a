// Operands of more than 2^31 elements, whose positions no 32-bit number holds: elements of every
// part are looked at, and made on the Cpu from what a formula says the operand holds there.
#include "kernels/cuda_support.cuh"

#include <cstdio>
#include <limits>

namespace octavo {
namespace huge_operand_cuda_test {

using support::constant;
using support::TestDevice;

constexpr Index rows = (Index{1} << 18) + 272;
constexpr Index columns = Index{1} << 13;
constexpr Index count = rows * columns;
constexpr Index last_narrow = std::numeric_limits<std::int32_t>::max();
static_assert(count > last_narrow + (Index{1} << 20));

/// What the operand holds: numbers of both signs over many binades, different at every distance of
/// 2^31 or 2^32 elements.
OCTAVO_HOST_DEVICE inline Bf16 element(Index i) {
  std::uint64_t hash = (static_cast<std::uint64_t>(i) + 1) * 0x9e3779b97f4a7c15u;
  hash = (hash ^ (hash >> 29)) * 0xbf58476d1ce4e5b9u;
  const auto bits = static_cast<std::uint32_t>(hash >> 32);
  // 10 exponents around 1.
  const std::uint32_t exponent = 122 + bits % 10;
  return Bf16::from_bits(
      static_cast<std::uint16_t>((bits >> 16 & 0x8000u) | exponent << 7 | (bits >> 8 & 0x7fu)));
}

__global__ void fill(Bf16* values, Index size) {
  const Index stride = Index{gridDim.x} * blockDim.x;
  for (Index i = Index{blockIdx.x} * blockDim.x + threadIdx.x; i < size; i += stride) {
    values[i] = element(i);
  }
}

/// Positions below `size` to look at: about the places where 31 and 32 bits end, the last, and some
/// of everywhere, most of them beyond 2^31.
std::vector<Index> positions(Index size) {
  std::vector<Index> places{
      0, last_narrow - 1, last_narrow, last_narrow + 1, last_narrow + 2, size - 2, size - 1};
  std::mt19937_64 random(1);
  for (int i = 0; i < 600; ++i) {
    const Index lowest = i % 3 == 0 ? 0 : last_narrow;
    places.push_back(lowest +
                     static_cast<Index>(random() % static_cast<std::uint64_t>(size - lowest)));
  }
  return places;
}

class HugeOperandOnCuda : public support::OnGpu {
 protected:
  /// Whether the GPU has so much memory left; says so where it has not.
  static bool fits(const Context<Cuda>& context, Index bytes) {
    const auto free = static_cast<double>(free_bytes(context));
    std::printf("  %.1f GB needed, %.1f GB free\n", static_cast<double>(bytes) * 1e-9, free * 1e-9);
    return free > static_cast<double>(bytes) + 1e9;
  }
};
constexpr const char* no_memory = "the GPU has not enough memory free";

/// Values on the GPU.
TensorView<Bf16, 2, Cuda> filled(TestDevice<Cuda>& device) {
  Bf16* values = device.make<Bf16>(count);
  fill<<<4096, 256, 0, device.context().stream()>>>(values, count);
  check(cudaGetLastError(), "the launch of fill");
  return {values, {rows, columns}};
}

template <class T>
T one(const TestDevice<Cuda>& device, const T* source) {
  return device.read(source, 1)[0];
}

/// A quantised operand without values of its own.
template <class P>
struct Quantised {
  static constexpr OperandKind kind = OperandKind::input;
  using Memory = OperandMemory<P, kind, Cuda>;
  using Format = typename Memory::Format;
  using Scale = typename Memory::Scale;
  using Granularity = typename Memory::Granularity;

  Memory memory;
  OperandScaling* slot;

  Quantised(TestDevice<Cuda>& device, TensorView<Bf16, 2, Cuda> values, float scale) {
    memory.values = values.data();
    memory.row_major = device.make<Format>(count);
    memory.transposed = device.make<Format>(count);
    memory.row_major_scales = device.make<Scale>(scale_count<Granularity>(rows, columns));
    memory.transposed_scales = device.make<Scale>(scale_count<Granularity>(columns, rows));
    OperandScaling before{};
    before.scale = scale;
    before.scale_inverse = 1.0f / scale;
    slot = device.make(std::vector<OperandScaling>{before});
    quantize(memory.operand(rows, columns, slot, true, {}), device.context());
    device.context().synchronize();
  }
};

constexpr Index quantised_bytes = count * 4 + (Index{300} << 20);

float largest_magnitude(Index first, Index stride, Index size) {
  float largest = 0;
  for (Index i = 0; i < size; ++i) {
    largest = std::max(largest, std::abs(static_cast<float>(element(first + i * stride))));
  }
  return largest;
}

/// Looks at both copies of an operand with one scale.
template <class P>
void expect_one_scale(const TestDevice<Cuda>& device, const Quantised<P>& operand) {
  using Format = typename Quantised<P>::Format;
  const OperandScaling slot = one(device, operand.slot);
  EXPECT_EQ(slot.elements, static_cast<std::uint64_t>(count));
  EXPECT_EQ(float_from_bits(slot.amax_bits), 0x1.fep4f);  // every pattern is there many times
  for (const Index i : positions(count)) {
    const Format row_major(static_cast<float>(element(i)) * slot.scale);
    ASSERT_EQ(one(device, operand.memory.row_major + i).bits, row_major.bits) << "row-major " << i;
    const Format transposed(static_cast<float>(element(i % rows * columns + i / rows)) *
                            slot.scale);
    ASSERT_EQ(one(device, operand.memory.transposed + i).bits, transposed.bits)
        << "transposed " << i;
  }
}

TEST_F(HugeOperandOnCuda, IsQuantizedWithDelayedScale) {
  TestDevice<Cuda> device;
  if (!fits(device.context(), quantised_bytes)) GTEST_SKIP() << no_memory;
  const Quantised<Fp8Recipe<Delayed>> operand(device, filled(device), 3.7f);
  expect_one_scale(device, operand);
  EXPECT_EQ(one(device, operand.slot).scale, 3.7f);
}

TEST_F(HugeOperandOnCuda, IsQuantizedWithCurrentScale) {
  TestDevice<Cuda> device;
  if (!fits(device.context(), quantised_bytes)) GTEST_SKIP() << no_memory;
  const Quantised<Fp8Recipe<Tensorwise>> operand(device, filled(device), 1.0f);
  expect_one_scale(device, operand);
  EXPECT_EQ(one(device, operand.slot).scale, 448.0f / 0x1.fep4f);
  EXPECT_EQ(one(device, operand.slot).saturated, 0u);
}

TEST_F(HugeOperandOnCuda, IsQuantizedWithBlockScales) {
  using P = Fp8Recipe<Blockwise>;
  using Format = Quantised<P>::Format;
  TestDevice<Cuda> device;
  if (!fits(device.context(), quantised_bytes)) GTEST_SKIP() << no_memory;
  const Quantised<P> operand(device, filled(device), 1.0f);
  EXPECT_EQ(one(device, operand.slot).elements, static_cast<std::uint64_t>(count));
  constexpr Index block = 128;
  /// An element of a copy of `outer` rows of `inner`, whose neighbours lie `stride` apart.
  const auto expect = [&](const char* name, const Format* copy, const float* scales, Index i,
                          Index outer, Index inner, Index from, Index stride) {
    const Index row = i / inner;
    const Index column = i % inner;
    const Index first = column / block * block;
    const float amax =
        largest_magnitude(from + first * stride, stride, std::min(block, inner - first));
    const float scale = std::exp2(std::floor(std::log2(448.0f / amax)));
    const Format expected(static_cast<float>(element(from + column * stride)) * scale);
    ASSERT_EQ(one(device, copy + i).bits, expected.bits) << name << ' ' << i;
    ASSERT_EQ(one(device, scales + column / block * outer + row), 1.0f / scale) << name << ' ' << i;
  };
  for (const Index i : positions(count)) {
    expect("row-major", operand.memory.row_major, operand.memory.row_major_scales, i, rows, columns,
           i / columns * columns, 1);
    expect("transposed", operand.memory.transposed, operand.memory.transposed_scales, i, columns,
           rows, i / rows, columns);
  }
}

// The gates are the first half of each row, the ups the second.
TEST_F(HugeOperandOnCuda, GoesThroughSwiglu) {
  constexpr Index ffn = columns / 2;
  TestDevice<Cuda> device;
  if (!fits(device.context(), count * 5)) GTEST_SKIP() << no_memory;
  const auto gate_up = filled(device);
  const Operand<Bf16, OperandKind::input, Cuda> y{{device.make<Bf16>(rows * ffn), {rows, ffn}}};
  const Operand<Bf16, OperandKind::output_gradient, Cuda> gradient{
      {device.make<Bf16>(count), {rows, columns}}};
  swiglu_forward(constant(gate_up), y, device.context());
  const TensorView<const Bf16, 2, Cuda> y_gradient{gate_up.data(), {rows, ffn}};
  swiglu_backward(y_gradient, constant(gate_up), gradient, device.context());
  device.context().synchronize();
  const auto value = [](Index i) { return static_cast<double>(static_cast<float>(element(i))); };
  // Half a unit of BF16's last place, and FP32 arithmetic on terms of this magnitude.
  const auto near = [&](const char* name, Index at, const Bf16* result, double expected,
                        double magnitude) {
    const auto actual = static_cast<double>(static_cast<float>(one(device, result + at)));
    ASSERT_NEAR(actual, expected, 0x1.02p-8 * std::abs(expected) + 0x1p-19 * magnitude)
        << name << ' ' << at;
  };
  for (const Index i : positions(count)) {
    const Index row = i / columns;
    const Index column = i % ffn;
    const double gate = value(row * columns + column);
    const double up = value(row * columns + ffn + column);
    const double dy = value(row * ffn + column);
    const double sigmoid = 1.0 / (1.0 + std::exp(-gate));
    near("y", row * ffn + column, y.values.data(), gate * sigmoid * up, std::abs(gate * up));
    const double of_gate = dy * up * sigmoid * (1.0 + gate * (1.0 - sigmoid));
    const double of_up = dy * gate * sigmoid;
    near("gradient", i, gradient.values.data(), i % columns < ffn ? of_gate : of_up,
         std::abs(dy) * (std::abs(up) + 1) * (std::abs(gate) + 1));
  }
}

/// Gates and ups in E4M3, all below 2.
OCTAVO_HOST_DEVICE inline E4M3 code(Index i) {
  return E4M3::from_bits(static_cast<std::uint8_t>(element(i).bits & 0xbfu));
}

__global__ void fill_codes(E4M3* values, Index size) {
  const Index stride = Index{gridDim.x} * blockDim.x;
  for (Index i = Index{blockIdx.x} * blockDim.x + threadIdx.x; i < size; i += stride) {
    values[i] = code(i);
  }
}

// The ups of the last row are the only values that saturated.
TEST_F(HugeOperandOnCuda, IsCountedBySwigluOfE4M3) {
  constexpr Index ffn = columns / 2;
  TestDevice<Cuda> device;
  const Context<Cuda>& context = device.context();
  if (!fits(context, count * 2)) GTEST_SKIP() << no_memory;
  E4M3* gate_up = device.make<E4M3>(count);
  fill_codes<<<4096, 256, 0, context.stream()>>>(gate_up, count);
  check(cudaGetLastError(), "the launch of fill_codes");
  const Index first_saturated = count - ffn;
  check(cudaMemsetAsync(gate_up + first_saturated, 0x7e, ffn, context.stream()), "cudaMemsetAsync");
  OperandStatistics* statistics = device.make(std::vector<OperandStatistics>(1));
  const Operand<Bf16, OperandKind::input, Cuda> y{{device.make<Bf16>(rows * ffn), {rows, ffn}}};
  const TensorView<const E4M3, 2, Cuda> input{gate_up, {rows, columns}};
  swiglu_forward(input, y, statistics, context);
  const OperandStatistics found = one(device, statistics);
  EXPECT_EQ(found.elements, static_cast<std::uint64_t>(count));
  EXPECT_EQ(found.saturated, static_cast<std::uint64_t>(ffn));
  const auto value = [&](Index i) {
    return i < first_saturated ? static_cast<double>(static_cast<float>(code(i))) : 448.0;
  };
  for (const Index i : positions(count)) {
    const Index place = i / columns * ffn + i % ffn;
    const Index gate_place = i / columns * columns + i % ffn;
    const double gate = value(gate_place);
    const double expected = gate / (1.0 + std::exp(-gate)) * value(gate_place + ffn);
    const auto actual =
        static_cast<double>(static_cast<float>(one(device, y.values.data() + place)));
    ASSERT_NEAR(actual, expected, 0x1.02p-8 * std::abs(expected)) << place;
  }
}

}  // namespace huge_operand_cuda_test
}  // namespace octavo
