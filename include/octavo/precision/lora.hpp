/// @file
/// Low-rank adapters as a precision: weights of linear layers are frozen, and small matrices added
/// to them are trained.
#pragma once

#include <octavo/precision/layerwise.hpp>

#include <string>
#include <type_traits>

namespace octavo OCTAVO_ABI {

/// LoRA: only adapters of the linear layers of a model in precision `P` are trained, y = x · Wᵀ +
/// (alpha / rank) · x · Aᵀ · Bᵀ. `Llama<llama3_8b, Lora<Fp8Recipe<Delayed>>, Cuda>` has the weights
/// of `Llama<llama3_8b, Fp8Recipe<Delayed>, Cuda>` and multiplies with them in the same precision,
/// but they are frozen: they have neither gradients nor optimizer state. Adapters have the storage
/// format of `P`. Options that change only shapes within adapters are run-time values:
/// `LoraOptions`.
///
/// A linear layer of this precision receives plain values as operands and casts them itself,
/// because adapters also multiply with the values. Source: Hu et al. 2021, arXiv 2106.09685.
template <class P>
struct Lora {};

template <LinearPrecision P>
struct PrecisionTraits<Lora<P>> {
  using Storage = typename PrecisionTraits<P>::Storage;
  static constexpr bool is_quantized = false;  ///< callers write plain values for it
  static constexpr int shape_multiple = PrecisionTraits<P>::shape_multiple;
  static std::string name() { return PrecisionTraits<P>::name(); }
};

/// Suffix of the names of such precisions.
inline constexpr const char* lora_suffix = " with LoRA";

namespace detail {

template <class P>
struct PrecisionCheck<Lora<P>> {
  static_assert(sizeof(Lora<P>) == 0,
                "Lora: it must be the outermost template of a model's precision, not an argument "
                "of Layerwise, AllowFallback or another Lora; write it once around the others, "
                "such as Lora<Layerwise<First<1, Bf16>, Fp8Recipe<Delayed>>>");
};
template <class P>
inline constexpr bool is_outermost<Lora<P>> = true;

template <class P>
struct FrozenTraits {
  static constexpr bool is_frozen = false;
  using Base = P;
};
template <class P>
struct FrozenTraits<Lora<P>> {
  static constexpr bool is_frozen = true;
  using Base = P;
};

/// The precision in which a frozen weight is cast. A delayed scale is replaced by a current one,
/// because a frozen weight does not change.
template <class P>
struct FrozenWeight {
  using type = P;
};
template <QuantizedPrecision P>
  requires is_delayed<typename PrecisionTraits<P>::ScalingType>
struct FrozenWeight<P> {
  using type = Fp8Recipe<Tensorwise>;
};

template <class P, int In, int Out, Device D>
struct ForLayer<Lora<P>, In, Out, D> {
  using type = Lora<typename ForLayer<InnerPrecision<P>, In, Out, D>::type>;
};
template <class P, int Layer, int Layers, LinearRole Role, class Roles>
struct Resolve<Lora<P>, Layer, Layers, Role, Roles> {
  using type = Lora<typename Resolve<InnerPrecision<P>, Layer, Layers, Role, Roles>::type>;
};
template <class P>
struct ModelPrecisionTraits<Lora<P>> {
  using Base = ModelPrecisionTraits<InnerPrecision<P>>;
  using Storage = typename Base::Storage;
  static constexpr bool quantises = Base::quantises;
  static constexpr AttentionForward attention_forward = Base::attention_forward;
  static constexpr ActivationInput activation_input = Base::activation_input;
  static std::string name() { return Base::name() + lora_suffix; }
};

}  // namespace detail

/// Whether the weights of a layer or model of precision `P` are frozen: `Lora<…>`.
template <class P>
inline constexpr bool is_lora = detail::FrozenTraits<P>::is_frozen;

/// The precision that `Lora<…>` wraps; any other precision itself.
template <class P>
using BasePrecision = typename detail::FrozenTraits<P>::Base;

}  // namespace octavo
