/// @file
/// The elements of matrices of BF16 values that `matmul_bf16` multiplies.
#pragma once

#include <octavo/core/device.hpp>
#include <octavo/formats/bf16.hpp>

#include <type_traits>

namespace octavo OCTAVO_ABI {

/// The element type of matrices of BF16 values that `matmul_bf16` multiplies: `Cpu` stores the
/// values in FP32, so that a GEMM needs no further memory.
template <Device D>
using Bf16Element = std::conditional_t<std::is_same_v<D, Cpu>, float, Bf16>;

}  // namespace octavo
