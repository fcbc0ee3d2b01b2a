/// @file
/// The members that a session needs from an optimizer, and compiler messages for missing ones.
#pragma once

#include <octavo/core/timeline.hpp>
#include <octavo/kernels/step_status.hpp>
#include <octavo/optim/adamw.hpp>
#include <octavo/train/state_entry.hpp>
#include <octavo/train/trainable_model.hpp>

#include <concepts>
#include <cstdint>
#include <span>
#include <string>
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
template <class F, class M, class D = typename M::DeviceType>
concept TakesShards = std::constructible_from < F,
        Arena<D>
&, std::vector<FlatShard<typename M::T, typename M::G, D>>, const AdamWSettings&, std::uint64_t,
    const Offload& > ;
template <class F>
concept HasOptimizerName = requires {
  { F::name() } -> std::convertible_to<std::string>;
};
template <class F, class D>
concept HasInitialState = requires(F& optimizer, const Context<D>& context) {
  optimizer.initialize(context);
};
template <class F, class D>
concept HasPrepare = requires(F& optimizer, Staging<D>& staging, const Context<D>& context) {
  optimizer.prepare(double{}, staging, context);
};
template <class F, class D>
concept HasSquaredNorms = requires(F& optimizer, TensorView<StepStatus, 1, D> status,
                                   const Context<D>& context) {
  optimizer.add_squared_norms(status, context);
};
template <class F, class D>
concept HasStep = requires(F& optimizer, TensorView<StepStatus, 1, D> status, Timeline<D>& timeline,
                           const Context<D>& context) {
  optimizer.step(status, timeline, context);
  optimizer.advance();
};
template <class F, class D>
concept HasSetMaster = requires(F& optimizer, const std::string& name,
                                std::span<const float> values, const Context<D>& context) {
  optimizer.set_master(name, Index{}, values, context);
};
template <class F, class D>
concept HasVisitState = requires(F& optimizer, StateCollector<D>& collector) {
  optimizer.visit_state(collector);
};

}  // namespace detail

/// An optimizer that a `ModelSession` of a model trains with: `AdamW`, or a type with a class
/// template `For<W, G, D>`, the optimizer of weights in `W` and their gradients in `G`. `For` has
/// the members of `AdamWState`, with the meaning documented there:
/// - a constructor `(Arena<D>&, shards, const AdamWSettings&, std::uint64_t seed, const Offload&)`,
///   whose memory must not depend on `G`: plans construct it with the model's gradients;
/// - `static name()`;
/// - `initialize`, `prepare`, `add_squared_norms`, `step`, `advance`;
/// - `set_master`, `visit_state`.
template <class O, class M>
concept SessionOptimizer =
    detail::HasOptimizer<O, M> && detail::TakesShards<detail::OptimizerOf<O, M>, M> &&
    detail::HasOptimizerName<detail::OptimizerOf<O, M>> &&
    detail::HasInitialState < detail::OptimizerOf<O, M>,
typename M::DeviceType >
    &&detail::HasPrepare<detail::OptimizerOf<O, M>, typename M::DeviceType>&&
        detail::HasSquaredNorms<detail::OptimizerOf<O, M>, typename M::DeviceType>&&
            detail::HasStep<detail::OptimizerOf<O, M>, typename M::DeviceType>&&
                detail::HasSetMaster<detail::OptimizerOf<O, M>, typename M::DeviceType>&&
                    detail::HasVisitState<detail::OptimizerOf<O, M>, typename M::DeviceType>;

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
  static_assert(TakesShards<F, M>,
                "ModelSession: the optimizer's For lacks a constructor (Arena<D>&, const "
                "std::vector<FlatShard<W, G, D>>&, const AdamWSettings&, std::uint64_t seed, const "
                "Offload&) that takes its memory");
  static_assert(HasOptimizerName<F>,
                "ModelSession: the optimizer's For lacks `static std::string name()`");
  static_assert(HasInitialState<F, D>,
                "ModelSession: the optimizer's For lacks initialize(const Context<D>&)");
  static_assert(HasPrepare<F, D>,
                "ModelSession: the optimizer's For lacks prepare(double learning_rate, "
                "Staging<D>&, const Context<D>&)");
  static_assert(HasSquaredNorms<F, D>,
                "ModelSession: the optimizer's For lacks add_squared_norms(TensorView<StepStatus, "
                "1, D>, const Context<D>&)");
  static_assert(HasStep<F, D>,
                "ModelSession: the optimizer's For lacks step(TensorView<const StepStatus, 1, D>, "
                "Timeline<D>&, const Context<D>&) or advance()");
  static_assert(HasSetMaster<F, D>,
                "ModelSession: the optimizer's For lacks set_master(const std::string& name, Index "
                "begin, std::span<const float>, const Context<D>&)");
  static_assert(HasVisitState<F, D>,
                "ModelSession: the optimizer's For lacks visit_state(visitor), with a template for "
                "the visitor");
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
