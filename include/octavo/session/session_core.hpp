/// @file
/// The part of a session that does not depend on its model: inputs, the order of a step,
/// evaluation, and error recovery.
#pragma once

#include <octavo/attention/libraries.hpp>
#include <octavo/comm/self_comm.hpp>
#include <octavo/memory/arena.hpp>
#include <octavo/models/stage_hooks.hpp>
#include <octavo/optim/optimizer.hpp>
#include <octavo/parallel/replica_check.hpp>
#include <octavo/parallel/single_rank.hpp>
#include <octavo/session/session_inputs.hpp>
#include <octavo/session/state_on_device.hpp>
#include <octavo/session/training_session.hpp>
#include <octavo/session/weights_on_device.hpp>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace octavo OCTAVO_ABI::detail {

/// The ranks of a communicator.
template <Device D>
class RanksOfSession final : public SessionRanks {
 public:
  /// @param communicator  must outlive this object
  RanksOfSession(const Sharding& sharding, Communicator<D>& communicator)
      : SessionRanks(sharding), communicator_(communicator) {}

  void all_gather_host_sync(std::span<const std::byte> part, std::span<std::byte> whole,
                            const char* what) override {
    communicator_.all_gather_host_sync(part, whole, what);
  }

 private:
  Communicator<D>& communicator_;
};

/// A session without the types of its model, its optimizer and its ranks, so that most of a session
/// is compiled once for each device. `SessionOfModel` adds the model, the optimizer and the ranks.
template <Device D>
class SessionCore : public TrainingSession {
  friend class StateOnDevice<D>;
  template <class W, class G, Device OfWeights>
  friend class WeightsOfFormat;

 public:
  [[nodiscard]] StepResult step(const Batch& batch, double learning_rate) override;

  void limit_steps(double loss, double gradient_norm) override {
    for (const double limit : {loss, gradient_norm}) {
      require<ConfigError>(limit >= 0, "limit_steps: each limit must be at least 0, but one is ",
                           limit, "; infinity disables a limit");
    }
    loss_limit_ = loss;
    gradient_norm_limit_ = gradient_norm;
  }

  void begin_evaluation() override {
    bind();
    cast_frozen_if_due();
    prepare_weights(Evaluates{true});
    weights_may_have_moved_ = false;
  }

  using TrainingSession::evaluate;
  [[nodiscard]] LossSum evaluate(const Batch& batch, std::span<float> losses) override {
    check_batch(batch, 1, options_.batch, facts_.vocabulary);
    require<ShapeError>(losses.empty() || static_cast<Index>(losses.size()) == rows(),
                        "evaluate: losses has ", losses.size(), " elements, but must have ",
                        rows());
    collectives().compare(batch);
    prepare_evaluation();
    try {
      inputs_->copy_batch(batch, context_);
      fill_zero(buffers_.status.data(), buffers_.status.bytes(), context_);
      evaluate_losses(inputs_->micro_batch(0));
      add_losses(buffers_.losses, buffers_.status, context_);
      collectives().join(context_);
      const LossSum sum{read_status_sync().loss_sum, count_targets(batch.targets)};
      if (!losses.empty()) inputs_->copy_losses_sync(losses, context_);
      return sum;
    } catch (...) {
      finish_after_error();
      throw;
    }
  }

  void next_token_logits(std::span<const std::int32_t> tokens, std::span<float> logits) override {
    const auto count = static_cast<Index>(tokens.size());
    require<ShapeError>(count > 0 && count <= options_.batch.tokens,
                        "next_token_logits: tokens has ", count, " elements, but must have 1 to ",
                        options_.batch.tokens);
    require<ShapeError>(static_cast<Index>(logits.size()) == facts_.vocabulary,
                        "next_token_logits: logits has ", logits.size(),
                        " elements, but must have ", facts_.vocabulary);
    for (const std::int32_t token : tokens) check_token(token, facts_.vocabulary);
    prepare_evaluation();
    const BatchShape shape = shape_of_text(count);
    const auto device_tokens = buffers_.tokens.rows(0, shape.rows());
    try {
      fill_zero(device_tokens.data(), device_tokens.bytes(), context_);
      inputs_->copy_tokens(tokens, {}, context_);
      read_logits_sync(device_tokens, shape, count - 1, logits);
    } catch (...) {
      finish_after_error();
      throw;
    }
  }

