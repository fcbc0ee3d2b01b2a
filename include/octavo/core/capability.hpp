/// @file
/// What the `Cuda` device can do on each GPU. Needs no CUDA.
#pragma once

#include <octavo/core/device.hpp>
#include <octavo/core/error.hpp>

#include <algorithm>
#include <string>

namespace octavo OCTAVO_ABI {

/// Features of a GPU that kernels and GEMMs depend on. A context queries its GPU for them; a memory
/// plan uses those of the GPU for which it is computed.
struct GpuFeatures {
  int capability = 90;              ///< compute capability, times ten: 90 is an H100
  bool fp8_gemms = true;            ///< FP8 GEMMs with one scale per tensor
  bool row_scales = true;           ///< FP8 GEMMs with one FP32 scale per row
  bool block_scales = true;         ///< FP8 GEMMs with FP32 scales of 1 × 128 and 128 × 128 blocks
  bool mx_gemms = false;            ///< MXFP8 and NVFP4 GEMMs
  bool warpgroup_mma = true;        ///< the instructions wgmma of Hopper
  bool clusters = true;             ///< clusters of thread blocks
  bool programmatic_launch = true;  ///< supports kernels that begin before the previous one ends
                                    ///< (programmatic dependent launch)
  Index shared_bytes = Index{227} << 10;  ///< maximum shared memory of a thread block
};

/// Returns the features of GPUs of a compute capability.
/// Source: CUDA Programming Guide 13.0, "Compute Capabilities"; cuBLAS 13.0, "cublasLtMatmul()".
/// @param capability  ten times the major number, plus the minor one
constexpr GpuFeatures features_of(int capability) {
  GpuFeatures features{.capability = capability};
  const int major = capability / 10;
  features.fp8_gemms = capability >= 89;
  features.row_scales = major == 9;
  features.block_scales = major == 9;
  features.mx_gemms = major >= 10;
  features.warpgroup_mma = major == 9;
  features.clusters = major >= 9;
  features.programmatic_launch = major >= 9;
  const bool is_of_servers = capability == 80 || capability == 87;
  const bool has_large = major >= 9 && major < 12;
  features.shared_bytes = Index{has_large ? 227 : is_of_servers ? 163 : 99} << 10;
  return features;
}

/// Returns the features that two sets have in common.
constexpr GpuFeatures common_features(const GpuFeatures& a, const GpuFeatures& b) {
  return {.capability = std::min(a.capability, b.capability),
          .fp8_gemms = a.fp8_gemms && b.fp8_gemms,
          .row_scales = a.row_scales && b.row_scales,
          .block_scales = a.block_scales && b.block_scales,
          .mx_gemms = a.mx_gemms && b.mx_gemms,
          .warpgroup_mma = a.warpgroup_mma && b.warpgroup_mma,
          .clusters = a.clusters && b.clusters,
          .programmatic_launch = a.programmatic_launch && b.programmatic_launch,
          .shared_bytes = std::min(a.shared_bytes, b.shared_bytes)};
}

/// The architecture of the kernels that a GPU runs: a program may contain several.
struct KernelArchitecture {
  int capability = 90;      ///< times ten, of the machine code or the PTX
  bool is_for_sm90 = true;  ///< compiled for sm_90a, with all instructions of Hopper
};

/// Returns the features that kernels of an architecture can use on a GPU. Kernels for GPUs older
/// than 8.9 contain no FP8 MMAs, so a program of such kernels has no FP8 GEMMs on any GPU.
constexpr GpuFeatures compiled_features(GpuFeatures gpu, KernelArchitecture kernels) {
  const bool has_newer = kernels.capability >= 90;
  const bool has_fp8 = kernels.capability >= 89;
  gpu.fp8_gemms = gpu.fp8_gemms && has_fp8;
  gpu.row_scales = gpu.row_scales && has_fp8;
  gpu.block_scales = gpu.block_scales && has_fp8;
  gpu.mx_gemms = gpu.mx_gemms && has_fp8;
  gpu.warpgroup_mma = gpu.warpgroup_mma && kernels.is_for_sm90;
  gpu.clusters = gpu.clusters && has_newer;
  gpu.programmatic_launch = gpu.programmatic_launch && has_newer;
  return gpu;
}

/// Returns the value of CMAKE_CUDA_ARCHITECTURES for GPUs of a compute capability, such as "90a":
/// the architecture with all of their instructions that the kernels use.
inline std::string architecture_for(int capability) {
  return std::to_string(capability) + (capability == 90 ? "a" : "");
}

/// The oldest compute capability that the kernels run on, times ten: that of an A100. Older GPUs
/// have no BF16 tensor cores.
inline constexpr int least_capability = 80;

/// Returns why the kernels do not run on GPUs of a compute capability; empty if they do.
inline std::string capability_refusal(int capability) {
  if (capability >= least_capability) return {};
  return message("Octavo needs compute capability ", least_capability / 10, ".",
                 least_capability % 10, " (A100) or later, but the GPU has ", capability / 10, ".",
                 capability % 10);
}

}  // namespace octavo
