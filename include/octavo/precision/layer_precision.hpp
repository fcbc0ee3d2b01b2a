/// @file
/// Selection of a linear layer's precision, with compile-time diagnostics.
#pragma once

#include <octavo/precision/emulated.hpp>

namespace octavo OCTAVO_ABI {
namespace detail {

template <class P>
concept HasScalingWithMembers = requires {
  typename PrecisionTraits<P>::ScalingType;
  requires HasScalingMembers<typename PrecisionTraits<P>::ScalingType>;
};

/// True; instantiating it reports the rule that a policy's scaling breaks.
template <class P>
inline constexpr bool scaling_is_checked = true;
template <HasScalingWithMembers P>
inline constexpr bool scaling_is_checked<P> =
    sizeof(ScalingCheck<typename PrecisionTraits<P>::ScalingType>) > 0;

/// Rejects types that are not precisions, with one message that names the missing member of
/// `PrecisionTraits<P>`.
template <class P>
struct PrecisionCheck {
  static constexpr bool has_traits = HasTraits<P>;
  static constexpr bool quantizes = declares_quantized<P>;

  static_assert(
      has_traits,
      "a precision must be Fp32, Bf16, Fp8Recipe<...>, Mxfp8, Nvfp4, AllowFallback<...> or a type "
      "with a custom PrecisionTraits; a model also accepts Layerwise<...> of these, which does not "
      "nest, and Lora<...> of either");
  static_assert(!has_traits || HasStorage<P>,
                "PrecisionTraits: Storage, the format of weights and activations between GEMMs, "
                "must be Bf16 or Fp32; add `using Storage = Bf16;`");
  static_assert(!has_traits || HasIsQuantized<P>,
                "PrecisionTraits: is_quantized must define whether GEMM operands are quantised "
                "first; add `static constexpr bool is_quantized = true;`");
  static_assert(
      !has_traits || HasShapeMultiple<P>,
      "PrecisionTraits: shape_multiple, of which a layer's features must be multiples, must be "
      "at least 1; add `static constexpr int shape_multiple = 16;`");
  static_assert(!has_traits || HasName<P>,
                "PrecisionTraits: name() must return the name that manifests print; add `static "
                "std::string name() { return \"...\"; }`");
  static_assert(!quantizes || scaling_is_checked<P>);
  static_assert(
      !quantizes || HasScalingWithMembers<P>,
      "PrecisionTraits: ScalingType of a policy that quantises must be a scaling; add `using "
      "ScalingType = Delayed;`, or Tensorwise, Rowwise, Blockwise, MxScaling, NvScaling, one of "
      "them "
      "with parameters, or a type with the members required by the concept Scaling");
  static_assert(!quantizes || HasForwardFormat<P>,
                "PrecisionTraits: ForwardFormat, of a quantised policy's inputs and weights, must "
                "be E4M3; add `using ForwardFormat = E4M3;`, or E2M1 for NvScaling");
  static_assert(!quantizes || HasBackwardFormat<P>,
                "PrecisionTraits: BackwardFormat, of a quantised policy's gradients, must be E4M3 "
                "or E5M2; add `using BackwardFormat = E5M2;`, or E2M1 for NvScaling");
};
template <class S, class Formats, GemmAccumulation InputGradient, GemmAccumulation WeightGradient>
struct PrecisionCheck<Fp8Recipe<S, Formats, InputGradient, WeightGradient>> {
  // Reports what is wrong with it.
  static_assert(sizeof(Fp8Recipe<S, Formats, InputGradient, WeightGradient>) > 0);
};
template <class P>
struct PrecisionCheck<AllowFallback<P>> : PrecisionCheck<P> {
  static_assert(!is_allow_fallback<P>,
                "AllowFallback: it cannot be nested; remove one AllowFallback");
};

template <class P>
struct PrecisionCheck<Emulated<P>> {
  static_assert(LinearPrecision<Emulated<P>>,
                "Emulated: its argument must be a precision that quantises, such as "
                "Fp8Recipe<Delayed>, Mxfp8 or Nvfp4, without AllowFallback or another Emulated");
};

/// Whether no other precision may contain `P`, which is then an instance of `Lora` or `Inference`.
template <class P>
inline constexpr bool is_outermost = false;

/// `P`, or BF16 if `P` is rejected, so that no further errors follow.
template <class P>
struct CheckedPrecisionOf : PrecisionCheck<P> {
  using type = std::conditional_t<LinearPrecision<P> && !is_outermost<P>, P, Bf16>;
};
template <class P>
using CheckedPrecision = typename CheckedPrecisionOf<P>::type;

/// The argument of `Lora`, a precision of layers or of a model. Rejects only those that no other
/// may contain.
template <class P, bool IsOutermost = is_outermost<P>>
struct InnerPrecisionOf {
  using type = P;
};
template <class P>
struct InnerPrecisionOf<P, true> {
  using type = CheckedPrecision<P>;
};
template <class P>
using InnerPrecision = typename InnerPrecisionOf<P>::type;

/// Rejects shapes that a linear layer in precision `P` does not support. g++ prints `Multiple` in
/// the line "In instantiation of".
template <class P, int In, int Out, int Multiple>
struct FeatureCheck {
  static constexpr bool fits = In % Multiple == 0 && Out % Multiple == 0;
  static_assert(
      fits,
      "Linear: the input and output features must be multiples of the precision's shape_multiple, "
      "its scaling's shape_multiple and the columns of its scaling's blocks; change the model's "
      "hidden, ffn or head sizes, or wrap the precision in AllowFallback");
};
template <ScaleRounding Rounding, class Formats, int In, int Out>
struct FeatureCheck<Fp8Recipe<BlockwiseScaling<Rounding>, Formats>, In, Out, 128> {
  static_assert(In % 128 == 0 && Out % 128 == 0,
                "Fp8Recipe<Blockwise>: a linear layer's input and output features must be "
                "multiples of 128; change the model's hidden, ffn or head sizes, choose "
                "Fp8Recipe<Tensorwise>, or use AllowFallback<Fp8Recipe<Blockwise>>");
};
template <class Formats, int In, int Out>
struct FeatureCheck<Fp8Recipe<MxScaling, Formats>, In, Out, 32> {
  static_assert(In % 32 == 0 && Out % 32 == 0,
                "Mxfp8: a linear layer's input and output features must be multiples of 32; change "
                "the model's hidden, ffn or head sizes, or use AllowFallback<Mxfp8>");
};
template <class S, class Formats, GemmAccumulation InputGradient, GemmAccumulation WeightGradient,
          int In, int Out>
struct FeatureCheck<Fp8Recipe<S, Formats, InputGradient, WeightGradient>, In, Out, 16> {
  static_assert(
      In % 16 == 0 && Out % 16 == 0,
      "Fp8Recipe: a linear layer's input and output features must be multiples of 16; change the "
      "model's hidden, ffn or head sizes, or wrap the recipe in AllowFallback");
};

/// Resolves `AllowFallback` for the shape of a linear layer and its device.
template <class P, int In, int Out, Device D>
struct ForLayer {
  using type = CheckedPrecision<P>;
};
template <class P, int In, int Out, Device D>
struct ForLayer<AllowFallback<P>, In, Out, D> {
  using Wanted = CheckedPrecision<P>;
  static constexpr int multiple = feature_multiple<Wanted>();
  static constexpr bool fits = In % multiple == 0 && Out % multiple == 0;
  using type = std::conditional_t<fits && runs_on<Wanted, D>, Wanted,
                                  typename PrecisionTraits<Wanted>::Storage>;
};

/// Rejects combinations of precision, shape and device that a linear layer does not support.
template <LinearPrecision P, int In, int Out, Device D>
struct LayerCheck : FeatureCheck<P, In, Out, feature_multiple<P>()> {
  static_assert(runs_on<P, D>,
                "Linear: the Cuda device does not multiply the blocks of this scaling; choose "
                "Fp8Recipe<Blockwise> or Mxfp8, wrap the precision in AllowFallback, or run it on "
                "Cpu, which emulates it");
};

}  // namespace detail

/// The precision in which a linear layer of this shape actually runs on device `D`.
template <class P, int In, int Out, Device D>
using PrecisionForLayer = typename detail::ForLayer<P, In, Out, D>::type;

}  // namespace octavo
