/// @file
/// Times on the `Cuda` device: events on its streams, and ranges for Nsight Systems.
#pragma once

#include <octavo/core/cuda/context.cuh>
#include <octavo/core/timeline.hpp>

// Some CUDA Toolkits ship its headers as a separate package.
#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#define OCTAVO_RANGES 1
#else
#define OCTAVO_RANGES 0
#endif

#include <cstddef>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

namespace octavo OCTAVO_ABI::detail {

/// Times of events are relative to the first event of a step. That event is recorded when the
/// stream is idle, so its time on the host's clock is known to about ten microseconds.
template <>
class TimelineClock<Cuda> {
 public:
  /// An event, or a time of the host.
  struct Mark {
    cudaEvent_t event = nullptr;
    double microseconds = 0;
  };

  void begin_sync(const Context<Cuda>& context) {
    context.synchronize();
    used_ = 0;
    base_ = mark(context);
    base_.microseconds = host_microseconds();
  }
  /// Called at the end of a scope, possibly because of an error, so it must not throw: the next
  /// operation or `microseconds_sync` reports a failure.
  [[nodiscard]] Mark mark(const Context<Cuda>& context) noexcept {
    try {
      const cudaStream_t stream = context.stream();
      if (used_ == events_.size()) {
        cudaEvent_t event = nullptr;
        check(cudaEventCreate(&event), "cudaEventCreate");
        events_.emplace_back(event);
      }
      cudaEvent_t event = events_[used_++].get();
      cudaEventRecord(event, stream);
      return {event, 0};
    } catch (...) {
      return host_mark();
    }
  }
  [[nodiscard]] Mark host_mark() const { return {nullptr, host_microseconds()}; }

  [[nodiscard]] double microseconds_sync(const Mark& mark) const {
    if (mark.event == nullptr) return mark.microseconds;
    check(cudaEventSynchronize(mark.event), "cudaEventSynchronize", " of a timeline");
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, base_.event, mark.event), "cudaEventElapsedTime",
          " of a timeline");
    return base_.microseconds + 1000.0 * static_cast<double>(milliseconds);
  }

#if OCTAVO_RANGES
  static void begin_range(const std::string& name) { nvtxRangePushA(name.c_str()); }
  static void end_range() { nvtxRangePop(); }
#else
  static void begin_range(const std::string&) {}
  static void end_range() {}
#endif

 private:
  struct Destroy {
    void operator()(cudaEvent_t event) const { cudaEventDestroy(event); }
  };
  using Event = std::unique_ptr<std::remove_pointer_t<cudaEvent_t>, Destroy>;

  std::vector<Event> events_;  ///< of a step; reused in the next
  std::size_t used_ = 0;
  Mark base_;
};

}  // namespace octavo::detail

#undef OCTAVO_RANGES
