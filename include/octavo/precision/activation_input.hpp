/// @file
/// The format that the activation of an MLP reads.
#pragma once

#include <octavo/precision/policy.hpp>

#include <type_traits>

namespace octavo OCTAVO_ABI {

/// The format in which the first projection of an MLP writes its result, which the activation reads
/// in the forward and again in the backward.
enum class ActivationInput {
  storage,  ///< the format of activations between GEMMs
  /// E4M3 without a scale: the GEMM rounds its FP32 sums to 4 significant bits. Values above 448
  /// saturate, which the activation counts, and values below 2^-6 lose bits; a layer's usual values
  /// lie far from both. This halves the bytes that the GEMM writes and the activation reads, and
  /// the memory that the backward needs for them. It applies to projections whose GEMMs have one
  /// FP8 scale per tensor, and not to generation of text.
  e4m3
};

namespace detail {

/// Whether GEMMs of precision `P` can write E4M3: their operands are FP8 with one scale per tensor.
template <class P>
inline constexpr bool writes_e4m3 = false;
template <QuantizedPrecision P>
inline constexpr bool writes_e4m3<P> =
    is_per_tensor<typename PrecisionTraits<P>::ScalingType> && !is_emulated<P>;

}  // namespace detail

}  // namespace octavo
