/// @file
/// What the ranks that train one model do together, and what it is for one rank: nothing.
#pragma once

#include <octavo/comm/communicator.hpp>
#include <octavo/comm/sharding.hpp>
#include <octavo/core/timeline.hpp>
#include <octavo/kernels/step_status.hpp>
#include <octavo/layers/scaling_table.hpp>
#include <octavo/memory/arena.hpp>
#include <octavo/models/stage_hooks.hpp>
#include <octavo/train/batch.hpp>

namespace octavo OCTAVO_ABI {

/// What the ranks that train one model do together beside the hooks between stages; for one rank,
/// nothing.
///
/// The members enqueue, but for `total_targets`. The host calls those of a step whenever it
/// enqueues the step: on `Cpu` every time, on `Cuda` for the first step, for the second, which is
/// recorded, and for those that are timed or whose weights are compared. Other steps launch the
/// record: what was enqueued runs again, on what is in the device's memory by then, but what a
/// member counted or chose on the host stays as it was. Only `compare`, `total_targets` and
/// `weights_moved` are called for every step on both; evaluations and calibrations are enqueued
/// each time.
template <Device D>
class StepCollectives {
 public:
  StepCollectives() = default;
  StepCollectives(const StepCollectives&) = delete;
  StepCollectives& operator=(const StepCollectives&) = delete;
  virtual ~StepCollectives() = default;

  /// Called once, before any other member: where operations between ranks report when they run.
  /// @param timeline  outlives this
  void report_to(Timeline<D>& timeline) { timeline_ = &timeline; }

  /// Whether all of the weights lie in the model's runs while no step is taken. Else each rank
  /// has its shards.
  [[nodiscard]] virtual bool weights_are_whole() const { return true; }

  /// Passes between the two calls, of which ranks run different numbers, call the hooks but have
  /// no part in anything that ranks do together.
  virtual void rehearse(bool) {}

  /// Weights are no longer what the hooks saw: the optimizer has updated what this rank updates
  /// of them, some are about to be set or loaded, or a recording of the step begins.
  virtual void weights_moved() {}

  /// All weights are about to be cast, once a step, in each pass of a calibration or of a rehearsal
  /// and before an evaluation: what ranks cast of them (`ModelOptions::gather_weights_in_fp8`),
  /// they cast from now on by the model's scales, those of current scaling made now. With the flag,
  /// casts until the next `join` are recorded: it is set but for an evaluation.
  virtual void cast_weights(const ScalingTable<D>&, bool, const Context<D>&) {}

  /// All weights are read or written by others than stages, where they are whole. All ranks call
  /// it; it enqueues.
  virtual void gather_weights(const Context<D>&) {}

  /// Weights are read by others than stages, whose shards are what the ranks that share the
  /// optimizer's work have of a run. All of these call it with as many bytes; it enqueues, on what
  /// `join` has ordered.
  /// @param own  what this rank has
  /// @return     that of all, in the order of shards, of as many of the first bytes as there is
  ///             memory for: until the next call
  [[nodiscard]] virtual TensorView<const std::byte, 1, D> gather_shards(
      TensorView<const std::byte, 1, D> own, const Context<D>&) {
    return own;
  }
  /// Likewise, of the ranks that share layers, which have parts of a parameter: in their order.
  [[nodiscard]] virtual TensorView<const std::byte, 1, D> gather_parts(
      TensorView<const std::byte, 1, D> own, const Context<D>&) {
    return own;
  }

  /// A micro-batch begins, the step's first with number 0.
  virtual void begin_micro_batch(Index, const Context<D>&) {}

  /// Ranks that are to have the same batch compare theirs, before a step and an evaluation. The
  /// host waits for them.
  /// @throws UsageError  on all of them, if some have others
  virtual void compare(const Batch&) {}

  /// How many targets count in a step on all ranks. Called before anything of the step is
  /// enqueued, by the host, which may wait for the other ranks. A rank whose batch or learning
  /// rate is refused does not come: the others wait until the communicator's time is over, and
  /// then have its error. But one whose batch has too many documents does, so that all ranks refuse
  /// the step.
  /// @param local  those of this rank that count, from 0 on; below 0: its batch has so many
  ///               documents, too many
  /// @return       the least of all ranks', if one is below 0
  [[nodiscard]] virtual Index total_targets(Index local) { return local; }

