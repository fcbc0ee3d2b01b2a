/// @file
/// The choice of an algorithm for a matrix product by trying many.
#pragma once

#include <octavo/gemm/cuda/samples.cuh>
#include <octavo/gemm/gemm_plans.hpp>

#include <algorithm>
#include <chrono>
#include <limits>
#include <span>
#include <vector>

namespace octavo::detail {

/// How hard algorithms are tried.
struct GemmEffort {
  int offered;            ///< algorithms that cuBLASLt is asked for
  int first_rounds;       ///< in which each of them runs once, as long as it keeps up
  std::size_t finalists;  ///< the fastest of them, which go on
  int rounds;             ///< turns of each finalist; 0: the fastest so far is taken
  float turn;             ///< milliseconds of a turn, of one product at least
  float load;             ///< milliseconds of load before the finalists' turns, at most
};

constexpr GemmEffort effort_of(GemmChoice choice) {
  return choice == GemmChoice::sustained ? GemmEffort{64, 2, 8, 9, 3.0f, 500.0f}
                                         : GemmEffort{8, 3, 1, 0, 0.0f, 0.0f};
}

/// An algorithm and how long a product took with it.
struct GemmCandidate {
  GemmAlgorithm algorithm;
  float milliseconds = std::numeric_limits<float>::infinity();
};

/// A product whose algorithm is being chosen.
struct GemmTrial {
  GemmProduct product;
  GemmSamples samples;
  std::vector<GemmCandidate> candidates{};  ///< the fastest first
};

/// Tries algorithms on samples. All that it enqueues follows without a gap, so that the GPU stays
/// as warm and as clocked as a training step finds it; a call waits for its results.
class GemmTuner {
 public:
  GemmTuner(cublasLtHandle_t handle, GemmEffort effort, const Context<Cuda>& context)
      : handle_(handle), effort_(effort), context_(context) {}
  GemmTuner(const GemmTuner&) = delete;
  GemmTuner& operator=(const GemmTuner&) = delete;
  ~GemmTuner() {
    for (cudaEvent_t event : events_) cudaEventDestroy(event);
  }

  /// Finds the finalists of a product.
  /// @param memory  at least `GemmSamples::least_bytes`
  [[nodiscard]] GemmTrial start(const GemmKey& key, std::span<std::byte> memory) {
    GemmTrial trial{GemmProduct(key), GemmSamples(key, memory)};
    trial.samples.fill(context_);
    trial.product.set_scales(trial.samples.scales());
    load_kernels(trial);
    for (int round = 0; round < effort_.first_rounds; ++round) keep_fast(trial);
    trial.candidates.resize(std::min(trial.candidates.size(), effort_.finalists));
    return trial;
  }

  /// Keeps the GPU busy with the products before their finalists' turns, for as long as these take,
  /// up to the limit of the effort.
  void load(std::vector<GemmTrial>& trials) {
    float turns = 0;
    for (const GemmTrial& trial : trials) {
      turns += trial.candidates.front().milliseconds *
               static_cast<float>(launches(trial) * turns_of(trial));
    }
    using Clock = std::chrono::steady_clock;
    const auto end =
        Clock::now() + std::chrono::duration<float, std::milli>(std::min(turns, effort_.load));
    constexpr int launches_at_once = 32;
    for (std::size_t i = 0; Clock::now() < end; i = (i + 1) % trials.size()) {
      trials[i].samples.fill(context_);
      for (int j = 0; j < launches_at_once; ++j) run(trials[i], 0);
      context_.synchronize();
    }
  }

