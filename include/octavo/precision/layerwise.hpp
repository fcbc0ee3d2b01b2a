/// @file
/// Precisions that differ between the layers of a model.
#pragma once

#include <octavo/core/error.hpp>
#include <octavo/precision/layer_precision.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <utility>

namespace octavo OCTAVO_ABI {

/// The linear layers of every family: the four of a block, and the head. `gate_up` is the MLP's
/// first projection, even if the activation has no gate.
enum class LinearRole { qkv, output, gate_up, down, head };

/// Returns the role's name, as printed in manifests and parameter names.
constexpr const char* name_of(LinearRole role) {
  constexpr std::array names{"qkv", "output", "gate_up", "down", "head"};
  return names[static_cast<std::size_t>(role)];
}

/// All roles.
inline constexpr std::array all_roles{LinearRole::qkv, LinearRole::output, LinearRole::gate_up,
                                      LinearRole::down, LinearRole::head};

/// The first `N` blocks run in `P`.
template <int N, class P>
struct First {};
/// The last `N` blocks run in `P`.
template <int N, class P>
struct Last {};
/// The head runs in `P`; by default, it runs in the storage format.
template <class P>
struct Head {};
/// Every linear layer of one role runs in `P`, except in blocks that `First` or `Last` selects.
template <LinearRole Role, class P>
struct For {};

/// A precision for each layer: one base policy, and the exceptions `First`, `Last`, `For` and
/// `Head` in any order, each at most once, `For` at most once per role. The order does not change
/// the name. When a model is laid out, a part in which no linear layer would run is rejected,
/// including the base.
template <class... Parts>
struct Layerwise {};

namespace detail {

struct NoPrecision {};

/// A template argument of `Layerwise`: a plain policy is the base; the others are exceptions.
template <class Part>
struct PartTraits {
  using Precision = CheckedPrecision<Part>;
  static constexpr bool is_base = true;
  static constexpr bool is_first = false;
  static constexpr bool is_last = false;
  static constexpr int blocks = 0;
  static constexpr int place = 5;  ///< position in a name
  static constexpr bool names(LinearRole) { return false; }
  static std::string name() { return PrecisionTraits<Precision>::name(); }
};
template <class P>
struct ExceptionTraits : PartTraits<P> {
  static constexpr bool is_base = false;
};
template <int N, class P>
struct PartTraits<First<N, P>> : ExceptionTraits<P> {
  static_assert(N > 0, "Layerwise: First<N, P> requires N > 0; omit it to select no block");
  static constexpr bool is_first = true;
  static constexpr int blocks = N;
  static constexpr int place = 0;
  static std::string name() { return message("first ", N, " ", PartTraits<P>::name()); }
};
template <int N, class P>
struct PartTraits<Last<N, P>> : ExceptionTraits<P> {
  static_assert(N > 0, "Layerwise: Last<N, P> requires N > 0; omit it to select no block");
  static constexpr bool is_last = true;
  static constexpr int blocks = N;
  static constexpr int place = 6;
  static std::string name() { return message("last ", N, " ", PartTraits<P>::name()); }
};
template <LinearRole Role, class P>
struct PartTraits<For<Role, P>> : ExceptionTraits<P> {
  static constexpr int place = Role == LinearRole::head ? 7 : 1 + static_cast<int>(Role);
  static constexpr bool names(LinearRole role) { return role == Role; }
  static std::string name() { return message(name_of(Role), " ", PartTraits<P>::name()); }
};
template <class P>
struct PartTraits<Head<P>> : PartTraits<For<LinearRole::head, P>> {};

/// The first of the candidates that is a precision.
template <class... Candidates>
struct FirstOf {
  using type = NoPrecision;
};
template <class Candidate, class... Candidates>
struct FirstOf<Candidate, Candidates...> {
  using type =
      typename std::conditional_t<!std::is_same_v<Candidate, NoPrecision>,
                                  std::type_identity<Candidate>, FirstOf<Candidates...>>::type;
};

/// The precision of a part, if requested.
template <class Part, bool Wanted>
using PrecisionIf = std::conditional_t<Wanted, typename PartTraits<Part>::Precision, NoPrecision>;

/// The base, or BF16 if there is none, which is rejected.
template <class... Parts>
using BaseOf = typename FirstOf<PrecisionIf<Parts, PartTraits<Parts>::is_base>..., Bf16>::type;

/// Number of parts that name this role.
template <class... Parts>
constexpr int times_named(LinearRole role) {
  return (static_cast<int>(PartTraits<Parts>::names(role)) + ... + 0);
}
template <class... Parts>
constexpr bool names_twice() {
  bool twice = false;
  for (const LinearRole role : all_roles) twice = twice || times_named<Parts...>(role) > 1;
  return twice;
}
template <class... Parts>
constexpr int block_roles_named() {
  int count = 0;
  for (const LinearRole role : all_roles) {
    if (role != LinearRole::head && times_named<Parts...>(role) > 0) ++count;
  }
  return count;
}

/// Rejects parts that contradict each other in a model of any depth.
template <class... Parts>
struct PartsCheck {
  static_assert((static_cast<int>(PartTraits<Parts>::is_base) + ... + 0) == 1,
                "Layerwise: exactly one base precision is required in addition to First, Last, For "
                "and Head, such as Layerwise<First<1, Bf16>, Fp8Recipe<Delayed>, Last<1, Bf16>>");
  static_assert((static_cast<int>(PartTraits<Parts>::is_first) + ... + 0) <= 1,
                "Layerwise: First occurs twice; use it once");
  static_assert((static_cast<int>(PartTraits<Parts>::is_last) + ... + 0) <= 1,
                "Layerwise: Last occurs twice; use it once");
  static_assert(!names_twice<Parts...>(),
                "Layerwise: two parts name the same linear layer; use one For for each role, and "
                "one Head, which is For<LinearRole::head, P>");
  using Storage = typename PrecisionTraits<BaseOf<Parts...>>::Storage;
  static constexpr bool store_alike =
      (std::is_same_v<typename PrecisionTraits<typename PartTraits<Parts>::Precision>::Storage,
                      Storage> &&
       ...);
  static_assert(store_alike,
                "Layerwise: all parts must have the same storage format; combine FP8 recipes with "
                "Bf16, not Fp32");
};

/// Rejects edges of more blocks than the model has. g++ and clang print the numbers.
template <int Edges, int Layers>
struct EdgeCheck {
  static_assert(Edges <= Layers,
                "Layerwise: First and Last together select more blocks than the model has layers; "
                "select fewer");
  static constexpr bool cover_all = Edges == Layers;
};

/// Rejects parts in which no linear layer of a model of `Layers` blocks would run.
template <int Layers, class... Parts>
struct EffectCheck : PartsCheck<Parts...> {
  using Edges = EdgeCheck<(PartTraits<Parts>::blocks + ... + 0), Layers>;
  using Base = BaseOf<Parts...>;
  static constexpr int roles = block_roles_named<Parts...>();
  static constexpr bool head_runs_in_base =
      !PrecisionTraits<Base>::is_quantized && times_named<Parts...>(LinearRole::head) == 0;
  static constexpr bool base_runs = head_runs_in_base || (!Edges::cover_all && roles < 4);
  static_assert(
      base_runs,
      "Layerwise: no linear layer would run in the base precision, because First and Last, or For, "
      "select all of them; select fewer blocks or roles, or make one of these precisions the base");
  static_assert(
      !base_runs || !Edges::cover_all || roles == 0,
      "Layerwise: For<role, P> would have no effect in any block, because First and Last, which "
      "take precedence, select all blocks; select fewer blocks, or remove For");
};

template <class P, int Layer, int Layers, LinearRole Role>
struct Resolve {
  using Base = CheckedPrecision<P>;
  using type =
      std::conditional_t<Role == LinearRole::head, typename PrecisionTraits<Base>::Storage, Base>;
};
template <class... Parts, int Layer, int Layers, LinearRole Role>
struct Resolve<Layerwise<Parts...>, Layer, Layers, Role> {
  static_assert(sizeof(EffectCheck<Layers, Parts...>) > 0);  // reports what is wrong

