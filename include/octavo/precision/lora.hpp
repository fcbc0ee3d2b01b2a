/// @file
/// Low-rank adapters as a precision: layers whose weights stay as they are, beside which small
/// matrices are trained.
#pragma once

#include <octavo/precision/layerwise.hpp>

#include <string>
#include <type_traits>

namespace octavo OCTAVO_ABI {

/// LoRA: nothing of a model in precision `P` is trained but adapters beside its linear layers,
/// y = x · Wᵀ + (alpha / rank) · x · Aᵀ · Bᵀ. `Llama<llama3_8b, Lora<Fp8Recipe<Delayed>>, Cuda>`
/// has the weights of `Llama<llama3_8b, Fp8Recipe<Delayed>, Cuda>` and multiplies with them in the
/// same precision, but they are frozen: they have no gradients and no optimizer's state. Adapters
/// have the storage format of `P`. What changes no shape outside of an adapter is a value:
/// `LoraOptions`.
///
/// A linear layer of this precision takes its operands as values and casts them itself, because
/// adapters multiply with the values, too.
/// Source: Hu et al. 2021, arXiv 2106.09685.
template <class P>
struct Lora {};

template <class P>
struct PrecisionTraits<Lora<P>> {
  using Storage = typename PrecisionTraits<P>::Storage;
  static constexpr bool is_quantized = false;  ///< what others write for it are values
  static constexpr int shape_multiple = PrecisionTraits<P>::shape_multiple;
  static std::string name() { return PrecisionTraits<P>::name(); }
};

/// What the names of such precisions end with.
inline constexpr const char* lora_suffix = " with LoRA";

namespace detail {

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

/// The precision that a frozen weight is cast in: scales that come from the amax of earlier steps
/// are that of the weight at hand, because it does not change.
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
  using type = Lora<typename ForLayer<P, In, Out, D>::type>;
};
template <class P, int Layer, int Layers, LinearRole Role>
struct Resolve<Lora<P>, Layer, Layers, Role> {
  using type = Lora<typename Resolve<P, Layer, Layers, Role>::type>;
};
template <class P>
struct ModelPrecisionTraits<Lora<P>> {
  using Storage = typename ModelPrecisionTraits<P>::Storage;
  static constexpr bool quantises = ModelPrecisionTraits<P>::quantises;
  static std::string name() { return ModelPrecisionTraits<P>::name() + lora_suffix; }
};

}  // namespace detail

/// Whether the weights of a layer, or of a model, of precision `P` are frozen: `Lora<…>`.
template <class P>
inline constexpr bool is_lora = detail::FrozenTraits<P>::is_frozen;

/// What `Lora<…>` stands around; any other precision itself.
template <class P>
using BasePrecision = typename detail::FrozenTraits<P>::Base;

}  // namespace octavo