  [[nodiscard]] bool must_calibrate() const override { return must_calibrate_ != 0; }
  void calibrate(const Batch& batch) override;
  [[nodiscard]] const ReplayCounts& replays() const override { return replay_->counts(); }
  [[nodiscard]] std::vector<GemmPlanRecord> gemm_plans() const override {
    return octavo::gemm_plans(context_);
  }
  [[nodiscard]] GemmPlanSummary gemm_plan_summary() const override {
    return octavo::gemm_plan_summary(context_);
  }
  [[nodiscard]] std::vector<OperandReport> operands() override {
    return scaling().report_sync(context_);
  }

  [[nodiscard]] const SessionFacts& facts() const override { return facts_; }
  [[nodiscard]] SessionWeights& weights() override { return *parts_.weights; }
  [[nodiscard]] SessionState& state() override { return state_; }
  [[nodiscard]] SessionRanks& ranks() override { return ranks_; }
  [[nodiscard]] const Manifest& manifest() const override { return *parts_.manifest; }

  void begin_timeline_sync() override {
    // Ranks leave the exchange at nearly the same time, at which each sets its clock.
    (void)ranks_.gather(char{}, "begin of a timeline");
    timeline_.begin();
  }
  [[nodiscard]] std::vector<TimelineSpan> end_timeline() override { return timeline_.end(); }

 protected:
  /// Whether weights are quantised for an evaluation or for training.
  struct Evaluates {
    bool value;
  };

  /// @param communicator  null for a session on a single rank
  SessionCore(const SessionOptions& options, Context<D>& context, Communicator<D>* communicator,
              const MemoryPlan& plan)
      : communicator_(communicator == nullptr ? alone_ : *communicator),
        options_(options),
        context_(context),
        arena_(plan, communicator_.allocate(plan.peak, context), context),
        ranks_(options.sharding, communicator_) {}

  /// The parts of a session that its model's type owns. They outlive every call.
  struct Parts {
    const Manifest* manifest = nullptr;
    const ScalingTable<D>* scaling = nullptr;
    Optimizer<D>* optimizer = nullptr;
    StepCollectives<D>* collectives = nullptr;
    ReplicaCheck<D>* replicas = nullptr;
    WeightsOnDevice<D>* weights = nullptr;
  };

  /// Completes a session's construction, once everything has its memory.
  /// @param facts  those that follow from the model and the optimizer
  /// @throws UsageError  if two parameters have the same name, so that `SessionWeights::set` and a
  ///                     saved state would reach only one of them
  void start(const Parts& parts, const SessionBuffers<D>& buffers, SessionFacts facts) {
    parts_ = parts;
    buffers_ = buffers;
    facts_ = std::move(facts);
    collectives().report_to(timeline_);
    inputs_.emplace(buffers, options_.batch.tokens, optimizer().staged_bytes(), context_);
    must_calibrate_ = scaling().has_histories() ? 1 : 0;
    facts_.run_shape = buffers_.shape;
    facts_.micro_batches = options_.micro_batches;
    facts_.sharding = options_.sharding;
    facts_.transport = communicator_.transport();
    facts_.libraries = libraries_text(context_);
    if constexpr (std::is_same_v<D, Cuda>) {
      facts_.card = context_.card();
      facts_.bus_id = context_.bus_id();
    }
    facts_.memory = arena_.plan();
    facts_.allocated_bytes = arena_.allocated();
    facts_.allocated_host_bytes = arena_.allocated_on_host();
    facts_.parameters = facts_.frozen = 0;
    std::vector<std::string> names;
    for (const ParameterFacts& parameter : parts_.weights->parameters()) {
      facts_.parameters += parameter.elements;
      if (parameter.is_frozen) facts_.frozen += parameter.elements;
      names.push_back(parameter.name);
    }
    std::sort(names.begin(), names.end());
    const auto twice = std::adjacent_find(names.begin(), names.end());
    require<UsageError>(
        twice == names.end(), "the names of parameters must be unique, but two are ",
        twice == names.end() ? "" : *twice, "; rename one of their branches or layers");
  }

