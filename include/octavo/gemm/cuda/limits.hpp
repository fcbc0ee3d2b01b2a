/// @file
/// Properties of GEMMs on the `Cuda` device, for planning. Needs no CUDA, so that any machine can
/// plan memory.
#pragma once

#include <octavo/gemm/expert_products.hpp>

namespace octavo OCTAVO_ABI {
namespace detail {

/// The workspace of cuBLASLt, as its documentation recommends for Hopper.
inline constexpr std::size_t cublas_workspace_bytes = std::size_t{32} << 20;

inline constexpr const char* cublas_implementation = "cublasLt";
inline constexpr const char* own_expert_implementation = "octavo experts";

}  // namespace detail

/// Returns the implementation of GEMMs of precision `P` on the `Cuda` device, for the manifest.
template <LinearPrecision P>
constexpr const char* gemm_implementation(Cuda) {
  return detail::cublas_implementation;
}

/// Returns the maximum bytes of workspace that one product needs, a multiple of 256.
inline std::size_t matmul_workspace(Index, Index, Index, const DeviceLimits<Cuda>&) {
  return detail::cublas_workspace_bytes;
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
