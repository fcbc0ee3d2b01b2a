// Every matrix product of a training step of Llama-3-8B, in BF16, FP8 with a scale a tensor (E5M2 x
// E4M3 in the backward) and FP8 with scales of blocks; time by CUDA events. Counters: TFLOP/s, and
// the share of the best square product of the precision that the run measures (forward, sizes 4096,
// 8192 and 16384).
//
//     gemm_benchmark --benchmark_counters_tabular=true --benchmark_filter=gate_up
#include <support/gemm_parts.cuh>
#include <support/machine.hpp>

#include <benchmark/benchmark.h>

#include <cstdio>

using namespace benchmarks;

namespace {

template <LinearPrecision P>
double square_rate(Gpu& gpu) {
  static const double rate = best_square_rate<P>(gpu);
  return rate;
}

/// One iteration is the median of many products.
/// @tparam Y  format of a forward's result
template <LinearPrecision P, class Y = Bf16>
void run(benchmark::State& state, Gpu& gpu, const LinearShape& shape, GemmPass pass) {
  try {
    gpu.free_arrays();
    const double square = square_rate<P>(gpu);
    Part part = gemm_part<P>(gpu, shape, pass);
    if constexpr (!std::is_same_v<Y, Bf16>) {
      gpu.free_arrays();
      part.run = forward_run<P, Y>(gpu, shape, accumulation_of<P>(pass));
    }
    double seconds = 0;
    for ([[maybe_unused]] auto _ : state) {
      seconds = gpu.seconds(part.run);
      state.SetIterationTime(seconds);
    }
    state.counters["TFLOP/s"] = part.operations / seconds * 1e-12;
    state.counters["of_square"] = part.operations / seconds / square;
  } catch (const octavo::Error& error) {
    state.SkipWithError(error.what());
  }
}

template <LinearPrecision P>
void add(Gpu& gpu) {
  for (const LinearShape& shape : linear_shapes) {
    for (const GemmPass pass : gemm_passes) {
      const std::string name = PrecisionTraits<P>::name() + '/' + shape.name + '/' + name_of(pass) +
                               '/' + formats_of<P>(pass);
      benchmark::RegisterBenchmark(
          name.c_str(), [=, &gpu](benchmark::State& state) { run<P>(state, gpu, shape, pass); })
          ->UseManualTime()
          ->Iterations(1)
          ->Unit(benchmark::kMillisecond);
    }
    if constexpr (octavo::detail::writes_e4m3<P>) {
      if (shape.adds_residual) continue;
      const std::string name = PrecisionTraits<P>::name() + '/' + shape.name + "/forward to E4M3/" +
                               formats_of<P>(GemmPass::forward);
      benchmark::RegisterBenchmark(name.c_str(),
                                   [=, &gpu](benchmark::State& state) {
                                     run<P, E4M3>(state, gpu, shape, GemmPass::forward);
                                   })
          ->UseManualTime()
          ->Iterations(1)
          ->Unit(benchmark::kMillisecond);
    }
  }
}

}  // namespace

int main(int count, char** words) {
  benchmark::Initialize(&count, words);
  if (benchmark::ReportUnrecognizedArguments(count, words)) return 2;
  try {
    Gpu gpu;
    add<Bf16>(gpu);
    add<Fp8Recipe<Tensorwise>>(gpu);
    add<Fp8Recipe<Rowwise>>(gpu);
    add<Fp8Recipe<Blockwise>>(gpu);
    const Machine machine = describe_machine();
    benchmark::AddCustomContext("card", machine.card);
    benchmark::AddCustomContext("cuBLASLt", machine.cublaslt);
    benchmark::AddCustomContext("CUDA", machine.cuda);
    benchmark::RunSpecifiedBenchmarks();
    return 0;
  } catch (const octavo::Error& error) {
    std::fprintf(stderr, "gemm_benchmark: %s\n", error.what());
    return 1;
  }
}
