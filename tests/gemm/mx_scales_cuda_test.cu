// The scales of MX blocks as cuBLASLt reads them, and MXFP8's refusal on GPUs that lack it.
#include "kernels/cuda_support.cuh"

#include <vector>

namespace octavo {
namespace mx_scales_cuda_test {

class MxScalesOnCuda : public support::OnGpu {};

using Mx = PerBlock<1, 32, E8M0>;

TEST_F(MxScalesOnCuda, AreSwizzledWithZeroPadding) {
  for (const auto& [rows, inner] : {std::pair<Index, Index>{128, 128}, {1, 32}, {300, 4128}}) {
    support::TestDevice<Cuda> device;
    const Index blocks = inner / 32;
    std::vector<E8M0> scales;
    for (Index i = 0; i < rows * blocks; ++i) {
      scales.push_back(E8M0::from_bits(static_cast<std::uint8_t>(1 + i * 7 % 254)));
    }
    const Index count = swizzled_scale_count(rows, blocks);
    std::vector<E8M0> expected(static_cast<std::size_t>(count), E8M0::from_bits(0));
    for (Index row = 0; row < rows; ++row) {
      for (Index block = 0; block < blocks; ++block) {
        expected[static_cast<std::size_t>(swizzled_scale_index(row, block, blocks))] =
            scales[static_cast<std::size_t>(row * blocks + block)];
      }
    }
    const QuantizedView<E4M3, Mx, Layout::row_major, Cuda> operand{nullptr, device.make(scales),
                                                                   rows, inner};
    const TensorView<E8M0, 1, Cuda> found{device.make_poisoned<E8M0>(count), {count}};
    detail::swizzle_scales(operand, found.data(), device.context());
    EXPECT_EQ(device.read(found), expected) << rows << " " << inner;
  }
}

TEST_F(MxScalesOnCuda, ProductsRequireGpuSupport) {
  constexpr Index side = 128;
  support::TestDevice<Cuda> device(std::size_t{64} << 20);
  if (!device.context().limits().gpu.mx_gemms) {
    EXPECT_THROW(require_gemms<Mxfp8>(device.context().limits()), ConfigError);
    return;
  }
  // With E8M0 scales of 1 and elements of 1, each result is the number of elements.
  const std::vector<E4M3> ones(static_cast<std::size_t>(side * side), E4M3(1.0f));
  const std::vector<E8M0> scales(static_cast<std::size_t>(side * side / 32), E8M0(1.0f));
  const QuantizedView<E4M3, Mx, Layout::row_major, Cuda> a{device.make(ones), device.make(scales),
                                                           side, side};
  const TensorView<Bf16, 2, Cuda> y{device.make<Bf16>(side * side), {side, side}};
  const GemmOutput<Bf16, Cuda> output{y, {}, {}};
  detail::matmul_quantized_body(GemmAccumulation::full, a, a, output, device.context());
  for (const Bf16 value : device.read(y)) ASSERT_EQ(static_cast<float>(value), 128.0f);
}

}  // namespace mx_scales_cuda_test
}  // namespace octavo
