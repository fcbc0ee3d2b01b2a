/// @file
/// Recipes whose casts are performed, but whose GEMMs do not need the formats' tensor cores.
#pragma once

#include <octavo/precision/policy.hpp>

namespace octavo OCTAVO_ABI {

/// Casts the operands of each GEMM as the recipe `P` does, and multiplies their values. For
/// research on the accuracy of recipes on hardware that does not multiply their formats. Rounding,
/// scales, statistics and saved states are those of `P`.
///
/// An element is converted and multiplied by the scale of its row or block; products are summed in
/// FP32 and multiplied by the scales of the tensors. `Cpu` does all of this in FP32, with the bits
/// of `P`, which it emulates in the same way. `Cuda` rounds an element times its scale to BF16,
/// which is exact unless the scale is an FP32 number that is not a power of two, and multiplies in
/// BF16. It needs no FP8 GEMMs, so it runs on every GPU.
/// @tparam P  a precision that quantises, such as `Fp8Recipe<Delayed>`, `Mxfp8` or `Nvfp4`
template <class P>
struct Emulated {};

/// Traits of `P`, with another name.
template <QuantizedPrecision P>
  requires(detail::PlainPrecision<P> && !detail::is_emulated<P>)
struct PrecisionTraits<Emulated<P>> : PrecisionTraits<P> {
  static std::string name() { return "emulated " + PrecisionTraits<P>::name(); }
};

template <class P>
inline constexpr bool runs_on<Emulated<P>, Cuda> = runs_on<P, Cuda>;

}  // namespace octavo
