/// @file
/// What the ranks that train one model do together, and what it is for one rank: nothing.
#pragma once

#include <octavo/kernels/step_status.hpp>
#include <octavo/memory/arena.hpp>
#include <octavo/models/step_hooks.hpp>

namespace octavo::inline OCTAVO_ABI {

/// A session's way of training with others. `For<Model>` is the part of a session that does it; its
/// members are all called for every step, and enqueue, but for `total_targets`. An own one derives
/// from this one's and replaces what it needs: examples are in `tests/support` and `tests/train`.
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

    /// Takes memory. Also called when memory is only planned, without a device.
    For(Arena<D>&, Model&) {}

    /// Called once, with the session's context, which outlives this.
    void start(const Context<D>&) {}

    /// How many targets count in a step on all ranks. Called before anything of the step is
    /// enqueued, by the host, which may wait for the other ranks.
    /// @param local  those of this rank that count, from 0 on
    [[nodiscard]] Index total_targets(Index local) { return local; }

    /// What the context is given from now on sees the gradients, and whatever the hooks made of
    /// them. Called before norms are added up, and after a step that threw, wherever it did.
    void join(const Context<D>&) {}

    /// Makes each amax the largest of all ranks': bits of floats from 0 on, to be compared as
    /// integers, with those of Inf and NaN above all others. Called before histories move, at the
    /// end of a step and of each pass of calibration, where scales come from histories. Parts of
    /// them are known earlier (`ScalingTable::amaxes`), and may be made so on a lane.
    void maximum(TensorView<std::uint32_t, 1, D>, const Context<D>&) {}

    /// Adds the sums of the status up over all ranks: `StepStatus::sums` doubles. Losses and counts
    /// are of this rank's tokens. `squared_norm` is that of the gradients that this rank's
    /// optimizer updates with, which is of all parameters for `AdamW`. Each gradient has to count
    /// once: ranks that update with shards add the norms up, ranks that all hold the gradients of
    /// all (because `join` or a hook added them up) leave the norm as it is.
    void sum(TensorView<StepStatus, 1, D>, const Context<D>&) {}
  };
};

}  // namespace octavo
