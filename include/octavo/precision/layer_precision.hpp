/// @file
/// The precision that a linear layer runs in, and what the compiler says where it cannot.
#pragma once

#include <octavo/precision/policy.hpp>

namespace octavo OCTAVO_ABI {
namespace detail {

template <class P>
concept HasScalingWithMembers = requires {
  typename PrecisionTraits<P>::ScalingType;
  requires HasScalingMembers<typename PrecisionTraits<P>::ScalingType>;
};

/// True, once the scaling of a policy has said which rule it breaks.
template <class P>
inline constexpr bool scaling_is_checked = true;
template <HasScalingWithMembers P>
inline constexpr bool scaling_is_checked<P> =
    sizeof(ScalingCheck<typename PrecisionTraits<P>::ScalingType>) > 0;

/// Refuses what is no precision, in one sentence that names what `PrecisionTraits<P>` lacks.
template <class P>
struct PrecisionCheck {
  static constexpr bool has_traits = HasTraits<P>;
  static constexpr bool quantizes = says_quantized<P>;

  static_assert(has_traits,
                "a precision must be Fp32, Bf16, Fp8Recipe<...>, Mxfp8, AllowFallback<...> or a "
                "type with PrecisionTraits of its own; a model's may also be Layerwise<...> of "
                "these, which does not nest");
  static_assert(!has_traits || HasStorage<P>,
                "PrecisionTraits: Storage, the format of weights and activations between GEMMs, "
                "must be Bf16 or Fp32; write `using Storage = Bf16;`");
  static_assert(!has_traits || HasIsQuantized<P>,
                "PrecisionTraits: is_quantized must say whether GEMM operands are quantised first; "
                "write `static constexpr bool is_quantized = true;`");
  static_assert(!has_traits || HasShapeMultiple<P>,
                "PrecisionTraits: shape_multiple must be what a layer's features are multiples of, "
                "at least 1; write `static constexpr int shape_multiple = 16;`");
  static_assert(!has_traits || HasName<P>,
                "PrecisionTraits: name() must return what manifests print; write `static "
                "std::string name() { return \"...\"; }`");
  static_assert(!quantizes || scaling_is_checked<P>);
  static_assert(!quantizes || HasScalingWithMembers<P>,
                "PrecisionTraits: ScalingType of a policy that quantises must be a scaling; write "
                "`using ScalingType = Delayed;`, or Tensorwise, Rowwise, Blockwise, MxScaling, one "
                "of them with parameters, or a type with the members that the concept Scaling "
                "names");
  static_assert(!quantizes || HasForwardFormat<P>,
                "PrecisionTraits: ForwardFormat, of a quantised policy's inputs and weights, must "
                "be E4M3; write `using ForwardFormat = E4M3;`");
  static_assert(!quantizes || HasBackwardFormat<P>,
                "PrecisionTraits: BackwardFormat, of a quantised policy's gradients, must be E4M3 "
                "or E5M2; write `using BackwardFormat = E5M2;`");
};
template <class S, class Formats>
struct PrecisionCheck<Fp8Recipe<S, Formats>> {
  static_assert(sizeof(Fp8Recipe<S, Formats>) > 0);  // which says what is wrong with it
};
template <class P>
struct PrecisionCheck<AllowFallback<P>> : PrecisionCheck<P> {
  static_assert(!is_allow_fallback<P>,
                "AllowFallback: it stands around a precision once; take one AllowFallback away");
};

/// `P`, or BF16 in its place where it is refused, so that nothing else is.
template <class P>
struct CheckedPrecisionOf : PrecisionCheck<P> {
  using type = std::conditional_t<LinearPrecision<P>, P, Bf16>;
};
template <class P>
using CheckedPrecision = typename CheckedPrecisionOf<P>::type;

/// Refuses a shape that a linear layer in precision `P` cannot have. g++ names `Multiple` in the
/// line "In instantiation of".
template <class P, int In, int Out, int Multiple>
struct FeatureCheck {
  static constexpr bool fits = In % Multiple == 0 && Out % Multiple == 0;
  static_assert(
      fits,
      "Linear: the input and output features must be multiples of what the precision asks for: "
      "its shape_multiple, its scaling's, and the columns of its scaling's blocks; change the "
      "model's hidden, ffn or head sizes, or write AllowFallback around the precision");
};
template <ScaleRounding Rounding, class Formats, int In, int Out>
struct FeatureCheck<Fp8Recipe<BlockwiseScaling<Rounding>, Formats>, In, Out, 128> {
  static_assert(
      In % 128 == 0 && Out % 128 == 0,
      "Fp8Recipe<Blockwise>: a linear layer's input and output features must be multiples "
      "of 128; change the model's hidden, ffn or head sizes, choose "
      "Fp8Recipe<Tensorwise>, or write AllowFallback<Fp8Recipe<Blockwise>>");
};
template <class Formats, int In, int Out>
struct FeatureCheck<Fp8Recipe<MxScaling, Formats>, In, Out, 32> {
  static_assert(In % 32 == 0 && Out % 32 == 0,
                "Mxfp8: a linear layer's input and output features must be multiples of 32; change "
                "the model's hidden, ffn or head sizes, or write AllowFallback<Mxfp8>");
};
template <class S, class Formats, int In, int Out>
struct FeatureCheck<Fp8Recipe<S, Formats>, In, Out, 16> {
  static_assert(In % 16 == 0 && Out % 16 == 0,
                "Fp8Recipe: a linear layer's input and output features must be multiples of 16; "
                "change the model's hidden, ffn or head sizes, or write AllowFallback around the "
                "recipe");
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

/// Refuses what a linear layer of this precision, shape and device cannot be.
template <LinearPrecision P, int In, int Out, Device D>
struct LayerCheck : FeatureCheck<P, In, Out, feature_multiple<P>()> {
  static_assert(
      runs_on<P, D>,
      "Linear: no GPU that this library serves multiplies the blocks of this scaling, such as "
      "Mxfp8's; choose Fp8Recipe<Blockwise>, write AllowFallback around the precision, or run it "
      "on Cpu, which emulates it");
};

}  // namespace detail

/// The precision that a linear layer of this shape really runs in on device `D`.
template <class P, int In, int Out, Device D>
using PrecisionForLayer = typename detail::ForLayer<P, In, Out, D>::type;

}  // namespace octavo
