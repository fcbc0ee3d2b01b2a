// Values of quantised matrices on the Cuda device are those of the Cpu, to the bit.
#include "cuda_support.cuh"

namespace octavo::dequantize_cuda_test {

using support::normal_values;
using support::TestDevice;

struct Sizes {
  Index rows, columns,
      offset;  ///< elements that the codes lie behind the beginning of their memory
};

template <class W, class Granularity, class T, Device D>
std::vector<T> values_of(const Sizes& at) {
  using Scale = typename Granularity::Scale;
  TestDevice<D> device;
  const auto codes = normal_values<W>(at.offset + at.rows * at.columns, 30.0f, 1);
  std::vector<Scale> scales;
  for (const float number :
       normal_values<float>(scale_count<Granularity>(at.rows, at.columns), 1.0f, 2)) {
    scales.push_back(Scale(0.1f + std::abs(number)));
  }
  const Index size = at.rows * at.columns;
  const TensorView<T, 2, D> values{device.template make_poisoned<T>(size), {at.rows, at.columns}};
  dequantize(
      QuantizedView<W, Granularity, Layout::row_major, D>{device.make(codes) + at.offset,
                                                          device.make(scales), at.rows, at.columns},
      values, device.context());
  return device.read(values);
}

class DequantizeOnCuda : public support::OnGpu {};

template <class W, class Granularity, class T>
void check() {
  for (const Sizes& at :
       {Sizes{576, 1536, 0}, Sizes{130, 147, 0}, Sizes{33, 512, 3}, Sizes{1, 8, 0}}) {
    EXPECT_EQ((values_of<W, Granularity, T, Cuda>(at)), (values_of<W, Granularity, T, Cpu>(at)))
        << at.rows << " x " << at.columns;
  }
}

TEST_F(DequantizeOnCuda, MatchesCpu) {
  check<E4M3, PerTensor, Bf16>();
  check<E4M3, PerRow, float>();
  check<E4M3, PerBlock<128, 128>, Bf16>();
  check<E5M2, PerBlock<1, 32, E8M0>, Bf16>();
}

/// The weights of four experts, of which the first and the third have no rows.
template <Device D>
std::vector<Bf16> weights_of_experts() {
  constexpr Index rows = 4 * 48;
  constexpr Index columns = 147;
  TestDevice<D> device;
  const auto codes = normal_values<E4M3>(rows * columns, 30.0f, 1);
  const std::vector<Bf16> before(static_cast<std::size_t>(rows * columns), Bf16(7.0f));
  const std::vector<std::int32_t> offsets{0, 0, 128, 128, 256};
  ExpertRows<D> of_experts;
  of_experts.offsets = {device.make(offsets), {5}};
  const TensorView<Bf16, 2, D> values{device.make(before), {rows, columns}};
  dequantize_experts(
      QuantizedView<E4M3, PerTensor, Layout::row_major, D>{
          device.make(codes), device.make(std::vector<float>{0.25f}), rows, columns},
      of_experts, values, device.context());
  return device.read(values);
}

TEST_F(DequantizeOnCuda, ExpertsWithoutRowsMatchCpu) {
  EXPECT_EQ(weights_of_experts<Cuda>(), weights_of_experts<Cpu>());
}

}  // namespace octavo::dequantize_cuda_test
