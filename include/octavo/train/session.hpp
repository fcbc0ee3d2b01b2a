/// @file
/// A model, its optimizer and their memory: training steps and evaluation.
#pragma once

#include <octavo/core/random.hpp>
#include <octavo/train/one_rank.hpp>
#include <octavo/train/replica_check.hpp>
#include <octavo/train/stage_hooks.hpp>
#include <octavo/train/trainable_model.hpp>
#include <octavo/train/training_session.hpp>

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>
#include <span>
#include <string>
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
template <class Model, class Optimizer, class Ranks>
struct SessionParts {
  using D = typename Model::DeviceType;

  SessionParts(Arena<D>& arena, const SessionOptions& options, const DeviceLimits<D>& limits)
      : model(arena, options.batch, model_options(options), limits),
        ranks(arena, model, options.sharding),
        optimizer(arena, model, ranks, options.optimizer, options.seed),
        replicas(arena, model, options.check_replicas) {
    constexpr auto kind = MemoryKind::activations;
    const Index rows = options.batch.rows();
    const Index all = rows * options.micro_batches;
    tokens = {arena.template take<std::int32_t>(kind, all), {all}};
    targets = {arena.template take<std::int32_t>(kind, all), {all}};
    const Index tables = document_table_elements(options.batch) * options.micro_batches;
    document_tables = {arena.template take<std::int32_t>(kind, tables), {tables}};
    gradient_scale = {arena.template take<float>(kind, 1), {1}};
    losses = {arena.template take<float>(kind, rows), {rows}};
    status = {arena.template take<StepStatus>(kind, 1), {1}};
  }

  static ModelOptions model_options(const SessionOptions& options) {
    ModelOptions model = options.model;
    model.gradients_share_memory =
        options.micro_batches == 1 || options.sharding.reduces_each_micro_batch();
    model.weights_are_gathered = options.sharding.shards_weights();
    model.run_multiple = options.sharding.ranks * Index{allocation_alignment};
    return model;
  }

  using RanksOfModel = typename Ranks::template For<Model>;
  Model model;
  RanksOfModel ranks;
  typename Optimizer::template For<Model, typename RanksOfModel::Gradient> optimizer;
  ReplicaCheck<Model> replicas;
  TensorView<std::int32_t, 1, D> tokens;   ///< [micro_batches · rows]
  TensorView<std::int32_t, 1, D> targets;  ///< [micro_batches · rows]
  /// [micro_batches · elements of a batch's tables]; see documents_over
  TensorView<std::int32_t, 1, D> document_tables;
  TensorView<float, 1, D> gradient_scale;  ///< [1]: 1 / number of targets in the step, of all ranks
  TensorView<float, 1, D> losses;          ///< [rows]
  TensorView<StepStatus, 1, D> status;     ///< [1]
};

}  // namespace detail

/// The session of one model type.
/// @tparam Model      a `TrainableModel`, such as `Llama<llama_tiny, Bf16, Cpu>`
/// @tparam Optimizer  such as `AdamW<MasterWeights<Fp32>, Moments<Bf16>>`
/// @tparam Ranks      what ranks do together; see `OneRank`
template <class Model, class Optimizer = AdamW<>, class Ranks = OneRank>
class ModelSession final : public TrainingSession {
 public:
  using D = typename Model::DeviceType;

  /// A session that trains alone.
  ModelSession(const SessionOptions& options, Context<D>& context)
      : ModelSession(options, context, nullptr) {}

  /// One of the ranks that train a model. All ranks make the same calls in the same order, with the
  /// same options, which say for how many ranks memory was planned; each gives batches of its own.
  /// @param communicator  outlives the session
  ModelSession(const SessionOptions& options, Context<D>& context, Communicator<D>& communicator)
      : ModelSession(options, context, &communicator) {}

