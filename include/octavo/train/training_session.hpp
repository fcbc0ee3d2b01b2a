/// @file
/// Training of some model, without its type: what programs that choose model and precision at run
/// time hold.
#pragma once

#include <octavo/comm/sharding.hpp>
#include <octavo/core/error.hpp>
#include <octavo/core/replay.hpp>
#include <octavo/core/timeline.hpp>
#include <octavo/gemm/gemm_planning.hpp>
#include <octavo/layers/scaling_table.hpp>
#include <octavo/models/model.hpp>
#include <octavo/optim/optim.hpp>
#include <octavo/train/batch.hpp>
#include <octavo/train/state_entry.hpp>
#include <octavo/train/weights.hpp>

#include <cmath>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace octavo OCTAVO_ABI {

/// How a session works.
struct SessionOptions {
  BatchShape batch{};              ///< of one micro-batch, and its documents at most
  Index micro_batches = 1;         ///< whose gradients make one step
  ModelOptions model{};            ///< recompute policy and head chunk
  AdamWSettings optimizer{};       ///< betas, epsilon, decay
  Offload offload{};               ///< whether its state lives in the host's memory
  float max_gradient_norm = 1.0f;  ///< gradients are scaled down to it; 0: never
  std::uint64_t seed = 1;          ///< of the initial weights and of stochastic rounding
  /// How ranks share the work, where there are several. A session has `rank`, `ranks` and
  /// `tensor_place` from its communicator; plans say them.
  Sharding sharding{};
  /// How algorithms of GEMMs are chosen on the `Cuda` device, where the context was given none.
  GemmChoice gemm_choice = GemmChoice::heuristic;
  /// Every so many steps ranks compare the weights that each of them holds whole (`ReplicaCheck`);
  /// 0: never. Not with `Zero::weights`, with which they hold parts.
  Index check_replicas = 0;
};

namespace detail {

/// @throws ConfigError  for what no session can be made with
inline void check_options(const SessionOptions& options) {
  const auto check = [](const char* name, auto value, bool good, const char* advice) {
    require<ConfigError>(good, name, " is ", value, "; give ", advice);
  };
  const AdamWSettings& adamw = options.optimizer;
  check("micro-batches", options.micro_batches, options.micro_batches > 0, "at least 1");
  check("check-replicas", options.check_replicas, options.check_replicas >= 0,
        "a number of steps, or 0 for never");
  check("check-replicas", options.check_replicas,
        options.check_replicas == 0 || !options.sharding.shards_weights(),
        "0, or ZeRO-1 or ZeRO-2: with ZeRO-3 no two ranks hold the same weights");
  check("offload chunk", options.offload.chunk,
        options.offload.chunk > 0 && options.offload.chunk % Offload::multiple == 0,
        message("a multiple of ", Offload::multiple, " elements").c_str());
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
}

}  // namespace detail

/// Says that sequences run longer than they are given; "" where they do not.
/// @param run  see `TrainingSession::run_shape`
inline std::string run_shape_note(Index sequence_length, BatchShape run) {
  if (run.tokens == sequence_length) return {};
  return message("sequences of ", sequence_length, " tokens run as ", run.tokens,
                 ", with rows without targets, which GEMMs in FP8, ranks that share the layers, or "
                 "fast GEMMs need");
}

/// What a training step did.
struct StepResult {
  double loss = 0;           ///< mean over the step's targets, of all ranks
  double gradient_norm = 0;  ///< before clipping
  /// Nothing changed: loss, gradients or an operand were not finite, or above the limits.
  bool skipped = false;
  bool is_above_limits = false;  ///< skipped though all was finite, see `limit_steps`
};

/// Sum of losses and number of tokens of an evaluation.
struct LossSum {
  double sum = 0;
  Index tokens = 0;

  [[nodiscard]] double mean() const { return tokens == 0 ? 0 : sum / static_cast<double>(tokens); }
};

/// Training of some model: what programs that choose model and precision at run time hold.
class TrainingSession {
 public:
  virtual ~TrainingSession() = default;

