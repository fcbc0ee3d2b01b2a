/// @file
/// Names of the linear layers of a block, and the precision of each.
#pragma once

#include <octavo/core/config_name.hpp>
#include <octavo/precision/activation_input.hpp>
#include <octavo/precision/attention_forward.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>

namespace octavo OCTAVO_ABI {

/// The role of a linear layer in a block: a name of at most 15 characters, such as
/// `LinearRole::down` or `"router"`. Blocks may define custom roles; the members are the roles of
/// the library's blocks and of the head. `gate_up` is the MLP's first projection, even if the
/// activation has no gate. Characters are in words of eight, because nvcc cannot write arrays in
/// template arguments.
struct LinearRole {
  std::uint64_t word0 = 0;
  std::uint64_t word1 = 0;

  constexpr LinearRole(std::uint64_t w0, std::uint64_t w1) : word0(w0), word1(w1) {}
  template <std::size_t N>
  constexpr LinearRole(const char (&name)[N])  // NOLINT: literals convert implicitly
      : word0(detail::name_word(name, 0)), word1(detail::name_word(name, 8)) {
    static_assert(N >= 2 && N <= 16, "LinearRole: a name must have 1 to 15 characters");
  }
  friend constexpr bool operator==(const LinearRole&, const LinearRole&) = default;

  [[nodiscard]] constexpr char character(std::size_t i) const {
    return static_cast<char>((i < 8 ? word0 : word1) >> (8 * (i % 8)) & 0xff);
  }
  [[nodiscard]] constexpr std::size_t length() const {
    std::size_t length = 0;
    while (length < 16 && character(length) != '\0') ++length;
    return length;
  }

  static const LinearRole qkv;
  static const LinearRole output;
  static const LinearRole gate_up;
  static const LinearRole down;
  static const LinearRole head;
};

inline constexpr LinearRole LinearRole::qkv{"qkv"};
inline constexpr LinearRole LinearRole::output{"output"};
inline constexpr LinearRole LinearRole::gate_up{"gate_up"};
inline constexpr LinearRole LinearRole::down{"down"};
inline constexpr LinearRole LinearRole::head{"head"};

/// Returns the role's name, as printed in the names of precisions.
inline std::string name_of(LinearRole role) {
  std::string name;
  for (std::size_t i = 0; i < role.length(); ++i) name.push_back(role.character(i));
  return name;
}

/// The roles of a block's linear layers.
template <LinearRole... Roles>
struct LinearRoles {
  [[nodiscard]] static constexpr bool contain(LinearRole role) { return ((Roles == role) || ...); }
};

/// The roles of a block of attention and an MLP, or experts.
using DefaultRoles =
    LinearRoles<LinearRole::qkv, LinearRole::output, LinearRole::gate_up, LinearRole::down>;

namespace detail {

/// Fails to compile. The compiler prints the characters of the role.
template <char... Role>
struct MissingRole {
  static_assert(sizeof...(Role) == 0,
                "the block has no linear layer of this role, whose characters are the template "
                "arguments; use one of the block's roles, or add it to the family's Roles");
};
template <LinearRole Role, std::size_t... I>
MissingRole<Role.character(I)...> missing_role(std::index_sequence<I...>);

/// Checks that a role exists.
template <LinearRole Role, bool Exists>
struct RoleCheck {
  static constexpr bool exists =
      sizeof(decltype(missing_role<Role>(std::make_index_sequence<Role.length()>{}))) > 0;
};
template <LinearRole Role>
struct RoleCheck<Role, true> {
  static constexpr bool exists = true;
};

}  // namespace detail

/// The precision of the linear layers of one role in a block.
template <LinearRole Role, class P>
struct RolePrecision {
  static constexpr LinearRole role = Role;
  using Precision = P;
};

namespace detail {

template <LinearRole Role, class... Precisions>
struct PrecisionOfRole {
  static_assert(RoleCheck<Role, false>::exists);
  using type = void;
};
template <LinearRole Role, class First, class... Others>
struct PrecisionOfRole<Role, First, Others...> {
  using type = typename std::conditional_t<First::role == Role,
                                           std::type_identity<typename First::Precision>,
                                           PrecisionOfRole<Role, Others...>>::type;
};

}  // namespace detail

/// The precisions of a block: a `RolePrecision` for each role of its linear layers.
template <class... Precisions>
struct BlockPrecision {
  /// The format of attention's forward.
  static constexpr AttentionForward attention_forward = AttentionForward::storage;
  /// What the activation of an MLP reads.
  static constexpr ActivationInput activation_input = ActivationInput::storage;
  /// The precision of the layers of one role; a role that the block lacks does not compile.
  template <LinearRole Role>
  using Of = typename detail::PrecisionOfRole<Role, Precisions...>::type;
};

/// The block precision `P` with another forward of attention, or another input of activations.
template <class P, AttentionForward Forward, ActivationInput Input>
struct WithOptions : P {
  static constexpr AttentionForward attention_forward = Forward;
  static constexpr ActivationInput activation_input = Input;
};

}  // namespace octavo
