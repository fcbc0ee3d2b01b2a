/// @file
/// A model, its optimizer and their memory: training steps and evaluation.
#pragma once

#include <octavo/train/session_core.hpp>
#include <octavo/train/stage_hooks.hpp>
#include <octavo/train/tensor_groups.hpp>
#include <octavo/train/trainable_model.hpp>
#include <octavo/train/weight_upload.hpp>

#include <algorithm>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
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
class ModelSession final : public detail::SessionCore<typename Model::DeviceType> {
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

  [[nodiscard]] const Manifest& manifest() const override { return parts_.model.manifest(); }
  [[nodiscard]] std::string precision() const override { return Model::precision(); }
  [[nodiscard]] std::string optimizer() const override {
    return decltype(parts_.optimizer)::name();
  }
  [[nodiscard]] Index head_chunks() const override { return parts_.model.head_chunks(); }
  [[nodiscard]] std::optional<LoraOptions> lora() const override {
    if constexpr (detail::HasFrozenWeights<Model>) return this->options().model.lora;
    return {};
  }
  [[nodiscard]] Index parameters_gathered_in_fp8() const override {
    Index parameters = 0;
    for (const auto& in : parts_.model.runs()) {
      for (const auto* parameter : in.parameters) {
        if (parameter->has_codes()) parameters += parameter->whole_size();
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
                           " are given; give those, without rows that pad it");
    }
    detail::require_finite<T>(name, values, [](Index element) { return element; });
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
      this->forget_histories();  // also where a piece is refused
      if (parts_.ranks.weights_are_whole()) {
        set_elements(parameter, parameter.weight.data(), 0, parameter.weight.size(), source);
      } else {
        set_elements(parameter, weights.data(), begin, weights.size(), source);
      }
    });
    require<ConfigError>(found, "the model has no parameter ", name,
                         "; names are those of its state() without \"model.\", such as ",
                         this->parameters().front().name);
  }

  /// The model, for tests and programs that know its type.
  [[nodiscard]] Model& model() { return parts_.model; }
  /// What its ranks do together, likewise.
  [[nodiscard]] auto& ranks() { return parts_.ranks; }

 private:
  using Core = detail::SessionCore<D>;
  using T = typename Model::T;
  using RanksPart = detail::RanksInGroups<tensor_degree<Model>, T, typename Model::G, D,
                                          typename Ranks::template For<T, typename Model::G, D>>;
  using Evaluates = typename Core::Evaluates;

  ModelSession(const SessionOptions& options, Context<D>& context, Communicator<D>* communicator,
               const DeviceLimits<D>& limits)
      : Core(options, context, communicator, plan_memory<Model, Optimizer, Ranks>(options, limits),
             Model::facts()),
        parts_(this->arena(), options, limits) {
    std::vector<detail::ParameterFacts> parameters;
    for (const auto& in : parts_.model.runs()) {
      this->timeline().set_name(in.run, in.name());
      for (const auto* parameter : in.parameters) {
        parameters.push_back({parameter->name, parameter->whole_size(), parameter->part,
                              parameter->part.whole_shape(parameter->weight.shape())[1],
                              FormatTraits<T>::name, parameter->is_adapter, parameter->is_frozen});
      }
    }
    this->start(parts_.buffers, parts_.replicas, std::move(parameters));
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

  /// Calls `body(parameter, weights, begin)` for every parameter, with what this rank updates of
  /// it: elements from `begin` on.
  template <class Body>
  void for_each_shard(const Body& body) {
    const auto shards = parts_.ranks.shards();
    const auto& runs = parts_.model.runs();
    for (std::size_t i = 0; i < runs.size(); ++i) {
      for (std::size_t j = 0; j < runs[i].parameters.size(); ++j) {
        const ParameterPlace& place = shards[i].parameters[j];
        const auto part = shards[i].part_of(place);
        body(*runs[i].parameters[j],
             shards[i].weights.rows(shards[i].place_of(place, part), part.end - part.begin),
             part.begin);
      }
    }
  }

  /// Sets elements of this rank's part of a parameter, and their masters.
  /// @param elements  where they are on the device
  /// @param begin     of the first in the part
  void set_elements(const auto& parameter, T* elements, Index begin, Index count,
                    const WeightSource& source) {
    const Context<D>& context = this->context();
    if (upload_ == nullptr) upload_ = std::make_unique<Upload>(context, host_threads(context));
    using Piece = typename Upload::Piece;
    upload_->run_sync(
        count,
        [&](const Piece& piece) {
          detail::take_elements(parameter.part, parameter.weight.shape(), parameter.whole_size(),
                                source, begin + piece.begin, piece.values);
          bool is_finite = true;
          for (std::size_t i = 0; i < piece.values.size(); ++i) {
            piece.rounded[i] = T(piece.values[i]);
            const auto value = static_cast<float>(piece.rounded[i]);
            is_finite &= value - value == 0;
          }
          if (is_finite) return;
          detail::require_finite<T>(parameter.name, piece.values, [&](Index element) {
            return parameter.part.place_in_whole(parameter.weight.shape(),
                                                 begin + piece.begin + element);
          });
        },
        [&](const Piece& piece) {
          copy_to_device(elements + piece.begin, piece.rounded.data(), piece.rounded.size_bytes(),
                         context);
          parts_.optimizer.set_master(parameter.name, begin + piece.begin, piece.values, context);
        });
  }
  /// Threads for work on the host.
  static int host_threads(const Context<D>& context) {
    if constexpr (std::is_same_v<D, Cpu>) {
      return context.threads();
    } else {
      return Context<Cpu>(0).threads();
    }
  }

  /// Each run's weights are read as a stage reads them, so they may be gathered for it.
  void give_weights_sync(const WeightSink& sink) override {
    Context<D>& context = this->context();
    std::vector<T> piece;
    std::vector<float> values;
    auto info = this->weights();
    auto next = info.begin();
    parts_.ranks.gather_weights(context);  // stages may be given FP8 values only
    for (const auto& in : parts_.model.runs()) {
      require<ConfigError>(
          !in.run->has_codes() || parts_.ranks.weights_are_whole(),
          "weights that travel in FP8 and are held in shards are nowhere whole, so "
          "they cannot be read; gather them as they are stored, or train with "
          "ZeRO-1 or ZeRO-2");
      parts_.ranks.before_forward(*in.run, context);
      this->communicator().wait_sync(context, "weights that are read");
      for (const auto* parameter : in.parameters) {
        const WeightInfo& weight = *next++;
        const Index size = sink == nullptr ? 0 : weight.rows * weight.columns;
        for (Index begin = 0; begin < size; begin += detail::weights_at_once) {
          const Index count = std::min(size - begin, detail::weights_at_once);
          piece.resize(static_cast<std::size_t>(count));
          copy_to_host_sync(piece.data(), parameter->weight.data() + begin,
                            piece.size() * sizeof(T), context);
          values.resize(piece.size());
          std::transform(piece.begin(), piece.end(), values.begin(),
                         [](T value) { return static_cast<float>(value); });
          sink(weight, begin, values);
        }
      }
      parts_.ranks.weights_read(*in.run, context);
    }
    parts_.ranks.join(context);
    this->communicator().wait_sync(context, "weights that are read");
  }

  void bind() override { parts_.model.bind(this->context()); }
  void quantize_weights(Evaluates evaluates) override {
    parts_.ranks.cast_weights(parts_.model.scaling(), !evaluates.value, this->context());
    if (evaluates.value) {
      parts_.model.template quantize_weights<Mode::evaluate>(parts_.ranks, this->context());
    } else {
      parts_.model.template quantize_weights<Mode::train>(parts_.ranks, this->context());
    }
  }
  void cast_frozen_weights() override {
    if constexpr (detail::HasFrozenWeights<Model>) {
      parts_.model.cast_frozen_weights(parts_.ranks, this->context());
    }
  }
  void train_micro_batch(const DeviceBatch<D>& batch, Accumulation accumulation) override {
    const detail::SessionBuffers<D>& buffers = parts_.buffers;
    parts_.model.train_micro_batch(batch, buffers.losses, buffers.gradient_scale, accumulation,
                                   stages_, this->context());
  }
  void evaluate_losses(const DeviceBatch<D>& batch) override {
    parts_.model.evaluate(batch, parts_.buffers.losses, parts_.ranks, this->context());
  }
  void read_logits_sync(TensorView<const std::int32_t, 1, D> tokens, Index row,
                        std::span<float> logits) override {
    Context<D>& context = this->context();
    std::vector<T> values(logits.size());
    const auto result =
        parts_.model.logits(tokens, {1, tokens.size()}, row, 1, parts_.ranks, context);
    parts_.ranks.join(context);
    this->communicator().wait_sync(context, "logits");
    copy_to_host_sync(values.data(), result.data(), values.size() * sizeof(T), context);
    for (std::size_t i = 0; i < values.size(); ++i) logits[i] = static_cast<float>(values[i]);
  }
  [[nodiscard]] const ScalingTable<D>& scaling() const override { return parts_.model.scaling(); }
  [[nodiscard]] GemmRows gemm_rows() const override {
    return parts_.model.gemm_rows(this->options().micro_batches);
  }
  void reset_counts() override { parts_.model.reset_counts(); }
  void verify_step() const override { parts_.model.verify_step(this->options().micro_batches); }
  [[nodiscard]] RankWork<D>& rank_work() override { return parts_.ranks; }
  void prepare_update(double learning_rate, Staging<D>& staging) override {
    upload_.reset();
    parts_.optimizer.prepare(learning_rate, staging, this->context());
  }
  void add_squared_norms() override {
    parts_.optimizer.add_squared_norms(parts_.buffers.status, this->context());
  }
  void update_weights() override {
    parts_.optimizer.step(parts_.buffers.status, this->timeline(), this->context());
  }
  void count_update() override { parts_.optimizer.advance(); }
  void visit_weights(detail::StateCollector<D>& collector) override {
    for_each_shard([&](const auto& parameter, const auto& weights, Index begin) {
      if (parameter.is_frozen) return;
      const std::string name = "model." + parameter.name;
      if (parts_.ranks.weights_are_whole()) {
        collector(name, parameter.weight);
      } else if (weights.size() != 0) {
        collector(name, weights, begin, parameter.weight.shape());
      }
    });
  }
  void visit_updated_weights(
      const std::function<void(TensorView<const std::byte, 1, D>)>& visit) override {
    for (const auto& shard : parts_.ranks.shards()) {
      visit({reinterpret_cast<const std::byte*>(shard.weights.data()),
             {static_cast<Index>(shard.weights.bytes())}});
    }
  }
  void visit_optimizer(detail::StateCollector<D>& collector) override {
    parts_.optimizer.visit_state(collector);
  }

  using Upload = detail::WeightUpload<T, D>;

  detail::SessionParts<Model, Optimizer, RanksPart> parts_;
  std::unique_ptr<Upload> upload_;  ///< from the first weight that is set on, until a step
  StageHooks<T, typename Model::G, D> stages_{parts_.ranks, this->timeline()};
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
