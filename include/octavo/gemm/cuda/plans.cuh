/// @file
/// cuBLASLt's handle, and the algorithm that was chosen for each matrix product.
#pragma once

#include <octavo/gemm/cuda/trial.cuh>
#include <octavo/gemm/gemm_plans.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace octavo {
namespace detail {

/// Where an algorithm is from. All but the heuristics' were tried, here or where a record is from.
enum class GemmOrigin { heuristic, rehearsed, recorded };

/// A product with the algorithm that it runs with.
struct GemmPlan {
  GemmProduct product;
  GemmAlgorithm algorithm{};
  GemmOrigin origin = GemmOrigin::heuristic;
  float milliseconds = 0;
  bool is_counted = true;              ///< in the summary: see gemm_plan_summary
  std::unique_ptr<GemmTrial> trial{};  ///< while it is being tried

  /// Whether nothing was, or is being, tried.
  [[nodiscard]] bool is_guess() const {
    return origin == GemmOrigin::heuristic && trial == nullptr;
  }
};

/// All plans of one context.
///
/// A product runs with the algorithm of a record, if one was given; else with the heuristics'
/// first, or with what a rehearsal finds: its algorithms take turns while a session runs
/// micro-batches before its first step. In a deterministic context, where no timing of this run may
/// decide, and for a product that was not announced nothing is tried. What was tried stays for all
/// sessions of the context; what was not is tried when a session asks for it.
class GemmPlans {
 public:
  GemmPlans() { check_cublas(cublasLtCreate(&handle_), "cublasLtCreate", GemmKey{}); }
  GemmPlans(const GemmPlans&) = delete;
  GemmPlans& operator=(const GemmPlans&) = delete;
  ~GemmPlans() { cublasLtDestroy(handle_); }

  /// Uses records of this card and this cuBLASLt from now on: products that have a plan are planned
  /// again, but for those that are being tried.
  void take(std::span<const GemmPlanRecord> records, const Context<Cuda>& context) {
    const GemmLibrary& here = library(context);
    for (const GemmPlanRecord& record : records) {
      if (record.library != here) continue;
      records_.insert_or_assign(record.key, record);
      const auto place = plans_.find(record.key);
      if (place != plans_.end() && place->second.trial == nullptr) plans_.erase(place);
    }
  }

  /// Plans all products that have no plan yet, and those that are to be tried and were not. They
  /// take turns from now on. The summary is of these products.
  void prepare(std::span<const GemmKey> keys, GemmChoice choice, const Context<Cuda>& context) {
    seconds_ = 0;
    refused_.clear();
    const Stopwatch stopwatch(seconds_);
    for (auto& [key, plan] : plans_) plan.is_counted = false;
    const bool tries = choice == GemmChoice::rehearsed && !context.limits().deterministic;
    // Which algorithms there are does not depend on where the scales lie.
    const auto* scale = workspace_of<float>(context, cublas_workspace_bytes, "a matrix product");
    for (const GemmKey& key : keys) {
      const auto place = plans_.find(key);
      if (place != plans_.end() && !(tries && place->second.is_guess())) {
        place->second.is_counted = true;
        continue;
      }
      if (place != plans_.end()) plans_.erase(place);
      add_plan(key, {scale, scale}, tries);
    }
  }

  /// Reads the times of what ran since the last call, and chooses where they suffice.
  /// @param last  choose for all, by the times that there are
  /// @return products that are still being tried
  /// @note waits for the GPU
  int judge(bool last, const Context<Cuda>& context) {
    const Stopwatch stopwatch(seconds_);
    context.synchronize();
    int left = 0;
    for (auto& [key, plan] : plans_) {
      if (plan.trial == nullptr) continue;
      if (plan.trial->judge() || last) {
        choose(plan);
      } else {
        ++left;
      }
    }
    return left;
  }

  /// Enqueues the product that `key` describes.
  void run(const GemmKey& key, const GemmScaleFactors& scales, const GemmAddresses& addresses,
           const Context<Cuda>& context) {
    const auto place = plans_.find(key);
    GemmPlan& plan = place != plans_.end() ? place->second : add_plan(key, scales, false);
    plan.product.set_scales(scales);
    const auto launch = [&](const GemmAlgorithm& algorithm) {
      return plan.product.start(handle_, algorithm, addresses, context.stream());
    };
    check_cublas(
        plan.trial == nullptr ? launch(plan.algorithm) : plan.trial->run(launch, context.stream()),
        "cublasLtMatmul", key);
  }

