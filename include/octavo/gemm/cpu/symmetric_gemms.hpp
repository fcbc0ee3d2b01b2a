/// @file
/// GEMMs of matrices with their own transposes on the `Cpu` device.
#pragma once

#include <octavo/gemm/symmetric_gemms.hpp>

namespace octavo OCTAVO_ABI::detail {

/// See matmul_symmetric.
template <class T>
void matmul_symmetric_body(std::span<const SymmetricGemm<T, Cpu>> gemms,
                           const Context<Cpu>& context) {
  for (const SymmetricGemm<T, Cpu>& gemm : gemms) multiply_all(gemm, context);
}

}  // namespace octavo::detail
