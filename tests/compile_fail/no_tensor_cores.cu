// Where the first refusal is evaded, products cannot be left out: the assembler lacks them.
// nvcc: -arch=sm_90 -D__CUDA_ARCH_FEAT_SM90_ALL
// expect: wgmma
#include <octavo/kernels/cuda/tensor_core.cuh>

__global__ void multiply(float* result, std::uint64_t a, std::uint64_t b) {
  octavo::detail::Accumulator sums{};
  octavo::detail::begin_products(sums);
  octavo::detail::multiply(sums, a, b, false);
  octavo::detail::commit_products();
  octavo::detail::wait_for_products<0>(sums);
  for (int i = 0; i < 32; ++i) result[32 * threadIdx.x + i] = sums.values[i];
}
