/// @file
/// cuBLASLt's handle, and the algorithm chosen for each GEMM.
#pragma once

#include <octavo/core/cuda/replay.cuh>
#include <octavo/gemm/cuda/trial.cuh>
#include <octavo/gemm/gemm_plans.hpp>

#include <algorithm>
#include <array>
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

namespace octavo OCTAVO_ABI::detail {

/// A GEMM and its algorithm.
struct GemmPlan {
  enum class Origin : std::uint8_t { heuristic, rehearsed, recorded };

  CublasGemm gemm;
  TimedAlgorithm chosen{};
  Origin origin = Origin::heuristic;
  bool is_counted = true;              ///< in the summary: see gemm_plan_summary
  std::unique_ptr<GemmTrial> trial{};  ///< while algorithms are being tried
};

/// All plans of one context.
///
/// A GEMM uses the algorithm of a record, if there is one; otherwise the heuristics' first
/// choice, or the one found in a rehearsal. In a rehearsal, algorithms alternate while passes of a
/// model run; then whole passes with the fastest algorithm of each GEMM are compared with passes
/// with the heuristics' first choices, because on a power-limited card the speed of one kernel may
/// slow down another. Algorithms are not tried in a deterministic context, in which results must
/// not depend on timing, or for a GEMM that no manifest lists.
class GemmPlans {
 public:
  GemmPlans() { check_cublas(cublasLtCreate(&handle_), "cublasLtCreate", GemmKey{}); }
  GemmPlans(const GemmPlans&) = delete;
  GemmPlans& operator=(const GemmPlans&) = delete;
  ~GemmPlans() { cublasLtDestroy(handle_); }

  /// Uses records of this card and cuBLASLt from now on, including for GEMMs that already have a
  /// plan. A record that cuBLASLt rejects affects only the next summary.
  void take(std::span<const GemmPlanRecord> records, const Context<Cuda>& context) {
    const GemmLibrary& here = library(context);
    for (const GemmPlanRecord& record : records) {
      if (record.library != here) continue;
      records_.insert_or_assign(record.key, record);
      const auto place = plans_.find(record.key);
      if (place != plans_.end()) take_record(place->second);
    }
  }

  /// Plans GEMMs that have no plan yet, and starts a new summary.
  /// @return number of GEMMs to rehearse: with `rehearsed`, those with neither a record nor an
  ///         earlier rehearsal
  int prepare(std::span<const GemmKey> keys, GemmChoice choice, const Context<Cuda>& context) {
    summary_ = {};
    for (auto& [key, plan] : plans_) plan.is_counted = false;
    const Stopwatch stopwatch(summary_.seconds);
    const bool tries = choice == GemmChoice::rehearsed && !context.limits().deterministic;
    // The available algorithms do not depend on the addresses of scales and bias.
    const auto* anywhere = workspace_of<float>(context, cublas_workspace_bytes, "a GEMM");
    to_rehearse_.clear();
    for (const GemmKey& key : keys) {
      GemmPlan& plan = plan_of(key, {anywhere, anywhere, anywhere});
      plan.is_counted = true;
      if (tries && plan.origin == GemmPlan::Origin::heuristic) to_rehearse_.push_back(&plan);
    }
    summary_.refused = std::exchange(rejected_, {});
    return static_cast<int>(to_rehearse_.size());
  }

  /// Runs passes until the algorithms of all GEMMs to be rehearsed are chosen. If a pass throws,
  /// all of them keep the heuristics' first choice.
  template <class Pass>
  void rehearse(const Pass& pass, const Context<Cuda>& context) {
    const Stopwatch stopwatch(summary_.seconds);
    std::erase_if(to_rehearse_, [](const GemmPlan* plan) {
      return plan->origin != GemmPlan::Origin::heuristic;  // a record arrived in the meantime
    });
    std::vector<TrialResult> tried;
    try {
      for (GemmPlan* plan : to_rehearse_) {
        plan->trial = std::make_unique<GemmTrial>(plan->gemm.algorithms(handle_, offered));
      }
      for (int passes = 0; passes < max_passes && has_trials(); ++passes) {
        pass();
        context.synchronize();
        judge(passes + 1 == max_passes, tried);
      }
      compare(tried, pass, context);
    } catch (...) {
      for (GemmPlan* plan : to_rehearse_) plan->trial.reset();
      for (const TrialResult& result : tried) result.plan->chosen = result.first;
      throw;
    }
    for (const TrialResult& result : tried) result.plan->origin = GemmPlan::Origin::rehearsed;
    to_rehearse_.clear();
  }

