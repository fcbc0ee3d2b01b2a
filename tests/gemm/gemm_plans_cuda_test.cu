// The choice of GEMMs' algorithms on a GPU: what is chosen in one context, and kept as text, is
// what another runs.
#include <octavo/cuda.cuh>

#include "kernels/cuda_support.cuh"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

namespace octavo {
namespace gemm_plans_cuda_test {

using support::OnGpu;

constexpr std::size_t mebibyte = std::size_t{1} << 20;

/// A product of FP8 operands, one that adds, and one in BF16.
std::vector<GemmKey> three_keys() {
  GemmKey fp8;
  fp8.m = 512;
  fp8.n = 768;
  fp8.k = 1024;
  fp8.a = GemmFormat::e5m2;
  fp8.b = GemmFormat::e4m3;
  fp8.result = GemmFormat::bf16;
  fp8.scales_a = fp8.scales_b = GemmScales::tensor;
  fp8.transpose_b = true;
  GemmKey adding = fp8;
  adding.adds = true;
  GemmKey dense = fp8;
  dense.a = dense.b = GemmFormat::bf16;
  dense.scales_a = dense.scales_b = GemmScales::none;
  return {fp8, adding, dense};
}

/// A context and memory to run products in.
struct ProductBench {
  Context<Cuda> context;
  Buffer<Cuda> workspace{detail::cublas_workspace_bytes, context};
  Buffer<Cuda> operands{16 * mebibyte, context};

  ProductBench() {
    context.bind_workspace({workspace.data(), workspace.size()});
    fill_zero(operands.data(), operands.size(), context);
  }

  /// Enqueues a product of zeros.
  void run(const GemmKey& key) {
    std::byte* memory = operands.data();
    const auto* scale = reinterpret_cast<const float*>(memory);
    std::byte* result = memory + 8 * mebibyte;
    context.state<detail::GemmPlans>().run(
        {key,
         {scale, scale},
         {memory + mebibyte, memory + 4 * mebibyte, result, result, workspace.data()}},
        context);
  }

