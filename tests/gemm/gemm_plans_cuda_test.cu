// The choice of GEMMs' algorithms on a GPU: what is chosen in one context, and kept as text, is
// what another runs.
#include <octavo/cuda.cuh>

#include "kernels/cuda_support.cuh"

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

/// A context and memory to try products in.
struct Place {
  Context<Cuda> context;
  Buffer<Cuda> memory{256 * mebibyte, context};

  GemmPlanSummary prepare(GemmChoice choice) {
    const GemmPlanSummary summary =
        prepare_gemms(three_keys(), choice, {memory.data(), memory.size()}, context);
    std::printf("  %s: %s\n", name_of(choice), summary.text().c_str());
    return summary;
  }

  /// The bits of a product of samples.
  std::vector<std::uint16_t> product(const GemmKey& key) {
    detail::GemmSamples samples(key, {memory.data(), memory.size()});
    samples.fill(context);
    const detail::GemmAddresses addresses = samples.next();
    context.state<detail::GemmPlans>().run(key, samples.scales(), addresses, context);
    std::vector<std::uint16_t> bits(static_cast<std::size_t>(key.m * key.n));
    copy_to_host_sync(bits.data(), addresses.result, bits.size() * sizeof(bits[0]), context);
    return bits;
  }
};

class GemmPlansOnCuda : public OnGpu {};

TEST_F(GemmPlansOnCuda, WhatOneRunChoseTheNextTakesFromItsText) {
  for (const GemmChoice choice : {GemmChoice::quick, GemmChoice::sustained}) {
    Place first;
    const GemmPlanSummary chosen = first.prepare(choice);
    EXPECT_EQ(chosen.quick + chosen.sustained, 3);
    EXPECT_EQ(chosen.recorded, 0);
    const std::vector<GemmPlanRecord> records = gemm_plans(first.context);
    ASSERT_EQ(records.size(), 3u);
    for (const GemmPlanRecord& record : records) {
      EXPECT_EQ(record.choice, choice);
      EXPECT_GT(record.microseconds, 0);
    }
    const std::string text = gemm_plans_text(records);
    std::printf("%s", text.c_str());
    Place second;
    take_gemm_plans(read_gemm_plans(text, "text"), second.context);
    const GemmPlanSummary taken = second.prepare(choice);
    EXPECT_EQ(taken.recorded, 3);
    EXPECT_EQ(taken.quick + taken.sustained + taken.heuristic, 0);
    EXPECT_TRUE(taken.refused.empty());
    EXPECT_EQ(gemm_plans_text(gemm_plans(second.context)), text);
    for (const GemmKey& key : three_keys()) {
      EXPECT_TRUE(first.product(key) == second.product(key)) << gemm_text(key);
    }
  }
}

TEST_F(GemmPlansOnCuda, AnotherCardOrLibraryIsNotUsed) {
  Place first;
  first.prepare(GemmChoice::quick);
  const std::vector<GemmPlanRecord> records = gemm_plans(first.context);
  const auto recorded_with = [&](const auto& change) {
    std::vector<GemmPlanRecord> changed = records;
    for (GemmPlanRecord& record : changed) change(record.library);
    Place second;
    take_gemm_plans(changed, second.context);
    return second.prepare(GemmChoice::quick).recorded;
  };
  EXPECT_EQ(recorded_with([](GemmLibrary&) {}), 3);
  EXPECT_EQ(recorded_with([](GemmLibrary& library) { library.card += 'X'; }), 0);
  EXPECT_EQ(recorded_with([](GemmLibrary& library) { --library.multiprocessors; }), 0);
  EXPECT_EQ(recorded_with([](GemmLibrary& library) { ++library.version; }), 0);
}

TEST_F(GemmPlansOnCuda, WhatWasChosenWithLessCareIsChosenAgain) {
  Place first;
  first.prepare(GemmChoice::quick);
  Place careful;
  take_gemm_plans(gemm_plans(first.context), careful.context);
  const GemmPlanSummary again = careful.prepare(GemmChoice::sustained);
  EXPECT_EQ(again.recorded, 0);
  EXPECT_EQ(again.sustained, 3);
  Place easy;
  take_gemm_plans(gemm_plans(careful.context), easy.context);
  EXPECT_EQ(easy.prepare(GemmChoice::quick).recorded, 3);
}

TEST_F(GemmPlansOnCuda, AnAlgorithmThatIsRefusedIsChosenAnewAndNamed) {
  Place first;
  first.prepare(GemmChoice::quick);
  std::vector<GemmPlanRecord> records = gemm_plans(first.context);
  for (GemmPlanRecord& record : records) {
    if (record.key == three_keys()[1]) record.algorithm.fill(0);
  }
  Place second;
  take_gemm_plans(records, second.context);
  const GemmPlanSummary summary = second.prepare(GemmChoice::quick);
  EXPECT_EQ(summary.recorded, 2);
  EXPECT_EQ(summary.quick, 1);
  ASSERT_EQ(summary.refused.size(), 1u);
  EXPECT_EQ(summary.refused[0], gemm_text(three_keys()[1]));
  EXPECT_NO_THROW(second.product(three_keys()[1]));
}

TEST_F(GemmPlansOnCuda, DeterministicContextsTimeNothingButTakeRecords) {
  Place first;
  first.prepare(GemmChoice::sustained);
  Place without;
  without.context.set_deterministic(true);
  EXPECT_EQ(without.prepare(GemmChoice::sustained).heuristic, 3);
  EXPECT_TRUE(gemm_plans(without.context).empty());
  Place with;
  with.context.set_deterministic(true);
  take_gemm_plans(gemm_plans(first.context), with.context);
  EXPECT_EQ(with.prepare(GemmChoice::sustained).recorded, 3);
  EXPECT_EQ(gemm_plans(with.context), gemm_plans(first.context));
}

TEST_F(GemmPlansOnCuda, ProductsWithoutPreparationAreChosenQuickly) {
  Place place;
  auto& plans = place.context.state<detail::GemmPlans>();
  place.product(three_keys()[0]);
  EXPECT_EQ(plans.summary().quick, 1);
  place.product(three_keys()[0]);
  EXPECT_EQ(plans.summary().quick, 1);
  EXPECT_EQ(gemm_plans(place.context).size(), 1u);
}

TEST_F(GemmPlansOnCuda, WhileAGraphIsRecordedHeuristicsChoose) {
  Place place;
  place.product(three_keys()[0]);  // starts the library, which a recording does not allow
  const GemmKey key = three_keys()[2];
  detail::GemmSamples samples(key, {place.memory.data(), place.memory.size()});
  const cudaStream_t stream = place.context.stream();
  cudaGraph_t graph = nullptr;
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  auto& plans = place.context.state<detail::GemmPlans>();
  EXPECT_NO_THROW(plans.run(key, samples.scales(), samples.next(), place.context));
  check(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
  cudaGraphDestroy(graph);
  EXPECT_EQ(plans.summary().heuristic, 1);
}

TEST_F(GemmPlansOnCuda, TooLittleMemoryLeavesTheChoiceToTheFirstLaunch) {
  Context<Cuda> context;
  const Buffer<Cuda> memory(mebibyte, context);
  const GemmPlanSummary summary =
      prepare_gemms(three_keys(), GemmChoice::sustained, {memory.data(), memory.size()}, context);
  EXPECT_EQ(summary.text(), "");
}

}  // namespace gemm_plans_cuda_test
}  // namespace octavo