  [[nodiscard]] StepResult step(const Batch& batch, double learning_rate) override {
    check_batch(batch, options_.micro_batches);
    require<ConfigError>(learning_rate >= 0 && std::isfinite(static_cast<float>(learning_rate)),
                         "the learning rate is ", learning_rate,
                         "; give a number from 0 on that FP32 holds");
    parts_.model.bind(context_);
    timeline_.begin_step_sync(context_);
    weights_may_have_moved_ = true;
    const Index counted = parts_.ranks.total_targets(count_targets(batch.targets));
    copy_batch(batch);
    copy_gradient_scale(counted);
    parts_.optimizer.prepare(learning_rate, staging_, context_);
    const bool compares = parts_.replicas.begin_step();
    try {
      if (must_calibrate_ != 0) calibrate();
      parts_.model.scaling().snapshot(context_);
      if (compares || timeline_.is_on()) {
        replay_.run_once([this, compares] { enqueue_step(compares); });
      } else {
        replay_.run(context_, [this] { enqueue_step(false); });
      }
    } catch (...) {
      undo_step();
      throw;
    }
    parts_.ranks.weights_moved();
    const StepStatus status = read_status_sync();
    timeline_.end_step_sync(context_);
    if (status.skip == 0) {
      parts_.optimizer.advance();
      must_calibrate_ = 0;
    } else if (must_calibrate_ != 0) {
      parts_.model.scaling().reset_sync(context_);
    }
    StepResult result{LossSum{status.loss_sum, counted}.mean(),
                      static_cast<double>(status.gradient_norm), status.skip != 0};
    if (compares) result.weights_hash = parts_.replicas.compare_sync(ranks_, context_);
    return result;
  }

  void begin_evaluation() override {
    parts_.model.bind(context_);
    parts_.model.template quantize_weights<Mode::evaluate>(parts_.ranks, context_);
    weights_may_have_moved_ = false;
  }

  [[nodiscard]] LossSum evaluate(const Batch& batch) override {
    check_batch(batch, 1);
    get_ready_for_evaluation();
    try {
      copy_batch(batch);
      fill_zero(parts_.status.data(), parts_.status.bytes(), context_);
      parts_.model.evaluate(micro_batch(0), parts_.losses, parts_.ranks, context_);
      add_losses(parts_.losses, parts_.status, context_);
      parts_.ranks.join(context_);
      return {read_status_sync().loss_sum, count_targets(batch.targets)};
    } catch (...) {
      settle();
      throw;
    }
  }

  void next_token_logits(std::span<const std::int32_t> tokens, std::span<float> logits) override {
    const auto count = static_cast<Index>(tokens.size());
    require<ShapeError>(count > 0 && count <= options_.batch.tokens, "next_token_logits: got ",
                        count, " tokens; give 1 to ", options_.batch.tokens);
    require<ShapeError>(static_cast<Index>(logits.size()) == facts_.vocabulary,
                        "next_token_logits: got room for ", logits.size(),
                        " logits; the model has ", facts_.vocabulary);
    for (const std::int32_t token : tokens) require_token(token);
    get_ready_for_evaluation();
    // Some GEMMs in FP8 need rows in sixteens. What follows a token changes nothing for it, but
    // where a current scale is of a whole tensor, which the filler is part of.
    const Index padded = std::min(round_up(count, 16), options_.batch.tokens);
    const auto device_tokens = parts_.tokens.rows(0, padded);
    std::vector<typename Model::T> values(logits.size());
    try {
      fill_zero(device_tokens.data(), device_tokens.bytes(), context_);
      copy_tokens(tokens, {});
      const auto row =
          parts_.model.logits(device_tokens, {1, padded}, count - 1, 1, parts_.ranks, context_);
      parts_.ranks.join(context_);
      copy_to_host_sync(values.data(), row.data(), values.size() * sizeof(typename Model::T),
                        context_);
    } catch (...) {
      settle();
      throw;
    }
    for (std::size_t i = 0; i < values.size(); ++i) logits[i] = static_cast<float>(values[i]);
  }

