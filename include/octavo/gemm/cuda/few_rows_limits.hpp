/// @file
/// Properties of GEMMs of a few rows on the `Cuda` device, for planning. Needs no CUDA.
#pragma once

#include <octavo/gemm/few_rows.hpp>

namespace octavo OCTAVO_ABI {

/// Returns the implementation of `few_rows_forward` on the `Cuda` device.
inline const char* few_rows_implementation(Cuda) { return "octavo"; }

/// Returns the bytes of workspace that `few_rows_forward` needs for weights of `k` columns: none.
inline std::size_t few_rows_workspace(Index, const DeviceLimits<Cuda>&) { return 0; }

}  // namespace octavo