  /// Enqueues a GEMM.
  void run(const GemmCall& call, const Context<Cuda>& context) {
    GemmPlan& plan = plan_of(call.key, call.vectors);
    plan.gemm.set_vectors(call.vectors);
    const cudaStream_t stream = context.stream();
    const cublasStatus_t status =
        plan.trial == nullptr
            ? plan.gemm.start(handle_, plan.chosen.algorithm, call.addresses, stream)
            : plan.trial->run(
                  [&](const GemmAlgorithm& algorithm) {
                    return plan.gemm.start(handle_, algorithm, call.addresses, stream);
                  },
                  stream);
    check_cublas(status, "cublasLtMatmul", call.key);
  }

  [[nodiscard]] GemmPlanSummary summary() const {
    GemmPlanSummary summary = summary_;
    summary.refused.insert(summary.refused.end(), rejected_.begin(), rejected_.end());
    for (const auto& [key, plan] : plans_) {
      if (!plan.is_counted) continue;
      switch (plan.origin) {
        case GemmPlan::Origin::heuristic:
          ++summary.heuristic;
          break;
        case GemmPlan::Origin::rehearsed:
          ++summary.rehearsed;
          break;
        case GemmPlan::Origin::recorded:
          ++summary.recorded;
          break;
      }
    }
    return summary;
  }

  /// Returns the records of rehearsed GEMMs, including those taken from earlier records.
  [[nodiscard]] std::vector<GemmPlanRecord> records(const Context<Cuda>& context) {
    std::vector<GemmPlanRecord> records;
    for (const auto& [key, plan] : plans_) {
      if (plan.origin == GemmPlan::Origin::heuristic) continue;
      GemmPlanRecord record{library(context), key,
                            1e3 * static_cast<double>(plan.chosen.milliseconds)};
      std::copy_n(plan.chosen.algorithm.words.data, record.algorithm.size(),
                  record.algorithm.begin());
      records.push_back(record);
    }
    return records;
  }

  /// Returns this card and cuBLASLt version, as in records.
  const GemmLibrary& library(const Context<Cuda>& context) {
    if (!library_) {
      library_ = {without_blanks(context.card()), context.multiprocessors(), cublasLtGetVersion()};
    }
    return *library_;
  }

 private:
  /// Adds the time of its lifetime to a sum of seconds.
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

  /// The results of a GEMM's trial.
  struct TrialResult {
    GemmPlan* plan;
    TimedAlgorithm first;    ///< the heuristics' first choice
    TimedAlgorithm fastest;  ///< may be the same as `first`
  };

  GemmPlan& plan_of(const GemmKey& key, const GemmVectors& vectors) {
    const auto place = plans_.find(key);
    if (place != plans_.end()) return place->second;
    GemmPlan plan{CublasGemm(key)};
    plan.gemm.set_vectors(vectors);
    if (!take_record(plan)) {
      plan.chosen.algorithm = plan.gemm.algorithms(handle_, 1).front();
    }
    return plans_.emplace(key, std::move(plan)).first->second;
  }

  /// Whether there is a record of the GEMM that this cuBLASLt accepts.
  bool take_record(GemmPlan& plan) {
    const auto place = records_.find(plan.gemm.key());
    if (place == records_.end()) return false;
    const GemmPlanRecord& record = place->second;
    TimedAlgorithm recorded{.milliseconds = static_cast<float>(record.microseconds * 1e-3)};
    std::copy(record.algorithm.begin(), record.algorithm.end(), recorded.algorithm.words.data);
    if (!plan.gemm.accepts(handle_, recorded.algorithm)) {
      rejected_.push_back(gemm_text(record.key));
      records_.erase(place);
      return false;
    }
    plan.chosen = recorded;
    plan.origin = GemmPlan::Origin::recorded;
    return true;
  }

  [[nodiscard]] bool has_trials() const {
    return std::any_of(to_rehearse_.begin(), to_rehearse_.end(),
                       [](const GemmPlan* plan) { return plan->trial != nullptr; });
  }

