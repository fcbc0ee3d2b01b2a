/// @file
/// Work on the `Cuda` device as a CUDA graph.
#pragma once

#include <octavo/core/cuda/context.cuh>
#include <octavo/core/replay.hpp>

#include <memory>
#include <type_traits>
#include <utility>

namespace octavo OCTAVO_ABI {

/// Records work as a CUDA graph. The first turn runs it directly, so that libraries make their
/// first-use choices outside the recording. Each kernel keeps the priority of the stream that it
/// was recorded on, so a `Lane` keeps its high priority in a replayed step.
template <>
class Replay<Cuda> {
 public:
  /// See Replay<Cpu>. The work must be the same in every turn that records, and reads values that
  /// differ between turns from device memory. It must not synchronise or allocate.
  class Turn {
   public:
    /// @throws CudaError  if the recording cannot begin
    Turn(Replay& replay, const Context<Cuda>& context, bool records = true)
        : replay_(replay), stream_(context.stream()) {
      is_direct_ = !records || replay.counts_.runs == 0;
      if (is_direct_ || replay.graph_ != nullptr) return;
      check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal),
            "cudaStreamBeginCapture");
      is_recording_ = true;
    }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    /// Discards the recording of work that threw.
    ~Turn() {
      if (!is_recording_) return;
      cudaGraph_t broken = nullptr;
      cudaStreamEndCapture(stream_, &broken);
      const Graph destroyed(broken);
      cudaGetLastError();  // otherwise the next launch would report it
    }

    /// See Replay<Cpu>.
    [[nodiscard]] bool enqueues() const { return is_direct_ || is_recording_; }

    /// Ends the turn: launches the recording unless the work ran directly.
    /// @throws CudaError  if the recording or the launch fails
    void finish() {
      if (is_direct_) {
        ++replay_.counts_.runs;
        return;
      }
      if (std::exchange(is_recording_, false)) keep_recording();
      check(cudaGraphLaunch(replay_.graph_.get(), stream_), "cudaGraphLaunch");
      ++replay_.counts_.launches;
    }

   private:
    void keep_recording() {
      cudaGraph_t recorded = nullptr;
      check(cudaStreamEndCapture(stream_, &recorded), "cudaStreamEndCapture");
      const Graph graph(recorded);
      cudaGraphExec_t ready = nullptr;
      check(cudaGraphInstantiate(&ready, recorded, cudaGraphInstantiateFlagUseNodePriority),
            "cudaGraphInstantiate");
      replay_.graph_.reset(ready);
      ++replay_.counts_.recordings;
    }

    Replay& replay_;
    cudaStream_t stream_;
    bool is_direct_;
    bool is_recording_ = false;
  };

  /// Runs a turn of the work that `body()` enqueues.
  template <class Body>
  void run(const Context<Cuda>& context, const Body& body) {
    Turn turn(*this, context);
    if (turn.enqueues()) body();
    turn.finish();
  }

  [[nodiscard]] const ReplayCounts& counts() const { return counts_; }

 private:
  struct Destroy {
    void operator()(cudaGraph_t graph) const { cudaGraphDestroy(graph); }
    void operator()(cudaGraphExec_t graph) const { cudaGraphExecDestroy(graph); }
  };
  using Graph = std::unique_ptr<std::remove_pointer_t<cudaGraph_t>, Destroy>;
  using ReadyGraph = std::unique_ptr<std::remove_pointer_t<cudaGraphExec_t>, Destroy>;

  ReadyGraph graph_;
  ReplayCounts counts_;
};

}  // namespace octavo
