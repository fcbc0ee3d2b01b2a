/// @file
/// Gated activations of one element, shared by all devices.
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

/// a / b, on a GPU with its fast division.
OCTAVO_HOST_DEVICE inline float fast_quotient(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fdividef(a, b);
#else
  return a / b;
#endif
}

/// silu(gate) · up.
OCTAVO_HOST_DEVICE inline float gated(float gate, float up) {
  return fast_quotient(gate, one_plus_exp(gate)) * up;
}

/// The gradients of a gate value and an up value.
struct GateGradients {
  float gate;
  float up;
};

/// silu(gate) · up.
struct SiluGate {
  OCTAVO_HOST_DEVICE static float gated(float gate, float up) { return detail::gated(gate, up); }

  /// With s = sigmoid(gate): dgate = dy · up · s · (1 + gate · (1 − s)), dup = dy · gate · s.
  OCTAVO_HOST_DEVICE static GateGradients gradients(float dy, float gate, float up) {
    const float s = fast_quotient(1.0f, one_plus_exp(gate));
    return {dy * up * s * (1.0f + gate * (1.0f - s)), dy * gate * s};
  }
};

/// gelu(gate) · up, with the tanh approximation of `gelu_forward`.
struct GeluGate {
  /// (1 + tanh(z)) / 2 for z = √(2/π) · (x + 0.044715 · x³): the sigmoid of 2 · z.
  OCTAVO_HOST_DEVICE static float sigmoid(float x) {
    constexpr float twice_root = 1.5957691216f;  // 2 · √(2/π)
    return fast_quotient(1.0f, one_plus_exp(twice_root * (x + 0.044715f * x * x * x)));
  }
  OCTAVO_HOST_DEVICE static float gated(float gate, float up) { return gate * sigmoid(gate) * up; }

  /// With s = sigmoid(2 · z): dgate = dy · up · (s + gate · s · (1 − s) · 2 · dz/dgate), dup = dy ·
  /// gate · s.
  OCTAVO_HOST_DEVICE static GateGradients gradients(float dy, float gate, float up) {
    const float s = sigmoid(gate);
    const float slope = 1.5957691216f + 0.2140644488f * gate * gate;  // 2 · dz/dgate
    return {dy * up * (s + gate * s * (1.0f - s) * slope), dy * gate * s};
  }
};

}  // namespace octavo::detail
