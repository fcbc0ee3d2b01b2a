/// @file
/// Selection of a GEMM algorithm by trying several where the GEMM is used. The algorithm that is
/// fastest in isolation can be slower between the other kernels of a step, which leave other data
/// in L2 and a different clock rate: benchmarks/results/gemm-plans-h200.md. Host code.
#pragma once

#include <octavo/gemm/cuda/cublas_gemm.cuh>

#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <vector>

namespace octavo OCTAVO_ABI::detail {

/// Two events that enclose work on a stream.
class TimedSpan {
 public:
  TimedSpan() {
    for (cudaEvent_t& event : events_) check(cudaEventCreate(&event), "cudaEventCreate");
  }
  TimedSpan(const TimedSpan&) = delete;
  TimedSpan& operator=(const TimedSpan&) = delete;
  ~TimedSpan() {
    for (cudaEvent_t event : events_) cudaEventDestroy(event);
  }

  void begin(cudaStream_t stream) { check(cudaEventRecord(events_[0], stream), "cudaEventRecord"); }
  void end(cudaStream_t stream) { check(cudaEventRecord(events_[1], stream), "cudaEventRecord"); }

  /// Returns the milliseconds between the two events, which must have completed.
  [[nodiscard]] float milliseconds() const {
    float result = 0;
    check(cudaEventElapsedTime(&result, events_[0], events_[1]), "cudaEventElapsedTime");
    return result;
  }

 private:
  std::array<cudaEvent_t, 2> events_{};
};

/// An algorithm, and the GEMM's time with it.
struct TimedAlgorithm {
  GemmAlgorithm algorithm{};
  float milliseconds = std::numeric_limits<float>::infinity();
};

/// Returns the median of times.
inline float median_of(std::vector<float> times) {
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

/// Algorithms that alternate, launch by launch, until one is known to be the fastest.
class GemmTrial {
 public:
  /// @param algorithms  the library's first choice comes first
  explicit GemmTrial(std::vector<GemmAlgorithm> algorithms) {
    for (const GemmAlgorithm& algorithm : algorithms) candidates_.push_back({algorithm, {}, false});
  }

  /// Launches and times the GEMM by `launch(algorithm)` with the next algorithm. An algorithm
  /// that cannot be launched is dropped.
  /// @return the result of `launch`: an error if no algorithm is left
  template <class Launch>
  cublasStatus_t run(const Launch& launch, cudaStream_t stream) {
    cublasStatus_t status = CUBLAS_STATUS_NOT_SUPPORTED;
    for (std::size_t tried = 0; tried < candidates_.size(); ++tried) {
      const std::size_t turn = next_candidate_++ % candidates_.size();
      if (candidates_[turn].is_dropped) continue;
      if (spans_ == pool_.size()) pool_.push_back({turn, std::make_unique<TimedSpan>()});
      Launched& launched = pool_[spans_];
      launched.candidate = turn;
      launched.span->begin(stream);
      status = launch(candidates_[turn].algorithm);
      launched.span->end(stream);
      if (status == CUBLAS_STATUS_SUCCESS) {
        ++spans_;
        return status;
      }
      candidates_[turn].is_dropped = true;
    }
    return status;
  }

  /// Reads the times of all launches so far, which must have completed, and drops slow algorithms.
  /// @return whether no more launches are needed
  bool judge() {
    for (std::size_t i = 0; i < spans_; ++i) {
      candidates_[pool_[i].candidate].times.push_back(pool_[i].span->milliseconds());
    }
    spans_ = 0;
    if (least_times() < first_times) return false;
    drop_slow();
    return active() == 1 || least_times() >= all_times;
  }

  /// Returns the library's first choice.
  [[nodiscard]] TimedAlgorithm first() const { return timed(candidates_.front()); }

  /// Returns the fastest so far; the library's first choice if no other is clearly faster, so that
  /// two trials agree, or if there were too few launches.
  [[nodiscard]] TimedAlgorithm fastest() const {
    constexpr float clearly = 0.99f;
    TimedAlgorithm best;
    for (const Candidate& candidate : candidates_) {
      if (!candidate.is_dropped && time_of(candidate) < best.milliseconds) best = timed(candidate);
    }
    const Candidate& first = candidates_.front();
    const bool keeps_first = !first.is_dropped && clearly * time_of(first) <= best.milliseconds;
    return keeps_first || least_times() < first_times ? timed(first) : best;
  }

 private:
  struct Candidate {
    GemmAlgorithm algorithm;
    std::vector<float> times;
    bool is_dropped = false;
  };
  struct Launched {
    std::size_t candidate;
    std::unique_ptr<TimedSpan> span;
  };
  static constexpr std::size_t first_times = 3;  ///< number of times after which slow algorithms
                                                 ///< are dropped
  static constexpr std::size_t all_times = 9;    ///< number of times of the remaining algorithms
  static constexpr std::size_t finalists = 4;
  static constexpr float slow = 1.1f;

  /// Returns milliseconds: the median without the first launch, which may have loaded the kernel.
  static float time_of(const Candidate& candidate) {
    if (candidate.times.empty()) return std::numeric_limits<float>::infinity();
    const std::ptrdiff_t skipped = candidate.times.size() > 1 ? 1 : 0;
    return median_of({candidate.times.begin() + skipped, candidate.times.end()});
  }

  static TimedAlgorithm timed(const Candidate& candidate) {
    return {candidate.algorithm, time_of(candidate)};
  }

  [[nodiscard]] std::size_t least_times() const {
    std::size_t least = std::numeric_limits<std::size_t>::max();
    for (const Candidate& candidate : candidates_) {
      if (!candidate.is_dropped) least = std::min(least, candidate.times.size());
    }
    return least;
  }
  [[nodiscard]] std::ptrdiff_t active() const {
    return std::count_if(candidates_.begin(), candidates_.end(),
                         [](const Candidate& candidate) { return !candidate.is_dropped; });
  }

  void drop_slow() {
    std::vector<float> times;
    for (const Candidate& candidate : candidates_) {
      if (!candidate.is_dropped) times.push_back(time_of(candidate));
    }
    if (times.empty()) return;
    std::sort(times.begin(), times.end());
    const float limit =
        std::min(slow * times.front(), times[std::min(finalists, times.size()) - 1]);
    for (Candidate& candidate : candidates_) {
      if (time_of(candidate) > limit) candidate.is_dropped = true;
    }
  }

  std::vector<Candidate> candidates_;
  std::vector<Launched> pool_;
  std::size_t spans_ = 0;  ///< spans of the pool that were launched and not yet read
  std::size_t next_candidate_ = 0;
};

}  // namespace octavo::detail
