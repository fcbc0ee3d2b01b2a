/// @file
/// A run from its first step to its last: everything that a trainer does in addition to the steps
/// themselves.
#pragma once

#include <octavo/checkpoint/checkpoints.hpp>
#include <octavo/optim/schedule.hpp>
#include <octavo/run/interrupt.hpp>
#include <octavo/run/run_totals.hpp>
#include <octavo/run/spikes.hpp>
#include <octavo/run/token_batches.hpp>
#include <octavo/session/state.hpp>

#include <chrono>
#include <cmath>
#include <csignal>
#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace octavo OCTAVO_ABI {

/// The course of a run.
struct RunOptions {
  Schedule schedule{};         ///< of the learning rate; its `steps` are those of the run
  Index evaluate_every = 0;    ///< steps, from before the first one; 0: at the end only
  Index operands_every = 100;  ///< steps between records of all operands
  Index max_skipped = 10;      ///< number of consecutive skipped steps that ends the run
  Index hash_every = 0;        ///< steps between hashes of all weights; 0: none
  SpikeOptions spikes{};
  /// Time at which the run ends as after SIGTERM: it finishes the current step.
  std::chrono::steady_clock::time_point end_time = std::chrono::steady_clock::time_point::max();
};

/// How a run ended.
struct RunSummary {
  Index steps = 0;    ///< including those before it was resumed
  Index taken = 0;    ///< steps since the run started or was resumed
  double tokens = 0;  ///< of all these steps; see `RunTotals::tokens`
  Index skipped = 0;
  double train_loss = 0;         ///< mean of the last 20 steps that were not skipped
  double validation_loss = 0;    ///< at the end
  double tokens_per_second = 0;  ///< without the first step, unless it is the only one
  double seconds = 0;            ///< of all steps since the run started or was resumed
  GemmCount gemms{};             ///< of one micro-batch of its first step, as counted
  Index rollbacks = 0;           ///< number of returns to a checkpoint after spikes
  bool gave_up = false;          ///< after `max_skipped` skipped steps
  bool spiked = false;           ///< it stopped before a spike; `steps` counts the steps before it
  int signal = 0;                ///< that ended it before its last step, or 0
  bool is_saved = true;          ///< the last save succeeded, or the run is not saved
  /// If the run stopped before a batch with too many documents, their number; else 0.
  Index documents = 0;
  /// The last records of operands; if the run ended because of non-finite values, they show the
  /// operands with Inf or NaN.
  std::vector<OperandReport> operands{};

  [[nodiscard]] std::string end() const {
    return gave_up          ? "not finite"
           : spiked         ? "spike"
           : documents != 0 ? "too many documents"
           : signal != 0    ? message("signal ", signal)
                            : "done";
  }
};

/// Receives the events of a run.
class RunObserver {
 public:
  virtual ~RunObserver() = default;

  /// @param operands  empty if they were not recorded. They are recorded in the first step, the
  ///                  last one, skipped ones, and every `operands_every` steps. If a batch with too
  ///                  many documents ends the run, its last step is known only afterwards
  virtual void step(const StepRecord& record, const std::vector<OperandReport>& operands) = 0;
  /// @param step  after which the model was evaluated; 0: before the first
  virtual void evaluation(Index step, const LossSum& loss) = 0;
  /// Called after the record of a step that was a spike, with the response to it.
  virtual void spike(const SpikeRecord& record) { (void)record; }
  /// Called once, when a loss is twice the first.
  virtual void divergence(const StepRecord& record, double first_loss) = 0;
};

namespace detail {

/// Returns the state that a resumed run needs in addition to its session's: that of the batches and
/// of the totals.
template <class Batches>
std::vector<StateEntry> run_state(Batches& batches, RunTotals& totals) {
  std::vector<StateEntry> entries = batches.state();
  for (StateEntry& entry : totals.state()) entries.push_back(std::move(entry));
  return entries;
}

/// Runs the next step of a run, and counts it.
/// @param limits  above these, the step is a spike and is skipped
template <class Batches>
StepRecord take_step(TrainingSession& session, Batches& batches, const RunOptions& options,
                     const SpikeLimits& limits, RunTotals& totals) {
  using Clock = std::chrono::steady_clock;
  StepRecord record;
  record.step = totals.steps() + 1;
  record.learning_rate = options.schedule.at(record.step);
  session.limit_steps(limits.loss, limits.gradient_norm);
  const auto begin = Clock::now();
  record.result = batches.step(session, record.learning_rate);
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  record.epoch = batches.epoch();
  record.milliseconds = seconds * 1000.0;
  record.tokens = batches.tokens_in_step();
  record.tokens_per_second = record.tokens / seconds;
  totals.add(record);
  if (options.hash_every != 0 && record.step % options.hash_every == 0) {
    record.weights_hash = session.weights().hash_sync();
  }
  return record;
}

/// A run, step by step.
template <class Batches>
class TrainingRun {
 public:
  /// @param checkpoints  null if the run is not saved
  TrainingRun(TrainingSession& session, Batches& batches, const RunOptions& options,
              RunObserver& observer, RunTotals& totals, Checkpoints* checkpoints)
      : session_(session),
        batches_(batches),
        options_(options),
        observer_(observer),
        totals_(totals),
        checkpoints_(checkpoints) {}

