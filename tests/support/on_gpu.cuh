#pragma once

#include <octavo/core/cuda/context.cuh>
#include <octavo/precision/gpu_precisions.hpp>

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

namespace octavo::support {

/// Why this machine cannot run the `Cuda` device's tests; empty where it can.
inline std::string gpu_skip_reason() {
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

/// The reason to skip a test that needs something of the GPU or its kernels. `scripts/gpu-check`
/// accepts it on GPUs and architectures that lack features of Hopper.
inline std::string lacks(const Context<Cuda>& context, const char* what) {
  return message(context.limits().card, " or the kernels of this build lack ", what);
}

/// Whether a GPU runs the GEMMs of a precision, in every part of `Layerwise` that has any, and its
/// attention.
template <class Precision>
struct Gemms {
  static bool run_on(const GpuFeatures& gpu) { return gpu_runs<Precision>(gpu); }
};
template <>
struct Gemms<octavo::detail::NoPrecision> {
  static bool run_on(const GpuFeatures&) { return true; }
};
template <class... Parts>
struct Gemms<Layerwise<Parts...>> {
  static bool run_on(const GpuFeatures& gpu) {
    constexpr bool is_eight_bit =
        attention_forward_of<Layerwise<Parts...>> == AttentionForward::eight_bit;
    return (!is_eight_bit || gpu.warpgroup_mma) &&
           (Gemms<typename octavo::detail::PartTraits<Parts>::Precision>::run_on(gpu) && ...);
  }
};

/// Why GPU 0 cannot run the GEMMs of a precision; empty where it can.
template <class Precision>
std::string precision_skip_reason() {
  if (std::string reason = gpu_skip_reason(); !reason.empty()) return reason;
  const GpuContext context;
  if (Gemms<Precision>::run_on(context.limits().gpu)) return {};
  return lacks(context, context.limits().gpu.fp8_gemms ? "GEMMs of this precision" : "FP8 GEMMs");
}

/// Tests that need a GPU; skipped where there is none that Octavo serves.
class OnGpu : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string reason = gpu_skip_reason(); !reason.empty()) GTEST_SKIP() << reason;
  }
};

/// Tests that need a GPU that runs the GEMMs of a precision; skipped where there is none.
template <class Precision, class Fixture = OnGpu>
class OnGpuIn : public Fixture {
 protected:
  void SetUp() override {
    Fixture::SetUp();
    if (Fixture::IsSkipped()) return;
    if (const std::string reason = precision_skip_reason<Precision>(); !reason.empty())
      GTEST_SKIP() << reason;
  }
};

}  // namespace octavo::support
