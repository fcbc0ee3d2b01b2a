/// @file
/// What the ranks that train one model do together, and what it is for one rank: nothing.
#pragma once

#include <octavo/kernels/step_status.hpp>
#include <octavo/memory/arena.hpp>
#include <octavo/models/step_hooks.hpp>

namespace octavo {

/// A session's way of training with others. `For<Model>` is the part of a session that does it; its
/// members are all called for every step, and enqueue. An own one derives from this one's and
/// replaces what it needs: examples are in `tests/support`.
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

    /// What the context is given from now on sees the gradients, and whatever the hooks made of
    /// them. Called before norms are added up, and after a step that threw, wherever it did.
    void join(const Context<D>&) {}

    /// Makes each amax the largest of all ranks': bits of floats from 0 on, to be compared as
    /// integers, with those of Inf and NaN above all others. Called before histories move, at the
    /// end of a step and of each pass of calibration, where scales come from histories. Parts of
    /// them are known earlier
    /// (`ScalingTable::amaxes`), and may be made so on a lane.
    void maximum(TensorView<std::uint32_t, 1, D>, const Context<D>&) {}

    /// Adds the sums of the status up over all ranks: `StepStatus::sums` doubles.
    void sum(TensorView<StepStatus, 1, D>, const Context<D>&) {}
  };
};

}  // namespace octavo