  template <class Part>
  static constexpr bool at_edge =
      Role != LinearRole::head &&
      ((PartTraits<Part>::is_first && Layer < PartTraits<Part>::blocks) ||
       (PartTraits<Part>::is_last && Layer >= Layers - PartTraits<Part>::blocks));
  using Base = BaseOf<Parts...>;
  using Otherwise = typename Resolve<Base, Layer, Layers, Role>::type;
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
  static std::string name() { return PartTraits<P>::name(); }
};
template <class... Parts>
struct ModelPrecisionTraits<Layerwise<Parts...>> {
  using Storage = typename PartsCheck<Parts...>::Storage;
  static constexpr bool quantises =
      (QuantizedPrecision<typename PartTraits<Parts>::Precision> || ...);
  /// Returns the name of a recipe, independent of the order of its parts.
  static std::string name() {
    std::array<std::pair<int, std::string>, sizeof...(Parts)> parts{
        {{PartTraits<Parts>::place, PartTraits<Parts>::name()}...}};
    std::sort(parts.begin(), parts.end());
    std::string text;
    for (const auto& part : parts) text += (text.empty() ? "" : ", ") + part.second;
    return text;
  }
};

}  // namespace detail

/// The precision of one linear layer of a model.
/// @tparam Layer  index of the block, from 0; ignored for the head
template <class P, int Layer, int Layers, LinearRole Role>
using PrecisionOf = typename detail::Resolve<P, Layer, Layers, Role>::type;

/// The format of weights and activations between GEMMs in a model of precision `P`.
template <class P>
using StorageOf = typename detail::ModelPrecisionTraits<P>::Storage;

/// Whether any linear layer of a model of precision `P` quantises, or would if its shape allowed
/// it.
template <class P>
inline constexpr bool model_quantises = detail::ModelPrecisionTraits<P>::quantises;

/// Returns the precision's name, such as "fp8 delayed".
template <class P>
std::string precision_name() {
  return detail::ModelPrecisionTraits<P>::name();
}

}  // namespace octavo
