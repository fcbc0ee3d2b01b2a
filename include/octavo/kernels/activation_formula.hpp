/// @file
/// Activations of one element, shared by all devices.
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

/// gelu(x) / x in its tanh approximation: (1 + tanh(z)) / 2 for z = √(2/π) · (x + 0.044715 · x³),
/// which is the sigmoid of 2 · z.
OCTAVO_HOST_DEVICE inline float gelu_sigmoid(float x) {
  constexpr float twice_root = 1.5957691216f;  // 2 · √(2/π)
  return fast_quotient(1.0f, one_plus_exp(twice_root * (x + 0.044715f * x * x * x)));
}

/// The derivative of gelu(x).
/// @param s  gelu_sigmoid(x)
OCTAVO_HOST_DEVICE inline float gelu_derivative(float x, float s) {
  const float slope = 1.5957691216f + 0.2140644488f * x * x;  // 2 · dz/dx
  return s + x * s * (1.0f - s) * slope;
}

/// The gradients of a gate value and an up value.
struct GateGradients {
  float gate;
  float up;
};

/// silu(gate) · up.
struct SiluGate {
  OCTAVO_HOST_DEVICE static float gated(float gate, float up) {
    return fast_quotient(gate, one_plus_exp(gate)) * up;
  }

  /// With s = sigmoid(gate): dgate = dy · up · s · (1 + gate · (1 − s)), dup = dy · gate · s.
  OCTAVO_HOST_DEVICE static GateGradients gradients(float dy, float gate, float up) {
    const float s = fast_quotient(1.0f, one_plus_exp(gate));
    return {dy * up * s * (1.0f + gate * (1.0f - s)), dy * gate * s};
  }
};

/// gelu(gate) · up, with the tanh approximation of `gelu_forward`.
struct GeluGate {
  OCTAVO_HOST_DEVICE static float gated(float gate, float up) {
    return gate * gelu_sigmoid(gate) * up;
  }

  /// dgate = dy · up · gelu'(gate), dup = dy · gelu(gate).
  OCTAVO_HOST_DEVICE static GateGradients gradients(float dy, float gate, float up) {
    const float s = gelu_sigmoid(gate);
    return {dy * up * gelu_derivative(gate, s), dy * gate * s};
  }
};

}  // namespace octavo::detail
