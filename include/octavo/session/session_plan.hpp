/// @file
/// The memory of a session, and the types that it depends on.
#pragma once

#include <octavo/parallel/replica_check.hpp>
#include <octavo/parallel/with_tensor_parallel.hpp>
#include <octavo/session/session_inputs.hpp>
#include <octavo/session/trainable_model.hpp>
#include <octavo/session/training_session.hpp>

#include <optional>
#include <utility>
#include <vector>

namespace octavo OCTAVO_ABI {

namespace detail {

/// Returns the model options that follow from those of its session.
/// @param casts_weights  whether ranks send each other weights in FP8
inline ModelOptions model_options(const SessionOptions& options, bool casts_weights) {
  ModelOptions model = options.model;
  model.gradients_are_sent = options.sharding.shards_gradients();
  model.gradients_share_memory =
      !model.gradients_are_sent &&
      (options.micro_batches == 1 || options.sharding.reduces_each_micro_batch());
  model.weights_are_gathered = options.sharding.shards_weights();
  model.gather_weights_in_fp8 = casts_weights && options.sharding.ranks > 1;
  model.run_multiple = options.sharding.ranks * Index{allocation_alignment};
  model.tensor_place = options.sharding.tensor_place;
  return model;
}

/// Returns the options with the batch in the shape in which it runs.
template <class Model>
SessionOptions as_run(SessionOptions options) {
  if constexpr (HasRunShape<Model>) {
    const BatchShape given = options.batch;
    options.batch = Model::run_shape(given);
    require<UsageError>(options.batch.sequences == given.sequences &&
                            options.batch.tokens >= given.tokens &&
                            options.batch.most_documents == given.most_documents,
                        "run_shape of ", Model::facts().name, " turns ", given.sequences, " x ",
                        given.tokens, " tokens into ", options.batch.sequences, " x ",
                        options.batch.tokens, "; it may only lengthen sequences");
  }
  return options;
}

/// Returns the shards of flat buffers that are not frozen.
template <class W, class G, Device D>
std::vector<FlatShard<W, G, D>> trained(std::vector<FlatShard<W, G, D>> shards) {
  std::erase_if(shards, [](const auto& shard) { return shard.gradients.size() == 0; });
  return shards;
}

/// Returns the type that represents ranks or an optimizer in a plan.
template <class Kind, class W, class G, Device D>
struct Planned {
  using Type = typename Kind::template For<W, G, D>;
};
template <class Kind, class W, class G, Device D>
requires requires { typename Kind::template Memory<W, G, D>; }
struct Planned<Kind, W, G, D> {
  using Type = typename Kind::template Memory<W, G, D>;
};

}  // namespace detail

/// The types that a session's memory depends on, in addition to its options and its model, as
/// values. A program that plans many kinds of session thus compiles each model, each way of
/// training with other ranks and each optimizer once, instead of every combination.
/// @tparam W       format of the model's weights
/// @tparam G       format of its gradients
/// @tparam Degree  number of ranks that share its layers
template <class W, class G, Device D, int Degree = 1>
struct SessionKind {
  /// The shards that an optimizer updates. Only the number of gradients counts: an optimizer's
  /// memory does not depend on their format.
  using Shards = std::vector<FlatShard<W, G, D>>;

  /// The collective operations of ranks.
  struct OfRanks {
    bool casts_weights;  ///< whether they send each other weights in FP8
    Index degree;        ///< number of ranks that share the model's layers
    /// Allocates its memory, and returns this rank's shards.
    Shards (*take)(Arena<D>&, const ModelRuns<W, G, D>&, const Sharding&, Index degree);
  };
  /// Allocates an optimizer's memory.
  using OfOptimizer = void (*)(Arena<D>&, const Shards&, const SessionOptions&);

  /// @param degree  number of ranks that share the model's layers
  template <class Ranks>
  static OfRanks of_ranks(Index degree = Degree) {
    using Planned = typename detail::Planned<Ranks, W, G, D>::Type;
    return {Planned::casts_weights, degree,
            [](Arena<D>& arena, const ModelRuns<W, G, D>& runs, const Sharding& sharding,
               Index in_group) {
              const Planned part(arena, runs, sharding);
              std::optional<detail::GroupMemory<W, G, D>> group;
              if (in_group > 1) group.emplace(arena, runs, sharding, in_group);
              Shards shards;
              for (auto& shard : part.shards()) {
                shards.push_back({shard.weights,
                                  {nullptr, shard.gradients.shape()},
                                  shard.begin,
                                  std::move(shard.parameters),
                                  shard.whole});
              }
              return shards;
            }};
  }
  template <class Optimizer>
  static OfOptimizer of_optimizer() {
    return [](Arena<D>& arena, const Shards& shards, const SessionOptions& options) {
      const typename detail::Planned<Optimizer, W, G, D>::Type taken(
          arena, shards, options.optimizer.of<typename Optimizer::Settings>(), options.seed,
          options.offload);
    };
  }
  /// Returns the kind of `ModelSession<Model, Optimizer, Ranks>`.
  template <class Optimizer, class Ranks = SingleRank>
  static SessionKind of() {
    return {of_ranks<Ranks>(), of_optimizer<Optimizer>()};
  }

  /// Allocates the memory of a session, except its model's, from the arena, as
  /// `detail::SessionOfModel` does.
  void take_memory(Arena<D>& arena, const ModelRuns<W, G, D>& runs, const ScalingTable<D>& scaling,
                   const SessionOptions& options) const {
    optimizer(arena, detail::trained(ranks.take(arena, runs, options.sharding, ranks.degree)),
              options);
    const ReplicaCheck<D> replicas(arena, runs, scaling, options.check_replicas);
    const detail::SessionBuffers<D> buffers(arena, options);
  }

  OfRanks ranks;
  OfOptimizer optimizer;
};
template <class Model>
using SessionKindOf = SessionKind<typename Model::T, typename Model::G, typename Model::DeviceType,
                                  tensor_degree<Model>>;

/// Returns the limits that plans and sessions of these options ask the device's libraries for: see
/// `Decoder::limits`.
template <class Model>
[[nodiscard]] DeviceLimits<typename Model::DeviceType> limits_of(
    const SessionOptions& options, const Context<typename Model::DeviceType>& context) {
  return Model::limits(detail::as_run<Model>(options).batch, context);
}

/// Computes the memory that a session of this kind needs, without allocating it.
/// @param limits  see `limits_of`
/// @throws ConfigError  for options with which no session can be created
template <class Model>
[[nodiscard]] MemoryPlan plan_memory(const SessionOptions& given,
                                     const DeviceLimits<typename Model::DeviceType>& limits,
                                     const SessionKindOf<Model>& kind) {
  detail::check_options(given);
  const SessionOptions options = detail::as_run<Model>(given);
  Arena<typename Model::DeviceType> arena;
  const Model model(arena, options.batch, detail::model_options(options, kind.ranks.casts_weights),
                    limits);
  kind.take_memory(arena, model.runs(), model.scaling(), options);
  return arena.plan();
}

/// Computes the memory that a `ModelSession<Model, Optimizer, Ranks>` needs, without allocating it.
template <class Model, class Optimizer, class Ranks = SingleRank>
[[nodiscard]] MemoryPlan plan_memory(const SessionOptions& options,
                                     const DeviceLimits<typename Model::DeviceType>& limits) {
  return plan_memory<Model>(options, limits, SessionKindOf<Model>::template of<Optimizer, Ranks>());
}

}  // namespace octavo
