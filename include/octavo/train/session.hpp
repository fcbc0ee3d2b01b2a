/// @file
/// A model, its optimizer and their memory: training steps and evaluation.
#pragma once

#include <octavo/train/session_of_model.hpp>
#include <octavo/train/tensor_groups.hpp>

#include <span>
#include <string>
#include <vector>

namespace octavo::inline OCTAVO_ABI {

/// The memory that a session needs, computed without allocating it.
/// @throws ConfigError  for options that no session can be made with
template <class Model, class Optimizer, class Ranks = OneRank>
[[nodiscard]] MemoryPlan plan_memory(const SessionOptions& options,
                                     const DeviceLimits<typename Model::DeviceType>& limits);

namespace detail {

/// Everything that lives in the arena, in the order that it is taken.
/// @tparam RanksPart  what `Ranks` is for the model, or the memory of it
template <class Model, class Optimizer, class RanksPart>
struct SessionParts {
  using D = typename Model::DeviceType;

  SessionParts(Arena<D>& arena, const SessionOptions& options, const DeviceLimits<D>& limits)
      : model(arena, options.batch, model_options(options), limits),
        ranks(arena, model.runs(), options.sharding),
        optimizer(arena, trained(ranks.shards()), options.optimizer, options.seed, options.offload),
        replicas(arena, model.runs(), model.scaling(), options.check_replicas),
        buffers(arena, options) {}

  static ModelOptions model_options(const SessionOptions& options) {
    ModelOptions model = options.model;
    model.gradients_are_sent = options.sharding.shards_gradients();
    model.gradients_share_memory =
        !model.gradients_are_sent &&
        (options.micro_batches == 1 || options.sharding.reduces_each_micro_batch());
    model.weights_are_gathered = options.sharding.shards_weights();
    model.weights_come_as_codes = RanksPart::casts_weights && options.sharding.ranks > 1;
    model.run_multiple = options.sharding.ranks * Index{allocation_alignment};
    model.tensor_place = options.sharding.tensor_place;
    return model;
  }

  /// The shards of runs that are not frozen.
  template <class Shards>
  static Shards trained(Shards shards) {
    std::erase_if(shards, [](const auto& shard) { return shard.gradients.size() == 0; });
    return shards;
  }

  Model model;
  RanksPart ranks;
  typename Optimizer::template For<typename Model::T, typename RanksPart::Gradient, D> optimizer;
  ReplicaCheck<D> replicas;
  SessionBuffers<D> buffers;
};

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

/// The session of one model type.
/// @tparam Model      a `TrainableModel`, such as `Llama<llama_tiny, Bf16, Cpu>`
/// @tparam Optimizer  such as `AdamW<MasterWeights<Fp32>, Moments<Bf16>>`
/// @tparam Ranks      what ranks do together; see `OneRank`
template <class Model, class Optimizer = AdamW<>, class Ranks = OneRank>
class ModelSession final : public detail::SessionOfModel<Model> {
 public:
  using D = typename Model::DeviceType;

  /// A session that trains alone.
  ModelSession(const SessionOptions& options, Context<D>& context)
      : ModelSession(of_rank(options, 0, 1), context, nullptr,
                     Model::limits(options.batch, context)) {}

  /// One of the ranks that train a model. All ranks make the same calls in the same order, with the
  /// same options, which say for how many ranks memory was planned; each gives batches of its own.
  /// @param communicator  outlives the session
  ModelSession(const SessionOptions& options, Context<D>& context, Communicator<D>& communicator)
      : ModelSession(of_rank(options, communicator.rank(), communicator.size()), context,
                     &communicator, Model::limits(options.batch, context)) {}

  ModelSession(const ModelSession&) = delete;
  ModelSession& operator=(const ModelSession&) = delete;
  ~ModelSession() override { this->drop_record(); }

  [[nodiscard]] std::string optimizer() const override {
    return decltype(parts_.optimizer)::name();
  }
  /// What its ranks do together, for tests and programs that know its type.
  [[nodiscard]] auto& ranks() { return parts_.ranks; }

 private:
  using Base = detail::SessionOfModel<Model>;
  using T = typename Model::T;
  using G = typename Model::G;
  using RanksPart =
      detail::RanksInGroups<tensor_degree<Model>, T, G, D, typename Ranks::template For<T, G, D>>;

  ModelSession(const SessionOptions& options, Context<D>& context, Communicator<D>* communicator,
               const DeviceLimits<D>& limits)
      : Base(options, context, communicator, plan_memory<Model, Optimizer, Ranks>(options, limits),
             Model::facts()),
        parts_(this->arena(), options, limits) {
    this->start_model(parts_.model, parts_.ranks, parts_.buffers, parts_.replicas);
    parts_.ranks.start(context, this->communicator());
    if constexpr (tensor_degree<Model> != 1) parts_.ranks.share(parts_.model.tensor_group());
    parts_.model.initialize_sync(options.seed, parts_.ranks, context);
    parts_.optimizer.initialize(context);
    this->choose_gemms();
  }

  /// The options of this rank.
  /// @throws ConfigError  if ranks do not divide into groups that share the model's layers
  static SessionOptions of_rank(SessionOptions options, int rank, int ranks) {
    options.sharding = sharding_of_rank(options.sharding, rank, ranks, tensor_degree<Model>);
    return options;
  }

  void prepare_update(double learning_rate, Staging<D>& staging) override {
    this->end_upload();
    parts_.optimizer.prepare(learning_rate, staging, this->context());
  }
  void add_squared_norms() override {
    parts_.optimizer.add_squared_norms(parts_.buffers.status, this->context());
  }
  void update_weights() override {
    parts_.optimizer.step(parts_.buffers.status, this->timeline(), this->context());
  }
  void set_master(const std::string& name, Index begin, std::span<const float> values) override {
    parts_.optimizer.set_master(name, begin, values, this->context());
  }
  void count_update() override { parts_.optimizer.advance(); }
  void visit_optimizer(detail::StateCollector<D>& collector) override {
    parts_.optimizer.visit_state(collector);
  }

  detail::SessionParts<Model, Optimizer, RanksPart> parts_;
};

template <class Model, class Optimizer, class Ranks>
MemoryPlan plan_memory(const SessionOptions& options,
                       const DeviceLimits<typename Model::DeviceType>& limits) {
  detail::check_options(options);
  Arena<typename Model::DeviceType> arena;
  using W = typename Model::T;
  using G = typename Model::G;
  using D = typename Model::DeviceType;
  using RanksPart = detail::MemoryInGroups<tensor_degree<Model>, W, G, D,
                                           typename detail::PlannedRanks<Ranks, W, G, D>::Type>;
  const detail::SessionParts<Model, Optimizer, RanksPart> parts(arena, options, limits);
  return arena.plan();
}

}  // namespace octavo
