// Where the first refusal is evaded, products cannot be left out: the assembler lacks them.
// nvcc: -arch=sm_90 -D__CUDA_ARCH_FEAT_SM90_ALL
// expect: wgmma
#include <octavo/kernels/cuda/warpgroup_cores.cuh>

__global__ void multiply(float* result, octavo::detail::SharedTile<64, 64> tile) {
  using Cores = octavo::detail::WarpgroupCores;
  octavo::detail::Accumulator<> sums{};
  Cores::begin_mma(sums);
  Cores::multiply(sums, tile, 0, tile, 0, 0, false);
  Cores::commit_mma();
  Cores::wait_for_mma<0>(sums);
  for (int i = 0; i < 32; ++i) result[32 * threadIdx.x + i] = sums.values[i];
}