  /// Chooses the algorithms of all GEMMs in the manifest, before the first step. Algorithms that
  /// must be tried are timed in micro-batches of random tokens: between the other kernels, on the
  /// operands and under the load of a step. These micro-batches have no lasting effect: a step
  /// overwrites everything that they write except the scaling state, which is reset afterwards. All
  /// ranks then use the algorithms of rank 0, because timings differ and each rank would choose
  /// differently.
  /// @throws CommError  see share_gemm_plans_sync
  void choose_gemms();

  /// Invalidates earlier casts and gathers: the weights are about to change.
  void note_new_state() {
    wait_for_reading();
    frozen_are_cast_ = false;
    weights_may_have_moved_ = true;
    collectives().weights_moved();
  }

  /// Discards the recording of the step, which contains operations between ranks. Called before the
  /// session's parts and their communicators are destroyed.
  void drop_record() { replay_.reset(); }

  /// Resets delayed scales after a weight was set: otherwise old amaxes would determine the new
  /// weight's scale.
  void forget_histories() {
    if (!scaling().has_histories() || must_calibrate_ != 0) return;
    reset_scaling_sync();
    must_calibrate_ = 1;
  }

  [[nodiscard]] const SessionOptions& options() const { return options_; }
  [[nodiscard]] Context<D>& context() const { return context_; }
  [[nodiscard]] Communicator<D>& communicator() const { return communicator_; }
  [[nodiscard]] Arena<D>& arena() { return arena_; }
  [[nodiscard]] Timeline<D>& timeline() { return timeline_; }
  [[nodiscard]] const SessionBuffers<D>& buffers() const { return buffers_; }
  [[nodiscard]] DeviceBatch<D> micro_batch(Index number) const {
    return inputs_->micro_batch(number);
  }
  /// Returns the share of one micro-batch in the step's losses.
  [[nodiscard]] float share_of_micro_batch() const {
    const Index ranks = communicator_.size() / options_.sharding.tensor_ranks;
    return 1.0f / static_cast<float>(options_.micro_batches * ranks);
  }

 private:
  /// The members that the parts of a session implement. All enqueue except those whose names end in
  /// `_sync`.
  virtual void bind() = 0;
  virtual void prepare_weights(Evaluates evaluates) = 0;
  virtual void cast_frozen_weights() {}
  /// Runs the forward and the backward of a micro-batch of the inputs.
  virtual void train(Index micro_batch, Accumulation accumulation) = 0;
  virtual void evaluate_losses(const DeviceBatch<D>& batch) = 0;
  /// Copies the logits of one row of a batch to the host.
  virtual void read_logits_sync(TensorView<const std::int32_t, 1, D> tokens, BatchShape shape,
                                Index row, std::span<float> logits) = 0;
  /// Returns the shape of the batch whose first rows contain a text. Tokens after the last one do
  /// not affect it, except through a current scale of a whole tensor, which includes the filler.
  [[nodiscard]] BatchShape shape_of_text(Index count) const {
    // Only FP8 GEMMs require a multiple; with one, algorithms are chosen for fewer sizes.
    constexpr Index of_fp8_gemms = 16;
    const Index multiple = std::lcm(of_fp8_gemms, Index{options_.sharding.tensor_ranks});
    BatchShape shape{1, std::min(round_up(count, multiple), buffers_.shape.tokens)};
    while (shape.rows() % multiple != 0 && shape.sequences < buffers_.shape.sequences) {
      ++shape.sequences;
    }
    return shape;
  }
  [[nodiscard]] const ScalingTable<D>& scaling() const { return *parts_.scaling; }
  [[nodiscard]] virtual GemmRows gemm_rows() const = 0;
  virtual void reset_counts() = 0;
  virtual void verify_step() const = 0;
  [[nodiscard]] StepCollectives<D>& collectives() { return *parts_.collectives; }
  [[nodiscard]] Optimizer<D>& optimizer() { return *parts_.optimizer; }

  [[nodiscard]] Index rows() const { return options_.batch.rows(); }

  /// Casts frozen weights if they were set since the last cast. Steps do not cast them, so a
  /// recording of the step has no casts of them.
  void cast_frozen_if_due() {
    if (frozen_are_cast_) return;
    wait_for_reading();
    cast_frozen_weights();
    frozen_are_cast_ = true;
  }
  /// Resets all scales to 1, including those that frozen weights were cast with.
  void reset_scaling_sync() {
    scaling().reset_sync(context_);
    frozen_are_cast_ = false;
  }

