/// @file
/// The members that a session needs from a model, and compiler messages for missing ones.
#pragma once

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

template <class M>
concept HasDeviceType = Device<typename M::DeviceType>;
template <class M>
concept HasFormats = requires {
  typename M::T;
  typename M::G;
};
template <class M>
concept HasFacts = requires {
  { M::facts() } -> std::convertible_to<ModelFacts>;
};
template <class M>
concept HasPrecision = requires {
  { M::precision() } -> std::convertible_to<std::string>;
};
template <class M, class D = typename M::DeviceType>
concept HasLimits = requires(const Context<D>& context) {
  { M::limits(BatchShape{}, context) } -> std::convertible_to<DeviceLimits<D>>;
};
template <class M, class D = typename M::DeviceType>
concept IsLaidOut = std::constructible_from < M,
        Arena<D>
&, BatchShape, ModelOptions, const DeviceLimits<D>& > ;
template <class M>
concept HasGemmRows = requires(const M& model) {
  { model.gemm_rows(Index{}) } -> std::same_as<GemmRows>;
};
template <class M, class D = typename M::DeviceType>
concept HasInitialize = requires(M& model, HooksOf<M>& hooks, Context<D>& context) {
  model.initialize_sync(std::uint64_t{}, hooks, context);
};
template <class M, class D = typename M::DeviceType>
concept HasBind = requires(const M& model, Context<D>& context) {
  model.bind(context);
};
template <class M>
concept HasModelRuns = requires(const M& model) {
  {
    model.runs()
    } -> std::same_as<const ModelRuns<typename M::T, typename M::G, typename M::DeviceType>&>;
};
template <class M, class D = typename M::DeviceType>
concept HasQuantizeWeights = requires(M& model, HooksOf<M>& hooks, const Context<D>& context) {
  model.template invalidate_weight_copies<Mode::train>(hooks, context);
  model.template invalidate_weight_copies<Mode::evaluate>(hooks, context);
};
template <class M, class D = typename M::DeviceType>
concept HasTrainMicroBatch = requires(M& model, const DeviceBatch<D>& batch,
                                      TensorView<float, 1, D> losses,
                                      TensorView<const float, 1, D> gradient_scale,
                                      HooksOf<M>& hooks, const Context<D>& context) {
  model.train_micro_batch(batch, losses, gradient_scale, Accumulation{}, hooks, context);
};
template <class M, class D = typename M::DeviceType>
concept HasScaling = requires(const M& model) {
  { model.scaling() } -> std::same_as<const ScalingTable<D>&>;
};
template <class M, class D = typename M::DeviceType>
concept HasEvaluate = requires(M& model, const DeviceBatch<D>& batch,
                               TensorView<float, 1, D> losses, HooksOf<M>& hooks,
                               const Context<D>& context) {
  model.evaluate(batch, losses, hooks, context);
};
template <class M, class D = typename M::DeviceType>
concept HasLogits = requires(M& model, TensorView<const std::int32_t, 1, D> tokens,
                             HooksOf<M>& hooks, const Context<D>& context) {
  {
    model.logits(tokens, BatchShape{}, Index{}, Index{}, hooks, context)
    } -> std::convertible_to<TensorView<typename M::T, 2, D>>;
};
template <class M>
concept HasManifest = requires(const M& model) {
  { model.manifest() } -> std::same_as<const Manifest&>;
};
template <class M>
concept HasCounts = requires(M& model) {
  model.reset_counts();
  model.verify_step(Index{});
};
/// Whether a model has weights that are not trained, as a `Decoder` of `Lora<…>` has.
template <class M, class D = typename M::DeviceType>
concept HasFrozenWeights = requires(M& model, HooksOf<M>& hooks, const Context<D>& context) {
  model.cast_frozen_weights(hooks, context);
};
template <class M>
concept HasRunShape = requires {
  { M::run_shape(BatchShape{}) } -> std::convertible_to<BatchShape>;
};
/// Whether `M::run_shape` is valid or does not exist.
template <class M>
concept HasNoOtherRunShape = HasRunShape<M> || !requires {
  &M::run_shape;
};
template <class M>
concept HasHeadChunks = requires(const M& model) {
  { model.head_chunks() } -> std::convertible_to<Index>;
};

}  // namespace detail

