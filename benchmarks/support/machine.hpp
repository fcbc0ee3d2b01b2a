// What a benchmark ran on. Host code: it needs the headers of the CUDA runtime and cuBLASLt.
#pragma once

#include <octavo/attention/cuda/cudnn_attention.cuh>
#include <octavo/core/cuda/context.cuh>

#include <cublasLt.h>

#include <string>

namespace benchmarks {

/// The card and the versions of the libraries beside it.
struct Machine {
  std::string card;
  int multiprocessors = 0;
  std::string cuda;
  std::string cublaslt;
  std::string cudnn = "none";
};

/// "9.19.0" of 91900, as cuBLASLt and cuDNN write their versions.
inline std::string version_text(std::size_t version) {
  return std::to_string(version / 10000) + '.' + std::to_string(version % 10000 / 100) + '.' +
         std::to_string(version % 100);
}

/// The machine's current GPU and libraries.
/// @throws CudaError  if there is no GPU
inline Machine describe_machine() {
  Machine machine;
  cudaDeviceProp properties{};
  octavo::check(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties",
                "; this benchmark needs a GPU");
  machine.card = properties.name;
  machine.multiprocessors = properties.multiProcessorCount;
  int runtime = 0;
  octavo::check(cudaRuntimeGetVersion(&runtime), "cudaRuntimeGetVersion");
  machine.cuda = std::to_string(runtime / 1000) + '.' + std::to_string(runtime % 1000 / 10);
  machine.cublaslt = version_text(cublasLtGetVersion());
#if defined(OCTAVO_WITH_CUDNN)
  machine.cudnn = version_text(octavo::detail::CudnnAttention::version());
#endif
  return machine;
}

/// GiB of the GPU's memory that are taken, by this program and by libraries under it.
inline double card_gib_used() {
  std::size_t free = 0;
  std::size_t total = 0;
  octavo::check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return static_cast<double>(total - free) * 0x1p-30;
}

}  // namespace benchmarks