  [[nodiscard]] const Manifest& manifest() const override { return parts_.model.manifest(); }
  [[nodiscard]] const MemoryPlan& memory() const override { return arena_.plan(); }
  [[nodiscard]] std::size_t allocated_bytes() const override { return arena_.allocated(); }
  [[nodiscard]] const ModelFacts& facts() const override { return facts_; }
  [[nodiscard]] Index micro_batches() const override { return options_.micro_batches; }
  [[nodiscard]] std::string precision() const override { return Model::precision(); }
  [[nodiscard]] std::string optimizer() const override {
    return decltype(parts_.optimizer)::name();
  }
  [[nodiscard]] Index head_chunks() const override { return parts_.model.head_chunks(); }
  [[nodiscard]] const ReplayCounts& replays() const override { return replay_.counts(); }
  [[nodiscard]] std::vector<GemmPlanRecord> gemm_plans() const override {
    return octavo::gemm_plans(context_);
  }
  [[nodiscard]] GemmPlanSummary gemm_plan_summary() const override {
    return octavo::gemm_plan_summary(context_);
  }
  [[nodiscard]] std::vector<OperandReport> operands() override {
    return parts_.model.scaling().report_sync(context_);
  }

  [[nodiscard]] std::vector<StateEntry> state() override {
    parts_.ranks.gather_weights(context_);
    detail::StateCollector<D> collector(context_);
    collector.say("session.recipe", Model::precision());
    for_each_shard([&](const auto& parameter, const auto& weights, Index begin) {
      const std::string name = "model." + parameter.name;
      if (parts_.ranks.weights_are_whole()) {
        collector(name, parameter.weight);
      } else if (weights.size() != 0) {
        collector(name, weights, begin, parameter.weight.shape());
      }
    });
    parts_.model.scaling().visit_state(collector);
    parts_.optimizer.visit_state(collector);
    collector("session.must_calibrate", must_calibrate_);
    std::vector<StateEntry> entries = collector.take();
    for (StateEntry& entry : entries) {
      entry.write_sync = [this, write = std::move(entry.write_sync)](const std::byte* source) {
        note_new_state();
        write(source);
      };
    }
    return entries;
  }

  [[nodiscard]] LossSum sum_over_ranks(const LossSum& own) override {
    LossSum total;
    for (const LossSum& of_rank : of_all_ranks(own, "sums of losses")) {
      total.sum += of_rank.sum;
      total.tokens += of_rank.tokens;
    }
    return total;
  }
  [[nodiscard]] std::int64_t largest_over_ranks(std::int64_t own) override {
    return std::ranges::max(of_all_ranks(own, "signals"));
  }

  void begin_timeline_sync() override {
    // Ranks leave the exchange at nearly the same time: each sets its clock by it.
    (void)of_all_ranks(char{}, "begin of a timeline");
    timeline_.begin();
  }
  [[nodiscard]] std::vector<TimelineSpan> end_timeline() override { return timeline_.end(); }

  void set_weight(const std::string& name, std::span<const float> values) override {
    const auto wrong = std::find_if(values.begin(), values.end(), [](float value) {
      return !std::isfinite(static_cast<float>(typename Model::T(value)));
    });
    require<ConfigError>(wrong == values.end(), name, " is given ",
                         wrong == values.end() ? 0.0f : *wrong, " at element ",
                         wrong - values.begin(), "; give numbers that are finite in ",
                         FormatTraits<typename Model::T>::name, ", the weight's format");
    note_new_state();
    bool found = false;
    for_each_shard([&](const auto& parameter, const auto& weights, Index begin) {
      if (parameter.name != name) return;
      found = true;
      const Index live = parameter.initialised_rows * parameter.weight.extent(1);
      require<ConfigError>(static_cast<Index>(values.size()) == live, name, " has ",
                           parameter.initialised_rows, " x ", parameter.weight.extent(1),
                           " elements, but ", values.size(),
                           " are given; give those, without rows that pad it");
      std::vector<float> all(static_cast<std::size_t>(parameter.weight.size()));
      std::copy(values.begin(), values.end(), all.begin());
      const std::vector<typename Model::T> rounded(all.begin(), all.end());
      if (parts_.ranks.weights_are_whole()) {
        copy_to_device_sync(parameter.weight.data(), rounded.data(), parameter.weight.bytes(),
                            context_);
      } else {
        copy_to_device_sync(weights.data(), rounded.data() + begin, weights.bytes(), context_);
      }
      parts_.optimizer.set_master_sync(name, all, context_);
    });
    require<ConfigError>(found, "the model has no parameter ", name,
                         "; names are those of its state() without \"model.\", such as ",
                         first_parameter());
    if (!parts_.model.scaling().has_histories() || must_calibrate_ != 0) return;
    parts_.model.scaling().reset_sync(context_);  // old maxima would keep the new weight's scale
    must_calibrate_ = 1;
  }