  /// One optimizer step. The first one with delayed scales runs its micro-batches twice more,
  /// to fill their histories.
  /// @param batch          of micro_batches · rows tokens; documents only where the options' shape
  ///                       says how many there are at most in a micro-batch
  /// @param learning_rate  at least 0, and finite in FP32
  /// @throws ShapeError     for another number of tokens or targets
  /// @throws ConfigError    for another learning rate, a token outside of the vocabulary, documents
  ///                        out of order or more than the shape allows
  /// @throws ManifestError  if other GEMMs ran than the manifest says
  /// @throws CommError      if ranks compared weights (`SessionOptions::check_replicas`), and some
  ///                        differ; the program has to end
  /// @note a step that throws changes no weight and no scale, and the session can go on with the
  ///       next: but for a CommError, after which weights may have moved, and nothing can go on
  [[nodiscard]] virtual StepResult step(const Batch& batch, double learning_rate) = 0;

  /// From the next step on, one whose loss or gradient norm is above is skipped, as one that is not
  /// finite: on the device, by what all ranks have alike. Infinities, as in a new session: none is.
  /// @param loss           mean over a step's targets
  /// @param gradient_norm  before clipping
  virtual void limit_steps(double loss, double gradient_norm) {
    (void)loss;
    (void)gradient_norm;
  }

  /// Gets ready for `evaluate` and `next_token_logits` with the weights as they are now, and with
  /// the scales that are there: delayed ones are 1 before a session's first step, and after
  /// `set_weight` before the next one.
  virtual void begin_evaluation() = 0;

  /// The losses of one batch, of this rank's alone. All ranks call it equally often.
  /// @param batch  of rows tokens
  /// @throws ShapeError, ConfigError  as `step`
  [[nodiscard]] LossSum evaluate(const Batch& batch) { return evaluate(batch, {}); }

  /// As above, and the loss of each target.
  /// @param losses  [rows], written: in nats, 0 where the target is ignored; empty: not wanted
  /// @throws ShapeError  for another number of losses
  [[nodiscard]] virtual LossSum evaluate(const Batch& batch, std::span<float> losses) = 0;

  /// Whether delayed scales have no histories yet, and are 1 until a step calibrates them.
  [[nodiscard]] virtual bool must_calibrate() const { return false; }

  /// The logits of the token that follows `tokens`. The model runs on up to 15 tokens more, as
  /// filler: it changes nothing, but where current scales are of whole tensors.
  /// @param tokens  at least 1 and at most a sequence
  /// @param logits  [vocabulary], written
  /// @throws ShapeError   for another number of tokens or logits
  /// @throws ConfigError  for a token outside of the vocabulary
  virtual void next_token_logits(std::span<const std::int32_t> tokens, std::span<float> logits) = 0;

  [[nodiscard]] virtual const Manifest& manifest() const = 0;
  [[nodiscard]] virtual const MemoryPlan& memory() const = 0;
  [[nodiscard]] virtual std::size_t allocated_bytes() const = 0;
  /// Of the host's memory, beside its device's.
  [[nodiscard]] virtual std::size_t allocated_host_bytes() const { return 0; }
  [[nodiscard]] virtual const ModelFacts& facts() const = 0;
  /// Of `facts().parameters`, those that ranks send each other in FP8 (`GatherIn`).
  [[nodiscard]] virtual Index parameters_gathered_in_fp8() const { return 0; }
  /// The shape in which micro-batches run: sequences may be longer than those of the options'
  /// batch, by rows without targets; see `Decoder::run_shape`.
  [[nodiscard]] virtual BatchShape run_shape() const = 0;
  /// In a step.
  [[nodiscard]] virtual Index micro_batches() const = 0;
  [[nodiscard]] virtual std::string precision() const = 0;
  /// The name of the GPU, such as "NVIDIA H200"; "" on `Cpu`.
  [[nodiscard]] virtual std::string card() const { return {}; }
  /// The GPU and the libraries that it computes with; "" on `Cpu`. See `libraries_text`.
  [[nodiscard]] virtual std::string libraries() const { return {}; }
  /// What updates the weights, and the formats of its state.
  [[nodiscard]] virtual std::string optimizer() const = 0;
  [[nodiscard]] virtual Index head_chunks() const = 0;
  /// How often the step's work was enqueued by the host, recorded, and launched from its record.
  [[nodiscard]] virtual const ReplayCounts& replays() const = 0;
  /// The algorithms of GEMMs that were chosen by trying, for later runs; see `store_gemm_plans`.
  [[nodiscard]] virtual std::vector<GemmPlanRecord> gemm_plans() const { return {}; }
  /// How the algorithms of GEMMs were chosen.
  [[nodiscard]] virtual GemmPlanSummary gemm_plan_summary() const { return {}; }
  /// Amax, scale and statistics of every quantised operand, of the last step.
  [[nodiscard]] virtual std::vector<OperandReport> operands() = 0;

