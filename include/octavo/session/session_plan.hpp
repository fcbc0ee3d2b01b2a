/// @file
/// The memory of a session, and the types that it depends on.
#pragma once

#include <octavo/parallel/replica_check.hpp>
#include <octavo/parallel/single_rank.hpp>
#include <octavo/parallel/with_tensor_parallel.hpp>
#include <octavo/session/session_inputs.hpp>
#include <octavo/session/trainable_model.hpp>
#include <octavo/session/training_session.hpp>

#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

namespace octavo OCTAVO_ABI {

namespace detail {

/// Returns the model options that follow from those of its session.
/// @param casts_weights  whether ranks send each other weights in FP8
inline ModelOptions model_options(const SessionOptions& options, bool casts_weights) {
  ModelOptions model = options.model;
  model.offload_activations = options.offload.activations;
  model.gradients_are_sent = options.sharding.shards_gradients();
  model.gradients_share_memory =
      !model.gradients_are_sent &&
      (options.micro_batches == 1 || options.sharding.reduces_each_micro_batch());
  model.weights_are_gathered = options.sharding.shards_weights();
  model.gather_weights_in_fp8 = casts_weights && options.sharding.ranks > 1;
  model.flat_multiple = options.sharding.ranks * Index{allocation_alignment};
  model.tensor_rank = options.sharding.tensor_rank;
  model.data_rank = options.sharding.rank;
  return model;
}

/// Returns the options with the batch in the shape in which it runs.
template <class Model>
SessionOptions with_run_shape(SessionOptions options) {
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

/// The type that allocates the memory of ranks or an optimizer in a plan: `Memory`, which needs no
/// code for the device, or `For` if there is no `Memory`.
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

/// Allocates the memory of a session except its model's. Ranks and the optimizer are functions, so
/// that a program that plans many combinations compiles each model, each type of ranks and each
/// optimizer once.
/// @tparam W  format of the model's weights
/// @tparam G  format of its gradients
template <class W, class G, Device D>
struct SessionMemory {
  /// The shards that an optimizer updates. Only the number of gradients counts: an optimizer's
  /// memory does not depend on their format.
  using Shards = std::vector<FlatShard<W, G, D>>;

  struct Ranks {
    bool casts_weights;  ///< whether ranks send each other weights in FP8
    Index degree;        ///< number of ranks that share the model's layers
    /// Allocates the memory of ranks, and returns the shards of this one.
    Shards (*allocate)(Arena<D>&, const ModelParameters<W, G, D>&, const Sharding&, Index degree);
  };
  using Optimizer = void (*)(Arena<D>&, const Shards&, const SessionOptions&);

  /// @tparam Kind    such as `DataParallel<>`
  /// @param  degree  number of ranks that share the model's layers
  template <class Kind>
  static Ranks of_ranks(Index degree) {
    using Planned = typename detail::Planned<Kind, W, G, D>::Type;
    return {Planned::casts_weights, degree,
            [](Arena<D>& arena, const ModelParameters<W, G, D>& parameters,
               const Sharding& sharding, Index in_group) {
              if constexpr (std::is_same_v<Kind, SingleRank>) detail::check_single_rank(sharding);
              const Planned planned(arena, parameters, sharding);
              std::optional<detail::GroupMemory<W, G, D>> group;
              if (in_group > 1) group.emplace(arena, parameters, sharding, in_group);
              Shards shards;
              for (auto& shard : planned.shards()) {
                shards.push_back({shard.weights,
                                  {nullptr, shard.gradients.shape()},
                                  shard.begin,
                                  std::move(shard.parameters),
                                  shard.whole});
              }
              return shards;
            }};
  }
  /// @tparam Kind  such as `AdamW<>`
  template <class Kind>
  static Optimizer of_optimizer() {
    return [](Arena<D>& arena, const Shards& shards, const SessionOptions& options) {
      const typename detail::Planned<Kind, W, G, D>::Type allocated(
          arena, shards, options.optimizer.of<typename Kind::Settings>(), options.seed,
          options.offload);
    };
  }

  /// Allocates memory in the order in which a session does.
  void allocate(Arena<D>& arena, const ModelParameters<W, G, D>& parameters,
                const ScalingTable<D>& scaling, const SessionOptions& options) const {
    optimizer(arena,
              detail::trained(ranks.allocate(arena, parameters, options.sharding, ranks.degree)),
              options);
    const ReplicaCheck<D> replicas(arena, parameters, scaling, options.check_replicas);
    const detail::SessionBuffers<D> buffers(arena, options);
  }

  Ranks ranks;
  Optimizer optimizer;
};
/// The `SessionMemory` of sessions of a model.
template <class Model>
using SessionMemoryOf =
    SessionMemory<typename Model::T, typename Model::G, typename Model::DeviceType>;

/// Returns the device limits for plans and sessions with these options: see `Decoder::limits`.
template <class Model>
[[nodiscard]] DeviceLimits<typename Model::DeviceType> limits_of(
    const SessionOptions& options, const Context<typename Model::DeviceType>& context) {
  return Model::limits(detail::with_run_shape<Model>(options).batch, context);
}

/// Computes the memory that a session needs, without allocating it.
/// @param memory  of the session's ranks and optimizer
/// @param limits  see `limits_of`
/// @throws ConfigError  for options with which no session can be created
template <class Model>
[[nodiscard]] MemoryPlan plan_memory(const SessionOptions& given,
                                     const DeviceLimits<typename Model::DeviceType>& limits,
                                     const SessionMemoryOf<Model>& memory) {
  detail::check_options(given);
  if constexpr (!detail::OffloadsActivations<Model>) {
    require<ConfigError>(!given.offload.activations, Model::facts().name,
                         " does not offload activations; set offload.activations to false");
  }
  const SessionOptions options = detail::with_run_shape<Model>(given);
  Arena<typename Model::DeviceType> arena;
  const Model model(arena, options.batch,
                    detail::model_options(options, memory.ranks.casts_weights), limits);
  memory.allocate(arena, model.parameters(), model.scaling(), options);
  return arena.plan();
}

/// Computes the memory that a `ModelSession<Model, Optimizer, Ranks>` needs, without allocating it.
template <class Model, class Optimizer, class Ranks = SingleRank>
[[nodiscard]] MemoryPlan plan_memory(const SessionOptions& options,
                                     const DeviceLimits<typename Model::DeviceType>& limits) {
  using Memory = SessionMemoryOf<Model>;
  return plan_memory<Model>(options, limits,
                            {Memory::template of_ranks<Ranks>(tensor_degree<Model>),
                             Memory::template of_optimizer<Optimizer>()});
}

}  // namespace octavo
