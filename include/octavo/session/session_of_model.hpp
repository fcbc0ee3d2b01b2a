/// @file
/// The part of a session that knows the model's type, but neither its optimizer's type nor that of
/// its ranks.
#pragma once

#include <octavo/comm/tensor_parallel.hpp>
#include <octavo/session/session_core.hpp>
#include <octavo/session/session_factory.hpp>
#include <octavo/session/session_plan.hpp>
#include <octavo/session/timed_hooks.hpp>
#include <octavo/session/trainable_model.hpp>
#include <octavo/session/weights_of_format.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace octavo OCTAVO_ABI::detail {

/// The part that sessions of one model type have in common. Programs choose from many optimizers
/// and rank types at run time, so code that needs neither type is compiled once for all of them.
template <class Model>
class SessionOfModel : public SessionCore<typename Model::DeviceType> {
 public:
  using D = typename Model::DeviceType;

  SessionOfModel(const SessionOfModel&) = delete;
  SessionOfModel& operator=(const SessionOfModel&) = delete;
  ~SessionOfModel() override { this->drop_record(); }

  /// Returns the model, for tests and programs that know its type.
  [[nodiscard]] Model& model() { return model_; }

 protected:
  using T = typename Model::T;
  using G = typename Model::G;
  using Core = SessionCore<D>;
  using Factory = SessionFactory<T, G, D>;

  /// @param communicator  null for a session on a single rank
  SessionOfModel(const SessionOptions& options, Context<D>& context, Communicator<D>* communicator,
                 const Factory& factory)
      : SessionOfModel(of_rank(options, communicator),
                       with_run_shape<Model>(of_rank(options, communicator)), context, communicator,
                       limits_of<Model>(options, context), factory) {}
  [[nodiscard]] RankCollectives<T, G, D>& rank_collectives() { return *made_.ranks; }

 private:
  using Evaluates = typename Core::Evaluates;

  /// @param options  as passed
  /// @param run      the same options, with the batch in the shape in which it runs
  SessionOfModel(const SessionOptions& options, const SessionOptions& run, Context<D>& context,
                 Communicator<D>* communicator, const DeviceLimits<D>& limits,
                 const Factory& factory)
      : Core(options, context, communicator, plan_memory<Model>(options, limits, factory.memory)),
        model_(this->arena(), run.batch, model_options(options, factory.memory.ranks.casts_weights),
               limits),
        made_(factory.make(this->arena(), model_.parameters(), run)),
        replicas_(this->arena(), model_.parameters(), model_.scaling(), options.check_replicas),
        ranks_(*made_.ranks),
        stages_(ranks_, this->timeline()),
        weights_(*this, model_.parameters(), std::move(made_.shards), ranks_, *made_.optimizer) {
    for (const auto& stage : model_.parameters())
      this->timeline().set_name(stage.flat, stage.name());
    this->start({&model_.manifest(), &model_.scaling(), made_.optimizer.get(), &ranks_, &replicas_,
                 &weights_},
                SessionBuffers<D>(this->arena(), run), facts_of_model());
    ranks_.start(context, this->communicator());
    if constexpr (tensor_degree<Model> != 1) ranks_.share(model_.tensor_parallel_group());
    if constexpr (OffloadsActivations<Model>) model_.report_copies_to(this->timeline());
    model_.initialize_sync(options.seed, ranks_, context);
    made_.optimizer->initialize(context);
    this->choose_gemms();
  }

  /// Returns the options of this rank.
  /// @throws ConfigError  if ranks do not divide into groups that share the model's layers, or the
  ///                      options are for another number of ranks
  static SessionOptions of_rank(SessionOptions options, const Communicator<D>* communicator) {
    const int rank = communicator == nullptr ? 0 : communicator->rank();
    const int ranks = communicator == nullptr ? 1 : communicator->size();
    const int planned = options.sharding.ranks;
    options.sharding = sharding_of_rank(options.sharding, rank, ranks, tensor_degree<Model>);
    require<ConfigError>(planned == 1 || planned == options.sharding.ranks,
                         "SessionOptions: sharding.ranks must be that of the communicator, ",
                         options.sharding.ranks, ", but is ", planned,
                         "; pass the communicator of all ranks, or omit sharding.ranks");
    return options;
  }

  /// Returns the facts that follow from the model and its optimizer.
  [[nodiscard]] SessionFacts facts_of_model() const {
    SessionFacts facts{Model::facts()};
    facts.precision = Model::precision();
    facts.optimizer = made_.optimizer_name;
    facts.head_chunks = model_.head_chunks();
    if constexpr (HasFrozenWeights<Model>) facts.lora = this->options().model.lora;
    for (const auto& stage : model_.parameters()) {
      for (const auto* parameter : stage.parameters) {
        if (parameter->has_fp8_values()) {
          facts.parameters_gathered_in_fp8 += parameter->full_size();
        }
      }
    }
    return facts;
  }

  void bind() override { model_.bind(this->context()); }
  void prepare_weights(Evaluates evaluates) override {
    ranks_.cast_weights(model_.scaling(), !evaluates.value, this->context());
    if (evaluates.value) {
      model_.template invalidate_weight_copies<Mode::evaluate>(ranks_, this->context());
    } else {
      model_.template invalidate_weight_copies<Mode::train>(ranks_, this->context());
    }
  }
  void cast_frozen_weights() override {
    if constexpr (HasFrozenWeights<Model>) {
      model_.cast_frozen_weights(ranks_, this->context());
    }
  }
  void train(Index micro_batch, Accumulation accumulation) override {
    const Context<D>& context = this->context();
    accumulation.share = this->share_of_micro_batch();
    this->timeline().begin_phase("forward", context);
    model_.train_micro_batch(this->micro_batch(micro_batch), this->buffers().losses,
                             this->buffers().gradient_scale, accumulation, stages_, context);
    this->timeline().end_phase(context);
  }
  void evaluate_losses(const DeviceBatch<D>& batch) override {
    model_.evaluate(batch, this->buffers().losses, ranks_, this->context());
  }
  void read_logits_sync(TensorView<const std::int32_t, 1, D> tokens, BatchShape shape, Index row,
                        std::span<float> logits) override {
    Context<D>& context = this->context();
    std::vector<T> values(logits.size());
    const auto result = model_.logits(tokens, shape, row, 1, ranks_, context);
    ranks_.join(context);
    this->communicator().wait_sync(context, "logits");
    copy_to_host_sync(values.data(), result.data(), values.size() * sizeof(T), context);
    for (std::size_t i = 0; i < values.size(); ++i) logits[i] = static_cast<float>(values[i]);
  }
  [[nodiscard]] GemmRows gemm_rows() const override {
    return model_.gemm_rows(this->options().micro_batches);
  }
  void reset_counts() override { model_.reset_counts(); }
  void verify_step() const override { model_.verify_step(this->options().micro_batches); }
  Model model_;
  OptimizerAndRanks<T, G, D> made_;
  ReplicaCheck<D> replicas_;
  RankCollectives<T, G, D>& ranks_;
  TimedHooks<T, G, D> stages_;  ///< the hooks of `ranks_`, for a step
  WeightsOfFormat<T, G, D> weights_;
};

}  // namespace octavo OCTAVO_ABI::detail
