/// @file
/// The memory of a session, and what it depends on.
#pragma once

#include <octavo/train/replica_check.hpp>
#include <octavo/train/session_inputs.hpp>
#include <octavo/train/trainable_model.hpp>
#include <octavo/train/training_session.hpp>
#include <octavo/train/with_tensor_parallel.hpp>

#include <optional>
#include <utility>
#include <vector>

namespace octavo OCTAVO_ABI {

namespace detail {

/// The model's options that follow from those of its session.
/// @param casts_weights  ranks send each other weights in FP8
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

/// The options with their batch in the shape that it runs in.
template <class Model>
SessionOptions as_run(SessionOptions options) {
  if constexpr (HasRunShape<Model>) {
    const BatchShape given = options.batch;
    options.batch = Model::run_shape(given);
    require<UsageError>(
        options.batch.sequences == given.sequences && options.batch.tokens >= given.tokens &&
            options.batch.most_documents == given.most_documents,
        "run_shape of ", Model::facts().name, " makes of ", given.sequences, " x ", given.tokens,
        " tokens ", options.batch.sequences, " x ", options.batch.tokens,
        "; it may make sequences longer, and change nothing else");
  }
  return options;
}

/// The shards of runs that are not frozen.
template <class W, class G, Device D>
std::vector<FlatShard<W, G, D>> trained(std::vector<FlatShard<W, G, D>> shards) {
  std::erase_if(shards, [](const auto& shard) { return shard.gradients.size() == 0; });
  return shards;
}

/// What stands for ranks in a plan.
template <class Ranks, class W, class G, Device D>
struct PlannedRanks {
  using Type = typename Ranks::template For<W, G, D>;
};
template <class Ranks, class W, class G, Device D>
requires requires { typename Ranks::template Memory<W, G, D>; }
struct PlannedRanks<Ranks, W, G, D> {
  using Type = typename Ranks::template Memory<W, G, D>;
};

}  // namespace detail

/// What the memory of a session depends on beside its options and its model, as values: a program
/// that plans many kinds of session compiles each model, each way of training with others and each
/// optimizer once, and not once with each of the others.
/// @tparam W       format of the model's weights
/// @tparam G       format of its gradients
/// @tparam Degree  ranks that share its layers
template <class W, class G, Device D, int Degree = 1>
struct SessionKind {
  /// What an optimizer updates. Of gradients only the number counts: an optimizer's memory does not
  /// depend on their format.
  using Shards = std::vector<FlatShard<W, G, D>>;

  /// What ranks do together.
  struct OfRanks {
    bool casts_weights;  ///< they send each other weights in FP8
    Index degree;        ///< ranks that share the model's layers
    /// Takes its memory, and says what this rank updates.
    Shards (*take)(Arena<D>&, const ModelRuns<W, G, D>&, const Sharding&, Index degree);
  };
  /// Takes an optimizer's memory.
  using OfOptimizer = void (*)(Arena<D>&, const Shards&, const SessionOptions&);

  /// @param degree  ranks that share the model's layers
  template <class Ranks>
  static OfRanks of_ranks(Index degree = Degree) {
    using Planned = typename detail::PlannedRanks<Ranks, W, G, D>::Type;
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
                                  std::move(shard.parameters)});
              }
              return shards;
            }};
  }
  template <class Optimizer>
  static OfOptimizer of_optimizer() {
    return [](Arena<D>& arena, const Shards& shards, const SessionOptions& options) {
      const typename Optimizer::template For<W, G, D> taken(arena, shards, options.optimizer,
                                                            options.seed, options.offload);
    };
  }
  /// The kind of `ModelSession<Model, Optimizer, Ranks>`.
  template <class Optimizer, class Ranks = SingleRank>
  static SessionKind of() {
    return {of_ranks<Ranks>(), of_optimizer<Optimizer>()};
  }

  /// Takes what lives in the arena beside the model, as `detail::SessionOfModel` does.
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

/// What plans and sessions of these options ask the device's libraries: see `Decoder::limits`.
template <class Model>
[[nodiscard]] DeviceLimits<typename Model::DeviceType> limits_of(
    const SessionOptions& options, const Context<typename Model::DeviceType>& context) {
  return Model::limits(detail::as_run<Model>(options).batch, context);
}

/// The memory that a session of this kind needs, computed without allocating it.
/// @param limits  see `limits_of`
/// @throws ConfigError  for options that no session can be made with
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

/// The memory that a `ModelSession<Model, Optimizer, Ranks>` needs, likewise.
template <class Model, class Optimizer, class Ranks = SingleRank>
[[nodiscard]] MemoryPlan plan_memory(const SessionOptions& options,
                                     const DeviceLimits<typename Model::DeviceType>& limits) {
  return plan_memory<Model>(options, limits, SessionKindOf<Model>::template of<Optimizer, Ranks>());
}

}  // namespace octavo
