/// @file
/// Places in a micro-batch where a model lets others enqueue work.
#pragma once

#include <octavo/layers/parameter_run.hpp>

namespace octavo {

/// Which of a step's micro-batches this is: gradients add up over them.
struct Accumulation {
  bool first = true;  ///< gradients of parameters begin anew
  bool last = true;   ///< gradients of parameters are final once they are made
};

/// A step is a list of stages: the forward of each run of parameters, then their backwards in the
/// reverse order. A model calls its hooks between them, with the run. They enqueue: on the context
/// that they get, which orders the work with the stages', or on a lane beside it. These do nothing.
struct NoHooks {
  /// Before the first operation that reads the run's weights, in a forward.
  template <class W, class G, Device D>
  void before_forward(const ParameterRun<W, G, D>&, const Context<D>&) {}

  /// Before the first operation of the run's backward, which may read its weights.
  template <class W, class G, Device D>
  void before_backward(const ParameterRun<W, G, D>&, const Context<D>&) {}

  /// All of the step's gradients of the run have been enqueued. They stay as they are until the
  /// next step's first forward, which may overwrite them.
  template <class W, class G, Device D>
  void gradients_final(const ParameterRun<W, G, D>&, const Context<D>&) {}
};

}  // namespace octavo
