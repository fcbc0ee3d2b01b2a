/// @file
/// Hooks at which a model lets callers enqueue work during a micro-batch.
#pragma once

#include <octavo/layers/flat_parameters.hpp>

namespace octavo OCTAVO_ABI {

/// The position of a micro-batch in a step, over which gradients accumulate.
struct Accumulation {
  bool first = true;  ///< gradients of parameters are overwritten
  bool last = true;   ///< gradients of parameters are final once computed
  /// Factor of losses that are not sums over targets, such as load balancing: 1 / number of
  /// micro-batches of the step, over all ranks.
  float share = 1;
};

/// Hooks between the stages of a step; these do nothing.
///
/// A step is a list of stages: the forward of each flat buffer of parameters, preceded in the first
/// forward by the cast of its weights, then the backwards in reverse order. Evaluation and text
/// generation have only the casts and forwards. A model calls its hooks between the stages, with
/// the stage's flat parameters. A hook enqueues work on the given context, which orders it with the
/// stages' work, or on a separate lane.
///
/// A model reads a flat buffer's weights only between one of the first three hooks and
/// `weights_read` for the same buffer. Weights may therefore be gathered in the former and dropped
/// in the latter. If a stage reads two buffers, both hooks come before it. Outside the stages,
/// weights are used only by the session's initialisation, its state, `SessionWeights::set` and the
/// optimizer. A session that exports its weights (`SessionWeights::read_sync`) reads each buffer as
/// a forward does and in the same order, except those whose stages receive only FP8 values.
/// @tparam W  format of the weights
/// @tparam G  format of their gradients
template <class W, class G, Device D>
class StageHooks {
 public:
  using Parameters = FlatParameters<W, G, D>;

  StageHooks() = default;
  StageHooks(const StageHooks&) = delete;
  StageHooks& operator=(const StageHooks&) = delete;
  virtual ~StageHooks() = default;

  /// Returns which of the buffer's weights to initialise here when a session is created: all of
  /// them, unless ranks have shards.
  [[nodiscard]] virtual WeightRange<W, D> held_weights(const Parameters& flat) const {
    return {flat.weights(), 0};
  }

  /// Called right before a buffer's forward, before its weights are cast to copies that are kept,
  /// or before values cast by the ranks are transposed: once per step, in each calibration pass,
  /// and once before an evaluation. Not called for buffers without kept copies.
  virtual void before_quantize(const Parameters&, const Context<D>&) {}

  /// Called before a forward that reads the buffer's weights.
  virtual void before_forward(const Parameters&, const Context<D>&) {}

  /// Called before the first operation of the buffer's backward, which may read its weights and
  /// writes its gradients. Buffers may share memory for gradients
  /// (`ModelOptions::gradients_are_sent`): other buffers' gradients in that memory are no longer
  /// needed at that point.
  virtual void before_backward(const Parameters&, const Context<D>&) {}

  /// Called after the hooks above if another stage follows, with that stage's flat buffer: its
  /// weights may be gathered while the current stage runs. A model that never calls it is correct,
  /// but may wait for weights.
  virtual void announce(const Parameters&, const Context<D>&) {}

  /// Called when all operations that read the buffer's weights in this stage have been enqueued. In
  /// training, the head's forward and backward are one stage, so this is called once after both of
  /// their hooks.
  virtual void weights_read(const Parameters&, const Context<D>&) {}

  /// Called when all of the step's gradients of the buffer have been enqueued. They remain valid
  /// until the next forward of a step, an evaluation or a generation, which may overwrite them
  /// because gradients can share memory with activations. With `ModelOptions::gradients_are_sent`
  /// they remain valid only until `before_backward` of a buffer that shares their memory, in the
  /// same backward.
  virtual void gradients_final(const Parameters&, const Context<D>&) {}
};

/// The hooks that a model accepts.
template <class Model>
using HooksOf = StageHooks<typename Model::T, typename Model::G, typename Model::DeviceType>;

}  // namespace octavo
