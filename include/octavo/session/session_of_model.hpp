/// @file
/// The part of a session that knows the model's type, but neither its optimizer's type nor that of
/// its ranks.
#pragma once

#include <octavo/comm/tensor_parallel.hpp>
#include <octavo/session/session_core.hpp>
#include <octavo/session/session_parts.hpp>
#include <octavo/session/session_plan.hpp>
#include <octavo/session/timed_hooks.hpp>
#include <octavo/session/trainable_model.hpp>
#include <octavo/session/weight_download.hpp>
#include <octavo/session/weight_upload.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
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

  [[nodiscard]] const Manifest& manifest() const override { return model_.manifest(); }
  [[nodiscard]] std::string precision() const override { return Model::precision(); }
  [[nodiscard]] Index head_chunks() const override { return model_.head_chunks(); }
  [[nodiscard]] std::optional<LoraOptions> lora() const override {
    if constexpr (HasFrozenWeights<Model>) return this->options().model.lora;
    return {};
  }
  [[nodiscard]] Index parameters_gathered_in_fp8() const override {
    Index parameters = 0;
    for (const auto& in : model_.runs()) {
      for (const auto* parameter : in.parameters) {
        if (parameter->has_fp8_values()) parameters += parameter->whole_size();
      }
    }
    return parameters;
  }

  void set_weight(const std::string& name, std::span<const float> values) override {
    for (const WeightInfo& weight : this->weights()) {
      if (weight.name != name) continue;
      const auto given = static_cast<Index>(values.size());
      require<ConfigError>(given == weight.rows * weight.columns, name, " has ", weight.rows, " x ",
                           weight.columns, " elements, but ", given,
                           " are passed; pass all of them, without padding rows");
    }
    require_finite<T>(name, values, [](Index element) { return element; });
    set_weight(name, WeightSource([values](Index begin, std::span<float> piece) {
                 std::copy_n(values.begin() + begin, piece.size(), piece.begin());
               }));
  }

  void set_weight(const std::string& name, const WeightSource& source) override {
    this->note_new_state();
    bool found = false;
    for_each_shard([&](const auto& parameter, const auto& weights, Index begin) {
      if (parameter.name != name) return;
      found = true;
      this->forget_histories();  // even if a piece is refused
      if (ranks_->weights_are_whole()) {
        set_elements(parameter, parameter.weight.data(), 0, parameter.weight.size(), source);
      } else {
        set_elements(parameter, weights.data(), begin, weights.size(), source);
      }
    });
    require<ConfigError>(found, "the model has no parameter ", name,
                         "; names are those of its state() without \"model.\", such as ",
                         this->parameters().front().name);
  }

  [[nodiscard]] std::string optimizer() const override { return parts_->optimizer_name(); }
  /// Returns the model, for tests and programs that know its type.
  [[nodiscard]] Model& model() { return model_; }

 protected:
  using T = typename Model::T;
  using G = typename Model::G;
  using Core = SessionCore<D>;
  using Parts = SessionParts<T, G, D>;
  using Kind = SessionKindOf<Model>;
  /// Creates the parts whose memory `kind` has allocated.
  using MakeParts = std::unique_ptr<Parts> (*)(Arena<D>&, const ModelRuns<T, G, D>&,
                                               const SessionOptions&);

  /// @param communicator  null for a session that trains alone
  SessionOfModel(const SessionOptions& options, Context<D>& context, Communicator<D>* communicator,
                 const Kind& kind, MakeParts make)
      : SessionOfModel(of_rank(options, communicator),
                       as_run<Model>(of_rank(options, communicator)), context, communicator,
                       limits_of<Model>(options, context), kind, make) {}
  [[nodiscard]] Parts& parts() { return *parts_; }

 private:
  using Evaluates = typename Core::Evaluates;

  /// @param options  as passed
  /// @param run      the same, with the batch in the shape in which it runs
  SessionOfModel(const SessionOptions& options, const SessionOptions& run, Context<D>& context,
                 Communicator<D>* communicator, const DeviceLimits<D>& limits, const Kind& kind,
                 MakeParts make)
      : Core(options, context, communicator, plan_memory<Model>(options, limits, kind),
             Model::facts()),
        model_(this->arena(), run.batch, model_options(options, kind.ranks.casts_weights), limits),
        parts_(make(this->arena(), model_.runs(), run)),
        replicas_(this->arena(), model_.runs(), model_.scaling(), options.check_replicas),
        hooks_(&parts_->hooks()),
        ranks_(&parts_->collectives()),
        shards_(parts_->shards()) {
    start_stages(SessionBuffers<D>(this->arena(), run));
    TensorParallelGroup<D>* group = nullptr;
    if constexpr (tensor_degree<Model> != 1) group = &model_.tensor_parallel_group();
    parts_->start(context, this->communicator(), group);
    model_.initialize_sync(options.seed, *hooks_, context);
    parts_->optimizer().initialize(context);
    this->choose_gemms();
  }

  /// Returns the options of this rank.
  /// @throws ConfigError  if ranks do not divide into groups that share the model's layers
  static SessionOptions of_rank(SessionOptions options, const Communicator<D>* communicator) {
    const int rank = communicator == nullptr ? 0 : communicator->rank();
    const int ranks = communicator == nullptr ? 1 : communicator->size();
    options.sharding = sharding_of_rank(options.sharding, rank, ranks, tensor_degree<Model>);
    return options;
  }

  void start_stages(const SessionBuffers<D>& buffers) {
    stages_.emplace(*hooks_, this->timeline());
    std::vector<ParameterFacts> parameters;
    for (const auto& in : model_.runs()) {
      this->timeline().set_name(in.run, in.name());
      for (const auto* parameter : in.parameters) {
        parameters.push_back({parameter->name, parameter->whole_size(), parameter->part,
                              parameter->part.whole_shape(parameter->weight.shape())[1],
                              FormatTraits<T>::name, parameter->is_adapter, parameter->is_frozen});
      }
    }
    this->start(buffers, replicas_, std::move(parameters));
  }

  [[nodiscard]] StepCollectives<D>& collectives() override { return *ranks_; }
  [[nodiscard]] Optimizer<D>& updater() override { return parts_->optimizer(); }
  void begin_step() override { upload_.reset(); }

  /// Calls `body(parameter, weights, begin)` for every parameter, with the weights that this rank
  /// updates: the elements from `begin` on.
  template <class Body>
  void for_each_shard(const Body& body) {
    const auto& runs = model_.runs();
    for (std::size_t i = 0; i < runs.size(); ++i) {
      for (std::size_t j = 0; j < runs[i].parameters.size(); ++j) {
        const ParameterPlace& place = shards_[i].parameters[j];
        const auto part = shards_[i].part_of(place);
        body(*runs[i].parameters[j],
             shards_[i].weights.rows(shards_[i].place_of(place, part), part.end - part.begin),
             part.begin);
      }
    }
  }

  /// Sets elements of this rank's part of a parameter, and their masters.
  /// @param elements  on the device
  /// @param begin     position of the first element in the part
  void set_elements(const auto& parameter, T* elements, Index begin, Index count,
                    const WeightSource& source) {
    const Context<D>& context = this->context();
    if (upload_ == nullptr) upload_ = std::make_unique<Upload>(context);
    using Piece = typename Upload::Piece;
    upload_->run_sync(
        count,
        [&](const Piece& piece) {
          take_elements(parameter.part, parameter.weight.shape(), parameter.whole_size(), source,
                        begin + piece.begin, piece.values);
          bool is_finite = true;
          for (std::size_t i = 0; i < piece.values.size(); ++i) {
            piece.rounded[i] = T(piece.values[i]);
            const auto value = static_cast<float>(piece.rounded[i]);
            is_finite &= value - value == 0;
          }
          if (is_finite) return;
          require_finite<T>(parameter.name, piece.values, [&](Index element) {
            return parameter.part.place_in_whole(parameter.weight.shape(),
                                                 begin + piece.begin + element);
          });
        },
        [&](const Piece& piece) {
          copy_to_device(elements + piece.begin, piece.rounded.data(), piece.rounded.size_bytes(),
                         context);
          updater().set_master(parameter.name, begin + piece.begin, piece.values, context);
        });
  }

  /// Reads each flat buffer's weights as a stage does, so they may be gathered for it. If stages
  /// receive FP8 values, the weights are whole or sharded.
  void give_weights_sync(const WeightSink& sink) override {
    Context<D>& context = this->context();
    WeightDownload<T, D> download(*ranks_, this->communicator(), sink, context);
    const std::vector<WeightInfo> info = this->weights();
    const WeightInfo* weight = info.data();
    ranks_->gather_weights(context);
    const auto& runs = model_.runs();
    for (std::size_t i = 0; i < runs.size(); ++i) {
      const auto& in = runs[i];
      if (in.run->has_fp8_values() && !ranks_->weights_are_whole()) {
        ranks_->join(context);  // including the work that precedes this buffer's stages
        download.give_shards_sync(in, shards_[i].weights, this->options().sharding.ranks, weight);
      } else {
        if (!in.run->has_fp8_values()) hooks_->before_forward(*in.run, context);
        this->communicator().wait_sync(context, "weights that are read");
        const WeightInfo* of = weight;
        for (const auto* parameter : in.parameters) {
          download.give_sync(*of++, *parameter, 0, parameter->vector());
        }
        hooks_->weights_read(*in.run, context);
      }
      weight += in.parameters.size();
    }
    ranks_->join(context);
    this->communicator().wait_sync(context, "weights that are read");
  }

  void bind() override { model_.bind(this->context()); }
  void prepare_weights(Evaluates evaluates) override {
    ranks_->cast_weights(model_.scaling(), !evaluates.value, this->context());
    if (evaluates.value) {
      model_.template invalidate_weight_copies<Mode::evaluate>(*hooks_, this->context());
    } else {
      model_.template invalidate_weight_copies<Mode::train>(*hooks_, this->context());
    }
  }
  void cast_frozen_weights() override {
    if constexpr (HasFrozenWeights<Model>) {
      model_.cast_frozen_weights(*hooks_, this->context());
    }
  }
  void train_micro_batch(const DeviceBatch<D>& batch, Accumulation accumulation) override {
    model_.train_micro_batch(batch, this->buffers().losses, this->buffers().gradient_scale,
                             accumulation, *stages_, this->context());
  }
  void evaluate_losses(const DeviceBatch<D>& batch) override {
    model_.evaluate(batch, this->buffers().losses, *hooks_, this->context());
  }
  [[nodiscard]] Index text_multiple() const override {
    constexpr Index of_fp8_gemms = 16;  // other formats: fewer sizes to choose algorithms for
    return std::lcm(of_fp8_gemms, Index{tensor_degree<Model>});
  }
  void read_logits_sync(TensorView<const std::int32_t, 1, D> tokens, BatchShape shape, Index row,
                        std::span<float> logits) override {
    Context<D>& context = this->context();
    std::vector<T> values(logits.size());
    const auto result = model_.logits(tokens, shape, row, 1, *hooks_, context);
    ranks_->join(context);
    this->communicator().wait_sync(context, "logits");
    copy_to_host_sync(values.data(), result.data(), values.size() * sizeof(T), context);
    for (std::size_t i = 0; i < values.size(); ++i) logits[i] = static_cast<float>(values[i]);
  }
  [[nodiscard]] const ScalingTable<D>& scaling() const override { return model_.scaling(); }
  [[nodiscard]] GemmRows gemm_rows() const override {
    return model_.gemm_rows(this->options().micro_batches);
  }
  void reset_counts() override { model_.reset_counts(); }
  void verify_step() const override { model_.verify_step(this->options().micro_batches); }
  void visit_weights(StateCollector<D>& collector) override {
    for_each_shard([&](const auto& parameter, const auto& weights, Index begin) {
      if (parameter.is_frozen) return;
      const std::string name = "model." + parameter.name;
      if (ranks_->weights_are_whole()) {
        collector(name, parameter.weight);
      } else if (weights.size() != 0) {
        collector(name, weights, begin, parameter.weight.shape());
      }
    });
  }
  void visit_updated_weights(
      const std::function<void(TensorView<const std::byte, 1, D>)>& visit) override {
    for (const auto& shard : shards_) {
      visit({reinterpret_cast<const std::byte*>(shard.weights.data()),
             {static_cast<Index>(shard.weights.bytes())}});
    }
  }

  using Upload = WeightUpload<T, D>;

  Model model_;
  std::unique_ptr<Parts> parts_;
  ReplicaCheck<D> replicas_;
  StageHooks<T, G, D>* hooks_;  ///< of the parts
  StepCollectives<D>* ranks_;   ///< of the parts
  std::vector<FlatShard<T, G, D>> shards_;
  std::optional<TimedHooks<T, G, D>> stages_;
  std::unique_ptr<Upload> upload_;  ///< from the first weight that is set until the next step
};

}  // namespace octavo OCTAVO_ABI::detail
