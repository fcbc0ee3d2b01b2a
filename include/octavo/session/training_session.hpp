/// @file
/// Training of a model behind a type-erased interface, for programs that choose model and precision
/// at run time.
#pragma once

#include <octavo/comm/sharding.hpp>
#include <octavo/core/error.hpp>
#include <octavo/core/replay.hpp>
#include <octavo/core/timeline.hpp>
#include <octavo/gemm/gemm_planning.hpp>
#include <octavo/layers/scaling_table.hpp>
#include <octavo/models/model.hpp>
#include <octavo/optim/optim.hpp>
#include <octavo/parallel/batch.hpp>
#include <octavo/session/session_facts.hpp>
#include <octavo/session/session_ranks.hpp>
#include <octavo/session/session_state.hpp>
#include <octavo/session/session_weights.hpp>

#include <cmath>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace octavo OCTAVO_ABI {

/// Options of a session.
struct SessionOptions {
  BatchShape batch{};       ///< of one micro-batch, including its maximum number of
                            ///< documents
  Index micro_batches = 1;  ///< micro-batches per step, over which gradients are accumulated
  /// Recompute policy, head chunk, copies of weights and LoRA. The session sets all other members.
  ModelOptions model{};
  OptimizerSettings optimizer{};   ///< those of its type, such as `AdamWSettings`
  Offload offload{};               ///< what is kept in host memory
  float max_gradient_norm = 1.0f;  ///< maximum gradient norm (0 disables clipping)
  std::uint64_t seed = 1;          ///< for the initial weights and stochastic rounding
  /// How ranks share the work, if there are several; the default for `SingleRank`. A session takes
  /// `rank`, `ranks` and `tensor_rank` from its communicator, and refuses other `ranks` than 1 and
  /// the communicator's; plans set them.
  Sharding sharding{};
  /// How GEMM algorithms are chosen on the `Cuda` device, if the context has no records of them.
  GemmChoice gemm_choice = GemmChoice::heuristic;
  /// Interval in steps at which ranks compare the replicated weights (`ReplicaCheck`); 0: never.
  /// Not with `Zero::weights`, which replicates no weights.
  Index check_replicas = 0;
};

namespace detail {

/// @throws ConfigError  if a session cannot be created with these options
inline void check_options(const SessionOptions& options) {
  const auto check = [](const char* name, auto value, bool good, const char* rule) {
    require<ConfigError>(good, name, " must be ", rule, ", but is ", value);
  };
  check("micro-batches", options.micro_batches, options.micro_batches > 0, "at least 1");
  check("check-replicas", options.check_replicas, options.check_replicas >= 0,
        "at least 0 (0 disables the comparisons)");
  check("check-replicas", options.check_replicas,
        options.check_replicas == 0 || !options.sharding.shards_weights(),
        "0 with ZeRO-3, which replicates no weights");
  check("offload chunk", options.offload.chunk,
        options.offload.chunk > 0 && options.offload.chunk % Offload::multiple == 0,
        message("a multiple of ", Offload::multiple, " elements").c_str());
  require<ConfigError>(
      !options.model.offload_activations || options.offload.activations,
      "SessionOptions: model.offload_activations must be false unless offload.activations is true, "
      "but is true; set offload.activations, which sets both");
  require<ConfigError>(
      !options.offload.activations || options.model.recompute != Recompute::block,
      "offloading activations needs a recompute policy before block, but recompute is block, which "
      "recomputes these activations; choose ffn, or do not offload them");
  check("head_chunk", options.model.head_chunk, options.model.head_chunk >= 0,
        "at least 0 (0 chooses automatically)");
  check("max_gradient_norm", options.max_gradient_norm,
        options.max_gradient_norm >= 0 && std::isfinite(options.max_gradient_norm),
        "finite and at least 0 (0 disables clipping)");
}

}  // namespace detail

/// Returns a notice if sequences are padded; otherwise "".
/// @param run  see `SessionFacts::run_shape`
inline std::string run_shape_note(Index sequence_length, BatchShape run) {
  if (run.tokens == sequence_length) return {};
  return message("sequences of ", sequence_length, " tokens are padded to ", run.tokens,
                 ", as FP8 GEMMs, tensor parallelism or fast GEMMs require");
}

/// The result of a training step.
struct StepResult {
  double loss = 0;           ///< mean over the step's targets, over all ranks; NaN without a target
  double gradient_norm = 0;  ///< before clipping
  /// Whether the step was skipped, with nothing changed: loss, gradients or an operand were not
  /// finite, or were above the limits.
  bool skipped = false;
  bool is_above_limits = false;  ///< skipped although all values were finite, see `limit_steps`
};

/// Trains a model. This is the type-erased interface for programs that choose model and precision
/// at run time.
class TrainingSession {
 public:
  virtual ~TrainingSession() = default;

