/// @file
/// The random Hadamard transform of 16 values, shared by all devices.
/// Source: NVIDIA 2025, "Pretraining large language models with NVFP4", arXiv 2509.25149.
#pragma once

#include <octavo/formats/bf16.hpp>

namespace octavo OCTAVO_ABI::detail {

/// Length of the vectors that are transformed.
inline constexpr int hadamard_length = 16;
/// Bit i: whether element i is negated first. One random choice for all layers and steps, the same
/// as Transformer Engine's, so that both operands of a GEMM are rotated equally.
inline constexpr std::uint32_t hadamard_signs = 0b1101'0111'1110'1000u;

/// Replaces 16 values v by round(v · S · H / 4), with the diagonal matrix of signs S and the
/// Hadamard matrix H: a rotation that spreads outliers. The dot product of two rotated vectors
/// equals that of the original ones. Sums are in FP32, in four stages; results are rounded to BF16.
OCTAVO_HOST_DEVICE constexpr void rotate(float* values) {
  for (int i = 0; i < hadamard_length; ++i) {
    if ((hadamard_signs >> i & 1u) != 0) values[i] = -values[i];
  }
  for (int half = 1; half < hadamard_length; half *= 2) {
    for (int begin = 0; begin < hadamard_length; begin += 2 * half) {
      for (int i = begin; i < begin + half; ++i) {
        const float a = values[i];
        const float b = values[i + half];
        values[i] = a + b;
        values[i + half] = a - b;
      }
    }
  }
  for (int i = 0; i < hadamard_length; ++i) {
    values[i] = static_cast<float>(Bf16(values[i] * 0.25f));
  }
}

}  // namespace octavo::detail
