/// @file
/// What the ranks that train one model do together, and what it is for one rank: nothing.
#pragma once

#include <octavo/comm/comm.hpp>
#include <octavo/core/timeline.hpp>
#include <octavo/kernels/step_status.hpp>
#include <octavo/memory/arena.hpp>
#include <octavo/models/step_hooks.hpp>

namespace octavo::inline OCTAVO_ABI {

/// A session's way of training with others. `For<Model>` is the part of a session that does it. An
/// own one derives from this one's and replaces what it needs: examples are in `tests/support` and
/// `tests/train`.
///
/// Its members enqueue, but for `total_targets`. The host calls those of a step whenever it
/// enqueues the step: on `Cpu` every time, on `Cuda` for the first step and for the second, which
/// is recorded. Later steps launch the record: what was enqueued runs again, on what is in the
/// device's memory by then, but what a member counted or chose on the host stays as it was. Only
/// `total_targets` and `weights_moved` are called for every step on both; evaluations and
/// calibrations are enqueued each time.
///
/// Ranks are in step if all take the same calls of their sessions in the same order. A step's loss
/// is the mean over the targets of all ranks, and gradients add up to that loss's: those of a rank
/// are of its own targets, divided by the number of all. So ranks add gradients up and do not
/// average them. An evaluation calls the hooks, and gives the sum of this rank's losses: whoever
/// wants that of all adds both members of `LossSum` up.
struct OneRank {
  /// Hooks between the stages (`NoHooks`), and what ends the backward of a step.
  template <class Model>
  class For : public NoHooks {
   public:
    using D = typename Model::DeviceType;
    /// The format of the gradients that the optimizer updates with.
    using Gradient = typename Model::G;

    /// Takes memory. Also called when memory is only planned, without a device.
    For(Arena<D>&, Model&, const Sharding&) {}

    /// Called once, before any hook, with the session's context and ranks, which outlive this.
    /// @throws UsageError  if there are others
    void start(const Context<D>&, Communicator<D>& ranks) {
      require<UsageError>(ranks.size() == 1, "a session of OneRank is given a communicator of ",
                          ranks.size(), " ranks; give it DataParallel<> as its third type");
    }

    /// Called once, before `start`: where operations between ranks report when they run.
    /// @param timeline  outlives this
    void report_to(Timeline<D>& timeline) { timeline_ = &timeline; }

    /// Calls `visitor(RunShard, each)` for what this rank updates of every run of parameters, also
    /// where that is nothing; `each` is that of `visit_runs`.
    template <class Visitor>
    void visit_shards(Model& model, Visitor&& visitor) const {
      model.visit_runs([&](const auto& run, const auto& each) {
        visitor(RunShard<typename Model::T, Gradient, D>{run.weights(), run.gradients(), 0}, each);
      });
    }

    /// Whether all of the weights lie in the model's runs while no step is taken. Else each rank
    /// has its shards.
    [[nodiscard]] bool weights_are_whole() const { return true; }

    /// Passes between the two calls, of which ranks run different numbers, call the hooks but have
    /// no part in anything that ranks do together.
    void rehearse(bool) {}

    /// Weights are no longer what the hooks saw: the optimizer has updated what this rank updates
    /// of them, some are about to be set or loaded, or a recording of the step begins.
    void weights_moved() {}

    /// All weights are read or written by others than stages, where they are whole. All ranks call
    /// it; it enqueues.
    void gather_weights(const Context<D>&) {}

    /// A micro-batch begins, the step's first with number 0.
    void begin_micro_batch(Index, const Context<D>&) {}

    /// How many targets count in a step on all ranks. Called before anything of the step is
    /// enqueued, by the host, which may wait for the other ranks. A rank whose batch or learning
    /// rate is refused does not come: the others wait until the communicator's time is over, and
    /// then have its error.
    /// @param local  those of this rank that count, from 0 on
    [[nodiscard]] Index total_targets(Index local) { return local; }

    /// What the context is given from now on comes after all that the hooks set going, and sees
    /// the gradients and whatever hooks made of them. Called once the stages of a step, of a pass
    /// of calibration, of an evaluation or of a text's logits are enqueued, and after such a call
    /// threw between its inputs and its result: not where these were refused, or `total_targets`
    /// threw.
    void join(const Context<D>&) {}

    /// Makes each amax the largest of all ranks': bits of floats from 0 on, to be compared as
    /// integers, with those of Inf and NaN above all others. Called only where scales come from
    /// histories: before these move, at the end of a step and of each pass of calibration. Parts of
    /// them are known earlier (`ScalingTable::amaxes`), and may be made so on a lane.
    void maximum(TensorView<std::uint32_t, 1, D>, const Context<D>&) {}

    /// Adds the sums of the status up over all ranks: `StepStatus::sums` doubles. Losses and counts
    /// are of this rank's tokens. `squared_norm` is that of the gradients that this rank's
    /// optimizer updates with, which is of all parameters for `AdamW`. Each gradient has to count
    /// once: ranks that update with shards add the norms up, ranks that all hold the gradients of
    /// all (because `join` or a hook added them up) leave the norm as it is.
    void sum(TensorView<StepStatus, 1, D>, const Context<D>&) {}

   protected:
    Timeline<D>* timeline_ = nullptr;
  };
};

}  // namespace octavo
