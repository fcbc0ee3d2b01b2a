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
  using Parameters = FlatParameters<W, G, D>;

  TimedHooks(StageHooks<W, G, D>& hooks, Timeline<D>& timeline)
      : hooks_(hooks), timeline_(timeline) {}

  [[nodiscard]] WeightRange<W, D> held_weights(const Parameters& flat) const override {
    return hooks_.held_weights(flat);
  }
  void before_quantize(const Parameters& flat, const Context<D>& context) override {
    timeline_.end_stage(context);
    hooks_.before_quantize(flat, context);
    timeline_.begin_stage("cast", &flat, context);
  }
  void before_forward(const Parameters& flat, const Context<D>& context) override {
    timeline_.end_stage(context);
    hooks_.before_forward(flat, context);
    timeline_.begin_stage("forward", &flat, context);
  }
  void before_backward(const Parameters& flat, const Context<D>& context) override {
    timeline_.enter_phase("backward", context);
    if (std::exchange(reads_, true)) {  // a tied table is part of the head's stage
      hooks_.before_backward(flat, context);
      return;
    }
    timeline_.end_stage(context);
    hooks_.before_backward(flat, context);
    timeline_.begin_stage("backward", &flat, context);
  }
  void announce(const Parameters& next, const Context<D>& context) override {
    hooks_.announce(next, context);
    timeline_.restart_stage(context);
  }
  void weights_read(const Parameters& flat, const Context<D>& context) override {
    reads_ = false;
    hooks_.weights_read(flat, context);
  }
  void gradients_final(const Parameters& flat, const Context<D>& context) override {
    timeline_.end_stage(context);
    hooks_.gradients_final(flat, context);
  }

 private:
  StageHooks<W, G, D>& hooks_;
  Timeline<D>& timeline_;
  bool reads_ = false;  ///< a backward has begun, which reads weights
};

}  // namespace octavo
