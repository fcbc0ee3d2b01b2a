/// @file
/// Precision that differs between the layers of a model.
#pragma once

#include <octavo/core/error.hpp>
#include <octavo/precision/layer_precision.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <utility>

namespace octavo OCTAVO_ABI {

/// The linear layers of every family: the four of a block, and the head. `gate_up` is the first of
/// the MLP, also where the activation has no gate.
enum class LinearRole { qkv, output, gate_up, down, head };

/// The role's name, as manifests and parameters print it.
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
/// The head runs in `P`; without it, the head runs in the storage format.
template <class P>
struct Head {};
/// Every linear layer of one role runs in `P`, but in blocks that `First` or `Last` names.
template <LinearRole Role, class P>
struct For {};

/// A precision for each layer: one base policy, and exceptions `First`, `Last`, `For` and `Head`
/// around it in any order, each at most once, `For` once a role. The order changes no name. Where a
/// model is laid out, a part that no linear layer would run in is refused, the base too.
template <class... Parts>
struct Layerwise {};

namespace detail {

struct NoPrecision {};

/// What is written inside `Layerwise`: a plain policy is the base, the others are exceptions.
template <class Part>
struct PartTraits {
  using Precision = CheckedPrecision<Part>;
  static constexpr bool is_base = true;
  static constexpr bool is_first = false;
  static constexpr bool is_last = false;
  static constexpr int blocks = 0;
  static constexpr int place = 5;  ///< in a name
  static constexpr bool names(LinearRole) { return false; }
  static std::string name() { return PrecisionTraits<Precision>::name(); }
};
template <class P>
struct ExceptionTraits : PartTraits<P> {
  static constexpr bool is_base = false;
};
template <int N, class P>
struct PartTraits<First<N, P>> : ExceptionTraits<P> {
  static_assert(N > 0, "Layerwise: First<N, P> needs N > 0; leave it out where no block is meant");
  static constexpr bool is_first = true;
  static constexpr int blocks = N;
  static constexpr int place = 0;
  static std::string name() { return message("first ", N, " ", PartTraits<P>::name()); }
};
template <int N, class P>
struct PartTraits<Last<N, P>> : ExceptionTraits<P> {
  static_assert(N > 0, "Layerwise: Last<N, P> needs N > 0; leave it out where no block is meant");
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

/// The precision of a part, if it is asked for.
template <class Part, bool Wanted>
using PrecisionIf = std::conditional_t<Wanted, typename PartTraits<Part>::Precision, NoPrecision>;

/// The base, or BF16 where there is none, which is refused.
template <class... Parts>
using BaseOf = typename FirstOf<PrecisionIf<Parts, PartTraits<Parts>::is_base>..., Bf16>::type;

/// How many parts name this role.
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

/// Refuses parts that contradict each other in a model of any depth.
template <class... Parts>
struct PartsCheck {
  static_assert((static_cast<int>(PartTraits<Parts>::is_base) + ... + 0) == 1,
                "Layerwise: give exactly one base precision beside First, Last, For and Head, such "
                "as Layerwise<First<1, Bf16>, Fp8Recipe<Delayed>, Last<1, Bf16>>");
  static_assert((static_cast<int>(PartTraits<Parts>::is_first) + ... + 0) <= 1,
                "Layerwise: First stands there twice; write it once");
  static_assert((static_cast<int>(PartTraits<Parts>::is_last) + ... + 0) <= 1,
                "Layerwise: Last stands there twice; write it once");
  static_assert(!names_twice<Parts...>(),
                "Layerwise: two parts name one linear layer; write one For for each role, and one "
                "Head, which is For<LinearRole::head, P>");
  using Storage = typename PrecisionTraits<BaseOf<Parts...>>::Storage;
  static constexpr bool store_alike =
      (std::is_same_v<typename PrecisionTraits<typename PartTraits<Parts>::Precision>::Storage,
                      Storage> &&
       ...);
  static_assert(store_alike,
                "Layerwise: all parts must store the same format; put Bf16, not Fp32, beside FP8 "
                "recipes");
};

/// Refuses edges of more blocks than there are. g++ and clang print the numbers.
template <int Edges, int Layers>
struct EdgeCheck {
  static_assert(Edges <= Layers,
                "Layerwise: First and Last together name more blocks than the model has layers; "
                "ask for fewer");
  static constexpr bool cover_all = Edges == Layers;
};

/// Refuses parts that no linear layer of a model of `Layers` blocks would run in.
template <int Layers, class... Parts>
struct EffectCheck : PartsCheck<Parts...> {
  using Edges = EdgeCheck<(PartTraits<Parts>::blocks + ... + 0), Layers>;
  using Base = BaseOf<Parts...>;
  static constexpr int roles = block_roles_named<Parts...>();
  static constexpr bool head_runs_in_base =
      !PrecisionTraits<Base>::is_quantized && times_named<Parts...>(LinearRole::head) == 0;
  static constexpr bool base_runs = head_runs_in_base || (!Edges::cover_all && roles < 4);
  static_assert(base_runs,
                "Layerwise: no linear layer would run in the base precision, because First and "
                "Last, or For, name them all; ask for fewer blocks or roles, or make one of these "
                "precisions the base");
  static_assert(!base_runs || !Edges::cover_all || roles == 0,
                "Layerwise: For<role, P> would take effect in no block, because First and Last, "
                "which are stronger, name them all; ask for fewer blocks, or take For away");
};

template <class P, int Layer, int Layers, LinearRole Role>
struct Resolve {
  using Base = CheckedPrecision<P>;
  using type =
      std::conditional_t<Role == LinearRole::head, typename PrecisionTraits<Base>::Storage, Base>;
};
template <class... Parts, int Layer, int Layers, LinearRole Role>
struct Resolve<Layerwise<Parts...>, Layer, Layers, Role> {
  static_assert(sizeof(EffectCheck<Layers, Parts...>) > 0);  // which says what is wrong

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
  // A part that stores another format is refused; the base in its place prints nothing more.
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
  /// Of a recipe, in whatever order its parts are written.
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

/// Whether some linear layer of a model of precision `P` quantises, or would where its shape
/// allows.
template <class P>
inline constexpr bool model_quantises = detail::ModelPrecisionTraits<P>::quantises;

/// The precision's name, such as "fp8 delayed".
template <class P>
std::string precision_name() {
  return detail::ModelPrecisionTraits<P>::name();
}

}  // namespace octavo
