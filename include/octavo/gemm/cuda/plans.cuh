/// @file
/// cuBLASLt's handle, and the algorithm that was chosen for each matrix product.
#pragma once

#include <octavo/gemm/cuda/tuner.cuh>

#include <algorithm>
#include <chrono>
#include <map>
#include <optional>
#include <utility>
#include <vector>

namespace octavo {
namespace detail {

/// A product with the algorithm that it runs with.
struct GemmPlan {
  GemmProduct product;
  GemmAlgorithm algorithm;
  GemmChoice choice = GemmChoice::heuristic;
  float milliseconds = 0;
};

/// All plans of one context.
///
/// An algorithm is chosen before a product's first launch: from a record, if one was given that was
/// chosen with as much care as is asked for; by trying algorithms on samples; or, in a
/// deterministic context, where timing must not decide, and where there is no memory for samples,
/// as the heuristics' first.
class GemmPlans {
 public:
  GemmPlans() { check_cublas(cublasLtCreate(&handle_), "cublasLtCreate", GemmKey{}); }
  GemmPlans(const GemmPlans&) = delete;
  GemmPlans& operator=(const GemmPlans&) = delete;
  ~GemmPlans() { cublasLtDestroy(handle_); }

  /// Uses records of this card and this cuBLASLt from now on.
  void take(std::span<const GemmPlanRecord> records, const Context<Cuda>& context) {
    const GemmLibrary& here = library(context);
    for (const GemmPlanRecord& record : records) {
      if (record.library == here) records_.insert_or_assign(record.key, record);
    }
  }

  /// Chooses the algorithms of all products that have none, together.
  /// @param memory  at a multiple of 256 bytes; overwritten. Products that it is too small for are
  ///                left to `run`
  void prepare(std::span<const GemmKey> keys, GemmChoice choice, std::span<std::byte> memory,
               const Context<Cuda>& context) {
    const Stopwatch stopwatch(summary_.seconds);
    const GemmChoice wanted = allowed(choice, context);
    std::vector<GemmKey> untried;
    for (const GemmKey& key : keys) {
      if (plans_.contains(key) || GemmSamples::least_bytes(key) > memory.size()) continue;
      if (find_plan(key, GemmSamples(key, memory).scales(), wanted) == nullptr) {
        untried.push_back(key);
      }
    }
    if (!untried.empty()) tune(untried, wanted, memory, context);
  }

  /// Enqueues the product that `key` describes. The first one of a key that was not prepared
  /// chooses its algorithm quickly, and waits for the GPU; while a graph is recorded it cannot, and
  /// takes the heuristics' first.
  void run(const GemmKey& key, const GemmScaleFactors& scales, const GemmAddresses& addresses,
           const Context<Cuda>& context) {
    const auto place = plans_.find(key);
    GemmPlan& plan = place != plans_.end() ? place->second : first_plan(key, scales, context);
    plan.product.set_scales(scales);
    check_cublas(plan.product.start(handle_, plan.algorithm, addresses, context.stream()),
                 "cublasLtMatmul", key);
  }

  [[nodiscard]] const GemmPlanSummary& summary() const { return summary_; }

  /// What was chosen by trying, here or in the run that a record is from.
  [[nodiscard]] std::vector<GemmPlanRecord> records(const Context<Cuda>& context) {
    std::vector<GemmPlanRecord> records;
    for (const auto& [key, plan] : plans_) {
      if (plan.choice == GemmChoice::heuristic) continue;
      GemmPlanRecord record{library(context), key, plan.choice,
                            1e3 * static_cast<double>(plan.milliseconds)};
      std::copy_n(plan.algorithm.words.data, record.algorithm.size(), record.algorithm.begin());
      records.push_back(record);
    }
    return records;
  }

 private:
  /// Adds the time that it lives to a sum of seconds.
  class Stopwatch {
   public:
    explicit Stopwatch(double& seconds) : seconds_(seconds) {}
    Stopwatch(const Stopwatch&) = delete;
    Stopwatch& operator=(const Stopwatch&) = delete;
    ~Stopwatch() {
      seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
    }

   private:
    double& seconds_;
    std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  };

  static GemmChoice allowed(GemmChoice choice, const Context<Cuda>& context) {
    return context.limits().deterministic ? GemmChoice::heuristic : choice;
  }

