/// @file
/// Work on the `Cuda` device as a CUDA graph.
#pragma once

#include <octavo/core/cuda/context.cuh>
#include <octavo/core/replay.hpp>

#include <memory>
#include <type_traits>

namespace octavo OCTAVO_ABI {

/// Records a body of launches as a CUDA graph. The first call runs the body directly, so that
/// libraries make their first-use choices outside the recording. Each kernel keeps the priority of
/// the stream that it was recorded on, so a `Lane` keeps its high priority in a replayed step.
template <>
class Replay<Cuda> {
 public:
  /// @param body  enqueues the same work on the context's stream in every call, and reads values
  ///              that differ between calls from device memory. Must not synchronise or allocate
  /// @throws CudaError  if the recording or the launch fails
  template <class Body>
  void run(const Context<Cuda>& context, const Body& body) {
    if (counts_.runs == 0) {
      run_once(body);
      return;
    }
    if (graph_ == nullptr) {
      graph_ = record(context, body);
      ++counts_.recordings;
    }
    check(cudaGraphLaunch(graph_.get(), context.stream()), "cudaGraphLaunch");
    ++counts_.launches;
  }

  /// See Replay<Cpu>.
  template <class Body>
  void run_once(const Body& body) {
    body();
    ++counts_.runs;
  }

  [[nodiscard]] const ReplayCounts& counts() const { return counts_; }

 private:
  struct Destroy {
    void operator()(cudaGraph_t graph) const { cudaGraphDestroy(graph); }
    void operator()(cudaGraphExec_t graph) const { cudaGraphExecDestroy(graph); }
  };
  using Graph = std::unique_ptr<std::remove_pointer_t<cudaGraph_t>, Destroy>;
  using ReadyGraph = std::unique_ptr<std::remove_pointer_t<cudaGraphExec_t>, Destroy>;

  template <class Body>
  static ReadyGraph record(const Context<Cuda>& context, const Body& body) {
    const cudaStream_t stream = context.stream();
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal),
          "cudaStreamBeginCapture");
    try {
      body();
    } catch (...) {
      cudaGraph_t broken = nullptr;
      cudaStreamEndCapture(stream, &broken);
      const Graph destroyed(broken);
      cudaGetLastError();  // or the next launch would report the body's error again
      throw;
    }
    cudaGraph_t recorded = nullptr;
    check(cudaStreamEndCapture(stream, &recorded), "cudaStreamEndCapture");
    const Graph graph(recorded);
    cudaGraphExec_t ready = nullptr;
    check(cudaGraphInstantiate(&ready, recorded, cudaGraphInstantiateFlagUseNodePriority),
          "cudaGraphInstantiate");
    return ReadyGraph(ready);
  }

  ReadyGraph graph_;
  ReplayCounts counts_;
};

}  // namespace octavo
