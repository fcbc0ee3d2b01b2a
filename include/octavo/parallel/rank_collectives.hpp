/// @file
/// The operations with which the ranks that train one model work together.
#pragma once

#include <octavo/comm/communicator.hpp>
#include <octavo/core/timeline.hpp>
#include <octavo/kernels/step_status.hpp>
#include <octavo/layers/scaling_table.hpp>
#include <octavo/models/stage_hooks.hpp>
#include <octavo/optim/shard_exchange.hpp>
#include <octavo/parallel/batch.hpp>

namespace octavo OCTAVO_ABI {

template <Device D>
class TensorParallelGroup;

/// Collective operations of the ranks that train one model, in addition to the hooks between
/// stages. For one rank they do nothing.
///
/// All members except `total_targets` enqueue. The host calls the members of a step whenever it
/// enqueues the step: every time on `Cpu`; on `Cuda` for the first step, for the second, which is
/// recorded, and for steps that are timed or whose weights are compared. Other steps launch the
/// recording: the enqueued work runs again on the current content of device memory, but values that
/// a member computed or chose on the host keep their recorded state. Only `compare`,
/// `total_targets` and `weights_moved` are called for every step on both devices. Evaluations and
/// calibrations are enqueued each time.
template <Device D>
class StepCollectives : public ShardExchange<D> {
 public:
  /// Called once, before any other member. Sets the timeline to which operations between ranks
  /// report.
  /// @param timeline  must outlive this object
  void report_to(Timeline<D>& timeline) { timeline_ = &timeline; }

  /// Returns whether the model's flat buffers contain all weights between steps. Otherwise each
  /// rank has its shards.
  [[nodiscard]] virtual bool has_full_weights() const { return true; }

  /// Begins or ends passes whose number may differ between ranks: they call the hooks, but do not
  /// participate in collective operations.
  virtual void rehearse(bool) {}

  /// Invalidates the weights that the hooks saw: the optimizer has updated this rank's share,
  /// weights are about to be set or loaded, or a recording of the step begins.
  virtual void weights_moved() {}

  /// Announces that all weights are about to be cast: once per step, in each pass of a calibration
  /// or a rehearsal, and before an evaluation. From then on, ranks cast the weights that they send
  /// in FP8 (`ModelOptions::gather_weights_in_fp8`) by the model's scales; current scales are
  /// computed at this point. With the flag, casts until the next `join` are recorded; it is set
  /// except for an evaluation.
  virtual void cast_weights(const ScalingTable<D>&, bool, const Context<D>&) {}

  /// Gathers all weights so that code outside stages can read or write them whole. All ranks call
  /// it; it enqueues.
  virtual void gather_weights(const Context<D>&) {}

  /// Gathers weights that code outside stages reads, from the ranks that share the optimizer's work
  /// and have shards of a flat buffer. All of these ranks call it with the same number of bytes. It
  /// enqueues; the work that it needs must have been ordered by `join`.
  /// @param own  this rank's bytes
  /// @return     those of all ranks, in the order of shards, as many of the first bytes as the
  ///             memory has room for; valid until the next call
  [[nodiscard]] virtual TensorView<const std::byte, 1, D> gather_shards(
      TensorView<const std::byte, 1, D> own, const Context<D>&) {
    return own;
  }
  /// Does the same for the ranks that share layers and have parts of a parameter, in rank order.
  [[nodiscard]] virtual TensorView<const std::byte, 1, D> gather_parts(
      TensorView<const std::byte, 1, D> own, const Context<D>&) {
    return own;
  }

  /// Starts a micro-batch; the first one of a step has number 0.
  virtual void begin_micro_batch(Index, const Context<D>&) {}

  /// Compares the batches of ranks that must have the same batch, before a step and an evaluation.
  /// The host waits for these ranks.
  /// @throws UsageError  on all of them, if some batches differ
  virtual void compare(const Batch&) {}

  /// Returns the number of targets that count in a step on all ranks. Called by the host, which may
  /// wait for the other ranks, before anything of the step is enqueued. A rank whose batch or
  /// learning rate is invalid does not call it: the others wait until the communicator's time-out
  /// and then throw a CommError. A rank whose batch has too many documents does call it, so that
  /// all ranks reject the step.
  /// @param local  number of this rank's targets that count; below 0: minus the number of documents
  ///               of its batch, which are too many
  /// @return the number over all ranks; if one is below 0, the minimum
  [[nodiscard]] virtual Index total_targets(Index local) { return local; }

  /// Orders all later work of the context after the work that the hooks started. Later work sees
  /// the gradients, unless another flat buffer reuses their memory, and all results of hooks.
  /// Called after the stages of a step, of a calibration pass, of an evaluation or of a text's
  /// logits are enqueued, and also if such a call threw between copying its inputs and returning
  /// its result, but not if the inputs were invalid or `total_targets` threw.
  virtual void join(const Context<D>&) {}

  /// Computes the maximum of each amax over all ranks. The values are bits of non-negative floats,
  /// compared as integers, so Inf and NaN are above all others. Called only if scales come from
  /// histories: before the histories move, at the end of a step and of each calibration pass. Some
  /// amaxes are known earlier (`ScalingTable::amaxes`) and may be reduced on a lane.
  virtual void maximum(TensorView<std::uint32_t, 1, D>, const Context<D>&) {}

  /// Adds up the sums of the status, `StepStatus::sums` doubles, over all ranks. Losses and counts
  /// cover this rank's tokens. `squared_norm` covers the gradients that this rank's optimizer uses;
  /// for `AdamW`, those of all parameters. Each gradient must count once: ranks that update with
  /// shards add up the norms; ranks that all have all gradients, because `join` or a hook summed
  /// them, leave the norm unchanged.
  virtual void sum(TensorView<StepStatus, 1, D>, const Context<D>&) {}

 protected:
  [[nodiscard]] Timeline<D>& timeline() const { return *timeline_; }

  /// Implements `exchange_shards` for the ranks of a communicator.
  void exchange_between(Communicator<D>& ranks, TensorView<const std::byte, 2, D> rows,
                        TensorView<std::byte, 2, D> received, const Context<D>& context) const {
    const auto span = timeline().communication("stages", "directions", nullptr, context);
    const Index own = ranks.rank();
    const auto bytes = static_cast<std::size_t>(rows.extent(1));
    copy_on_device(received.row(own), rows.row(own), bytes, context);
    if (ranks.size() == 1) return;
    ranks.all_to_all({rows.data(), {rows.size()}}, {received.data(), {received.size()}},
                     "directions of Muon", context);
  }

 private:
  Timeline<D>* timeline_ = nullptr;
};

/// Everything that a session does with other ranks: hooks between the stages of a step, and the
/// collective operations of the step.
template <class W, class G, Device D>
class RankCollectives : public StageHooks<W, G, D>, public StepCollectives<D> {
 public:
  /// Called once, before any hook, with the session's context and ranks, which outlive this object.
  virtual void start(const Context<D>& context, Communicator<D>& ranks) = 0;

  /// Passes the group of ranks that share the model's layers. Called once, after `start`, if there
  /// is such a group.
  virtual void share(TensorParallelGroup<D>&) {}
};

}  // namespace octavo
