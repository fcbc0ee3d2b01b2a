/// @file
/// The gated activation of one element, shared by all devices.
#pragma once

#include <octavo/core/macros.hpp>
#include <octavo/core/math.hpp>

namespace octavo OCTAVO_ABI::detail {

/// 1 + e^−x.
OCTAVO_HOST_DEVICE inline float one_plus_exp(float x) {
#if defined(__CUDA_ARCH__)
  return 1.0f + __expf(-x);
#else
  return 1.0f + fast_exp(-x);
#endif
}

/// silu(gate) · up.
OCTAVO_HOST_DEVICE inline float gated(float gate, float up) {
#if defined(__CUDA_ARCH__)
  return __fdividef(gate, one_plus_exp(gate)) * up;
#else
  return gate / one_plus_exp(gate) * up;
#endif
}

}  // namespace octavo::detail
