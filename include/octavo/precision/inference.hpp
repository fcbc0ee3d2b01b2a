/// @file
/// The precision of inference-only linear layers: weights in the format of a training precision,
/// activations in the storage format.
#pragma once

#include <octavo/precision/layer_precision.hpp>
#include <octavo/precision/layerwise.hpp>

#include <string>
#include <type_traits>

namespace octavo OCTAVO_ABI {

/// The precision of an inference-only linear layer or model. Only the weights that `P` would
/// quantise are quantised, to E4M3, with scales that are computed once. Activations are not
/// quantised: for few tokens, reading the weights takes most of the time, so rounding the
/// activations would not save any.
/// @tparam P  `Fp32`, `Bf16`, `Fp8Recipe<…>`, `Mxfp8`, `AllowFallback` of one, or for a model
///            `Layerwise` of these
template <class P>
struct Inference {};

/// Traits of `P` with only the weights quantised.
template <detail::PlainPrecision P>
struct PrecisionTraits<Inference<P>> {
  using Storage = typename PrecisionTraits<P>::Storage;
  static constexpr bool is_quantized = false;
  static constexpr int shape_multiple = PrecisionTraits<P>::shape_multiple;
  static std::string name() {
    return PrecisionTraits<P>::name() + (PrecisionTraits<P>::is_quantized ? " weights" : "");
  }
};
template <detail::PlainPrecision P>
struct PrecisionTraits<Inference<AllowFallback<P>>> : PrecisionTraits<Inference<P>> {
  static constexpr int shape_multiple = 1;
};

/// Whether a layer's precision is `Inference<…>`.
template <class P>
inline constexpr bool is_inference_precision = false;
template <class P>
inline constexpr bool is_inference_precision<Inference<P>> = true;

namespace detail {

template <class P>
struct PrecisionCheck<Inference<P>> {
  static_assert(sizeof(Inference<P>) == 0,
                "Inference: it is the precision of an InferenceModel, which adds it itself, and "
                "has no gradients to train with; remove Inference");
};
template <class P>
inline constexpr bool is_outermost<Inference<P>> = true;

template <class P>
struct WithoutInferenceOf {
  using type = P;
};
template <class P>
struct WithoutInferenceOf<Inference<P>> : PrecisionCheck<Inference<P>> {
  using type = P;
};
/// `P`, after rejecting `Inference<…>`.
template <class P>
using WithoutInference = typename WithoutInferenceOf<P>::type;

template <class P, int In, int Out, Device D>
struct ForLayer<Inference<P>, In, Out, D> {
  using type = Inference<typename ForLayer<P, In, Out, D>::type>;
};
template <class P, int Layer, int Layers, LinearRole Role, class Roles>
struct Resolve<Inference<P>, Layer, Layers, Role, Roles> {
  using type = Inference<typename Resolve<P, Layer, Layers, Role, Roles>::type>;
};
template <class P>
struct ModelPrecisionTraits<Inference<P>> : ModelPrecisionTraits<P> {
  /// Attention to a KV cache multiplies in the storage format.
  static constexpr AttentionForward attention_forward = AttentionForward::storage;
  /// Without a backward, the result of the first projection is not kept.
  static constexpr ActivationInput activation_input = ActivationInput::storage;
  static std::string name() { return ModelPrecisionTraits<P>::name_of_layers(); }
};

/// How a weight that is kept in FP8 is cast; `void` for a weight that is kept in the storage
/// format.
template <class P>
struct KeptWeight {
  using Cast = void;
};
template <QuantizedPrecision P>
struct KeptWeight<P> {
  using S = typename PrecisionTraits<P>::ScalingType;
  /// A delayed scale depends on earlier steps, which inference does not have; the weight's own amax
  /// replaces it.
  using Cast = std::conditional_t<is_delayed<S>, Fp8Recipe<TensorwiseScaling<rounding_of<S>>>, P>;
};

}  // namespace detail

}  // namespace octavo