  RunSummary run() {
    if (options_.evaluate_every != 0 && totals_.steps() == 0) (void)evaluate();
    while (totals_.steps() < options_.schedule.steps && !step()) {
    }
    const SpikeLimits none;
    session_.limit_steps(none.loss, none.gradient_norm);
    // Saved before the evaluation, because the sender of the signal may not wait that long.
    if (summary_.signal != 0) save_final_checkpoint(std::nullopt);
    const LossSum validation = evaluate();
    if (summary_.signal == 0) save_final_checkpoint(score(validation));
    summary_.steps = totals_.steps();
    summary_.taken = totals_.timed_steps();
    summary_.tokens = totals_.tokens();
    summary_.skipped = totals_.skipped();
    summary_.rollbacks = totals_.rollbacks();
    summary_.train_loss = totals_.train_loss();
    summary_.validation_loss = validation.mean();
    summary_.tokens_per_second = totals_.tokens_per_second(batches_.tokens_in_step());
    summary_.seconds = totals_.seconds();
    summary_.gave_up = totals_.gave_up();
    return std::move(summary_);
  }

 private:
  /// Runs one step and reports it; returns true if it is the last.
  bool step() {
    const SpikeLimits limits(options_.spikes, totals_);
    if (may_restore()) state_before_step_ = save_state_sync(run_state(batches_, totals_));
    StepRecord record;
    try {
      record = take_step(session_, batches_, options_, limits, totals_);
    } catch (const TooManyDocumentsError& error) {  // on all ranks; nothing has changed
      if (totals_.timed_steps() == 0) throw;
      summary_.documents = error.count();
      return true;
    }
    const bool is_first = totals_.timed_steps() == 1;
    if (is_first) {
      summary_.gemms =
          session_.manifest().executed(static_cast<std::uint64_t>(session_.facts().micro_batches));
    }
    const Index steps = options_.schedule.steps;
    // A signal in a run's last step has no effect. All ranks stop together, even if only one of
    // them received the signal.
    if (record.step < steps) {
      if (std::chrono::steady_clock::now() >= options_.end_time) InterruptGuard::request(SIGTERM);
      summary_.signal = static_cast<int>(session_.ranks().largest(InterruptGuard::received()));
    }
    const bool is_spike = record.result.is_above_limits;
    const SpikeRecord spike = is_spike ? handle_spike(record, limits) : SpikeRecord{};
    const bool is_done = record.step == steps && spike.action != OnSpike::rollback;
    record.last = is_done || summary_.signal != 0 || summary_.spiked || totals_.gave_up();
    const bool collect = is_first || record.last || record.result.skipped ||
                         record.step % options_.operands_every == 0;
    if (collect) summary_.operands = session_.operands();
    observer_.step(record, collect ? summary_.operands : std::vector<OperandReport>{});
    if (is_spike) observer_.spike(spike);
    if (totals_.diverges()) observer_.divergence(record, totals_.first_loss());
    if (!record.last && spike.action != OnSpike::rollback) evaluate_and_save(record.step);
    return record.last;
  }

  /// Returns whether the run may have to return to its state before a step.
  [[nodiscard]] bool may_restore() const {
    return options_.spikes.action == OnSpike::stop || options_.spikes.action == OnSpike::rollback;
  }

  /// Moves the run to the point from which it continues. The session skipped the step, so its state
  /// is that from before the step.
  SpikeRecord handle_spike(const StepRecord& record, const SpikeLimits& limits) {
    SpikeRecord spike{.step = record.step,
                      .loss = record.result.loss,
                      .loss_limit = limits.loss,
                      .gradient_norm = record.result.gradient_norm,
                      .gradient_norm_limit = limits.gradient_norm,
                      .action = options_.spikes.action,
                      .rollbacks = totals_.rollbacks()};
    if (spike.action == OnSpike::rollback && summary_.signal == 0) roll_back(spike);
    const bool stays = spike.action == OnSpike::skip || spike.resumed_step != 0;
    if (stays) return spike;
    // If the run is resumed later, it reaches the spike again.
    spike.action = OnSpike::stop;
    load_state_sync(state_before_step_, run_state(batches_, totals_));
    summary_.spiked = summary_.signal == 0;
    return spike;
  }