  /// Plans all products, and rehearses those that are to be.
  GemmPlanSummary prepare(GemmChoice choice, const std::vector<GemmKey>& keys = three_keys()) {
    if (prepare_gemms(keys, choice, context) > 0) {
      rehearse_gemms_sync(
          [&] {
            for (const GemmKey& key : keys) run(key);
          },
          context);
    }
    const GemmPlanSummary summary = gemm_plan_summary(context);
    std::printf("  %s\n", summary.text().c_str());
    return summary;
  }
};

class GemmPlansOnCuda : public support::OnGpuIn<Fp8Recipe<Tensorwise>> {};

TEST_F(GemmPlansOnCuda, NextRunTakesPlansFromText) {
  ProductBench first;
  const GemmPlanSummary chosen = first.prepare(GemmChoice::rehearsed);
  EXPECT_EQ(chosen.rehearsed, 3);
  EXPECT_EQ(chosen.recorded, 0);
  const std::vector<GemmPlanRecord> records = gemm_plans(first.context);
  ASSERT_EQ(records.size(), 3u);
  for (const GemmPlanRecord& record : records) EXPECT_GT(record.microseconds, 0);
  const std::string text = gemm_plans_text(records);
  std::printf("%s", text.c_str());
  ProductBench second;
  take_gemm_plans(read_gemm_plans(text, "text"), second.context);
  const GemmPlanSummary taken = second.prepare(GemmChoice::rehearsed);
  EXPECT_EQ(taken.recorded, 3);
  EXPECT_EQ(taken.rehearsed + taken.heuristic, 0);
  EXPECT_TRUE(taken.refused.empty());
  EXPECT_EQ(gemm_plans_text(gemm_plans(second.context)), text);
}

TEST_F(GemmPlansOnCuda, NextRunTakesPlanOfE4M3Result) {
  GemmKey key = three_keys()[0];
  key.a = key.result = GemmFormat::e4m3;
  key.fast_accumulation = true;
  ProductBench first;
  EXPECT_EQ(first.prepare(GemmChoice::rehearsed, {key}).rehearsed, 1);
  ProductBench second;
  take_gemm_plans(read_gemm_plans(gemm_plans_text(gemm_plans(first.context)), "text"),
                  second.context);
  const GemmPlanSummary taken = second.prepare(GemmChoice::rehearsed, {key});
  EXPECT_EQ(taken.recorded, 1);
  EXPECT_TRUE(taken.refused.empty());
  EXPECT_NO_THROW(second.run(key));
}

TEST_F(GemmPlansOnCuda, IgnoresRecordsOfOtherCardOrLibrary) {
  ProductBench first;
  first.prepare(GemmChoice::rehearsed);
  const std::vector<GemmPlanRecord> records = gemm_plans(first.context);
  const auto recorded_with = [&](const auto& change) {
    std::vector<GemmPlanRecord> changed = records;
    for (GemmPlanRecord& record : changed) change(record.library);
    ProductBench second;
    take_gemm_plans(changed, second.context);
    return second.prepare(GemmChoice::rehearsed).recorded;
  };
  EXPECT_EQ(recorded_with([](GemmLibrary&) {}), 3);
  EXPECT_EQ(recorded_with([](GemmLibrary& library) { library.card += 'X'; }), 0);
  EXPECT_EQ(recorded_with([](GemmLibrary& library) { --library.multiprocessors; }), 0);
  EXPECT_EQ(recorded_with([](GemmLibrary& library) { ++library.version; }), 0);
}

TEST_F(GemmPlansOnCuda, ReplacesAndReportsRefusedAlgorithm) {
  ProductBench first;
  first.prepare(GemmChoice::rehearsed);
  std::vector<GemmPlanRecord> records = gemm_plans(first.context);
  for (GemmPlanRecord& record : records) {
    if (record.key == three_keys()[1]) record.algorithm.fill(0);
  }
  ProductBench second;
  take_gemm_plans(records, second.context);
  const GemmPlanSummary summary = second.prepare(GemmChoice::rehearsed);
  EXPECT_EQ(summary.recorded, 2);
  EXPECT_EQ(summary.rehearsed, 1);
  ASSERT_EQ(summary.refused.size(), 1u);
  EXPECT_EQ(summary.refused[0], gemm_text(three_keys()[1]));
  EXPECT_NO_THROW(second.run(three_keys()[1]));
}

TEST_F(GemmPlansOnCuda, DeterministicContextTakesRecordsWithoutTiming) {
  ProductBench first;
  first.prepare(GemmChoice::rehearsed);
  ProductBench without;
  without.context.set_deterministic(true);
  EXPECT_EQ(without.prepare(GemmChoice::rehearsed).heuristic, 3);
  EXPECT_TRUE(gemm_plans(without.context).empty());
  ProductBench with;
  with.context.set_deterministic(true);
  take_gemm_plans(gemm_plans(first.context), with.context);
  EXPECT_EQ(with.prepare(GemmChoice::rehearsed).recorded, 3);
  EXPECT_EQ(gemm_plans(with.context), gemm_plans(first.context));
}

TEST_F(GemmPlansOnCuda, EmptyRehearsalKeepsHeuristicChoice) {
  ProductBench bench;
  const std::vector<GemmKey> keys = three_keys();
  EXPECT_EQ(prepare_gemms(keys, GemmChoice::rehearsed, bench.context), 3);
  rehearse_gemms_sync([] {}, bench.context);
  EXPECT_EQ(gemm_plan_summary(bench.context).heuristic, 3);
  EXPECT_TRUE(gemm_plans(bench.context).empty());
}

// In the first pass, where some have been chosen, and while passes are compared.
TEST_F(GemmPlansOnCuda, FailingPassKeepsHeuristicChoice) {
  const std::vector<GemmKey> keys = three_keys();
  for (const int last : {1, 47, 49}) {
    ProductBench bench;
    EXPECT_EQ(prepare_gemms(keys, GemmChoice::rehearsed, bench.context), 3);
    int passes = 0;
    const auto pass = [&] {
      bench.run(keys[0]);
      for (int i = 0; i < 100; ++i) bench.run(keys[1]);
      require<ShapeError>(++passes < last, "a pass that fails");
    };
    EXPECT_THROW(rehearse_gemms_sync(pass, bench.context), ShapeError);
    EXPECT_EQ(gemm_plan_summary(bench.context).heuristic, 3) << last;
    EXPECT_TRUE(gemm_plans(bench.context).empty()) << last;
    EXPECT_NO_THROW(bench.run(keys[0]));
  }
}

/// The words of the algorithm that cuBLASLt's heuristics put first.
std::array<std::uint64_t, 8> first_guess(const GemmKey& key, const ProductBench& bench) {
  cublasLtHandle_t handle = nullptr;
  EXPECT_EQ(cublasLtCreate(&handle), CUBLAS_STATUS_SUCCESS);
  detail::CublasGemm product(key);
  const auto* scale = reinterpret_cast<const float*>(bench.operands.data());
  product.set_vectors({scale, scale});
  const detail::GemmAlgorithm algorithm = product.algorithms(handle, 1).front();
  cublasLtDestroy(handle);
  std::array<std::uint64_t, 8> words{};
  std::copy_n(algorithm.words.data, words.size(), words.begin());
  return words;
}

TEST_F(GemmPlansOnCuda, KeepsWinnerOfPassComparison) {
  ProductBench bench;
  const GemmPlanSummary summary = bench.prepare(GemmChoice::rehearsed);
  EXPECT_EQ(summary.keeps_first, summary.rehearsed_pass >= 0.998 * summary.heuristic_pass);
  int others = 0;
  for (const GemmPlanRecord& record : gemm_plans(bench.context)) {
    others += record.algorithm != first_guess(record.key, bench) ? 1 : 0;
  }
  EXPECT_EQ(summary.keeps_first, others == 0);
}

// Who asks for no rehearsal gets none, though another has announced one.
TEST_F(GemmPlansOnCuda, HeuristicRequestCancelsAnnouncedRehearsal) {
  ProductBench bench;
  EXPECT_EQ(prepare_gemms(three_keys(), GemmChoice::rehearsed, bench.context), 3);
  bench.run(three_keys()[0]);
  EXPECT_EQ(prepare_gemms(three_keys(), GemmChoice::heuristic, bench.context), 0);
  rehearse_gemms_sync([] {}, bench.context);
  EXPECT_EQ(gemm_plan_summary(bench.context).heuristic, 3);
}

// What one session of a context left to the heuristics, the next may try, and what it was given
// since, it uses.
TEST_F(GemmPlansOnCuda, LaterSessionCanRehearseAndTakeRecords) {
  ProductBench bench;
  EXPECT_EQ(bench.prepare(GemmChoice::heuristic).heuristic, 3);
  const GemmPlanSummary tried = bench.prepare(GemmChoice::rehearsed);
  EXPECT_EQ(tried.rehearsed, 3);
  EXPECT_EQ(tried.heuristic, 0);
  EXPECT_GT(tried.heuristic_pass, 0);
  EXPECT_GT(tried.rehearsed_pass, 0);
  std::vector<GemmPlanRecord> records = gemm_plans(bench.context);
  records[0].microseconds = 12345.5;
  take_gemm_plans(records, bench.context);
  EXPECT_EQ(bench.prepare(GemmChoice::rehearsed).recorded, 3);
  EXPECT_EQ(gemm_plans_text(gemm_plans(bench.context)), gemm_plans_text(records));
}

TEST_F(GemmPlansOnCuda, GivenRecordsReplacePlansImmediately) {
  ProductBench first;
  first.prepare(GemmChoice::rehearsed);
  ProductBench second;
  EXPECT_EQ(second.prepare(GemmChoice::heuristic).heuristic, 3);
  take_gemm_plans(gemm_plans(first.context), second.context);
  EXPECT_EQ(gemm_plan_summary(second.context).recorded, 3);
  EXPECT_NO_THROW(second.run(three_keys()[0]));
}

TEST_F(GemmPlansOnCuda, RefusedRecordsKeepPlanAndAreReportedOnce) {
  ProductBench bench;
  bench.prepare(GemmChoice::rehearsed);
  const std::vector<GemmPlanRecord> chosen = gemm_plans(bench.context);
  std::vector<GemmPlanRecord> broken = chosen;
  for (GemmPlanRecord& record : broken) record.algorithm.fill(0);
  take_gemm_plans(broken, bench.context);
  for (const GemmKey& key : three_keys()) EXPECT_NO_THROW(bench.run(key));
  EXPECT_EQ(gemm_plans_text(gemm_plans(bench.context)), gemm_plans_text(chosen));
  EXPECT_EQ(gemm_plan_summary(bench.context).refused.size(), 3u);
  EXPECT_EQ(bench.prepare(GemmChoice::rehearsed).refused.size(), 3u) << "told to the next session";
  EXPECT_TRUE(bench.prepare(GemmChoice::rehearsed).refused.empty());
}

// Between the announcement and the rehearsal, which has nothing left to try.
TEST_F(GemmPlansOnCuda, RehearsalPreservesGivenRecords) {
  ProductBench first;
  first.prepare(GemmChoice::rehearsed);
  ProductBench second;
  EXPECT_EQ(prepare_gemms(three_keys(), GemmChoice::rehearsed, second.context), 3);
  take_gemm_plans(gemm_plans(first.context), second.context);
  int passes = 0;
  rehearse_gemms_sync([&] { ++passes; }, second.context);
  EXPECT_EQ(passes, 0);
  EXPECT_EQ(gemm_plan_summary(second.context).recorded, 3);
}

TEST_F(GemmPlansOnCuda, SummaryCoversLastPreparedProducts) {
  ProductBench bench;
  bench.prepare(GemmChoice::heuristic);
  const std::vector<GemmKey> one{three_keys()[2]};
  EXPECT_EQ(prepare_gemms(one, GemmChoice::heuristic, bench.context), 0);
  EXPECT_EQ(gemm_plan_summary(bench.context).heuristic, 1);
  bench.run(three_keys()[0]);
  EXPECT_EQ(gemm_plan_summary(bench.context).heuristic, 1) << "an earlier session's product";
}

/// Algorithms that are told apart by their first word.
std::vector<detail::GemmAlgorithm> numbered(std::size_t count) {
  std::vector<detail::GemmAlgorithm> algorithms(count);
  for (std::size_t i = 0; i < count; ++i) algorithms[i].words.data[0] = i;
  return algorithms;
}

TEST_F(GemmPlansOnCuda, TrialFindsFastestLaunchableAlgorithm) {
  const Context<Cuda> context;
  const Buffer<Cuda> memory(256 * mebibyte, context);
  // The first cannot be launched.
  constexpr std::array<std::size_t, 4> mebibytes{0, 256, 1, 128};
  std::array<int, 4> launches{};
  const auto launch = [&](const detail::GemmAlgorithm& algorithm) {
    const std::size_t number = algorithm.words.data[0];
    ++launches[number];
    if (mebibytes[number] == 0) return CUBLAS_STATUS_NOT_SUPPORTED;
    fill_zero(memory.data(), mebibytes[number] * mebibyte, context);
    return CUBLAS_STATUS_SUCCESS;
  };
  detail::GemmTrial trial(numbered(4));
  bool ends = false;
  for (int i = 0; i < 48 && !ends; ++i) {
    EXPECT_EQ(trial.run(launch, context.stream()), CUBLAS_STATUS_SUCCESS);
    context.synchronize();
    ends = trial.judge();
    EXPECT_FALSE(ends && i < 8) << "three of each come first";
  }
  EXPECT_TRUE(ends);
  EXPECT_EQ(launches[0], 1);
  EXPECT_EQ(trial.fastest().algorithm.words.data[0], 2u);
  EXPECT_GT(trial.fastest().milliseconds, 0.0f);
  EXPECT_FALSE(std::isfinite(trial.first().milliseconds));
}

TEST_F(GemmPlansOnCuda, InterruptedTrialKeepsFirstAlgorithm) {
  const Context<Cuda> context;
  const Buffer<Cuda> memory(256 * mebibyte, context);
  const auto launch = [&](const detail::GemmAlgorithm& algorithm) {
    fill_zero(memory.data(), (algorithm.words.data[0] == 0 ? 256 : 1) * mebibyte, context);
    return CUBLAS_STATUS_SUCCESS;
  };
  detail::GemmTrial trial(numbered(2));
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(trial.run(launch, context.stream()), CUBLAS_STATUS_SUCCESS);
    context.synchronize();
    EXPECT_FALSE(trial.judge());
  }
  EXPECT_EQ(trial.fastest().algorithm.words.data[0], 0u);
  detail::GemmTrial none(numbered(2));
  EXPECT_EQ(none.run([](const auto&) { return CUBLAS_STATUS_NOT_SUPPORTED; }, context.stream()),
            CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_TRUE(none.judge()) << "there is none left to wait for";
}

// Recorded, too, where nothing can be timed.
TEST_F(GemmPlansOnCuda, UnannouncedProductsUseHeuristicChoice) {
  ProductBench bench;
  bench.run(three_keys()[0]);  // starts the library, which a recording does not allow
  const cudaStream_t stream = bench.context.stream();
  cudaGraph_t graph = nullptr;
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  EXPECT_NO_THROW(bench.run(three_keys()[2]));
  check(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
  cudaGraphDestroy(graph);
  EXPECT_EQ(gemm_plan_summary(bench.context).heuristic, 2);
  EXPECT_TRUE(gemm_plans(bench.context).empty());
}

}  // namespace gemm_plans_cuda_test
}  // namespace octavo
