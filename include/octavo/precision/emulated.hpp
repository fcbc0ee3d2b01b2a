/// @file
/// Recipes whose casts are performed, but whose GEMMs do not need the formats' tensor cores.
#pragma once

#include <octavo/precision/policy.hpp>

namespace octavo OCTAVO_ABI {

/// Casts the operands of each GEMM as the recipe `P` does, and multiplies their values in FP32. For
/// research on the accuracy of recipes on hardware that does not multiply their formats. Rounding,
/// scales, statistics and saved states are those of `P`.
///
/// Only the `Cpu` device supports it yet. There it has the bits of `P`, which `Cpu` emulates in the
/// same way: an element is converted to FP32 and multiplied by the scale of its row or block in
/// FP32; products are summed in FP32 and multiplied by the scales of the tensors.
/// @tparam P  a precision that quantises, such as `Fp8Recipe<Delayed>`, `Mxfp8` or `Nvfp4`
template <class P>
struct Emulated {};

namespace detail {
template <class P>
inline constexpr bool is_emulated = false;
template <class P>
inline constexpr bool is_emulated<Emulated<P>> = true;
}  // namespace detail

/// Traits of `P`, with another name.
template <QuantizedPrecision P>
  requires(detail::PlainPrecision<P> && !detail::is_emulated<P>)
struct PrecisionTraits<Emulated<P>> : PrecisionTraits<P> {
  static std::string name() { return "emulated " + PrecisionTraits<P>::name(); }
};

template <class P>
inline constexpr bool runs_on<Emulated<P>, Cuda> = false;

}  // namespace octavo
