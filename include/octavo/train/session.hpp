/// @file
/// A model, its optimizer and their memory: training steps and evaluation.
#pragma once

#include <octavo/core/random.hpp>
#include <octavo/train/one_rank.hpp>
#include <octavo/train/trainable_model.hpp>
#include <octavo/train/training_session.hpp>

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>
#include <span>
#include <string>
#include <vector>

namespace octavo::inline OCTAVO_ABI {

/// The memory that a session needs, computed without allocating it.
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
        optimizer(arena, model, options.optimizer, options.seed),
        ranks(arena, model) {
    constexpr auto kind = MemoryKind::activations;
    const Index rows = options.batch.rows();
    const Index all = rows * options.micro_batches;
    require<ConfigError>(options.micro_batches > 0, "micro-batches is ", options.micro_batches,
                         "; give at least 1");
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
    model.gradients_share_memory = options.micro_batches == 1;
    return model;
  }

  Model model;
  typename Optimizer::template For<Model> optimizer;
  typename Ranks::template For<Model> ranks;
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

  ModelSession(const SessionOptions& options, Context<D>& context)
      : options_(checked(options)),
        context_(context),
        limits_(Model::limits(options.batch, context)),
        arena_(plan_memory<Model, Optimizer, Ranks>(options, limits_), context),
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
    parts_.model.initialize_sync(options.seed, context);
    parts_.optimizer.initialize(context);
    parts_.ranks.start(context);
    choose_gemms();
  }

  [[nodiscard]] StepResult step(const Batch& batch, double learning_rate) override {
    check_batch(batch, options_.micro_batches);
    require<ConfigError>(learning_rate >= 0 && std::isfinite(static_cast<float>(learning_rate)),
                         "the learning rate is ", learning_rate,
                         "; give a number from 0 on that FP32 holds");
    parts_.model.bind(context_);
    weights_may_have_moved_ = true;
    const Index counted = parts_.ranks.total_targets(count_targets(batch.targets));
    copy_batch(batch);
    copy_gradient_scale(counted);
    parts_.optimizer.prepare(learning_rate, staging_, context_);
    try {
      if (must_calibrate_ != 0) calibrate();
      parts_.model.scaling().snapshot(context_);
      replay_.run(context_, [this] { enqueue_step(); });
    } catch (...) {
      undo_step();
      throw;
    }
    const StepStatus status = read_status_sync();
    if (status.skip == 0) {
      parts_.optimizer.advance();
      must_calibrate_ = 0;
    } else if (must_calibrate_ != 0) {
      parts_.model.scaling().reset_sync(context_);
    }
    return {LossSum{status.loss_sum, counted}.mean(), static_cast<double>(status.gradient_norm),
            status.skip != 0};
  }

  void begin_evaluation() override {
    parts_.model.bind(context_);
    parts_.model.template quantize_weights<Mode::evaluate>(parts_.ranks, context_);
    weights_may_have_moved_ = false;
  }

  [[nodiscard]] LossSum evaluate(const Batch& batch) override {
    check_batch(batch, 1);
    get_ready_for_evaluation();
    copy_batch(batch);
    fill_zero(parts_.status.data(), parts_.status.bytes(), context_);
    parts_.model.evaluate(micro_batch(0), parts_.losses, parts_.ranks, context_);
    add_losses(parts_.losses, parts_.status, context_);
    return {read_status_sync().loss_sum, count_targets(batch.targets)};
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
    // Later tokens change nothing for earlier ones; some GEMMs in FP8 need rows in sixteens.
    const Index padded = std::min(round_up(count, 16), options_.batch.tokens);
    const auto device_tokens = parts_.tokens.rows(0, padded);
    fill_zero(device_tokens.data(), device_tokens.bytes(), context_);
    copy_tokens(tokens, {});
    const auto row =
        parts_.model.logits(device_tokens, {1, padded}, count - 1, 1, parts_.ranks, context_);
    std::vector<typename Model::T> values(logits.size());
    copy_to_host_sync(values.data(), row.data(), values.size() * sizeof(typename Model::T),
                      context_);
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
    weights_may_have_moved_ = true;  // whoever asks may load another
    detail::StateCollector<D> collector(context_);
    collector.say("session.recipe", Model::precision());
    for_each_parameter(
        [&](auto& parameter) { collector("model." + parameter.name, parameter.weight); });
    parts_.model.scaling().visit_state(collector);
    parts_.optimizer.visit_state(collector);
    collector("session.must_calibrate", must_calibrate_);
    return collector.take();
  }

  void set_weight(const std::string& name, std::span<const float> values) override {
    const auto wrong = std::find_if(values.begin(), values.end(),
                                    [](float value) { return !std::isfinite(value); });
    require<ConfigError>(wrong == values.end(), name, " is given ",
                         wrong == values.end() ? 0.0f : *wrong, " at element ",
                         wrong - values.begin(), "; give finite numbers");
    weights_may_have_moved_ = true;
    bool found = false;
    for_each_parameter([&](auto& parameter) {
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
      copy_to_device_sync(parameter.weight.data(), rounded.data(), parameter.weight.bytes(),
                          context_);
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
  template <class Body>
  void for_each_parameter(const Body& body) {
    parts_.model.visit_runs([&](const auto&, const auto& each) { each(body); });
  }

  /// The device has read the inputs before: each call that copies some ends with a result from it.
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
    rehearse_gemms_sync(pass, context_);
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
    parts_.model.train_micro_batch(micro_batch(number), parts_.losses, parts_.gradient_scale,
                                   accumulation, parts_.ranks, context_);
  }

  /// Everything between the step's inputs and its status, without synchronisation or allocation.
  /// Nothing here depends on the host's values, so that one record of it serves every step.
  /// @throws ManifestError  before the weights change, if other GEMMs ran than the manifest says
  void enqueue_step() {
    Model& model = parts_.model;
    const ScalingTable<D>& scaling = model.scaling();
    model.reset_counts();
    fill_zero(parts_.status.data(), parts_.status.bytes(), context_);
    scaling.clear_statistics(context_);
    model.template quantize_weights<Mode::train>(parts_.ranks, context_);
    for (Index m = 0; m < options_.micro_batches; ++m) {
      train_micro_batch(m, {.first = m == 0, .last = m + 1 == options_.micro_batches});
      add_losses(parts_.losses, parts_.status, context_);
    }
    model.verify_step(options_.micro_batches);
    parts_.ranks.join(context_);
    update_scaling();
    parts_.optimizer.add_squared_norms(parts_.status, context_);
    scaling.add_nonfinite(parts_.status, context_);
    parts_.ranks.sum(parts_.status, context_);
    decide_step(options_.max_gradient_norm, parts_.status, context_);
    parts_.optimizer.step(parts_.status, context_);
    scaling.restore_if_skipped(parts_.status, context_);
  }

  /// What a step that threw has moved so far: before its weights changed, the scaling state only.
  /// Waits until the device has read the step's inputs, so that others can be copied. The step's
  /// error is the one to tell, not one of this.
  void undo_step() noexcept {
    try {
      parts_.ranks.join(context_);
      if (must_calibrate_ != 0) {
        parts_.model.scaling().reset_sync(context_);
      } else {
        parts_.model.scaling().restore(context_);
      }
      context_.synchronize();
    } catch (...) {
      return;
    }
  }

  StepStatus read_status_sync() const {
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

  /// Evaluation multiplies with casts of the weights as they are now.
  void get_ready_for_evaluation() {
    if (weights_may_have_moved_) {
      begin_evaluation();
    } else {
      parts_.model.bind(context_);
    }
  }

  /// @throws ConfigError  for what no session can be made with
  static const SessionOptions& checked(const SessionOptions& options) {
    const auto check = [](const char* name, auto value, bool good, const char* advice) {
      require<ConfigError>(good, name, " is ", value, "; give ", advice);
    };
    const AdamWSettings& adamw = options.optimizer;
    check("head_chunk", options.model.head_chunk, options.model.head_chunk >= 0,
          "a number of tokens, or 0");
    check("beta1", adamw.beta1, adamw.beta1 >= 0 && adamw.beta1 < 1, "a number from 0 to below 1");
    check("beta2", adamw.beta2, adamw.beta2 >= 0 && adamw.beta2 < 1, "a number from 0 to below 1");
    check("epsilon", adamw.epsilon, adamw.epsilon > 0 && std::isfinite(adamw.epsilon),
          "a number above 0");
    check("weight_decay", adamw.weight_decay,
          adamw.weight_decay >= 0 && std::isfinite(adamw.weight_decay), "a number from 0 on");
    check("max_gradient_norm", options.max_gradient_norm,
          options.max_gradient_norm >= 0 && std::isfinite(options.max_gradient_norm),
          "a number above 0, or 0 for no bound");
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

  SessionOptions options_;
  Context<D>& context_;
  DeviceLimits<D> limits_;
  Arena<D> arena_;
  detail::SessionParts<Model, Optimizer, Ranks> parts_;
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
  Arena<typename Model::DeviceType> arena;
  const detail::SessionParts<Model, Optimizer, Ranks> parts(arena, options, limits);
  return arena.plan();
}

}  // namespace octavo
