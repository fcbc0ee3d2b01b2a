#pragma once

#include <octavo/core/cuda/context.cuh>

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

namespace octavo::support {

/// Why this machine cannot run the `Cuda` device's tests; empty where it can.
inline std::string why_no_gpu() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess || count == 0) {
    return message("no GPU answers on this machine (", cudaGetErrorString(status), ")");
  }
  cudaDeviceProp card{};
  check(cudaGetDeviceProperties(&card, 0), "cudaGetDeviceProperties");
  const std::string reason = capability_refusal(10 * card.major + card.minor);
  return reason.empty() ? reason : message("GPU 0 is a ", card.name, ", but ", reason);
}

/// A context of GPU 0; without cuDNN where OCTAVO_TEST_WITHOUT_CUDNN is in the environment, because
/// some tools that watch kernels stop in its backward; with the features of another GPU where its
/// compute capability, such as 80, is in OCTAVO_TEST_CAPABILITY.
class GpuContext : public Context<Cuda> {
 public:
  GpuContext() {
    if (std::getenv("OCTAVO_TEST_WITHOUT_CUDNN") != nullptr) set_cudnn(false);
    const char* capability = std::getenv("OCTAVO_TEST_CAPABILITY");
    if (capability != nullptr) set_gpu(features_of(std::stoi(capability)));
  }
};

/// Tests that need a GPU; skipped where there is none that Octavo serves.
class OnGpu : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string reason = why_no_gpu(); !reason.empty()) GTEST_SKIP() << reason;
  }
};

}  // namespace octavo::support
