/// @file
/// Precision policies for a linear layer: `Fp32`, `Bf16`, `Fp8Recipe`, `Mxfp8`, `AllowFallback`.
#pragma once

#include <octavo/core/device.hpp>
#include <octavo/precision/scaling.hpp>

#include <string>
#include <type_traits>

namespace octavo {

/// E4M3 forwards, E5M2 for gradients with respect to outputs.
struct Hybrid {
  using Forward = E4M3;
  using Backward = E5M2;
};

/// E4M3 forwards and backwards.
struct E4M3Only {
  using Forward = E4M3;
  using Backward = E4M3;
};

/// E5M2 forwards and backwards: not a recipe that trains, and no hardware multiplies E5M2 by E5M2.
struct E5M2Only {
  using Forward = E5M2;
  using Backward = E5M2;
};

namespace detail {
template <class S>
struct DefaultFormats {
  using type = Hybrid;
};
template <ScaleRounding R>
struct DefaultFormats<BlockwiseScaling<R>> {
  using type = E4M3Only;
};
template <>
struct DefaultFormats<MxScaling> {
  using type = E4M3Only;
};
}  // namespace detail

/// FP8 GEMMs in a linear layer: forward, input gradient and weight gradient. Weights and
/// activations are stored as BF16 between GEMMs.
/// @tparam S        `Delayed`, `Tensorwise`, `Blockwise` or one with other parameters
/// @tparam Formats  `Hybrid` or `E4M3Only`; block scaling defaults to `E4M3Only`
template <class S, class Formats = typename detail::DefaultFormats<S>::type>
struct Fp8Recipe {
  static_assert(Scaling<S>,
                "Fp8Recipe: the first argument must be a scaling: Delayed, Tensorwise, Blockwise, "
                "or one of them with parameters, such as DelayedScaling<16>");
  static_assert(!std::is_same_v<Formats, E5M2Only>,
                "Fp8Recipe: pure E5M2 has too little precision forwards and no GEMM on any GPU; "
                "choose Hybrid (E4M3 forwards, E5M2 backwards) or E4M3Only");
};

/// MXFP8: E4M3 with an E8M0 scale for each 32 elements. Native on sm_100 and above.
using Mxfp8 = Fp8Recipe<MxScaling>;

/// Runs `P` where a layer's shape and device can, and BF16 where they cannot. The manifest says
/// which; without this wrapper, a layer that cannot run in `P` does not compile.
template <class P>
struct AllowFallback {};

/// What the library knows of a precision policy. Specialise it for a policy of your own.
/// `Storage` is the format of weights and activations between GEMMs; `is_quantized` says whether
/// GEMM operands are quantised first, and then `ScalingType`, `ForwardFormat` and `BackwardFormat`
/// say how.
template <class P>
struct PrecisionTraits;

template <>
struct PrecisionTraits<Fp32> {
  using Storage = float;
  static constexpr bool is_quantized = false;
  static constexpr int shape_multiple = 1;
  static std::string name() { return "fp32"; }
};

template <>
struct PrecisionTraits<Bf16> {
  using Storage = Bf16;
  static constexpr bool is_quantized = false;
  static constexpr int shape_multiple = 1;
  static std::string name() { return "bf16"; }
};

template <class S, class Formats>
struct PrecisionTraits<Fp8Recipe<S, Formats>> {
  using Storage = Bf16;
  static constexpr bool is_quantized = true;
  using ScalingType = S;
  using ForwardFormat = typename Formats::Forward;
  using BackwardFormat = typename Formats::Backward;
  static constexpr int shape_multiple = S::shape_multiple;
  static std::string name() {
    return std::is_same_v<S, MxScaling> ? "mxfp8" : std::string("fp8 ") + S::name;
  }
};

template <class P>
struct PrecisionTraits<AllowFallback<P>> {
  using Storage = typename PrecisionTraits<P>::Storage;
  static constexpr bool is_quantized = PrecisionTraits<P>::is_quantized;
  static std::string name() { return PrecisionTraits<P>::name() + " or bf16"; }
};

namespace detail {
template <class P>
inline constexpr bool is_allow_fallback = false;
template <class P>
inline constexpr bool is_allow_fallback<AllowFallback<P>> = true;
}  // namespace detail

/// A precision that one linear layer runs in: `Fp32`, `Bf16`, `Fp8Recipe<…>`, `Mxfp8`, or a type
/// with a `PrecisionTraits` of its own.
template <class P>
concept LinearPrecision = requires {
  typename PrecisionTraits<P>::Storage;
  { PrecisionTraits<P>::is_quantized } -> std::convertible_to<bool>;
  { PrecisionTraits<P>::name() } -> std::convertible_to<std::string>;
};

/// A precision whose GEMM operands are quantised.
template <class P>
concept QuantizedPrecision = LinearPrecision<P> && PrecisionTraits<P>::is_quantized;

/// Whether GEMMs of this precision run on this device: the `Cpu` emulates every format; the GPUs
/// that this library serves have no tensor cores for MX blocks.
template <class P, Device D>
inline constexpr bool runs_on = true;
template <class S, class Formats>
inline constexpr bool runs_on<Fp8Recipe<S, Formats>, Cuda> = !std::is_same_v<S, MxScaling>;

namespace detail {
/// Resolves `AllowFallback` for the shape of a linear layer and its device.
template <class P, int In, int Out, Device D>
struct ForLayer {
  using type = P;
};
template <class P, int In, int Out, Device D>
struct ForLayer<AllowFallback<P>, In, Out, D> {
  static constexpr int multiple = PrecisionTraits<P>::shape_multiple;
  static constexpr bool fits = In % multiple == 0 && Out % multiple == 0;
  using type = std::conditional_t<fits && runs_on<P, D>, P, Bf16>;
};
}  // namespace detail

/// The precision that a linear layer of this shape really runs in on device `D`.
template <class P, int In, int Out, Device D>
using PrecisionForLayer = typename detail::ForLayer<P, In, Out, D>::type;

}  // namespace octavo