  /// The model, for tests and programs that know its type.
  [[nodiscard]] Model& model() { return parts_.model; }
  /// What its ranks do together, likewise.
  [[nodiscard]] auto& ranks() { return parts_.ranks; }

 private:
  /// @param communicator  null: the session trains alone
  ModelSession(const SessionOptions& options, Context<D>& context, Communicator<D>* communicator)
      : ranks_(communicator == nullptr ? alone_ : *communicator),
        options_(of_rank(options, ranks_)),
        context_(context),
        limits_(Model::limits(options.batch, context)),
        arena_(plan_memory<Model, Optimizer, Ranks>(options_, limits_), context),
        parts_(arena_, options_, limits_),
        document_tables_(static_cast<std::size_t>(parts_.document_tables.size())),
        staging_(parts_.tokens.bytes() + parts_.targets.bytes() + parts_.document_tables.bytes() +
                     parts_.gradient_scale.bytes() + sizeof(AdamWStep),
                 context),
        facts_(Model::facts()),
        must_calibrate_(parts_.model.scaling().has_histories() ? 1 : 0) {
    facts_.parameters = 0;  // of blocks that the shape knows nothing of, too
    for_each_parameter([this](const auto& parameter) {
      facts_.parameters += parameter.initialised_rows * parameter.weight.extent(1);
    });
    require_unique_names();
    parts_.model.visit_runs(
        [this](const auto& run, const auto& each) { timeline_.set_name(&run, run_name(each)); });
    parts_.ranks.report_to(timeline_);
    parts_.ranks.start(context, ranks_);
    parts_.model.initialize_sync(options.seed, parts_.ranks, context);
    parts_.optimizer.initialize(context);
    choose_gemms();
  }

  /// @throws UsageError  for a name that two parameters have, of which `set_weight` and a saved
  ///                     state would know one
  void require_unique_names() {
    std::set<std::string> names;
    for_each_parameter([&](const auto& parameter) {
      require<UsageError>(names.insert(parameter.name).second, "two parameters of the model are ",
                          "called ", parameter.name,
                          "; give their branches or layers names of their own");
    });
  }

  [[nodiscard]] Index rows() const { return options_.batch.rows(); }

  /// Calls `body(parameter, weights, begin)` for every parameter, with what this rank updates of
  /// it: elements from `begin` on.
  template <class Body>
  void for_each_shard(const Body& body) {
    parts_.ranks.visit_shards(parts_.model, [&](const auto& shard, const auto& each) {
      each([&](auto& parameter) {
        const Index size = parameter.weight.size();
        const Index begin = std::clamp(shard.begin - parameter.offset, Index{0}, size);
        const Index end =
            std::clamp(shard.begin + shard.weights.size() - parameter.offset, Index{0}, size);
        auto weights = shard.weights.rows(0, end - begin);
        if (end > begin) {
          weights = shard.weights.rows(parameter.offset + begin - shard.begin, end - begin);
        }
        body(parameter, weights, begin);
      });
    });
  }

  /// What each of the ranks has, in their order.
  template <class T>
  [[nodiscard]] std::vector<T> of_all_ranks(const T& own, const char* what) {
    std::vector<T> all(static_cast<std::size_t>(ranks_.size()));
    ranks_.all_gather_host_sync(std::as_bytes(std::span(&own, 1)),
                                std::as_writable_bytes(std::span(all)), what);
    return all;
  }
  template <class Body>
  void for_each_parameter(const Body& body) {
    parts_.model.visit_runs([&](const auto&, const auto& each) { each(body); });
  }

