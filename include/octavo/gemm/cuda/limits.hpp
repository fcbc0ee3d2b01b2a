/// @file
/// Properties of GEMMs on the `Cuda` device, for planning. Needs no CUDA, so that any machine can
/// plan memory.
#pragma once

#include <octavo/gemm/matmul.hpp>

namespace octavo OCTAVO_ABI {
namespace detail {

/// The workspace of cuBLASLt, as its documentation recommends for Hopper.
inline constexpr std::size_t cublas_workspace_bytes = std::size_t{32} << 20;

inline constexpr const char* cublas_implementation = "cublasLt";

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

}  // namespace octavo
