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

template <class O, class M>
concept HasOptimizer = requires {
  typename OptimizerOf<O, M>;
};
template <class O>
concept HasSettings = requires {
  typename O::Settings;
};
template <class F, class M, class D = typename M::DeviceType>
concept IsOptimizer = std::derived_from<F, Optimizer<D>>;
template <class O, class M, class D = typename M::DeviceType>
concept TakesShards = std::constructible_from < OptimizerOf<O, M>,
        Arena<D>
&, std::vector<FlatShard<typename M::T, typename M::G, D>>, const typename O::Settings&,
    std::uint64_t, const Offload& > ;
template <class F>
concept HasOptimizerName = requires {
  { F::name() } -> std::convertible_to<std::string>;
};

}  // namespace detail

/// The type of an optimizer that a `ModelSession` of a model trains with, such as `AdamW<>`:
/// - `Settings`, its constants of a training, with default values;
/// - a class template `For<W, G, D>`, the optimizer of weights in `W` and their gradients in `G`.
///   It is derived from `Optimizer<D>`, has `static std::string name()`, and a constructor
///   `(Arena<D>&, const std::vector<FlatShard<W, G, D>>&, const Settings&, std::uint64_t seed,
///   const Offload&)` that takes its memory and writes nothing;
/// - optionally a class template `Memory<W, G, D>` with the same constructor, for plans in programs
///   without code for the device; its memory must not depend on `G`.
template <class O, class M>
concept SessionOptimizer =
    detail::HasOptimizer<O, M> && detail::HasSettings<O> &&
    detail::IsOptimizer<detail::OptimizerOf<O, M>, M> &&
    !std::is_abstract_v<detail::OptimizerOf<O, M>> &&
    detail::TakesShards<O, M> && detail::HasOptimizerName<detail::OptimizerOf<O, M>>;

namespace detail {

/// Reports which member an optimizer lacks.
template <class O, class M>
struct SessionOptimizerCheck {
  static_assert(HasOptimizer<O, M>,
                "ModelSession: the optimizer must be AdamW<masters, moments>, or have its members; "
                "this has no `template <class W, class G, Device D> class For`, the optimizer of "
                "one model");
};
template <class O, class M>
requires HasOptimizer<O, M>
struct SessionOptimizerCheck<O, M> {
  using F = OptimizerOf<O, M>;
  using D = typename M::DeviceType;
  static_assert(HasSettings<O>, "ModelSession: the optimizer lacks a type Settings");
  static_assert(IsOptimizer<F, M>,
                "ModelSession: the optimizer's For must be derived from Optimizer<D>");
  static_assert(!std::is_abstract_v<F>,
                "ModelSession: the optimizer's For must override every pure member of "
                "Optimizer<D> (optim/optimizer.hpp)");
  static_assert(!HasSettings<O> || std::is_abstract_v<F> || TakesShards<O, M>,
                "ModelSession: the optimizer's For lacks a constructor (Arena<D>&, const "
                "std::vector<FlatShard<W, G, D>>&, const Settings&, std::uint64_t seed, const "
                "Offload&) that takes its memory");
  static_assert(HasOptimizerName<F>,
                "ModelSession: the optimizer's For lacks `static std::string name()`");
};

}  // namespace detail

/// Replaces a session whose optimizer is not valid.
template <class Model, class Optimizer, class Ranks>
requires(TrainableModel<Model> &&
         !SessionOptimizer<Optimizer, Model>) class ModelSession<Model, Optimizer, Ranks>
    : detail::SessionOptimizerCheck<Optimizer, Model> {
 public:
  template <class... Arguments>
  ModelSession(const SessionOptions&, Arguments&...) {}
};

}  // namespace octavo
