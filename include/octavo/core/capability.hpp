/// @file
/// What the `Cuda` device can do on each GPU. Needs no CUDA.
#pragma once

#include <octavo/core/device.hpp>
#include <octavo/core/error.hpp>

#include <string>

namespace octavo OCTAVO_ABI {

/// Features of a GPU that kernels and GEMMs depend on. A context asks its GPU for them; a memory
/// plan takes those of the GPU that it is made for.
struct GpuFeatures {
  int capability = 90;             ///< compute capability, times ten: 90 is an H100
  bool fp8_products = true;        ///< FP8 GEMMs with one scale per tensor
  bool row_scales = true;          ///< FP8 GEMMs with one FP32 scale per row
  bool block_scales = true;        ///< FP8 GEMMs with FP32 scales of 1 × 128 and 128 × 128 blocks
  bool mx_products = false;        ///< MXFP8 and NVFP4 GEMMs
  bool warpgroup_products = true;  ///< the instructions wgmma of Hopper
  bool clusters = true;            ///< clusters of thread blocks
  bool early_launches = true;      ///< a kernel may begin before the previous one ends
  Index shared_bytes = Index{227} << 10;  ///< maximum shared memory of a thread block
};

/// Returns the features of GPUs of a compute capability.
/// Source: CUDA Programming Guide 13.0, "Compute Capabilities"; cuBLAS 13.0, "cublasLtMatmul()".
/// @param capability  ten times the major number, plus the minor one
constexpr GpuFeatures features_of(int capability) {
  GpuFeatures features{.capability = capability};
  const int major = capability / 10;
  features.fp8_products = capability >= 89;
  features.row_scales = major == 9;
  features.block_scales = major == 9;
  features.mx_products = major >= 10;
  features.warpgroup_products = major == 9;
  features.clusters = major >= 9;
  features.early_launches = major >= 9;
  const bool is_of_servers = capability == 80 || capability == 87;
  const bool has_large = major >= 9 && major < 12;
  features.shared_bytes = Index{has_large ? 227 : is_of_servers ? 163 : 99} << 10;
  return features;
}

/// Compute capability, times ten, of the GPUs that the kernels are written for (Hopper). No older
/// or newer GPU has Hopper's tensor-core instructions and FP8 block scales.
inline constexpr int served_cuda_capability = 90;

/// Whether the kernels run on GPUs of this compute capability.
/// @param capability  ten times the major number, plus the minor one
constexpr bool capability_served(int capability) { return capability == served_cuda_capability; }

/// Returns why the kernels do not run on GPUs of this compute capability, such as "Octavo's kernels
/// support only 9.0 (H100, H200): this GPU is too old"; empty if they do.
inline std::string why_not_served(int capability) {
  if (capability_served(capability)) return {};
  return message("Octavo's kernels support only ", served_cuda_capability / 10, ".",
                 served_cuda_capability % 10, " (H100, H200): this GPU is too ",
                 capability < served_cuda_capability ? "old" : "new");
}

/// Throws a ConfigError with a message of one line unless the kernels run on the GPU.
/// @param gpu         its index, as CUDA counts
/// @param name        such as "NVIDIA H100 80GB HBM3"
/// @param capability  see capability_served
inline void require_served(int gpu, const char* name, int capability) {
  require<ConfigError>(capability_served(capability), "GPU ", gpu, " (", name,
                       ") has compute capability ", capability / 10, ".", capability % 10, ", but ",
                       why_not_served(capability), "; choose another GPU, or the Cpu device");
}

}  // namespace octavo
