// Products of the values of quantised operands on the Cuda device, compared with sums in double of
// the Cpu's copies, and a linear layer that uses them.
#include "kernels/cuda_support.cuh"

#include <octavo/layers/linear.hpp>

namespace octavo {
namespace emulated_cuda_test {

using support::normal_values;
using support::TestDevice;
using support::TestOperand;

template <class P>
class EmulatedOnCuda : public support::OnGpu {};
using Precisions = testing::Types<Fp8Recipe<Delayed>, Fp8Recipe<Tensorwise>, Fp8Recipe<Rowwise>,
                                  Fp8Recipe<Blockwise>, Mxfp8, Nvfp4>;
TYPED_TEST_SUITE(EmulatedOnCuda, Precisions);

constexpr Index tokens = 272;
constexpr Index out = 256;
constexpr Index in = 384;

/// The values of a copy in host memory, without rounding.
template <class Format, class Granularity, Layout L>
std::vector<double> exact_values(QuantizedView<Format, Granularity, L, Cpu> copy) {
  std::vector<double> values;
  double of_tensor = 1;
  if constexpr (detail::has_tensor_scale<Granularity>) of_tensor = tensor_scale_inverse(copy);
  for (Index r = 0; r < copy.outer(); ++r) {
    for (Index c = 0; c < copy.inner(); ++c) {
      const Index scale = scale_index<Granularity>(r, c, copy.outer(), copy.inner());
      values.push_back(static_cast<float>(copy.data()[r * copy.inner() + c]) *
                       double(static_cast<float>(copy.scale_inverses()[scale])) * of_tensor);
    }
  }
  return values;
}

/// One operand on both devices.
template <class P, OperandKind Kind>
struct Both {
  TestDevice<Cpu> on_cpu{row_amaxes_workspace(512, 512)};
  std::vector<Bf16> values;
  TestOperand<P, Kind, Cpu> cpu;
  TestOperand<P, Kind, Cuda> cuda;

