/// @file
/// Work that overlaps with a context's work on the `Cuda` device, on another stream of its GPU.
#pragma once

#include <octavo/core/cuda/context.cuh>
#include <octavo/core/lane.hpp>

#include <memory>
#include <type_traits>

namespace octavo OCTAVO_ABI {

/// See Lane. The lane's kernels are small compared with the main context's, and many of them wait
/// for each other, so they have a higher priority. A recording of the main context's work includes
/// the work that is enqueued on the lane after a `fork`; the lane must be joined before the
/// recording ends.
template <>
class Lane<Cuda> {
 public:
  /// @param main  outlives the lane
  explicit Lane(const Context<Cuda>& main)
      : main_(main),
        context_(main.gpu(), Context<Cuda>::Priority::high),
        forked_(new_event()),
        joined_(new_event()) {
    context_.set_deterministic(main.limits().deterministic);
    context_.set_cudnn(main.limits().cudnn);
    context_.set_gpu(main.limits().gpu);
  }

  [[nodiscard]] const Context<Cuda>& context() const { return context_; }
  /// See Lane<Cpu>.
  void bind_workspace(std::span<std::byte> workspace) { context_.bind_workspace(workspace); }

  /// See Lane<Cpu>.
  void fork() const { follow(context_, main_, forked_.get()); }
  /// See Lane<Cpu>.
  void join() const { follow(main_, context_, joined_.get()); }

 private:
  struct Destroy {
    void operator()(cudaEvent_t event) const { cudaEventDestroy(event); }
  };
  using Event = std::unique_ptr<std::remove_pointer_t<cudaEvent_t>, Destroy>;

 public:
  /// See Lane<Cpu>.
  class Mark {
    friend class Lane;
    Event event_;
  };
  /// See Lane<Cpu>.
  void mark(Mark& mark) const { put(mark, context_); }
  /// See Lane<Cpu>.
  void mark_main(Mark& mark) const { put(mark, main_); }
  /// See Lane<Cpu>.
  [[nodiscard]] bool is_reached(const Mark& mark) const {
    const cudaError_t status = cudaEventQuery(mark.event_.get());
    if (status == cudaErrorNotReady) return false;
    check(status, "cudaEventQuery");
    return true;
  }
  /// See Lane<Cpu>.
  void wait(const Mark& mark) const {
    check(cudaStreamWaitEvent(main_.stream(), mark.event_.get(), 0), "cudaStreamWaitEvent");
  }

 private:
  static Event new_event() {
    cudaEvent_t event = nullptr;
    check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags");
    return Event(event);
  }

  static void put(Mark& mark, const Context<Cuda>& context) {
    const cudaStream_t stream = context.stream();  // makes its GPU current, to which events belong
    if (mark.event_ == nullptr) mark.event_ = new_event();
    check(cudaEventRecord(mark.event_.get(), stream), "cudaEventRecord");
  }

  /// An event may be recorded again while waits for its previous record are pending.
  static void follow(const Context<Cuda>& later, const Context<Cuda>& earlier, cudaEvent_t event) {
    check(cudaEventRecord(event, earlier.stream()), "cudaEventRecord");
    check(cudaStreamWaitEvent(later.stream(), event, 0), "cudaStreamWaitEvent");
  }

  const Context<Cuda>& main_;
  Context<Cuda> context_;
  Event forked_;
  Event joined_;
};

}  // namespace octavo