  /// Runs one optimizer step. With delayed scales, the first step runs its micro-batches two extra
  /// times, to fill their histories.
  /// @param batch          of micro_batches · rows tokens; may have documents only if the options'
  ///                       shape sets their maximum number per micro-batch
  /// @param learning_rate  at least 0, and finite in FP32
  /// @throws ShapeError     for a wrong number of tokens or targets
  /// @throws ConfigError    for an invalid learning rate, a token outside the vocabulary, documents
  ///                        out of order, or more documents than the shape allows
  /// @throws ManifestError  if GEMMs ran differently than the manifest expects
  /// @throws CommError      if ranks compared weights (`SessionOptions::check_replicas`) and some
  ///                        differ; the program must end
  /// @note a step that throws changes no weight and no scale, and the session can continue with the
  ///   next step. The exception is a CommError, after which weights may have changed and the
  ///   session cannot continue
  [[nodiscard]] virtual StepResult step(const Batch& batch, double learning_rate) = 0;

  /// Sets limits from the next step on: a step whose loss or gradient norm is above its limit is
  /// skipped, like a non-finite one. The decision is made on the device, from values that are the
  /// same on all ranks. Infinity, the default, disables a limit.
  /// @param loss           mean over a step's targets
  /// @param gradient_norm  before clipping
  /// @throws ConfigError  for a limit that is NaN or negative
  virtual void limit_steps(double loss, double gradient_norm) {
    (void)loss;
    (void)gradient_norm;
  }

  /// Prepares `evaluate` and `next_token_logits` with the current weights and scales. Delayed
  /// scales are 1 before a session's first step, and after `SessionWeights::set` until the next
  /// step, unless `calibrate` was called.
  virtual void begin_evaluation() = 0;

  /// Computes the losses of one batch, for this rank only. All ranks must call it equally often.
  /// @param batch  of rows tokens
  /// @throws ShapeError, ConfigError  as in `step`
  [[nodiscard]] LossSum evaluate(const Batch& batch) { return evaluate(batch, {}); }

  /// Does the same, and returns the loss of each target.
  /// @param losses  [rows], written: in nats, 0 for ignored targets; empty: not needed
  /// @throws ShapeError  for a wrong number of losses
  [[nodiscard]] virtual LossSum evaluate(const Batch& batch, std::span<float> losses) = 0;

  /// Whether delayed scales have no histories yet, and are 1 until a step calibrates them.
  [[nodiscard]] virtual bool must_calibrate() const { return false; }

  /// Calibrates delayed scales without histories on a batch, for evaluations before the next step.
  /// That step calibrates them again, and its results are bitwise the same as without this call.
  /// All ranks must call it. Does nothing unless `must_calibrate()`.
  /// @param batch  of rows tokens
  /// @throws ShapeError, ConfigError  as in `step`
  virtual void calibrate(const Batch& batch) { (void)batch; }

  /// Computes the logits of the token that follows `tokens`. The model also processes up to 15
  /// padding tokens, which change the result only if current scales cover whole tensors.
  /// @param tokens  at least 1, and at most a sequence
  /// @param logits  [vocabulary], written
  /// @throws ShapeError   for a wrong number of tokens or logits
  /// @throws ConfigError  for a token outside the vocabulary
  virtual void next_token_logits(std::span<const std::int32_t> tokens, std::span<float> logits) = 0;

  [[nodiscard]] virtual const SessionFacts& facts() const = 0;
  [[nodiscard]] virtual SessionWeights& weights() = 0;
  [[nodiscard]] virtual SessionState& state() = 0;
  [[nodiscard]] virtual SessionRanks& ranks() = 0;

  [[nodiscard]] virtual const Manifest& manifest() const = 0;
  /// Returns how often the step's work was enqueued by the host, recorded, and launched from its
  /// record.
  [[nodiscard]] virtual const ReplayCounts& replays() const = 0;
  /// Returns the GEMM algorithms that were chosen by trying, for later runs; see
  /// `store_gemm_plans`.
  [[nodiscard]] virtual std::vector<GemmPlanRecord> gemm_plans() const { return {}; }
  /// Returns how the GEMM algorithms were chosen.
  [[nodiscard]] virtual GemmPlanSummary gemm_plan_summary() const { return {}; }
  /// Returns amax, scale and statistics of every quantised operand in the last step.
  [[nodiscard]] virtual std::vector<OperandReport> operands() = 0;

  /// Starts timing with the next step (`Timeline`); on the `Cuda` device timed steps do not use the
  /// recording. All ranks call it; it waits for them.
  virtual void begin_timeline_sync() {}
  /// Stops timing.
  /// @return the spans of the timed steps, in µs from nearly the same time on all ranks
  [[nodiscard]] virtual std::vector<TimelineSpan> end_timeline() { return {}; }
};

}  // namespace octavo