/// A model that a `ModelSession` trains: a `Decoder`, or a class with the following members, each
/// with the meaning that `Decoder` documents. Hooks are a `HooksOf<Model>&`.
/// - `DeviceType`, and the formats `T` of weights and `G` of their gradients;
/// - `static facts()`, `static precision()`, `static limits(batch, context)`;
/// - a constructor `(Arena<D>&, BatchShape, ModelOptions, const DeviceLimits<D>&)`;
/// - `gemm_rows`, `initialize_sync`, `bind`, `runs`;
/// - `invalidate_weight_copies<Mode>`, `train_micro_batch`, `scaling`;
/// - `evaluate`, `logits`;
/// - `manifest`, `reset_counts`, `verify_step`, `head_chunks`;
/// - `static run_shape(batch)`, if sequences must run longer than they are.
template <class M>
concept TrainableModel = detail::HasDeviceType<M> && detail::HasFormats<M> && detail::HasFacts<M> &&
    detail::HasPrecision<M> && detail::HasLimits<M> && detail::IsLaidOut<M> &&
    detail::HasGemmRows<M> && detail::HasInitialize<M> && detail::HasBind<M> &&
    detail::HasModelRuns<M> && detail::HasQuantizeWeights<M> && detail::HasTrainMicroBatch<M> &&
    detail::HasScaling<M> && detail::HasEvaluate<M> && detail::HasLogits<M> &&
    detail::HasManifest<M> && detail::HasCounts<M> && detail::HasHeadChunks<M> &&
    detail::HasNoOtherRunShape<M>;

namespace detail {

/// Reports which member a model lacks.
template <class M>
struct TrainableModelCheck {
  static_assert(HasDeviceType<M>,
                "ModelSession: the model must be a Decoder, such as Llama<config, precision, "
                "device>, or have the members of one; this has no DeviceType, such as `using "
                "DeviceType = Cpu;`");
};
template <HasDeviceType M>
struct TrainableModelCheck<M> {
  static_assert(HasFormats<M>,
                "ModelSession: the model lacks T or G, the formats of weights and of their "
                "gradients; write `using T = Bf16; using G = Bf16;`");
  static_assert(HasFacts<M>,
                "ModelSession: the model lacks `static ModelFacts facts()`, its name and "
                "vocabulary");
  static_assert(HasPrecision<M>,
                "ModelSession: the model lacks `static std::string precision()`, its name");
  static_assert(
      HasLimits<M>,
      "ModelSession: the model lacks `static DeviceLimits<D> limits(BatchShape, const "
      "Context<D>&)`, which returns the context's limits if no library needs to be asked");
  static_assert(IsLaidOut<M>,
                "ModelSession: the model lacks a constructor (Arena<D>&, BatchShape, ModelOptions, "
                "const DeviceLimits<D>&) that takes its memory");
  static_assert(HasGemmRows<M>,
                "ModelSession: the model lacks GemmRows gemm_rows(Index micro_batches)");
  static_assert(HasInitialize<M>,
                "ModelSession: the model lacks initialize_sync(std::uint64_t seed, "
                "HooksOf<Model>&, Context<D>&)");
  static_assert(HasBind<M>, "ModelSession: the model lacks bind(Context<D>&) const");
  static_assert(HasModelRuns<M>,
                "ModelSession: the model lacks `const ModelRuns<T, G, D>& runs() const`, its flat "
                "buffers and their parameters");
  static_assert(HasQuantizeWeights<M>,
                "ModelSession: the model lacks invalidate_weight_copies<Mode>(HooksOf<Model>&, "
                "context)");
  static_assert(HasTrainMicroBatch<M>,
                "ModelSession: the model lacks train_micro_batch(batch, losses, gradient_scale, "
                "accumulation, hooks, context) with Decoder's arguments");
  static_assert(HasScaling<M>,
                "ModelSession: the model lacks `const ScalingTable<D>& scaling() const`");
  static_assert(
      HasEvaluate<M>,
      "ModelSession: the model lacks evaluate(batch, losses, hooks, context) with Decoder's "
      "arguments");
  static_assert(HasLogits<M>,
                "ModelSession: the model lacks logits(tokens, shape, begin, count, hooks, context) "
                "with Decoder's arguments");
  static_assert(HasManifest<M>, "ModelSession: the model lacks `const Manifest& manifest() const`");
  static_assert(HasCounts<M>,
                "ModelSession: the model lacks reset_counts() or verify_step(Index micro_batches), "
                "which compare each step with the manifest");
  static_assert(HasHeadChunks<M>, "ModelSession: the model lacks `Index head_chunks() const`");
  static_assert(HasNoOtherRunShape<M>,
                "ModelSession: run_shape of the model must be `static BatchShape "
                "run_shape(BatchShape)`, which returns the shape with lengthened sequences");
};

}  // namespace detail

/// Replaces a session of an invalid model, so that the compiler prints only the missing members.
template <class Model, class Optimizer, class Ranks>
requires(!TrainableModel<Model>) class ModelSession<Model, Optimizer, Ranks>
    : detail::TrainableModelCheck<Model> {
 public:
  template <class C>
  ModelSession(const SessionOptions&, C&) {}
};

}  // namespace octavo