  [[nodiscard]] GemmPlanSummary summary() const {
    GemmPlanSummary summary;
    summary.seconds = seconds_;
    summary.refused = refused_;
    for (const auto& [key, plan] : plans_) {
      if (!plan.is_counted || plan.trial != nullptr) continue;
      summary.heuristic += plan.origin == GemmOrigin::heuristic ? 1 : 0;
      summary.rehearsed += plan.origin == GemmOrigin::rehearsed ? 1 : 0;
      summary.recorded += plan.origin == GemmOrigin::recorded ? 1 : 0;
    }
    return summary;
  }

  /// What was chosen by trying, here or in the run that a record is from.
  [[nodiscard]] std::vector<GemmPlanRecord> records(const Context<Cuda>& context) {
    std::vector<GemmPlanRecord> records;
    for (const auto& [key, plan] : plans_) {
      if (plan.origin == GemmOrigin::heuristic) continue;
      GemmPlanRecord record{library(context), key, 1e3 * static_cast<double>(plan.milliseconds)};
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

  /// This card and this cuBLASLt, as records name them.
  const GemmLibrary& library(const Context<Cuda>& context) {
    if (!library_) {
      cudaDeviceProp card{};
      check(cudaGetDeviceProperties(&card, context.gpu()), "cudaGetDeviceProperties");
      library_ = {without_blanks(context.card()), card.multiProcessorCount, cublasLtGetVersion()};
    }
    return *library_;
  }

  GemmPlan& add_plan(const GemmKey& key, const GemmScaleFactors& scales, bool tries) {
    GemmPlan plan{GemmProduct(key)};
    plan.product.set_scales(scales);
    if (!take_record(plan)) {
      std::vector<GemmAlgorithm> algorithms = plan.product.algorithms(handle_, offered);
      plan.algorithm = algorithms.front();
      if (tries && algorithms.size() > 1) {
        plan.trial = std::make_unique<GemmTrial>(std::move(algorithms));
      }
    }
    return plans_.emplace(key, std::move(plan)).first->second;
  }

  /// Whether there is a record of the product that this cuBLASLt accepts.
  bool take_record(GemmPlan& plan) {
    const auto place = records_.find(plan.product.key());
    if (place == records_.end()) return false;
    const GemmPlanRecord& record = place->second;
    std::copy(record.algorithm.begin(), record.algorithm.end(), plan.algorithm.words.data);
    if (!plan.product.accepts(handle_, plan.algorithm)) {
      refused_.push_back(gemm_text(record.key));
      records_.erase(place);
      return false;
    }
    plan.origin = GemmOrigin::recorded;
    plan.milliseconds = static_cast<float>(record.microseconds * 1e-3);
    return true;
  }

  void choose(GemmPlan& plan) {
    std::tie(plan.algorithm, plan.milliseconds) = plan.trial->fastest();
    if (std::isfinite(plan.milliseconds)) plan.origin = GemmOrigin::rehearsed;  // else it never ran
    plan.trial.reset();
  }

  static constexpr int offered = 16;  ///< algorithms that cuBLASLt is asked for

  cublasLtHandle_t handle_ = nullptr;
  std::optional<GemmLibrary> library_;
  std::map<GemmKey, GemmPlanRecord> records_;
  std::map<GemmKey, GemmPlan> plans_;
  double seconds_ = 0;                ///< that the last `prepare` and what followed took
  std::vector<std::string> refused_;  ///< see GemmPlanSummary
};

}  // namespace detail

/// See prepare_gemms.
inline void prepare_gemms_body(std::span<const GemmKey> keys, GemmChoice choice,
                               const Context<Cuda>& context) {
  context.state<detail::GemmPlans>().prepare(keys, choice, context);
}

/// See judge_gemms_sync.
inline int judge_gemms_sync_body(bool last, const Context<Cuda>& context) {
  return context.state<detail::GemmPlans>().judge(last, context);
}

/// See gemm_plan_summary.
inline GemmPlanSummary gemm_plan_summary_body(const Context<Cuda>& context) {
  return context.state<detail::GemmPlans>().summary();
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
