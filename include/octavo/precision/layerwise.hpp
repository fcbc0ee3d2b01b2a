/// @file
/// Precision that differs between the layers of a model.
#pragma once

#include <octavo/precision/policy.hpp>

#include <array>
#include <cstddef>
#include <string>

namespace octavo {

/// The linear layers of a Llama: the four of a block, and the head.
enum class LinearRole { qkv, output, gate_up, down, head };

/// The role's name, as manifests and parameters print it.
constexpr const char* name_of(LinearRole role) {
  constexpr std::array names{"qkv", "output", "gate_up", "down", "head"};
  return names[static_cast<std::size_t>(role)];
}

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
/// around it in any order.
template <class... Parts>
struct Layerwise {};

namespace detail {

struct NoPrecision {};

/// What is written inside `Layerwise`: a plain policy is the base, the others are exceptions.
template <class Part>
struct PartTraits {
  using Precision = Part;
  static constexpr bool is_base = true;
};
template <class P>
struct ExceptionTraits {
  using Precision = P;
  static constexpr bool is_base = false;
};
template <int N, class P>
struct PartTraits<First<N, P>> : ExceptionTraits<P> {
  static_assert(N > 0, "Layerwise: First<N, P> needs N > 0");
};
template <int N, class P>
struct PartTraits<Last<N, P>> : ExceptionTraits<P> {
  static_assert(N > 0, "Layerwise: Last<N, P> needs N > 0");
};
template <class P>
struct PartTraits<Head<P>> : ExceptionTraits<P> {};
template <LinearRole Role, class P>
struct PartTraits<For<Role, P>> : ExceptionTraits<P> {};

/// Whether every part names a precision policy.
template <class... Parts>
inline constexpr bool parts_are_policies =
    (LinearPrecision<typename PartTraits<Parts>::Precision> && ...);

/// Whether every part stores weights and activations in format `T`.
template <class T, class... Parts>
inline constexpr bool parts_store =
    (std::is_same_v<typename PrecisionTraits<typename PartTraits<Parts>::Precision>::Storage, T> &&
     ...);

template <class... Parts>
struct BaseOf {
  using type = NoPrecision;
};
template <class Part, class... Parts>
struct BaseOf<Part, Parts...> {
  using type = typename std::conditional_t<PartTraits<Part>::is_base, std::type_identity<Part>,
                                           BaseOf<Parts...>>::type;
};

/// What one part says of a layer and role: a precision, or `NoPrecision`.
template <class Part, int Layer, int Layers, LinearRole Role>
struct EdgeRule {
  using type = NoPrecision;
};
template <int N, class P, int Layer, int Layers, LinearRole Role>
struct EdgeRule<First<N, P>, Layer, Layers, Role> {
  using type = std::conditional_t<(Role != LinearRole::head && Layer < N), P, NoPrecision>;
};
template <int N, class P, int Layer, int Layers, LinearRole Role>
struct EdgeRule<Last<N, P>, Layer, Layers, Role> {
  using type =
      std::conditional_t<(Role != LinearRole::head && Layer >= Layers - N), P, NoPrecision>;
};

template <class Part, LinearRole Role>
struct RoleRule {
  using type = NoPrecision;
};
template <class P>
struct RoleRule<Head<P>, LinearRole::head> {
  using type = P;
};
template <LinearRole Role, class P>
struct RoleRule<For<Role, P>, Role> {
  using type = P;
};

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

template <class P, int Layer, int Layers, LinearRole Role>
struct Resolve {
  using type =
      std::conditional_t<Role == LinearRole::head, typename PrecisionTraits<P>::Storage, P>;
};
template <class... Parts, int Layer, int Layers, LinearRole Role>
struct Resolve<Layerwise<Parts...>, Layer, Layers, Role> {
  using Base = typename BaseOf<Parts...>::type;
  using Otherwise = typename Resolve<Base, Layer, Layers, Role>::type;
  using type = typename FirstOf<typename EdgeRule<Parts, Layer, Layers, Role>::type...,
                                typename RoleRule<Parts, Role>::type..., Otherwise>::type;
};

template <class P>
struct ModelPrecisionTraits {
  static_assert(LinearPrecision<P>,
                "a model's precision must be Fp32, Bf16, Fp8Recipe<...>, Mxfp8, AllowFallback<...> "
                "or Layerwise<...>");
  using Storage = typename PrecisionTraits<P>::Storage;
  static std::string name() { return PrecisionTraits<P>::name(); }
};

template <class Part>
struct PartName {
  static std::string name() { return PrecisionTraits<Part>::name(); }
};
template <int N, class P>
struct PartName<First<N, P>> {
  static std::string name() { return "first " + std::to_string(N) + " " + PartName<P>::name(); }
};
template <int N, class P>
struct PartName<Last<N, P>> {
  static std::string name() { return "last " + std::to_string(N) + " " + PartName<P>::name(); }
};
template <class P>
struct PartName<Head<P>> {
  static std::string name() { return "head " + PartName<P>::name(); }
};
template <LinearRole Role, class P>
struct PartName<For<Role, P>> {
  static std::string name() { return std::string(name_of(Role)) + " " + PartName<P>::name(); }
};

template <class... Parts>
struct ModelPrecisionTraits<Layerwise<Parts...>> {
  static_assert((static_cast<int>(PartTraits<Parts>::is_base) + ... + 0) == 1,
                "Layerwise: give exactly one base precision beside First, Last, For and Head, such "
                "as Layerwise<First<1, Bf16>, Fp8Recipe<Delayed>, Last<1, Bf16>>");
  static_assert(parts_are_policies<Parts...>,
                "Layerwise: the base and what First, Last, For and Head name must each be Fp32, "
                "Bf16, Fp8Recipe<...>, Mxfp8 or AllowFallback<...>");
  using Storage = typename PrecisionTraits<typename BaseOf<Parts...>::type>::Storage;
  static_assert(parts_store<Storage, Parts...>,
                "Layerwise: all parts must store the same format; put Bf16, not Fp32, beside FP8 "
                "recipes");
  static std::string name() {
    std::string text;
    ((text += (text.empty() ? "" : ", ") + PartName<Parts>::name()), ...);
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

/// The precision's name, such as "fp8 delayed".
template <class P>
std::string precision_name() {
  return detail::ModelPrecisionTraits<P>::name();
}

}  // namespace octavo
