/// @file
/// The members that a session needs from a model, and compiler messages for missing ones.
#pragma once

#include <octavo/core/timeline.hpp>
#include <octavo/gemm/gemm_planning.hpp>
#include <octavo/layers/mode.hpp>
#include <octavo/layers/scaling_table.hpp>
#include <octavo/memory/arena.hpp>
#include <octavo/models/model.hpp>
#include <octavo/models/stage_hooks.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace octavo OCTAVO_ABI {

struct SessionOptions;
template <class Model, class Optimizer, class Ranks>
class ModelSession;

namespace detail {

/// Whether a model has weights that are not trained, as a `Decoder` of `Lora<…>` has.
template <class M, class D = typename M::DeviceType>
concept HasFrozenWeights = requires(M& model, HooksOf<M>& hooks, const Context<D>& context) {
  model.cast_frozen_weights(hooks, context);
};
template <class M>
concept HasRunShape = requires {
  { M::run_shape(BatchShape{}) } -> std::convertible_to<BatchShape>;
};
/// Whether a model follows `ModelOptions::offload_activations`, as a `Decoder` does.
template <class M, class D = typename M::DeviceType>
concept OffloadsActivations =
    requires(M& model, Timeline<D>& timeline) { model.report_copies_to(timeline); };

/// Returns whether a class with a `DeviceType` has the other members of a `TrainableModel`.
/// @tparam reports  whether the compiler reports each missing member
template <class M, bool reports>
consteval bool has_members_of_model() {
  using D = typename M::DeviceType;
  using OnDevice = const Context<D>;
  using Losses = TensorView<float, 1, D>;
  using Scale = TensorView<const float, 1, D>;
  using Tokens = TensorView<const std::int32_t, 1, D>;
  if constexpr (!requires {
                  typename M::T;
                  typename M::G;
                }) {
    static_assert(!reports,
                  "ModelSession: the model lacks T or G, the formats of weights and of their "
                  "gradients; write `using T = Bf16; using G = Bf16;`");
    return false;
  }
  if constexpr (!requires {
                  { M::facts() } -> std::convertible_to<ModelFacts>;
                }) {
    static_assert(
        !reports,
        "ModelSession: the model lacks `static ModelFacts facts()`, its name and vocabulary");
    return false;
  }
  if constexpr (!requires {
                  { M::precision() } -> std::convertible_to<std::string>;
                }) {
    static_assert(!reports,
                  "ModelSession: the model lacks `static std::string precision()`, its name");
    return false;
  }
  if constexpr (!requires(OnDevice& context) {
                  { M::limits(BatchShape{}, context) } -> std::convertible_to<DeviceLimits<D>>;
                }) {
    static_assert(
        !reports,
        "ModelSession: the model lacks `static DeviceLimits<D> limits(BatchShape, const "
        "Context<D>&)`, which returns the context's limits if no library needs to be asked");
    return false;
  }
  if constexpr (!std::constructible_from<M, Arena<D>&, BatchShape, ModelOptions,
                                         const DeviceLimits<D>&>) {
    static_assert(!reports,
                  "ModelSession: the model lacks a constructor (Arena<D>&, BatchShape, "
                  "ModelOptions, const DeviceLimits<D>&) that takes its memory");
    return false;
  }
  if constexpr (!requires(const M& model) {
                  { model.gemm_rows(Index{}) } -> std::same_as<GemmRows>;
                }) {
    static_assert(!reports,
                  "ModelSession: the model lacks GemmRows gemm_rows(Index micro_batches)");
    return false;
  }
  if constexpr (!requires(M& model, HooksOf<M>& hooks, Context<D>& context) {
                  model.initialize_sync(std::uint64_t{}, hooks, context);
                }) {
    static_assert(!reports,
                  "ModelSession: the model lacks initialize_sync(std::uint64_t seed, "
                  "HooksOf<Model>&, Context<D>&)");
    return false;
  }
  if constexpr (!requires(const M& model, Context<D>& context) { model.bind(context); }) {
    static_assert(!reports, "ModelSession: the model lacks bind(Context<D>&) const");
    return false;
  }
  if constexpr (!requires(const M& model) {
                  {
                    model.parameters()
                  } -> std::same_as<const ModelParameters<typename M::T, typename M::G, D>&>;
                }) {
    static_assert(
        !reports,
        "ModelSession: the model lacks `const ModelParameters<T, G, D>& parameters() const`, its "
        "flat buffers and their parameters");
    return false;
  }
  if constexpr (!requires(M& model, HooksOf<M>& hooks, OnDevice& context) {
                  model.template invalidate_weight_copies<Mode::train>(hooks, context);
                  model.template invalidate_weight_copies<Mode::evaluate>(hooks, context);
                }) {
    static_assert(
        !reports,
        "ModelSession: the model lacks invalidate_weight_copies<Mode>(HooksOf<Model>&, context)");
    return false;
  }
  if constexpr (!requires(M& model, const DeviceBatch<D>& batch, Losses losses, Scale scale,
                          HooksOf<M>& hooks, OnDevice& context) {
                  model.train_micro_batch(batch, losses, scale, Accumulation{}, hooks, context);
                }) {
    static_assert(!reports,
                  "ModelSession: the model lacks train_micro_batch(batch, losses, gradient_scale, "
                  "accumulation, hooks, context) with Decoder's arguments");
    return false;
  }
  if constexpr (!requires(const M& model) {
                  { model.scaling() } -> std::same_as<const ScalingTable<D>&>;
                }) {
    static_assert(!reports,
                  "ModelSession: the model lacks `const ScalingTable<D>& scaling() const`");
    return false;
  }
  if constexpr (!requires(M& model, const DeviceBatch<D>& batch, Losses losses, HooksOf<M>& hooks,
                          OnDevice& context) { model.evaluate(batch, losses, hooks, context); }) {
    static_assert(!reports,
                  "ModelSession: the model lacks evaluate(batch, losses, hooks, context) with "
                  "Decoder's arguments");
    return false;
  }
  if constexpr (!requires(M& model, Tokens tokens, HooksOf<M>& hooks, OnDevice& context) {
                  {
                    model.logits(tokens, BatchShape{}, Index{}, Index{}, hooks, context)
                  } -> std::convertible_to<TensorView<typename M::T, 2, D>>;
                }) {
    static_assert(!reports,
                  "ModelSession: the model lacks logits(tokens, shape, begin, count, hooks, "
                  "context) with Decoder's arguments");
    return false;
  }
  if constexpr (!requires(const M& model) {
                  { model.manifest() } -> std::same_as<const Manifest&>;
                }) {
    static_assert(!reports, "ModelSession: the model lacks `const Manifest& manifest() const`");
    return false;
  }
  if constexpr (!requires(M& model) {
                  model.reset_counts();
                  model.verify_step(Index{});
                }) {
    static_assert(!reports,
                  "ModelSession: the model lacks reset_counts() or verify_step(Index "
                  "micro_batches), which compare each step with the manifest");
    return false;
  }
  if constexpr (!requires(const M& model) {
                  { model.head_chunks() } -> std::convertible_to<Index>;
                }) {
    static_assert(!reports, "ModelSession: the model lacks `Index head_chunks() const`");
    return false;
  }
  constexpr bool names_run_shape = requires { &M::run_shape; };
  if constexpr (!(HasRunShape<M> || !names_run_shape)) {
    static_assert(!reports,
                  "ModelSession: run_shape of the model must be `static BatchShape "
                  "run_shape(BatchShape)`, which returns the shape with lengthened sequences");
    return false;
  }
  return true;
}

/// Returns whether a class is a `TrainableModel`.
/// @tparam reports  whether the compiler reports what is missing
template <class M, bool reports>
consteval bool is_trainable_model() {
  if constexpr (requires { requires Device<typename M::DeviceType>; }) {
    return has_members_of_model<M, reports>();
  } else {
    static_assert(
        !reports,
        "ModelSession: the model must be a Decoder, such as Llama<config, precision, device>, or "
        "have the members of one; this has no DeviceType, such as `using DeviceType = Cpu;`");
    return false;
  }
}

}  // namespace detail

/// A model that a `ModelSession` trains: a `Decoder`, or a class with the members that
/// `detail::has_members_of_model` lists. Each has the meaning that `Decoder` documents. Hooks are a
/// `HooksOf<Model>&`. `run_shape` is optional, for sequences that must run longer than they are.
template <class M>
concept TrainableModel = detail::is_trainable_model<M, false>();

/// Replaces a session of an invalid model, so that the compiler prints only the missing members.
template <class Model, class Optimizer, class Ranks>
  requires(!TrainableModel<Model>)
class ModelSession<Model, Optimizer, Ranks> {
  static_assert(detail::is_trainable_model<Model, true>() || true);  // NOLINT: reports

 public:
  template <class C>
  ModelSession(const SessionOptions&, C&) {}
};

}  // namespace octavo
