/// @file
/// What is known of GEMMs on the `Cuda` device before there is one. Needs no CUDA, so that any
/// machine can plan memory.
#pragma once

#include <octavo/gemm/matmul.hpp>

namespace octavo OCTAVO_ABI {
namespace detail {

/// cuBLASLt gets as much workspace as its documentation advises for Hopper.
inline constexpr std::size_t cublas_workspace_bytes = std::size_t{32} << 20;

inline constexpr const char* cublas_implementation = "cublasLt";

}  // namespace detail

/// What runs GEMMs of precision `P` on the `Cuda` device, as the manifest announces it.
template <LinearPrecision P>
constexpr const char* gemm_implementation(Cuda) {
  return detail::cublas_implementation;
}

/// Bytes of workspace that one product needs at most, at a multiple of 256 bytes.
inline std::size_t matmul_workspace(Index, Index, Index, const DeviceLimits<Cuda>&) {
  return detail::cublas_workspace_bytes;
}

}  // namespace octavo