  void rehearse_gemms();

  /// Copies uniformly distributed random tokens, for as many micro-batches as a rehearsal runs.
  void copy_random_inputs();

  /// Fills the histories of delayed scales before the first step, which would otherwise cast with
  /// scales of 1; in E5M2 that rounds nearly all of a gradient to zero. The step overwrites
  /// everything else that this writes. An amax is measured correctly only once the casts before it
  /// have their scales, and a gradient passes two casts in a block, so two passes are needed. They
  /// cover all micro-batches of the step, as the step does, so that scales do not depend on how its
  /// tokens are split. Enqueues; does not synchronise.
  void fill_histories(Index micro_batches);

  /// Updates the histories of delayed scales and the scales, with the same result on all ranks.
  void update_scaling() {
    if (scaling().has_histories()) collectives().maximum(scaling().amaxes(), context_);
    scaling().update(context_);
  }

  /// Returns the number of targets of all ranks' batches. All ranks run a step, or all reject it:
  /// otherwise some would wait for the others.
  /// @throws TooManyDocumentsError  on all ranks, if a batch has too many documents
  Index count_targets_of_ranks(const Batch& batch);

  /// Enqueues the copies of everything that a step reads from the host.
  /// @param counted  targets of all ranks
  void copy_inputs(const Batch& batch, Index counted, double learning_rate);

  /// Enqueues everything between the step's inputs and its status, without synchronisation or
  /// allocation. The enqueued work does not depend on host values, so one recording is valid for
  /// every step.
  /// @param compares  also hashes the weights
  /// @param was_read  the state has been read since the last step, by a thread that may still be
  ///                  reading
  /// @throws ManifestError  before the weights change, if the GEMMs that ran differ from the
  ///                        manifest
  void enqueue_step(bool compares, bool was_read);

  /// Waits until no other thread reads the state, which is about to change.
  void wait_for_reading() noexcept { state_.wait(); }

  /// Called after an exception: waits until the device has read its inputs, so that others can be
  /// copied, and discards the casts of an evaluation, some of which may be missing. Errors of this
  /// call are ignored, so that the caller reports the original one.
  void finish_after_error() noexcept;

  /// Undoes the changes of a step that threw; before its weights change, these are only changes of
  /// the scaling state.
  void undo_step() noexcept;

  template <class Action>
  static void attempt(const Action& action) noexcept {
    try {
      action();
    } catch (...) {
      return;
    }
  }

  StepStatus read_status_sync() const {
    communicator_.wait_sync(context_, "step");
    StepStatus result{};
    copy_to_host_sync(&result, buffers_.status.data(), sizeof(result), context_);
    return result;
  }

  static Index count_targets(std::span<const std::int32_t> targets) {
    return static_cast<Index>(
        std::count_if(targets.begin(), targets.end(), [](std::int32_t t) { return t >= 0; }));
  }

  /// Casts the current weights for evaluation.
  void prepare_evaluation() {
    if (weights_may_have_moved_) {
      begin_evaluation();
    } else {
      bind();
    }
  }

  SelfComm<D> alone_;
  Communicator<D>& communicator_;
  SessionOptions options_;
  Context<D>& context_;
  Arena<D> arena_;
  RanksOfSession<D> ranks_;
  SessionFacts facts_;
  Timeline<D> timeline_;
  SessionBuffers<D> buffers_;
  Parts parts_;
  std::optional<SessionInputs<D>> inputs_;
  std::optional<Replay<D>> replay_{std::in_place};
  StateOnDevice<D> state_{*this};
  double loss_limit_ = std::numeric_limits<double>::infinity();  ///< for a step's mean loss
  double gradient_norm_limit_ = std::numeric_limits<double>::infinity();
  std::int64_t must_calibrate_ =
      0;  ///< 1: the next step must calibrate, because none has succeeded since scales were reset
  bool weights_may_have_moved_ = true;  ///< since they were quantised for evaluation
  bool frozen_are_cast_ = false;
};

}  // namespace octavo OCTAVO_ABI::detail

#include <octavo/session/session_step.hpp>
