/// @file
/// Properties of GEMMs on the `Cuda` device, for planning. Needs no CUDA, so that any machine can
/// plan memory.
#pragma once

#include <octavo/gemm/expert_products.hpp>
#include <octavo/tensor/swizzled_scales.hpp>

namespace octavo OCTAVO_ABI {
namespace detail {

/// The workspace of cuBLASLt, as its documentation recommends for Hopper.
inline constexpr std::size_t cublas_workspace_bytes = std::size_t{32} << 20;

/// Elements that share a scale in MX formats.
inline constexpr Index mx_block = 32;

inline constexpr const char* cublas_implementation = "cublasLt";
inline constexpr const char* own_expert_implementation = "octavo experts";

}  // namespace detail

/// Returns the implementation of GEMMs of precision `P` on the `Cuda` device, for the manifest.
template <LinearPrecision P>
constexpr const char* gemm_implementation(Cuda) {
  return detail::cublas_implementation;
}

/// Returns the maximum bytes of workspace that one product of [m, k] by [k, n] needs, a multiple of
/// 256: that of cuBLASLt, and the scales of MX blocks in its order if the GPU multiplies those.
inline std::size_t matmul_workspace(Index m, Index n, Index k, const DeviceLimits<Cuda>& limits) {
  Index scales = 0;
  if (limits.gpu.mx_products) {
    const Index blocks = ceil_divide(k, detail::mx_block);
    scales = swizzled_scale_count(m, blocks) + swizzled_scale_count(n, blocks);
  }
  return detail::cublas_workspace_bytes + static_cast<std::size_t>(scales);
}

/// Returns the implementation of the experts' GEMMs in precision `P` on the `Cuda` device, for the
/// manifest.
template <LinearPrecision P>
constexpr const char* expert_implementation(Cuda) {
  return detail::own_expert_implementation;
}

/// Returns the bytes of workspace that the experts' products need.
inline std::size_t expert_product_workspace(Index, Index, Index, Index, const DeviceLimits<Cuda>&) {
  return 0;
}

}  // namespace octavo
