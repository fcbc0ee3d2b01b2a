/// @file
/// Properties of GEMMs on the `Cuda` device, for planning. Needs no CUDA, so that any machine can
/// plan memory.
#pragma once

#include <octavo/gemm/expert_gemms.hpp>
#include <octavo/tensor/swizzled_scales.hpp>

namespace octavo OCTAVO_ABI {
namespace detail {

/// The workspace of cuBLASLt, as its documentation recommends for Hopper.
inline constexpr std::size_t cublas_workspace_bytes = std::size_t{32} << 20;

/// Elements that share a scale in NVFP4; in MX formats, twice as many do.
inline constexpr Index least_swizzled_block = 16;

/// Bytes of the factors that a GEMM reads from device memory, with padding.
inline constexpr std::size_t gemm_factor_bytes = 256;

inline constexpr const char* cublas_implementation = "cublasLt";
inline constexpr const char* emulated_implementation = "cublasLt in bf16";
inline constexpr const char* own_expert_implementation = "octavo experts";

}  // namespace detail

/// Returns the implementation of GEMMs of precision `P` on the `Cuda` device, for the manifest.
template <LinearPrecision P>
constexpr const char* gemm_implementation(Cuda) {
  return detail::is_emulated<P> ? detail::emulated_implementation : detail::cublas_implementation;
}

/// Returns the maximum bytes of workspace that one GEMM of [m, k] by [k, n] needs, a multiple of
/// 256: that of cuBLASLt, and factors and the scales of MX and NVFP4 blocks in its order if the GPU
/// multiplies those.
inline std::size_t matmul_workspace(Index m, Index n, Index k, const DeviceLimits<Cuda>& limits) {
  if (!limits.gpu.mx_gemms) return detail::cublas_workspace_bytes;
  const Index blocks = ceil_divide(k, detail::least_swizzled_block);
  const Index scales = swizzled_scale_count(m, blocks) + swizzled_scale_count(n, blocks);
  return detail::cublas_workspace_bytes + detail::gemm_factor_bytes +
         static_cast<std::size_t>(scales);
}

/// Returns the bytes of workspace that `matmul_emulated` needs: that of cuBLASLt, factors, and both
/// operands in BF16.
inline std::size_t emulated_matmul_workspace(Index m, Index n, Index k, const DeviceLimits<Cuda>&) {
  const Index values = round_up(m * k, 128) + round_up(n * k, 128);
  return detail::cublas_workspace_bytes + detail::gemm_factor_bytes +
         static_cast<std::size_t>(values) * sizeof(Bf16);
}

/// Returns the implementation of the experts' GEMMs in precision `P` on the `Cuda` device, for the
/// manifest.
template <LinearPrecision P>
constexpr const char* expert_implementation(Cuda) {
  return detail::own_expert_implementation;
}

/// Returns the bytes of workspace that the experts' GEMMs need.
inline std::size_t expert_gemm_workspace(Index, Index, Index, Index, const DeviceLimits<Cuda>&) {
  return 0;
}

}  // namespace octavo
