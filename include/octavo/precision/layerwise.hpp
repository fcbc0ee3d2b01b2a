/// @file
/// Precisions that differ between the layers of a model.
#pragma once

#include <octavo/precision/activation_input.hpp>
#include <octavo/precision/attention_forward.hpp>
#include <octavo/precision/layerwise_parts.hpp>

#include <algorithm>
#include <array>
#include <string>
#include <type_traits>
#include <utility>

namespace octavo OCTAVO_ABI {
namespace detail {

/// Rejects `First` and `Last` if they select more blocks than the model has. g++ and clang print
/// both numbers.
template <int Edges, int Layers>
struct EdgeCheck {
  static_assert(Edges <= Layers,
                "Layerwise: First and Last together select more blocks than the model has layers; "
                "select fewer");
  static constexpr bool cover_all = Edges == Layers;
};

/// Whether the result of a linear layer may be the input of an activation, as that of `gate_up` and
/// those of custom roles.
constexpr bool may_precede_activation(LinearRole role) {
  return role != LinearRole::qkv && role != LinearRole::output && role != LinearRole::down;
}
/// The precision of a role in blocks that neither `First` nor `Last` selects.
template <LinearRole Role, class... Parts>
using NamedOrBase =
    typename FirstOf<PrecisionIf<Parts, PartTraits<Parts>::names(Role)>..., BaseOf<Parts...>>::type;
/// Whether an activation could read E4M3 in such blocks.
template <class... Parts, LinearRole... Roles>
constexpr bool activation_could_read_e4m3(LinearRoles<Roles...>) {
  return ((may_precede_activation(Roles) && writes_e4m3<NamedOrBase<Roles, Parts...>>) || ...);
}

/// Rejects parts in which no linear layer of a model of `Layers` blocks would run, and
/// `ForActivation` if no activation would read E4M3.
/// @tparam Roles  of the linear layers of all blocks
template <int Layers, class Roles, class... Parts>
struct EffectCheck : PartsCheck<Parts...> {
  using Edges = EdgeCheck<(PartTraits<Parts>::blocks + ... + 0), Layers>;
  using Base = BaseOf<Parts...>;
  static_assert((role_exists<Parts, Roles>() && ...));
  static constexpr int roles = block_roles_named<Parts...>();
  static constexpr bool head_runs_in_base =
      !PrecisionTraits<Base>::is_quantized && times_named<Parts...>(LinearRole::head) == 0;
  static constexpr bool base_runs =
      head_runs_in_base || (!Edges::cover_all && roles < count_roles(Roles{}));
  static_assert(
      base_runs,
      "Layerwise: no linear layer would run in the base precision, because First and Last, or For, "
      "select all of them; select fewer blocks or roles, or make one of these precisions the base");
  static_assert(
      !base_runs || !Edges::cover_all || roles == 0,
      "Layerwise: For<role, P> would have no effect in any block, because First and Last, which "
      "take precedence, select all blocks; select fewer blocks, or remove For");
  static constexpr bool edges_write_e4m3 =
      ((PartTraits<Parts>::blocks > 0 && writes_e4m3<typename PartTraits<Parts>::Precision>) ||
       ...);
  static_assert(
      EffectCheck::activations == 0 || edges_write_e4m3 ||
          activation_could_read_e4m3<Parts...>(Roles{}),
      "Layerwise: ForActivation<E4M3> needs GEMMs in FP8 with one scale per tensor before "
      "activations; use Fp8Recipe<Delayed> or Fp8Recipe<Tensorwise> for gate_up, or remove "
      "ForActivation");
};

template <class P, int Layer, int Layers, LinearRole Role, class Roles>
struct Resolve {
  using Base = CheckedPrecision<P>;
  using type =
      std::conditional_t<Role == LinearRole::head, typename PrecisionTraits<Base>::Storage, Base>;
};
template <class... Parts, int Layer, int Layers, LinearRole Role, class Roles>
struct Resolve<Layerwise<Parts...>, Layer, Layers, Role, Roles> {
  static_assert(sizeof(EffectCheck<Layers, Roles, Parts...>) > 0);  // reports what is wrong

