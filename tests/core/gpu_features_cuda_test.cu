// Features of the GPU, of the kernels that it runs, and of another GPU that a test names.
#include <octavo/core/cuda/lane.cuh>
#include <octavo/kernels/cuda/launch.cuh>

#include <gtest/gtest.h>

#include <vector>

#include "support/on_gpu.cuh"

namespace octavo {
namespace gpu_features_cuda_test {

class GpuFeaturesOnCuda : public support::OnGpu {};

template <class Word>
OCTAVO_KERNEL void read_architecture(Word* found) {
#if defined(__CUDA_ARCH__)
  found[0] = __CUDA_ARCH__ / 10;
#endif
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  found[1] = 1;
#else
  found[1] = 0;
#endif
}

TEST_F(GpuFeaturesOnCuda, MatchGpuAndCompiledKernels) {
  const Context<Cuda> context;
  const GpuFeatures& gpu = context.limits().gpu;
  int* found = nullptr;
  ASSERT_EQ(cudaMallocManaged(&found, 2 * sizeof(int)), cudaSuccess);
  kernels::launch("read_architecture", read_architecture<int>, Index{1}, 1, 0, context, found);
  context.synchronize();
  const bool has_newer = found[0] >= 90;
  const bool has_fp8 = found[0] >= 89;
  const bool is_for_sm90 = found[1] != 0;
  cudaFree(found);
  const GpuFeatures own = features_of(context.capability());
  EXPECT_EQ(gpu.capability, context.capability());
  EXPECT_EQ(gpu.warpgroup_mma, own.warpgroup_mma && is_for_sm90);
  EXPECT_EQ(gpu.clusters, own.clusters && has_newer);
  EXPECT_EQ(gpu.programmatic_launch, own.programmatic_launch && has_newer);
  EXPECT_EQ(gpu.fp8_gemms, own.fp8_gemms && has_fp8);
  EXPECT_EQ(gpu.row_scales, own.row_scales && has_fp8);
  EXPECT_EQ(gpu.block_scales, own.block_scales && has_fp8);
  EXPECT_EQ(gpu.mx_gemms, own.mx_gemms && has_fp8);
  EXPECT_EQ(gpu.shared_bytes, own.shared_bytes);
  EXPECT_EQ(context.limits().card, message("GPU 0 (", context.card(), ")"));
}

TEST_F(GpuFeaturesOnCuda, CanBeLimitedToAnotherGpuAlsoOnLane) {
  Context<Cuda> context;
  context.set_gpu(features_of(86));
  const Lane<Cuda> lane(context);
  for (const GpuFeatures& gpu : {context.limits().gpu, lane.context().limits().gpu}) {
    EXPECT_EQ(gpu.capability, 86);
    EXPECT_EQ(gpu.shared_bytes, Index{99} << 10);
    EXPECT_FALSE(gpu.fp8_gemms || gpu.warpgroup_mma || gpu.clusters || gpu.programmatic_launch);
  }
  // A GPU gets no features that it lacks.
  context.set_gpu(features_of(120));
  EXPECT_FALSE(context.limits().gpu.mx_gemms || context.limits().gpu.fp8_gemms);
}

template <class Word>
OCTAVO_KERNEL void fill_late(Word* values, Word value) {
  kernels::launch_dependent_grids();
  const long long begin = clock64();
  while (clock64() - begin < 1'000'000) {
  }
  values[threadIdx.x] = value;
}
template <class Word>
OCTAVO_KERNEL void add_one(Word* values) {
  kernels::wait_on_dependent_grids();
  values[threadIdx.x] += 1;
}

TEST_F(GpuFeaturesOnCuda, KernelsWaitForPredecessorsWithAndWithoutEarlyLaunches) {
  for (const int capability : {80, 90}) {
    Context<Cuda> context;
    context.set_gpu(features_of(capability));
    int* values = nullptr;
    ASSERT_EQ(cudaMallocManaged(&values, 32 * sizeof(int)), cudaSuccess);
    kernels::launch("fill_late", fill_late<int>, Index{1}, 32, 0, context, values, 7);
    kernels::launch_dependent("add_one", add_one<int>, dim3(1), 32, 0, context, values);
    context.synchronize();
    for (int i = 0; i < 32; ++i) EXPECT_EQ(values[i], 8) << capability << " " << i;
    cudaFree(values);
  }
}

TEST_F(GpuFeaturesOnCuda, RejectsLaunchBeyondSharedMemoryLimit) {
  Context<Cuda> context;
  context.set_gpu(features_of(86));
  int* nothing = nullptr;
  const std::size_t most = std::size_t{99} << 10;
  EXPECT_THROW(kernels::launch("add_one", add_one<int>, Index{1}, 32, most + 1, context, nothing),
               ShapeError);
}

}  // namespace gpu_features_cuda_test
}  // namespace octavo
