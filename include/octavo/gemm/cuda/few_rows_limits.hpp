/// @file
/// What is known of products of a few rows on the `Cuda` device before there is one. Needs no CUDA.
#pragma once

#include <octavo/gemm/few_rows.hpp>

namespace octavo OCTAVO_ABI {

/// What runs `few_rows_forward` on the `Cuda` device.
inline const char* few_rows_implementation(Cuda) { return "octavo"; }

/// Bytes of workspace that `few_rows_forward` needs for weights of `k` columns: none.
inline std::size_t few_rows_workspace(Index, const DeviceLimits<Cuda>&) { return 0; }

}  // namespace octavo
