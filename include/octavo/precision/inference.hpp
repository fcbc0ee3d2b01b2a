/// @file
/// The precision of linear layers that only infer: weights in the format of a training precision,
/// activations as they are stored.
#pragma once

#include <octavo/precision/layer_precision.hpp>
#include <octavo/precision/layerwise.hpp>

#include <string>
#include <type_traits>

namespace octavo OCTAVO_ABI {

/// A linear layer, or a model, that is not trained. What `P` quantises, it keeps of weights alone:
/// in E4M3, by scales that are found once. Activations are not quantised: where few tokens are
/// worked on, the time is that of reading weights, and rounding what is multiplied with them would
/// save none.
/// @tparam P  `Fp32`, `Bf16`, `Fp8Recipe<…>`, `Mxfp8`, `AllowFallback` of one, or for a model
///            `Layerwise` of these
template <class P>
struct Inference {};

/// Those of `P` in which nothing but weights is quantised.
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

namespace detail {

template <class P, int Layer, int Layers, LinearRole Role>
struct Resolve<Inference<P>, Layer, Layers, Role> {
  using type = Inference<typename Resolve<P, Layer, Layers, Role>::type>;
};
template <class P>
struct ModelPrecisionTraits<Inference<P>> : ModelPrecisionTraits<P> {};

/// How a weight is cast that is kept in FP8; `void` for one that is kept as it is stored.
template <class P>
struct KeptWeight {
  using Cast = void;
};
template <QuantizedPrecision P>
struct KeptWeight<P> {
  using S = typename PrecisionTraits<P>::ScalingType;
  /// A delayed scale waits for steps, and there are none: that of the weight's own amax takes its
  /// place.
  using Cast = std::conditional_t<is_delayed<S>, Fp8Recipe<TensorwiseScaling<rounding_of<S>>>, P>;
};

}  // namespace detail

}  // namespace octavo