  Both(TestDevice<Cuda>& device, Index rows, Index columns, float deviation, unsigned seed)
      : values(normal_values<Bf16>(rows * columns, deviation, seed)),
        cpu(on_cpu, values, columns, 1 / deviation),
        cuda(device, values, columns, 1 / deviation) {
    quantize(cpu.operand(), on_cpu.context());
    quantize(cuda.operand(), device.context());
  }
};

/// Expects a · bᵀ + addend + bias; `a` and `b` are pairs of copies on both devices.
template <class P, class CpuA, class CpuB, class A, class B>
void expect_product(TestDevice<Cuda>& device, CpuA cpu_a, CpuB cpu_b, A a, B b, bool adds,
                    bool biased) {
  const Index m = a.outer();
  const Index n = b.outer();
  const Index k = a.inner();
  const std::vector<float> before = normal_values<float>(m * n, 0.1f, 8);
  const std::vector<float> bias = normal_values<float>(n, 0.1f, 9);
  const auto y = device.matrix(before, n);
  GemmOutput<float, Cuda> output{y, {}, {}};
  if (adds) output.addend = y;
  if (biased) output.bias = support::constant(device.vector(bias));
  const GemmRun run = matmul_emulated(a, b, output, device.context());
  EXPECT_STREQ(run.implementation, gemm_implementation<Emulated<P>>(Cuda{}));
  const std::vector<float> found = device.read(y);
  const std::vector<double> left = exact_values(cpu_a);
  const std::vector<double> right = exact_values(cpu_b);
  // Rounding a scale that is no power of two to BF16, and sums in FP32 by the tensor cores.
  constexpr double of_values = std::is_same_v<P, Fp8Recipe<Rowwise>> ? 0x1p-8 : 0;
  constexpr double of_sums = 0x1p-16;
  for (Index i = 0; i < m; i += 7) {
    for (Index j = 0; j < n; j += 5) {
      const auto at = static_cast<std::size_t>(i * n + j);
      double sum = 0;
      double size = 0;
      for (Index c = 0; c < k; ++c) {
        const double term =
            left[static_cast<std::size_t>(i * k + c)] * right[static_cast<std::size_t>(j * k + c)];
        sum += term;
        size += std::abs(term);
      }
      if (adds) sum += before[at];
      if (biased) sum += bias[static_cast<std::size_t>(j)];
      ASSERT_NEAR(found[at], sum, (of_values + of_sums) * size + 1e-6) << i << ", " << j;
    }
  }
}

TYPED_TEST(EmulatedOnCuda, ProductsMatchCpuCopies) {
  using P = TypeParam;
  TestDevice<Cuda> device(emulated_matmul_workspace(512, 512, 512, DeviceLimits<Cuda>{}));
  const Both<P, OperandKind::input> x(device, tokens, in, 1.0f, 1);
  const Both<P, OperandKind::weight> w(device, out, in, 0.05f, 2);
  const Both<P, OperandKind::output_gradient> dy(device, tokens, out, 1e-3f, 3);
  const auto cpu_x = x.cpu.operand();
  const auto cpu_w = w.cpu.operand();
  const auto cpu_dy = dy.cpu.operand();
  const auto cuda_x = x.cuda.operand();
  const auto cuda_w = w.cuda.operand();
  const auto cuda_dy = dy.cuda.operand();
  expect_product<P>(device, cpu_x.row_major, cpu_w.row_major, cuda_x.row_major, cuda_w.row_major,
                    false, true);
  expect_product<P>(device, cpu_dy.row_major, cpu_w.transposed, cuda_dy.row_major,
                    cuda_w.transposed, false, false);
  expect_product<P>(device, cpu_dy.transposed, cpu_x.transposed, cuda_dy.transposed,
                    cuda_x.transposed, true, false);
}

class Nvfp4ProductsOnCuda : public support::OnGpu {};

using Rows = PerBlock<1, 16, E4M3>;
using Squares = PerBlock<16, 16, E4M3>;

template <class Granularity>
void expect_swizzled(Index rows, Index inner) {
  TestDevice<Cuda> device;
  std::vector<E4M3> scales;
  for (Index i = 0; i < scale_count<Granularity>(rows, inner); ++i) {
    scales.push_back(E4M3::from_bits(static_cast<std::uint8_t>(1 + i * 7 % 126)));
  }
  const Index blocks = inner / 16;
  const Index count = swizzled_scale_count(rows, blocks);
  std::vector<E4M3> expected(static_cast<std::size_t>(count), E4M3::from_bits(0));
  for (Index row = 0; row < rows; ++row) {
    for (Index block = 0; block < blocks; ++block) {
      // 16 scales hold the tensor's; rows of squares are padded to four.
      const Index at = Granularity::block_rows == 1
                           ? 16 + row * blocks + block
                           : 16 + row / 16 * ((blocks + 3) / 4 * 4) + block;
      expected[static_cast<std::size_t>(swizzled_scale_index(row, block, blocks))] =
          scales[static_cast<std::size_t>(at)];
    }
  }
  const QuantizedView<E2M1, Granularity, Layout::row_major, Cuda> operand{
      nullptr, device.make(scales), rows, inner};
  const TensorView<E4M3, 1, Cuda> found{device.make_poisoned<E4M3>(count), {count}};
  EXPECT_EQ(detail::swizzle_scales(operand, found.data(), device.context()), count);
  EXPECT_EQ(device.read(found), expected) << rows << " " << inner;
}

TEST_F(Nvfp4ProductsOnCuda, ReadSwizzledScales) {
  for (const auto& [rows, inner] : {std::pair<Index, Index>{128, 64}, {16, 32}, {304, 2064}}) {
    expect_swizzled<Rows>(rows, inner);
    expect_swizzled<Squares>(rows, inner);
  }
}

TEST_F(Nvfp4ProductsOnCuda, RequireGpuSupport) {
  TestDevice<Cuda> device(std::size_t{64} << 20);
  if (!device.context().limits().gpu.mx_gemms) {
    EXPECT_THROW(require_gemms<Nvfp4>(device.context().limits()), ConfigError);
    EXPECT_NO_THROW(require_gemms<Emulated<Nvfp4>>(device.context().limits()));
    return;
  }
  const Both<Nvfp4, OperandKind::input> x(device, 128, 128, 1.0f, 1);
  const Both<Nvfp4, OperandKind::weight> w(device, 128, 128, 1.0f, 2);
  const auto a = x.cuda.operand().row_major;
  const auto b = w.cuda.operand().row_major;
  const TensorView<float, 2, Cuda> y{device.make<float>(128 * 128), {128, 128}};
  const GemmOutput<float, Cuda> output{y, {}, {}};
  (void)matmul_forward(a, b, output, device.context());
  const auto found = device.read(y);
  (void)matmul_emulated(a, b, output, device.context());
  const auto expected = device.read(y);
  for (std::size_t i = 0; i < found.size(); ++i) ASSERT_NEAR(found[i], expected[i], 1e-3) << i;
}

}  // namespace emulated_cuda_test
}  // namespace octavo
