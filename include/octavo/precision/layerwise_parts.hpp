/// @file
/// The parts of a precision that differs between the layers of a model, and which of them
/// contradict each other.
#pragma once

#include <octavo/core/error.hpp>
#include <octavo/precision/attention_forward.hpp>
#include <octavo/precision/layer_precision.hpp>
#include <octavo/precision/linear_role.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <type_traits>

namespace octavo OCTAVO_ABI {

/// The first `N` blocks run in `P`.
template <int N, class P>
struct First {};
/// The last `N` blocks run in `P`.
template <int N, class P>
struct Last {};
/// The head runs in `P`; by default, it runs in the storage format.
template <class P>
struct Head {};
/// Every linear layer of one role, such as `LinearRole::down` or `"router"`, runs in `P`, except in
/// blocks that `First` or `Last` selects.
template <LinearRole Role, class P>
struct For {};

/// The attention of every block runs in `F`, such as `EightBitForward`; by default, it runs in the
/// storage format.
template <class F>
struct ForAttention {};

/// The activation of every MLP reads `F`, which must be `E4M3`, in the forward and the backward; by
/// default, it reads the storage format. See `ActivationInput::e4m3`.
template <class F>
struct ForActivation {};

/// A precision for each layer: one base policy, and the exceptions `First`, `Last`, `For`, `Head`,
/// `ForAttention` and `ForActivation` in any order, each at most once, `For` at most once per role.
/// The order does not change the name. When a model is laid out, a part in which no linear layer
/// would run is rejected, including the base.
template <class... Parts>
struct Layerwise {};

namespace detail {

struct NoPrecision {};

/// Returns the position of a role in a name: custom roles follow those of the library.
constexpr int place_of_role(LinearRole role) {
  int place = 1;
  for (const LinearRole other :
       {LinearRole::qkv, LinearRole::output, LinearRole::gate_up, LinearRole::down}) {
    if (role == other) return place;
    ++place;
  }
  return role == LinearRole::head ? 8 : place;
}

/// A precision in a `Layerwise`: the base, or that of an exception.
template <class P>
struct PlainTraits {
  using Precision = CheckedPrecision<P>;
  static constexpr bool is_base = true;
  static constexpr bool is_first = false;
  static constexpr bool is_last = false;
  static constexpr int blocks = 0;
  static constexpr int place = 6;  ///< position in a name
  static constexpr bool names(LinearRole) { return false; }
  static std::string name() { return PrecisionTraits<Precision>::name(); }
};
template <class P>
struct ExceptionTraits : PlainTraits<P> {
  static constexpr bool is_base = false;
};
/// A template argument of `Layerwise`: a plain policy is the base; the others are exceptions.
template <class Part>
struct PartTraits : PlainTraits<Part> {};
template <int N, class P>
struct PartTraits<First<N, P>> : ExceptionTraits<P> {
  static_assert(N > 0, "Layerwise: First<N, P> requires N > 0; omit it to select no block");
  static constexpr bool is_first = true;
  static constexpr int blocks = N;
  static constexpr int place = 0;
  static std::string name() { return message("first ", N, " ", PlainTraits<P>::name()); }
};
template <int N, class P>
struct PartTraits<Last<N, P>> : ExceptionTraits<P> {
  static_assert(N > 0, "Layerwise: Last<N, P> requires N > 0; omit it to select no block");
  static constexpr bool is_last = true;
  static constexpr int blocks = N;
  static constexpr int place = 7;
  static std::string name() { return message("last ", N, " ", PlainTraits<P>::name()); }
};
template <LinearRole Role, class P>
struct PartTraits<For<Role, P>> : ExceptionTraits<P> {
  static constexpr LinearRole named = Role;
  static constexpr int place = place_of_role(Role);
  static constexpr bool names(LinearRole role) { return role == Role; }
  static std::string name() { return message(name_of(Role), " ", PlainTraits<P>::name()); }
};
template <class P>
struct PartTraits<Head<P>> : PartTraits<For<LinearRole::head, P>> {};

/// The position in a name of parts that select no linear layers, which is the last.
inline constexpr int option_place = 9;

/// A part that selects no linear layers.
struct OptionTraits {
  using Precision = NoPrecision;
  static constexpr bool is_base = false;
  static constexpr bool is_first = false;
  static constexpr bool is_last = false;
  static constexpr int blocks = 0;
  static constexpr int place = option_place;
  static constexpr bool names(LinearRole) { return false; }
};
template <class F>
struct PartTraits<ForAttention<F>> : OptionTraits {
  static_assert(
      std::is_same_v<F, EightBitForward>,
      "Layerwise: the argument of ForAttention must be EightBitForward; remove ForAttention "
      "for attention in the storage format");
  static std::string name() { return "attention forward 8-bit"; }
};
template <class F>
struct PartTraits<ForActivation<F>> : OptionTraits {
  static_assert(std::is_same_v<F, E4M3>,
                "Layerwise: the argument of ForActivation must be E4M3; remove ForActivation for "
                "activations that read the storage format");
  static std::string name() { return "activation input E4M3"; }
};

/// Whether a part selects no linear layers.
template <class Part>
inline constexpr bool is_option = std::is_same_v<typename PartTraits<Part>::Precision, NoPrecision>;
template <class Part>
inline constexpr bool is_for_attention = false;
template <class F>
inline constexpr bool is_for_attention<ForAttention<F>> = true;
template <class Part>
inline constexpr bool is_for_activation = false;
template <class F>
inline constexpr bool is_for_activation<ForActivation<F>> = true;

/// The storage format of a part, or `Otherwise` if the part has none.
template <class Part, class Otherwise, bool Has = !is_option<Part>>
struct StorageOfPart {
  using type = typename PrecisionTraits<typename PartTraits<Part>::Precision>::Storage;
};
template <class Part, class Otherwise>
struct StorageOfPart<Part, Otherwise, false> {
  using type = Otherwise;
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
/// Number of parts that name the same role as this part.
template <class Part, class... Parts>
constexpr int times_named_with() {
  if constexpr (requires { PartTraits<Part>::named; }) {
    return times_named<Parts...>(PartTraits<Part>::named);
  } else {
    return 1;
  }
}
template <class... Parts>
constexpr bool has_duplicate_roles() {
  return ((times_named_with<Parts, Parts...>() > 1) || ...);
}
template <class... Parts>
constexpr int block_roles_named() {
  return (static_cast<int>(!PartTraits<Parts>::names(LinearRole::head) && requires {
            PartTraits<Parts>::named;
          }) + ... + 0);
}
/// Number of different roles.
template <LinearRole... Roles>
constexpr int count_roles(LinearRoles<Roles...>) {
  int count = 0;
  std::array<LinearRole, sizeof...(Roles)> roles{Roles...};
  for (std::size_t i = 0; i < roles.size(); ++i) {
    if (std::find(roles.begin(), roles.begin() + i, roles[i]) == roles.begin() + i) ++count;
  }
  return count;
}
/// Whether the role of a part exists, if it has one. Does not compile otherwise.
template <class Part, class Roles>
constexpr bool role_exists() {
  if constexpr (requires { PartTraits<Part>::named; }) {
    constexpr LinearRole role = PartTraits<Part>::named;
    constexpr bool exists = role == LinearRole::head || Roles::contain(role);
    return RoleCheck<role, exists>::exists;
  } else {
    return true;
  }
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
  static_assert(!has_duplicate_roles<Parts...>(),
                "Layerwise: two parts name the same linear layer; use one For for each role, and "
                "one Head, which is For<LinearRole::head, P>");
  using Storage = typename PrecisionTraits<BaseOf<Parts...>>::Storage;
  static constexpr bool have_same_storage =
      (std::is_same_v<typename StorageOfPart<Parts, Storage>::type, Storage> && ...);
  static constexpr int attentions = (static_cast<int>(is_for_attention<Parts>) + ... + 0);
  static_assert(attentions <= 1, "Layerwise: ForAttention occurs twice; use it once");
  static_assert(
      attentions == 0 || std::is_same_v<Storage, Bf16>,
      "Layerwise: ForAttention<EightBitForward> needs BF16 storage; use Bf16 or an FP8 recipe "
      "as the base, or remove ForAttention");
  static constexpr int activations = (static_cast<int>(is_for_activation<Parts>) + ... + 0);
  static_assert(activations <= 1, "Layerwise: ForActivation occurs twice; use it once");
  static_assert(have_same_storage,
                "Layerwise: all parts must have the same storage format; combine FP8 recipes with "
                "Bf16, not Fp32");
};

}  // namespace detail
}  // namespace octavo
