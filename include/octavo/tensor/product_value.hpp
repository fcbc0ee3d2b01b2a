/// @file
/// The format of matrices of BF16 values that a device multiplies.
#pragma once

#include <octavo/core/device.hpp>
#include <octavo/formats/bf16.hpp>

#include <type_traits>

namespace octavo OCTAVO_ABI {

/// The format of matrices of BF16 values that `matmul_bf16` multiplies: `Cpu` stores them in FP32,
/// so that a product needs no further memory.
template <Device D>
using ProductValue = std::conditional_t<std::is_same_v<D, Cpu>, float, Bf16>;

}  // namespace octavo