  /// The device has read the inputs before: each call that copies some ends with a result from it,
  /// or settles if what it enqueues throws.
  void copy_tokens(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets) {
    staging_.begin();
    staging_.copy(parts_.tokens.data(), tokens.data(), tokens.size_bytes(), context_);
    staging_.copy(parts_.targets.data(), targets.data(), targets.size_bytes(), context_);
  }

  /// Of as many micro-batches as the batch has. Where documents lie is on the device, too: one
  /// record of the step serves all batches.
  void copy_batch(const Batch& batch) {
    const auto elements = static_cast<std::size_t>(document_table_elements(options_.batch));
    const std::span<std::int32_t> tables(document_tables_);
    std::size_t used = 0;
    for (Index row = 0; elements != 0 && row < static_cast<Index>(batch.tokens.size());
         row += rows(), used += elements) {
      write_document_tables(batch.documents, row, options_.batch, tables.subspan(used, elements));
    }
    copy_tokens(batch.tokens, batch.targets);
    staging_.copy(parts_.document_tables.data(), tables.data(), used * sizeof(std::int32_t),
                  context_);
  }

  /// On the device, so that one record of the step serves every number of targets.
  void copy_gradient_scale(Index targets) {
    const float scale = 1.0f / static_cast<float>(std::max<Index>(1, targets));
    staging_.copy(parts_.gradient_scale.data(), &scale, sizeof(scale), context_);
  }

  /// Chooses the algorithms of all GEMMs that the manifest announces, before the first step. Those
  /// that are to be tried are, in micro-batches of random tokens: between the kernels, on the
  /// operands and under the load of a step. Of these micro-batches nothing is left: a step
  /// overwrites all that they write but the scaling state, which is as new afterwards.
  void choose_gemms() {
    const Index micro_batches = options_.micro_batches;
    const GemmRows tokens = parts_.model.gemm_rows(micro_batches);
    const std::vector<GemmKey> keys = gemm_keys(parts_.model.manifest(), tokens);
    if (prepare_gemms(keys, options_.gemm_choice, context_) == 0) return;
    copy_random_inputs();
    const auto pass = [&] {
      parts_.model.template quantize_weights<Mode::train>(parts_.ranks, context_);
      for (Index m = 0; m < std::min<Index>(micro_batches, 2); ++m) {
        train_micro_batch(m, {.first = m == 0, .last = false});
      }
      parts_.model.scaling().update(context_);
    };
    parts_.ranks.rehearse(true);
    rehearse_gemms_sync(pass, context_);
    parts_.ranks.rehearse(false);
    parts_.model.reset_counts();
    parts_.model.scaling().reset_sync(context_);
  }

