// The error of gradients with fast and with full accumulation, at the shapes of Llama-3-8B.
#include <octavo/cuda.cuh>

#include <gtest/gtest.h>

#include <cstdio>

#include "support/accumulation_error.cuh"
#include "support/on_gpu.cuh"

namespace octavo {
namespace fast_gradients_cuda_test {

class FastGradients : public support::OnGpuIn<Fp8Recipe<Tensorwise>> {};

/// The share of a sum that the tensor cores may lose: they add 32 products at a time to a sum of 14
/// bits, and cut off the rest.
double cut_off(Index products) { return static_cast<double>(products / 32) * 0x1p-13; }

/// Whether the tensor cores' accumulators of FP8 products have 14 bits.
bool has_short_accumulators() {
  cudaDeviceProp card{};
  check(cudaGetDeviceProperties(&card, 0), "cudaGetDeviceProperties");
  return card.major == 9;
}

/// @param tokens  that the weight gradient reduces
void expect_bounded_errors(GemmPass pass, Index tokens) {
  support::GpuContext context;
  Buffer<Cuda> workspace(matmul_workspace(0, 0, 0, context), context);
  context.bind_workspace({workspace.data(), workspace.size()});
  for (const float tail : {0.0f, 1.5f}) {
    for (const ::support::GradientShape& shape : ::support::llama3_8b_gradients) {
      const Index reduced = pass == GemmPass::weight_gradient ? tokens : shape.out;
      ::support::GradientProduct product(pass, tokens, shape.out, shape.in, tail, context);
      const auto full = product.error(GemmAccumulation::full);
      const auto fast = product.error(GemmAccumulation::fast);
      std::printf("  %-8s reduces %6d: error %.2e full, %.2e fast (results %.2e too small)\n",
                  shape.name, static_cast<int>(reduced), full.relative, fast.relative,
                  fast.shrinkage);
      EXPECT_LE(full.relative, cut_off(128)) << shape.name;
      EXPECT_LE(fast.relative, cut_off(reduced)) << shape.name;
      if (has_short_accumulators()) {
        EXPECT_GT(fast.relative, full.relative)
            << shape.name << ": the option did not reach cuBLASLt";
      }
    }
  }
}

TEST_F(FastGradients, ErrorOfInputGradientsIsBoundedByAccumulatorTruncation) {
  expect_bounded_errors(GemmPass::input_gradient, 512);
}

TEST_F(FastGradients, ErrorOfWeightGradientsIsBoundedByAccumulatorTruncation) {
  expect_bounded_errors(GemmPass::weight_gradient, 2048);
}

}  // namespace fast_gradients_cuda_test
}  // namespace octavo