  /// What the context is given from now on comes after all that the hooks set going, and sees
  /// the gradients, as far as their memory is not another run's by then, and whatever hooks made of
  /// them. Called once the stages of a step, of a pass
  /// of calibration, of an evaluation or of a text's logits are enqueued, and after such a call
  /// threw between its inputs and its result: not where these were refused, or `total_targets`
  /// threw.
  virtual void join(const Context<D>&) {}

  /// Makes each amax the largest of all ranks': bits of floats from 0 on, to be compared as
  /// integers, with those of Inf and NaN above all others. Called only where scales come from
  /// histories: before these move, at the end of a step and of each pass of calibration. Parts of
  /// them are known earlier (`ScalingTable::amaxes`), and may be made so on a lane.
  virtual void maximum(TensorView<std::uint32_t, 1, D>, const Context<D>&) {}

  /// Adds the sums of the status up over all ranks: `StepStatus::sums` doubles. Losses and counts
  /// are of this rank's tokens. `squared_norm` is that of the gradients that this rank's
  /// optimizer updates with, which is of all parameters for `AdamW`. Each gradient has to count
  /// once: ranks that update with shards add the norms up, ranks that all hold the gradients of
  /// all (because `join` or a hook added them up) leave the norm as it is.
  virtual void sum(TensorView<StepStatus, 1, D>, const Context<D>&) {}

 protected:
  [[nodiscard]] Timeline<D>& timeline() const { return *timeline_; }

 private:
  Timeline<D>* timeline_ = nullptr;
};

/// A session's way of training with others. `For<W, G, D>` is the part, of weights in W and
/// gradients in G, of a session that does it. An
/// own one derives from this one's and replaces what it needs: examples are in `tests/support` and
/// `tests/train`.
///
/// Ranks are in step if all take the same calls of their sessions in the same order. A step's loss
/// is the mean over the targets of all ranks, and gradients add up to that loss's: those of a rank
/// are of its own targets, divided by the number of all. So ranks add gradients up and do not
/// average them. An evaluation calls the hooks, and gives the sum of this rank's losses: whoever
/// wants that of all adds both members of `LossSum` up.
struct SingleRank {
  /// What ranks take of memory, and which of it is whose: all that a plan needs, so that one for
  /// `Cuda` can be made where no code for it is. An own way of training without a `Memory` is
  /// planned by its `For`.
  template <class W, class G, Device D>
  class Memory {
   public:
    /// The format of the gradients that the optimizer updates with.
    using Gradient = G;
    /// Ranks cast weights and send each other FP8 values: see ModelOptions::gather_weights_in_fp8.
    static constexpr bool casts_weights = false;

    /// @param runs  the model's, which outlive this
    Memory(Arena<D>&, const ModelRuns<W, G, D>& runs, const Sharding&) : runs_(&runs) {}

    /// What this rank updates of every run of parameters, in their order, also where that is
    /// nothing.
    [[nodiscard]] std::vector<FlatShard<W, Gradient, D>> shards() const {
      std::vector<FlatShard<W, Gradient, D>> result;
      for (const ModelRun<W, G, D>& in : *runs_) {
        result.push_back({in.run->weights(), in.run->gradients(), 0, in.places()});
      }
      return result;
    }

   protected:
    [[nodiscard]] const ModelRuns<W, G, D>& runs() const { return *runs_; }

   private:
    const ModelRuns<W, G, D>* runs_;
  };

  /// Hooks between the stages (`StageHooks`), and what ends the backward of a step
  /// (`StepCollectives`).
  template <class W, class G, Device D>
  class For : public Memory<W, G, D>, public StageHooks<W, G, D>, public StepCollectives<D> {
   public:
    using Memory<W, G, D>::Memory;

    /// Called once, before any hook, with the session's context and ranks, which outlive this.
    /// @throws UsageError  if there are others
    void start(const Context<D>&, Communicator<D>& ranks) {
      require<UsageError>(ranks.size() == 1, "a session of SingleRank is given a communicator of ",
                          ranks.size(), " ranks; give it DataParallel<> as its third type");
    }
  };
};

}  // namespace octavo
