/// @file
/// Places in a micro-batch where a model lets others enqueue work.
#pragma once

#include <octavo/layers/flat_parameters.hpp>

namespace octavo OCTAVO_ABI {

/// Which of a step's micro-batches this is: gradients add up over them.
struct Accumulation {
  bool first = true;  ///< gradients of parameters begin anew
  bool last = true;   ///< gradients of parameters are final once they are made
};

/// A step is a list of stages: the forward of each run of parameters, with the cast of its weights
/// before the first, then their backwards in the reverse order. An evaluation and a text that is
/// generated have the casts and the forwards. A model calls its hooks between the stages, with the
/// run. They enqueue: on the context that they get, which orders the work with the stages', or on a
/// lane beside it. These do nothing.
///
/// A model reads a run's weights between one of the first three hooks and `weights_read` with that
/// run, and at no other time. So weights may be gathered in the ones and dropped in the other. Of
/// two runs that a stage reads, both hooks come before it. What else uses weights are the session's
/// initialisation, its state and `set_weight`, and the optimizer. A session that gives its weights
/// away (`read_weights_sync`) reads each run's as a forward does, in their order, but for runs
/// whose stages get FP8 values alone.
/// @tparam W  format of the weights
/// @tparam G  format of their gradients
template <class W, class G, Device D>
class StageHooks {
 public:
  using Run = FlatParameters<W, G, D>;

  StageHooks() = default;
  StageHooks(const StageHooks&) = delete;
  StageHooks& operator=(const StageHooks&) = delete;
  virtual ~StageHooks() = default;

  /// Which of the run's weights get their initial values here, when a session is made: all, unless
  /// ranks hold parts.
  [[nodiscard]] virtual RunPart<W, D> held_weights(const Run& run) const {
    return {run.weights(), 0};
  }

  /// Before the run's weights are cast to copies that are kept, or those transposed that ranks have
  /// cast, right before its forward: once a step, in each pass of a calibration, and once before an
  /// evaluation. Not called for runs of which no copies are kept.
  virtual void before_quantize(const Run&, const Context<D>&) {}

  /// Before a forward that reads the run's weights.
  virtual void before_forward(const Run&, const Context<D>&) {}

  /// Before the first operation of the run's backward, which may read its weights and writes its
  /// gradients. Runs may share the memory of gradients (`ModelOptions::gradients_are_sent`): those
  /// of others that lie there are dead then.
  virtual void before_backward(const Run&, const Context<D>&) {}

  /// All that reads the run's weights in this stage has been enqueued. The head's forward and
  /// backward in training are one stage, so this comes once after both of their hooks.
  virtual void weights_read(const Run&, const Context<D>&) {}

  /// All of the step's gradients of the run have been enqueued. They stay as they are until the
  /// next forward, be it of a step, an evaluation or a text that is generated: it may overwrite
  /// them, because gradients can share memory with activations. With
  /// `ModelOptions::gradients_are_sent` only until `before_backward` of a run that shares their
  /// memory, in the same backward.
  virtual void gradients_final(const Run&, const Context<D>&) {}
};

/// The hooks that a model takes.
template <class Model>
using HooksOf = StageHooks<typename Model::T, typename Model::G, typename Model::DeviceType>;

}  // namespace octavo