  /// Ends the trials that have enough measurements, or all of them. A GEMM that did not run
  /// keeps the heuristics' first choice.
  void judge(bool all, std::vector<TrialResult>& tried) {
    for (GemmPlan* plan : to_rehearse_) {
      if (plan->trial == nullptr || !(plan->trial->judge() || all)) continue;
      TrialResult result{plan, plan->trial->first(), plan->trial->fastest()};
      plan->trial.reset();
      if (!std::isfinite(result.fastest.milliseconds)) continue;
      if (!std::isfinite(result.first.milliseconds)) result.first = result.fastest;
      tried.push_back(result);
    }
  }

  /// Uses the fastest algorithm of each GEMM if whole passes, recorded and under sustained load
  /// as in training, are faster with them than with the heuristics' first choices; the two
  /// alternate.
  template <class Pass>
  void compare(const std::vector<TrialResult>& tried, const Pass& pass,
               const Context<Cuda>& context) {
    if (tried.empty()) return;
    using Which = TimedAlgorithm TrialResult::*;
    const auto use = [&](Which which) {
      for (const TrialResult& result : tried) result.plan->chosen = result.*which;
    };
    struct Side {
      Which algorithms;
      Replay<Cuda> passes;  ///< with these algorithms
      std::vector<float> times;
    };
    std::array<Side, 2> sides{Side{&TrialResult::first, {}, {}},
                              Side{&TrialResult::fastest, {}, {}}};
    for (Side& side : sides) {
      use(side.algorithms);
      for (int i = 0; i < 2; ++i) side.passes.run(context, pass);  // run once, then record once
    }
    TimedSpan span;
    const auto milliseconds = [&](Side& side, int passes) {
      span.begin(context.stream());
      for (int i = 0; i < passes; ++i) side.passes.run(context, pass);
      span.end(context.stream());
      context.synchronize();
      return span.milliseconds() / static_cast<float>(passes);
    };
    // Long enough for the card's clocks to settle, as in training. If passes are too short to keep
    // the card busy, clocks do not settle.
    constexpr float settling_milliseconds = 1000;
    constexpr int enough = 200;
    const float one = milliseconds(sides[0], 1);
    const int passes = one * enough > settling_milliseconds
                           ? static_cast<int>(settling_milliseconds / one) + 1
                           : enough;
    constexpr int rounds = 5;
    for (int round = 0; round < rounds; ++round) {
      for (Side& side : sides) side.times.push_back(milliseconds(side, passes));
    }
    constexpr double clearly = 0.998;
    summary_.heuristic_pass = static_cast<double>(median_of(sides[0].times));
    summary_.rehearsed_pass = static_cast<double>(median_of(sides[1].times));
    summary_.keeps_first = summary_.rehearsed_pass >= clearly * summary_.heuristic_pass;
    use(sides[summary_.keeps_first ? 0 : 1].algorithms);
  }

  static constexpr int offered = 16;  ///< number of algorithms requested from cuBLASLt
  /// Enough that a GEMM that runs once per pass is timed three times with each algorithm.
  static constexpr int max_passes = 3 * offered;

  cublasLtHandle_t handle_ = nullptr;
  std::optional<GemmLibrary> library_;
  std::map<GemmKey, GemmPlanRecord> records_;
  std::map<GemmKey, GemmPlan> plans_;
  std::vector<GemmPlan*> to_rehearse_;  ///< since the last `prepare`; plans are not moved
  GemmPlanSummary summary_;             ///< of the last `prepare`, without the counts
  std::vector<std::string> rejected_;   ///< rejected records since then
};

/// See prepare_gemms.
inline int prepare_gemms_body(std::span<const GemmKey> keys, GemmChoice choice,
                              const Context<Cuda>& context) {
  return context.state<GemmPlans>().prepare(keys, choice, context);
}

/// See rehearse_gemms_sync.
template <class Pass>
void rehearse_gemms_sync_body(const Pass& pass, const Context<Cuda>& context) {
  context.state<GemmPlans>().rehearse(pass, context);
}

/// See gemm_plan_summary.
inline GemmPlanSummary gemm_plan_summary_body(const Context<Cuda>& context) {
  return context.state<GemmPlans>().summary();
}

/// See take_gemm_plans.
inline void take_gemm_plans_body(std::span<const GemmPlanRecord> records,
                                 const Context<Cuda>& context) {
  context.state<GemmPlans>().take(records, context);
}

/// See gemm_plans.
inline std::vector<GemmPlanRecord> gemm_plans_body(const Context<Cuda>& context) {
  return context.state<GemmPlans>().records(context);
}

}  // namespace octavo::detail
