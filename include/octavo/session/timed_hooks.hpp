/// @file
/// The stages of a step, for its timeline.
#pragma once

#include <octavo/core/timeline.hpp>
#include <octavo/models/stage_hooks.hpp>

#include <utility>

namespace octavo OCTAVO_ABI {

/// Hooks that report the beginning and end of stages to a timeline, and call other hooks. Work that
/// the other hooks enqueue before a stage or after a backward is not part of a stage.
template <class W, class G, Device D>
class TimedHooks final : public StageHooks<W, G, D> {
 public:
  using Run = FlatParameters<W, G, D>;

  TimedHooks(StageHooks<W, G, D>& hooks, Timeline<D>& timeline)
      : hooks_(hooks), timeline_(timeline) {}

  [[nodiscard]] RunPart<W, D> held_weights(const Run& run) const override {
    return hooks_.held_weights(run);
  }
  void before_quantize(const Run& run, const Context<D>& context) override {
    timeline_.end_stage(context);
    hooks_.before_quantize(run, context);
    timeline_.begin_stage("cast", &run, context);
  }
  void before_forward(const Run& run, const Context<D>& context) override {
    timeline_.end_stage(context);
    hooks_.before_forward(run, context);
    timeline_.begin_stage("forward", &run, context);
  }
  void before_backward(const Run& run, const Context<D>& context) override {
    timeline_.enter_phase("backward", context);
    if (std::exchange(reads_, true)) {  // a tied table is part of the head's stage
      hooks_.before_backward(run, context);
      return;
    }
    timeline_.end_stage(context);
    hooks_.before_backward(run, context);
    timeline_.begin_stage("backward", &run, context);
  }
  void announce(const Run& next, const Context<D>& context) override {
    hooks_.announce(next, context);
    timeline_.restart_stage(context);
  }
  void weights_read(const Run& run, const Context<D>& context) override {
    reads_ = false;
    hooks_.weights_read(run, context);
  }
  void gradients_final(const Run& run, const Context<D>& context) override {
    timeline_.end_stage(context);
    hooks_.gradients_final(run, context);
  }

 private:
  StageHooks<W, G, D>& hooks_;
  Timeline<D>& timeline_;
  bool reads_ = false;  ///< a backward has begun, which reads weights
};

}  // namespace octavo