  template <class Part>
  static constexpr bool at_edge =
      Role != LinearRole::head &&
      ((PartTraits<Part>::is_first && Layer < PartTraits<Part>::blocks) ||
       (PartTraits<Part>::is_last && Layer >= Layers - PartTraits<Part>::blocks));
  using Base = BaseOf<Parts...>;
  using Otherwise = typename Resolve<Base, Layer, Layers, Role, Roles>::type;
  using Found =
      typename FirstOf<PrecisionIf<Parts, at_edge<Parts>>...,
                       PrecisionIf<Parts, PartTraits<Parts>::names(Role)>..., Otherwise>::type;
  // A part with another storage format is rejected; using the base instead prints no further
  // errors.
  using type = std::conditional_t<std::is_same_v<typename PrecisionTraits<Found>::Storage,
                                                 typename PrecisionTraits<Base>::Storage>,
                                  Found, Base>;
};

template <class P>
struct ModelPrecisionTraits {
  using Storage = typename PrecisionTraits<CheckedPrecision<P>>::Storage;
  static constexpr bool quantises = QuantizedPrecision<P>;
  static constexpr AttentionForward attention_forward = AttentionForward::storage;
  static constexpr ActivationInput activation_input = ActivationInput::storage;
  static std::string name() { return PlainTraits<P>::name(); }
  static std::string name_of_layers() { return name(); }
};
template <class... Parts>
struct ModelPrecisionTraits<Layerwise<Parts...>> {
  using Storage = typename PartsCheck<Parts...>::Storage;
  static constexpr bool quantises =
      (QuantizedPrecision<typename PartTraits<Parts>::Precision> || ...);
  static constexpr AttentionForward attention_forward =
      (is_for_attention<Parts> || ...) ? AttentionForward::eight_bit : AttentionForward::storage;
  static constexpr ActivationInput activation_input =
      (is_for_activation<Parts> || ...) ? ActivationInput::e4m3 : ActivationInput::storage;
  /// Returns the name of a recipe, independent of the order of its parts.
  static std::string name() { return name_up_to(option_place); }
  /// Returns the name without `ForAttention` and `ForActivation`.
  static std::string name_of_layers() { return name_up_to(option_place - 1); }

 private:
  static std::string name_up_to(int last_place) {
    std::array<std::pair<int, std::string>, sizeof...(Parts)> parts{
        {{PartTraits<Parts>::place, PartTraits<Parts>::name()}...}};
    std::sort(parts.begin(), parts.end());
    std::string text;
    for (const auto& [place, part] : parts) {
      if (place <= last_place) text += (text.empty() ? "" : ", ") + part;
    }
    return text;
  }
};

}  // namespace detail

/// The precision of one linear layer of a model.
/// @tparam Layer  index of the block, from 0; ignored for the head
/// @tparam Roles  of the linear layers of all blocks, which parts of a `Layerwise` may name
template <class P, int Layer, int Layers, LinearRole Role, class Roles = DefaultRoles>
using PrecisionOf = typename detail::Resolve<P, Layer, Layers, Role, Roles>::type;

/// The format of weights and activations between GEMMs in a model of precision `P`.
template <class P>
using StorageOf = typename detail::ModelPrecisionTraits<P>::Storage;

/// Whether any linear layer of a model of precision `P` quantises, or would if its shape allowed
/// it.
template <class P>
inline constexpr bool model_quantises = detail::ModelPrecisionTraits<P>::quantises;

/// The format of attention's forward in a model of precision `P`.
template <class P>
inline constexpr AttentionForward attention_forward_of =
    detail::ModelPrecisionTraits<P>::attention_forward;

/// What the activations of MLPs read in a model of precision `P`.
template <class P>
inline constexpr ActivationInput activation_input_of =
    detail::ModelPrecisionTraits<P>::activation_input;

/// Returns the precision's name, such as "fp8-delayed".
template <class P>
std::string precision_name() {
  return detail::ModelPrecisionTraits<P>::name();
}

}  // namespace octavo