  /// The finalist whose median turn is the shortest.
  [[nodiscard]] GemmCandidate finish(GemmTrial& trial) {
    if (effort_.rounds == 0) return trial.candidates.front();
    trial.samples.fill(context_);
    const std::size_t count = trial.candidates.size();
    // Every other round goes backwards: no finalist always follows the same one.
    const auto finalist = [&](std::size_t turn) {
      const std::size_t position = turn % count;
      return turn / count % 2 == 0 ? position : count - 1 - position;
    };
    const int repeats = launches(trial);
    const std::vector<float> times = time_turns(turns_of(trial), [&](std::size_t turn) {
      for (int i = 0; i < repeats; ++i) run(trial, finalist(turn));
    });
    std::vector<std::vector<float>> turns(count);
    for (std::size_t turn = count; turn < times.size(); ++turn) {  // the first round warms up
      turns[finalist(turn)].push_back(times[turn] / static_cast<float>(repeats));
    }
    for (std::size_t i = 0; i < count; ++i) trial.candidates[i].milliseconds = median(turns[i]);
    sort(trial);
    return trial.candidates.front();
  }

 private:
  /// Asks for the algorithms and runs each once, which may load its kernel.
  void load_kernels(GemmTrial& trial) {
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
    for (const GemmAlgorithm& algorithm : trial.product.algorithms(handle_, effort_.offered)) {
      const cublasStatus_t started =
          trial.product.start(handle_, algorithm, trial.samples.next(), context_.stream());
      if (started == CUBLAS_STATUS_SUCCESS) {
        trial.candidates.push_back({algorithm});
      } else {
        status = started;
      }
    }
    if (trial.candidates.empty()) check_cublas(status, "cublasLtMatmul", trial.product.key());
    context_.synchronize();
  }

  /// Times each candidate once more and drops those that are far behind.
  void keep_fast(GemmTrial& trial) {
    constexpr float far_behind = 1.5f;
    const std::vector<float> times =
        time_turns(trial.candidates.size(), [&](std::size_t turn) { run(trial, turn); });
    for (std::size_t i = 0; i < times.size(); ++i) {
      float& shortest = trial.candidates[i].milliseconds;
      shortest = std::min(shortest, times[i]);
    }
    sort(trial);
    const float limit = far_behind * trial.candidates.front().milliseconds;
    std::erase_if(trial.candidates, [&](const GemmCandidate& c) { return c.milliseconds > limit; });
  }

  static void sort(GemmTrial& trial) {
    std::stable_sort(trial.candidates.begin(), trial.candidates.end(),
                     [](const GemmCandidate& x, const GemmCandidate& y) {
                       return x.milliseconds < y.milliseconds;
                     });
  }

  static float median(std::vector<float>& values) {
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    return *middle;
  }

  /// Products in a turn.
  [[nodiscard]] int launches(const GemmTrial& trial) const {
    constexpr float most = 16;
    return static_cast<int>(
        std::clamp(effort_.turn / trial.candidates.front().milliseconds, 1.0f, most));
  }
  [[nodiscard]] std::size_t turns_of(const GemmTrial& trial) const {
    return trial.candidates.size() * static_cast<std::size_t>(effort_.rounds + 1);
  }

  void run(GemmTrial& trial, std::size_t candidate) {
    check_cublas(trial.product.start(handle_, trial.candidates[candidate].algorithm,
                                     trial.samples.next(), context_.stream()),
                 "cublasLtMatmul", trial.product.key());
  }

  /// Milliseconds of each turn on the GPU, where `turn(i)` enqueues turn i.
  template <class Turn>
  std::vector<float> time_turns(std::size_t count, const Turn& turn) {
    while (events_.size() <= count) {
      cudaEvent_t event = nullptr;
      check(cudaEventCreate(&event), "cudaEventCreate");
      events_.push_back(event);
    }
    check(cudaEventRecord(events_[0], context_.stream()), "cudaEventRecord");
    for (std::size_t i = 0; i < count; ++i) {
      turn(i);
      check(cudaEventRecord(events_[i + 1], context_.stream()), "cudaEventRecord");
    }
    context_.synchronize();
    std::vector<float> milliseconds(count);
    for (std::size_t i = 0; i < count; ++i) {
      check(cudaEventElapsedTime(&milliseconds[i], events_[i], events_[i + 1]),
            "cudaEventElapsedTime");
    }
    return milliseconds;
  }

  cublasLtHandle_t handle_;
  GemmEffort effort_;
  const Context<Cuda>& context_;
  std::vector<cudaEvent_t> events_;
};

}  // namespace octavo::detail