  /// All that the steps to come depend on, beside their inputs and the session's options: weights,
  /// but for frozen ones, the optimizer's state, the scaling state. The random bits of rounding are
  /// functions of the seed and the number of steps, which are part of it. Algorithms of GEMMs
  /// belong to a card: see `gemm_plans`; checkpoints have them beside the state. To be used while
  /// the session lives, and where ranks share weights read before the next step; see
  /// `save_state_sync` and `load_state_sync`.
  [[nodiscard]] virtual std::vector<StateEntry> state() = 0;

  /// Entries of the last `state()` may be read by another thread (`StateEntry::read_beside`) from
  /// here to `end_reading`. Steps go on, and wait before they change what is being read; so does
  /// whatever else writes it. All ranks call it.
  virtual void begin_reading() {}
  /// Copies all that is to be read, and waits for it; called once for each `begin_reading`, by that
  /// thread. On the `Cuda` device, what is not copied when a step would wait is put aside in
  /// memory of the device, as much as is free, until it is copied.
  /// @throws CudaError  if some of it cannot be read; nothing waits for it any more
  virtual void end_reading() {}
  /// Memory of the host that is read to fastest: on the `Cuda` device it is pinned, which takes a
  /// while.
  /// @param bytes  more than 0
  /// @throws MemoryError  if the host has not that much memory left
  [[nodiscard]] virtual OwnedBytes allocate_for_reading(std::size_t bytes) {
    return allocate_on_host(bytes, Context<Cpu>(1));
  }

  /// The sum of all ranks', on each of them. All ranks call it; it waits for them.
  [[nodiscard]] virtual LossSum sum_over_ranks(const LossSum& own) { return own; }
  /// The largest of all ranks', likewise.
  [[nodiscard]] virtual std::int64_t largest_over_ranks(std::int64_t own) { return own; }
  /// What each of the ranks gives, in their order, likewise.
  /// @param what  names the exchange in errors; lives as long as the program
  [[nodiscard]] virtual std::vector<std::string> texts_of_ranks(const std::string& own,
                                                                const char* what) {
    (void)what;
    return {own};
  }
  /// How ranks share the work, and which of them this is.
  [[nodiscard]] virtual Sharding sharding() const { return {}; }
  /// See Communicator.
  [[nodiscard]] virtual std::string transport() const { return {}; }

  /// A hash of all weights as they are: of those that each rank updates. It is the same on all
  /// ranks and in all stages of ZeRO; among other numbers of ranks the weights are cut elsewhere,
  /// and have another. All ranks call it.
  [[nodiscard]] virtual std::uint64_t hash_weights_sync() = 0;

  /// Steps are timed from the next one on (`Timeline`), on the `Cuda` device without their record.
  /// All ranks call it; it waits for them.
  virtual void begin_timeline_sync() {}
  /// Steps are timed no more.
  /// @return what the steps since then spent their time on; µs from nearly the same time on on all
  ///         ranks
  [[nodiscard]] virtual std::vector<TimelineSpan> end_timeline() { return {}; }

  /// Sets a parameter, and its FP32 master where there are such. Delayed scales forget their
  /// histories: they are 1 until the next step calibrates them, in evaluations before it too.
  /// @param name    such as "blocks.0.qkv.weight"
  /// @param values  [rows, columns] of the parameter, without the rows that pad it, which become 0;
  ///                finite once they are rounded to the weight's format
  /// @throws ConfigError  for a name that there is not, another number of values, or one that is
  ///                      not finite
  virtual void set_weight(const std::string& name, std::span<const float> values) = 0;

  /// As above, of a parameter that needs not be in memory as a whole.
  /// @param source  asked for the elements that this rank has, a piece at a time
  /// @throws ConfigError  for a name that there is not, or a value that is not finite; the pieces
  ///                      before it are set
  virtual void set_weight(const std::string& name, const WeightSource& source) = 0;

  /// The adapters of a model of which nothing else is trained; none: all of it is.
  [[nodiscard]] virtual std::optional<LoraOptions> lora() const { return {}; }

  /// Every parameter, in the order of `read_weights_sync`: those of adapters come first.
  [[nodiscard]] virtual std::vector<WeightInfo> weights() const = 0;

  /// Gives all weights to `sink`, a piece at a time, as they are stored. All ranks call it, put
  /// together what each has a part of, a piece at a time, and wait for it.
  /// @param sink  empty: this rank helps the others only
  virtual void read_weights_sync(const WeightSink& sink) = 0;
};

}  // namespace octavo