  /// This card and this cuBLASLt, as records name them.
  const GemmLibrary& library(const Context<Cuda>& context) {
    if (!library_) {
      cudaDeviceProp card{};
      check(cudaGetDeviceProperties(&card, context.gpu()), "cudaGetDeviceProperties");
      library_ = {without_blanks(context.card()), card.multiProcessorCount, cublasLtGetVersion()};
    }
    return *library_;
  }

  GemmPlan& add(GemmPlan plan) {
    const GemmKey key = plan.product.key();
    return plans_.insert_or_assign(key, std::move(plan)).first->second;
  }

  /// The plan of a product that needs no trial, or null: of a record that was chosen with as much
  /// care as is wanted, or the heuristics' first where no more is wanted.
  GemmPlan* find_plan(const GemmKey& key, const GemmScaleFactors& scales, GemmChoice wanted) {
    GemmPlan plan{GemmProduct(key), {}};
    plan.product.set_scales(scales);
    const auto place = records_.find(key);
    if (place != records_.end() && place->second.choice >= wanted) {
      const GemmPlanRecord& record = place->second;
      std::copy(record.algorithm.begin(), record.algorithm.end(), plan.algorithm.words.data);
      plan.choice = record.choice;
      plan.milliseconds = static_cast<float>(record.microseconds * 1e-3);
      if (plan.product.accepts(handle_, plan.algorithm)) {
        ++summary_.recorded;
        return &add(plan);
      }
      summary_.refused.push_back(gemm_text(key));
      records_.erase(place);
    }
    if (wanted != GemmChoice::heuristic) return nullptr;
    plan.algorithm = plan.product.algorithms(handle_, effort_of(GemmChoice::quick).offered).front();
    plan.choice = GemmChoice::heuristic;
    ++summary_.heuristic;
    return &add(plan);
  }

  GemmPlan& first_plan(const GemmKey& key, const GemmScaleFactors& scales,
                       const Context<Cuda>& context) {
    const Stopwatch stopwatch(summary_.seconds);
    const GemmChoice wanted =
        can_try(key, context) ? allowed(GemmChoice::quick, context) : GemmChoice::heuristic;
    if (GemmPlan* found = find_plan(key, scales, wanted); found != nullptr) return *found;
    const Buffer<Cuda> memory(GemmSamples::least_bytes(key), context);
    tune({key}, wanted, {memory.data(), memory.size()}, context);
    return plans_.at(key);
  }

  /// Whether there is memory for samples, with room to spare for others, and no graph is recorded.
  static bool can_try(const GemmKey& key, const Context<Cuda>& context) {
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    check(cudaStreamIsCapturing(context.stream(), &capture), "cudaStreamIsCapturing");
    return capture == cudaStreamCaptureStatusNone &&
           2 * GemmSamples::least_bytes(key) <= free_bytes(context);
  }

  void tune(const std::vector<GemmKey>& keys, GemmChoice choice, std::span<std::byte> memory,
            const Context<Cuda>& context) {
    GemmTuner tuner(handle_, effort_of(choice), context);
    std::vector<GemmTrial> trials;
    for (const GemmKey& key : keys) trials.push_back(tuner.start(key, memory));
    tuner.load(trials);
    for (GemmTrial& trial : trials) {
      const GemmCandidate best = tuner.finish(trial);
      add({trial.product, best.algorithm, choice, best.milliseconds});
      ++(choice == GemmChoice::sustained ? summary_.sustained : summary_.quick);
    }
  }

  cublasLtHandle_t handle_ = nullptr;
  std::optional<GemmLibrary> library_;
  std::map<GemmKey, GemmPlanRecord> records_;
  std::map<GemmKey, GemmPlan> plans_;
  GemmPlanSummary summary_;
};

}  // namespace detail

/// See prepare_gemms.
inline GemmPlanSummary prepare_gemms_body(std::span<const GemmKey> keys, GemmChoice choice,
                                          std::span<std::byte> memory,
                                          const Context<Cuda>& context) {
  auto& plans = context.state<detail::GemmPlans>();
  plans.prepare(keys, choice, memory, context);
  return plans.summary();
}

/// See take_gemm_plans.
inline void take_gemm_plans_body(std::span<const GemmPlanRecord> records,
                                 const Context<Cuda>& context) {
  context.state<detail::GemmPlans>().take(records, context);
}

/// See gemm_plans.
inline std::vector<GemmPlanRecord> gemm_plans_body(const Context<Cuda>& context) {
  return context.state<detail::GemmPlans>().records(context);
}

}  // namespace octavo
