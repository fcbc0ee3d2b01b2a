/// @file
/// The type of a session's optimizer, and compiler messages for other types.
#pragma once

#include <octavo/optim/optim.hpp>
#include <octavo/session/trainable_model.hpp>

#include <concepts>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

namespace octavo OCTAVO_ABI {

namespace detail {

/// The optimizer of one model.
template <class O, class M>
using OptimizerOf = typename O::template For<typename M::T, typename M::G, typename M::DeviceType>;

/// Returns whether a type with a `For` meets the other requirements of `SessionOptimizer`.
/// @tparam reports  whether the compiler reports each unmet requirement
template <class O, class M, bool reports>
consteval bool has_members_of_optimizer() {
  using F = OptimizerOf<O, M>;
  using D = typename M::DeviceType;
  using Shards = std::vector<FlatShard<typename M::T, typename M::G, D>>;
  if constexpr (!requires { typename O::Settings; }) {
    static_assert(!reports, "ModelSession: the optimizer lacks a type Settings");
    return false;
  }
  if constexpr (!std::derived_from<F, Optimizer<D>>) {
    static_assert(!reports, "ModelSession: the optimizer's For must be derived from Optimizer<D>");
    return false;
  }
  if constexpr (std::is_abstract_v<F>) {
    static_assert(!reports,
                  "ModelSession: the optimizer's For must override every pure member of "
                  "Optimizer<D> (optim/optimizer.hpp)");
    return false;
  } else if constexpr (requires { typename O::Settings; }) {
    if constexpr (!std::constructible_from<F, Arena<D>&, Shards, const typename O::Settings&,
                                           std::uint64_t, const Offload&>) {
      static_assert(!reports,
                    "ModelSession: the optimizer's For lacks a constructor (Arena<D>&, const "
                    "std::vector<FlatShard<W, G, D>>&, const Settings&, std::uint64_t seed, const "
                    "Offload&) that takes its memory");
      return false;
    }
  }
  if constexpr (!requires {
                  { F::name() } -> std::convertible_to<std::string>;
                }) {
    static_assert(!reports, "ModelSession: the optimizer's For lacks `static std::string name()`");
    return false;
  }
  return true;
}

/// Returns whether a type is a `SessionOptimizer`.
/// @tparam reports  whether the compiler reports what is missing
template <class O, class M, bool reports>
consteval bool is_session_optimizer() {
  if constexpr (requires { typename OptimizerOf<O, M>; }) {
    return has_members_of_optimizer<O, M, reports>();
  } else {
    static_assert(
        !reports,
        "ModelSession: the optimizer must be AdamW<masters, moments>, or have its members; this "
        "has no `template <class W, class G, Device D> class For`, the optimizer of one model");
    return false;
  }
}

}  // namespace detail

/// The type of an optimizer that a `ModelSession` of a model trains with, such as `AdamW<>`. It has
/// the `Settings` of a training, with default values, and a class template `For<W, G, D>`, the
/// optimizer of weights in `W` and gradients in `G`, with the members that
/// `detail::has_members_of_optimizer` lists. The constructor of `For` takes its memory and writes
/// nothing. A class template `Memory<W, G, D>` with the same constructor is optional: programs
/// without code for the device plan with it. Its memory must not depend on `G`.
template <class O, class M>
concept SessionOptimizer = detail::is_session_optimizer<O, M, false>();

/// Replaces a session whose optimizer is not valid.
template <class Model, class Optimizer, class Ranks>
  requires(TrainableModel<Model> && !SessionOptimizer<Optimizer, Model>)
class ModelSession<Model, Optimizer, Ranks> {
  static_assert(detail::is_session_optimizer<Optimizer, Model, true>() || true);  // NOLINT: reports

 public:
  template <class... Arguments>
  ModelSession(const SessionOptions&, Arguments&...) {}
};

}  // namespace octavo
