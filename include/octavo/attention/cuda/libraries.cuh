/// @file
/// The GPU and the versions of the libraries that the `Cuda` device uses.
#pragma once

#include <octavo/attention/libraries.hpp>
#include <octavo/core/cuda/context.cuh>
#include <octavo/gemm/cuda/plans.cuh>
#if defined(OCTAVO_WITH_CUDNN)
#include <octavo/attention/cuda/cudnn_attention.cuh>
#endif

#include <string>

namespace octavo OCTAVO_ABI::detail {

/// Returns "13.1.0" for 130100, the numbering of cuBLASLt and cuDNN.
inline std::string library_version_text(std::uint64_t version) {
  return message(version / 10000, '.', version / 100 % 100, '.', version % 100);
}

/// Returns "13.0" for 13000, the numbering of CUDA.
inline std::string cuda_version_text(int version) {
  return message(version / 1000, '.', version % 1000 / 10);
}

/// See libraries_text.
inline std::string libraries_text_body(const Context<Cuda>& context) {
  int driver = 0;
  int runtime = 0;
  check(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
  check(cudaRuntimeGetVersion(&runtime), "cudaRuntimeGetVersion");
  const GemmLibrary& gemm = context.state<GemmPlans>().library(context);
  std::string text =
      message(context.card(), " of ", gemm.multiprocessors, " multiprocessors, CUDA ",
              cuda_version_text(runtime), ", a driver for ", cuda_version_text(driver),
              ", cuBLASLt ", library_version_text(gemm.version));
#if defined(OCTAVO_WITH_CUDNN)
  if (context.limits().cudnn) {
    return text + ", cuDNN " + library_version_text(CudnnAttention::version());
  }
#endif
  return text + ", no cuDNN";
}

}  // namespace octavo::detail
