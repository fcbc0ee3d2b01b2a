/// @file
/// Work on the `Cuda` device as a CUDA graph.
#pragma once

#include <octavo/core/cuda/context.cuh>
#include <octavo/core/replay.hpp>

namespace octavo {

/// Records a body of launches as a CUDA graph. The first call with a key runs the body directly, so
/// that what libraries choose at first use is chosen outside of the recording; the second records
/// and launches; later ones only launch.
template <>
class Replay<Cuda> {
 public:
  Replay() = default;
  Replay(const Replay&) = delete;
  Replay& operator=(const Replay&) = delete;
  ~Replay() { forget(); }

  /// @param key   whatever the body's launches depend on; another key starts again
  /// @param body  enqueues on the context's stream; must not synchronise or allocate
  /// @throws CudaError  if the recording fails
  template <class Body>
  void run(float key, const Context<Cuda>& context, const Body& body) {
    if (!ran_ || key != key_) {
      forget();
      key_ = key;
      ran_ = true;
      body();
      return;
    }
    if (graph_ == nullptr) record(context, body);
    check(cudaGraphLaunch(graph_, context.stream()), "cudaGraphLaunch");
  }

 private:
  template <class Body>
  void record(const Context<Cuda>& context, const Body& body) {
    check(cudaStreamBeginCapture(context.stream(), cudaStreamCaptureModeThreadLocal),
          "cudaStreamBeginCapture");
    cudaGraph_t recorded = nullptr;
    try {
      body();
    } catch (...) {
      cudaStreamEndCapture(context.stream(), &recorded);
      if (recorded != nullptr) cudaGraphDestroy(recorded);
      throw;
    }
    check(cudaStreamEndCapture(context.stream(), &recorded), "cudaStreamEndCapture");
    const cudaError_t status = cudaGraphInstantiate(&graph_, recorded, 0);
    cudaGraphDestroy(recorded);
    check(status, "cudaGraphInstantiate");
  }

  void forget() {
    if (graph_ != nullptr) cudaGraphExecDestroy(graph_);
    graph_ = nullptr;
  }

  cudaGraphExec_t graph_ = nullptr;
  float key_ = 0;
  bool ran_ = false;
};

}  // namespace octavo
