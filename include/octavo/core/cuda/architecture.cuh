/// @file
/// The architecture that kernels are compiled for; every header with kernels includes it. Kernels
/// use instructions of newer GPUs only if they are compiled for those, and contexts ask a GPU which
/// of a program's architectures it runs.
#pragma once

#include <octavo/core/cuda/context.cuh>

#include <cuda_runtime.h>

#include <map>
#include <mutex>

// Checked only when device code is compiled: the host pass has no architecture.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#error \
    "Octavo's kernels need compute capability 8.0 or later: pass nvcc an architecture such as \
-gencode=arch=compute_90a,code=sm_90a, or set CMAKE_CUDA_ARCHITECTURES to one such as 90a"
#endif

#if defined(__CUDACC__)
namespace octavo OCTAVO_ABI::detail {

/// Writes the architecture that the kernel is compiled for.
/// @param report  [2]: __CUDA_ARCH__, and 1 for sm_90a
template <class Word>
OCTAVO_KERNEL void report_architecture_kernel(Word* report) {
#if defined(__CUDA_ARCH__)
  report[0] = __CUDA_ARCH__;
#endif
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  report[1] = 1;
#else
  report[1] = 0;
#endif
}

/// Queries the current GPU once; see `kernel_architecture`.
/// @throws ConfigError  if the program has no kernels for this GPU
inline KernelArchitecture query_kernel_architecture(int gpu, const DeviceLimits<Cuda>& limits) {
  static std::mutex mutex;
  static std::map<int, KernelArchitecture> known;
  const std::lock_guard lock(mutex);
  if (const auto place = known.find(gpu); place != known.end()) return place->second;
  int report[2] = {};
  int* on_gpu = nullptr;
  check(cudaMalloc(&on_gpu, sizeof(report)), "cudaMalloc");
  report_architecture_kernel<<<1, 1>>>(on_gpu);
  const cudaError_t status = cudaGetLastError();
  const cudaError_t copied = cudaMemcpy(report, on_gpu, sizeof(report), cudaMemcpyDeviceToHost);
  cudaFree(on_gpu);
  const int capability = limits.gpu.capability;
  require<ConfigError>(
      status != cudaErrorNoKernelImageForDevice && status != cudaErrorInvalidDeviceFunction,
      limits.card, " has compute capability ", capability / 10, ".", capability % 10,
      ", but the program is compiled for other GPUs; build it with CMAKE_CUDA_ARCHITECTURES=",
      architecture_for(capability));
  check(status, "the launch of the first kernel", " on ", limits.card);
  check(copied, "cudaMemcpy");
  const KernelArchitecture found{report[0] / 10, report[1] != 0};
  known.emplace(gpu, found);
  return found;
}

/// Sets `kernel_architecture` before main.
inline const bool reports_architecture = [] {
  kernel_architecture = query_kernel_architecture;
  return true;
}();

}  // namespace octavo::detail
#endif