  /// Returns to the newest checkpoint, if one exists and rollbacks remain. The position in the data
  /// stays after the spike.
  void roll_back(SpikeRecord& spike) {
    if (spike.rollbacks == options_.spikes.max_rollbacks) {
      spike.reason = message("the run has already rolled back ", spike.rollbacks, " times");
      return;
    }
    const std::filesystem::path path = checkpoints_->newest_sync();
    if (path.empty()) {
      spike.reason = "there is no checkpoint to roll back to yet";
      return;
    }
    std::vector<StateEntry> more = run_state(batches_, totals_);
    for (StateEntry& entry : more) {
      if (entry.name.starts_with("data.")) entry.write_sync = [](const std::byte*) {};
    }
    try {
      spike.resumed_step = checkpoints_->resume(path, std::move(more)).step;
    } catch (const ConfigError& error) {  // on all ranks, before anything is loaded
      spike.reason = error.what();
      return;
    } catch (const DamagedCheckpointError& error) {  // the same
      spike.reason = error.what();
      return;
    }
    totals_.note_rollbacks(++spike.rollbacks);
  }

  /// Returns the mean loss, by which checkpoints are compared; none if there were no targets or the
  /// loss is not finite.
  static std::optional<double> score(const LossSum& loss) {
    return std::isfinite(loss.mean()) ? std::optional(loss.mean()) : std::nullopt;
  }

  /// Evaluates the model after the last step, and reports its loss.
  LossSum evaluate() {
    const LossSum loss = batches_.evaluate(session_);
    observer_.evaluation(totals_.steps(), loss);
    return loss;
  }

  /// Evaluates and saves between two steps, if due.
  void evaluate_and_save(Index step) {
    std::optional<double> validation_loss;
    if (options_.evaluate_every != 0 && step % options_.evaluate_every == 0) {
      validation_loss = score(evaluate());
    }
    if (checkpoints_ == nullptr) return;
    checkpoints_->after_step();
    if (checkpoints_->is_due(step)) save(validation_loss);
  }

  void save(std::optional<double> validation_loss) {
    checkpoints_->save(totals_.steps(), run_state(batches_, totals_), validation_loss);
  }

  /// After too many non-finite steps, the state has not changed since the last save.
  void save_final_checkpoint(std::optional<double> validation_loss) {
    if (checkpoints_ == nullptr) return;
    if (!totals_.gave_up()) save(validation_loss);
    checkpoints_->finish();
    summary_.is_saved = !checkpoints_->failed();
  }

  TrainingSession& session_;
  Batches& batches_;
  const RunOptions& options_;
  RunObserver& observer_;
  RunTotals& totals_;
  Checkpoints* checkpoints_;
  SavedState state_before_step_;  ///< of batches and totals before a step, if the run may have to
                                  ///< return to it
  RunSummary summary_;
};

}  // namespace detail

/// Trains until the last step, too many consecutive skipped steps, a spike that must stop it, a
/// batch with too many documents, `RunOptions::end_time`, or a signal while an `InterruptGuard`
/// exists. Then evaluates the model.
/// @tparam Batches     `TokenBatches`, or a type with its `step`, `evaluate`, `epoch`, `state` and
///                     `tokens_in_step`
/// @param totals        of the earlier steps: a new run's, or those returned by `resume`
/// @param checkpoints  saved when they are due, at the end, and after a signal or such a batch;
///                     null: none
/// @throws TooManyDocumentsError  on all ranks, if the first batch has too many
template <class Batches>
[[nodiscard]] RunSummary train(TrainingSession& session, Batches& batches,
                               const RunOptions& options, RunObserver& observer, RunTotals& totals,
                               Checkpoints* checkpoints) {
  options.schedule.check();
  require<ConfigError>(options.operands_every > 0,
                       "operands_every must be at least 1 step, but is ", options.operands_every);
  require<ConfigError>(options.max_skipped > 0, "max_skipped must be at least 1 step, but is ",
                       options.max_skipped);
  require<ConfigError>(options.evaluate_every >= 0, "evaluate_every must be at least 0, but is ",
                       options.evaluate_every, "; 0 evaluates only at the end");
  require<ConfigError>(options.hash_every >= 0, "hash_every must be at least 0, but is ",
                       options.hash_every, "; 0 records no hashes");
  detail::check_spike_options(options.spikes, checkpoints != nullptr);
  return detail::TrainingRun<Batches>(session, batches, options, observer, totals, checkpoints)
      .run();
}

/// Trains a run that is not saved.
template <class Batches>
[[nodiscard]] RunSummary train(TrainingSession& session, Batches& batches,
                               const RunOptions& options, RunObserver& observer) {
  RunTotals totals(options.max_skipped);
  return train(session, batches, options, observer, totals, nullptr);
}

/// Restores session, batches and totals from a checkpoint of a run; see `load_checkpoint`.
/// @param checkpoints  of the resumed run; null if none are saved
template <class Batches>
CheckpointManifest resume(const std::filesystem::path& path, TrainingSession& session,
                          Batches& batches, RunTotals& totals, Checkpoints* checkpoints,
                          OtherRecipes others = OtherRecipes::refused) {
  std::vector<StateEntry> more = detail::run_state(batches, totals);
  return checkpoints == nullptr ? load_checkpoint(path, session, std::move(more), others)
                                : checkpoints->resume(path, std::move(more), others);
}

}  // namespace octavo