  /// Tokens that are as likely as any others, for as many micro-batches as a rehearsal runs.
  void copy_random_inputs() {
    const auto vocabulary = static_cast<std::uint64_t>(facts_.vocabulary);
    const Index count = rows() * std::min<Index>(options_.micro_batches, 2);
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(count));
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      tokens[i] = static_cast<std::int32_t>(random_word({options_.seed, 0}, i) * vocabulary >> 32);
    }
    copy_batch({tokens, tokens});
    copy_gradient_scale(count);
  }

  /// Fills the histories of delayed scales before the first step, which would otherwise cast with
  /// scales of 1: in E5M2, that makes zero of nearly all of a gradient. The step overwrites all
  /// else that this writes. An amax is measured right once the casts before it have their scales,
  /// and a gradient meets two casts in a block: hence two passes. They are over all of the step's
  /// micro-batches, as its own is, so that scales do not depend on how its tokens are split.
  /// Enqueues; does not synchronise.
  void calibrate() {
    constexpr int passes = 2;
    for (int pass = 0; pass < passes; ++pass) {
      parts_.model.template quantize_weights<Mode::train>(parts_.ranks, context_);
      for (Index m = 0; m < options_.micro_batches; ++m) {
        train_micro_batch(m, {.first = m == 0, .last = false});
      }
      parts_.ranks.join(context_);
      update_scaling();
    }
  }

  /// Moves the histories of delayed scales, alike on all ranks.
  void update_scaling() {
    const ScalingTable<D>& scaling = parts_.model.scaling();
    if (scaling.has_histories()) parts_.ranks.maximum(scaling.amaxes(), context_);
    scaling.update(context_);
  }

  [[nodiscard]] DeviceBatch<D> micro_batch(Index number) const {
    const Index begin = number * rows();
    const Index tables = number * document_table_elements(options_.batch);
    return {parts_.tokens.rows(begin, rows()), parts_.targets.rows(begin, rows()),
            documents_over<D>(parts_.document_tables.data() + tables, options_.batch)};
  }

  void train_micro_batch(Index number, Accumulation accumulation) {
    timeline_.begin_phase("forward", context_);
    parts_.model.train_micro_batch(micro_batch(number), parts_.losses, parts_.gradient_scale,
                                   accumulation, stages_, context_);
    timeline_.end_phase(context_);
  }

  /// Everything between the step's inputs and its status, without synchronisation or allocation.
  /// Nothing here depends on the host's values, so that one record of it serves every step.
  /// @param compares  the weights are hashed, too
  /// @throws ManifestError  before the weights change, if other GEMMs ran than the manifest says
  void enqueue_step(bool compares) {
    Model& model = parts_.model;
    const ScalingTable<D>& scaling = model.scaling();
    model.reset_counts();
    parts_.ranks.weights_moved();  // a record of the step gathers them, whatever was there before
    fill_zero(parts_.status.data(), parts_.status.bytes(), context_);
    scaling.clear_statistics(context_);
    model.template quantize_weights<Mode::train>(parts_.ranks, context_);
    const bool each = options_.sharding.reduces_each_micro_batch();
    for (Index m = 0; m < options_.micro_batches; ++m) {
      parts_.ranks.begin_micro_batch(m, context_);
      train_micro_batch(m,
                        {.first = each || m == 0, .last = each || m + 1 == options_.micro_batches});
      add_losses(parts_.losses, parts_.status, context_);
    }
    model.verify_step(options_.micro_batches);
    parts_.ranks.join(context_);
    if (compares) parts_.replicas.enqueue(model, context_);
    update_scaling();
    timeline_.begin_stage("gradient norm", nullptr, context_);
    parts_.optimizer.add_squared_norms(parts_.status, context_);
    scaling.add_nonfinite(parts_.status, context_);
    timeline_.end_stage(context_);
    parts_.ranks.sum(parts_.status, context_);
    timeline_.begin_stage("optimizer", nullptr, context_);
    decide_step(options_.max_gradient_norm, parts_.status, context_);
    parts_.optimizer.step(parts_.status, context_);
    scaling.restore_if_skipped(parts_.status, context_);
    timeline_.end_stage(context_);
  }

  /// After a call that threw: waits until the device has read its inputs, so that others can be
  /// copied, and keeps no casts of an evaluation, of which some may be missing. The call's error is
  /// the one to tell, not one of this.
  void settle() noexcept {
    weights_may_have_moved_ = true;
    attempt([this] { parts_.ranks.join(context_); });
    attempt([this] { context_.synchronize(); });
  }

  /// Takes back what a step that threw has moved: before its weights changed, the scaling state
  /// only.
  void undo_step() noexcept {
    settle();
    attempt([this] {
      if (must_calibrate_ != 0) {
        parts_.model.scaling().reset_sync(context_);
      } else {
        parts_.model.scaling().restore(context_);
      }
    });
  }

  template <class Action>
  static void attempt(const Action& action) noexcept {
    try {
      action();
    } catch (...) {
      return;
    }
  }

  StepStatus read_status_sync() const {
    ranks_.wait_sync(context_, "step");
    StepStatus result{};
    copy_to_host_sync(&result, parts_.status.data(), sizeof(result), context_);
    return result;
  }

  static Index count_targets(std::span<const std::int32_t> targets) {
    return static_cast<Index>(
        std::count_if(targets.begin(), targets.end(), [](std::int32_t t) { return t >= 0; }));
  }

  [[nodiscard]] std::string first_parameter() {
    std::string first;
    for_each_parameter([&](const auto& parameter) {
      if (first.empty()) first = parameter.name;
    });
    return first;
  }

  /// What was cast or gathered before is not of what is about to be written.
  void note_new_state() {
    weights_may_have_moved_ = true;
    parts_.ranks.weights_moved();
  }

  /// Evaluation multiplies with casts of the weights as they are now.
  void get_ready_for_evaluation() {
    if (weights_may_have_moved_) {
      begin_evaluation();
    } else {
      parts_.model.bind(context_);
    }
  }

  /// The options of this rank.
  static SessionOptions of_rank(SessionOptions options, const Communicator<D>& communicator) {
    options.sharding.rank = communicator.rank();
    options.sharding.ranks = communicator.size();
    return options;
  }

  void require_token(std::int32_t token) const {
    require<ConfigError>(token >= 0 && token < facts_.vocabulary, "token ", token,
                         " lies outside of the vocabulary of ", facts_.vocabulary,
                         "; use the tokenizer that the model was made for");
  }

  /// @throws ShapeError   for a wrong number of tokens
  /// @throws ConfigError  for a token outside of the vocabulary, or documents that cannot be
  void check_batch(const Batch& batch, Index micro_batches) const {
    const auto& [tokens, targets, documents] = batch;
    const Index expected = micro_batches * rows();
    require<ShapeError>(
        tokens.size() == static_cast<std::size_t>(expected) && targets.size() == tokens.size(),
        "got ", tokens.size(), " tokens and ", targets.size(), " targets, but ", expected,
        " of each are needed");
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      require<ConfigError>(
          tokens[i] >= 0 && tokens[i] < facts_.vocabulary && targets[i] < facts_.vocabulary,
          "token ", tokens[i], " or target ", targets[i], " at position ", i,
          " lies outside of the vocabulary of ", facts_.vocabulary,
          "; use the tokenizer that the model was made for");
    }
    check_documents(documents, expected);
  }

  void check_documents(std::span<const Index> documents, Index tokens) const {
    require<ConfigError>(documents.empty() || options_.batch.most_documents > 0, "the batch ",
                         "says where documents begin, but the session was made for batches that do "
                         "not; set most_documents of its options' batch");
    if (documents.empty()) return;
    const Index outside = documents.front() < 0 ? documents.front() : documents.back();
    require<ConfigError>(documents.front() >= 0 && documents.back() < tokens,
                         "a document begins at token ", outside, ", but the batch has tokens 0 to ",
                         tokens - 1);
    const auto wrong =
        std::adjacent_find(documents.begin(), documents.end(), std::greater_equal<>());
    if (wrong == documents.end()) return;
    throw ConfigError(message("documents begin at tokens ", wrong[0], " and then ", wrong[1],
                              "; give ascending places, each once"));
  }

  SelfComm<D> alone_;
  Communicator<D>& ranks_;
  SessionOptions options_;
  Context<D>& context_;
  DeviceLimits<D> limits_;
  Arena<D> arena_;
  detail::SessionParts<Model, Optimizer, Ranks> parts_;
  Timeline<D> timeline_;
  StageHooks<typename detail::SessionParts<Model, Optimizer, Ranks>::RanksOfModel, D> stages_{
      parts_.ranks, timeline_};
  std::vector<std::int32_t> document_tables_;  ///< on their way to the device
  Staging<D> staging_;
  Replay<D> replay_;
  ModelFacts facts_;
  std::int64_t must_calibrate_;         ///< 1: before the next step, until one was not skipped
  bool weights_may_have_moved_ = true;  ///< since they were quantised for evaluation
};

template <class Model, class Optimizer, class Ranks>
MemoryPlan plan_memory(const SessionOptions& options,
                       const DeviceLimits<typename Model::DeviceType>& limits) {
  detail::check_options(options);
  Arena<typename Model::DeviceType> arena;
  const detail::SessionParts<Model, Optimizer, Ranks> parts(arena, options, limits);
  return arena.plan();
}

}  // namespace octavo
