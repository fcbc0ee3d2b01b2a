// Steps of llama_tiny on the Cuda device follow the Cpu, and so do the logits of a generation, for
// whichever GPU the test is compiled: CMAKE_CUDA_ARCHITECTURES=80-virtual tests the code for an
// A100.
#include <octavo/cuda.cuh>
#include <octavo/inference/session.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <vector>

#include "support/on_gpu.cuh"
#include "support/small_model.hpp"

namespace octavo {
namespace {

template <class P, Device D>
using Session = ModelSession<Llama<llama_tiny, P, D>>;
// nvcc writes LlamaFamily<llama_tiny> for g++ under a name that it does not declare.
template <LlamaConfig Config, class P, Device D>
using InferenceOf = InferenceSession<LlamaFamily<Config>, P, D>;

template <class P>
class FollowsCpuOnCuda : public support::OnGpuIn<P> {};

using Precisions = testing::Types<Bf16, Fp32, Fp8Recipe<Delayed>, Fp8Recipe<Tensorwise>,
                                  Layerwise<Fp8Recipe<Delayed>, ForActivation<E4M3>>,
                                  Layerwise<Fp8Recipe<Delayed>, ForAttention<EightBitForward>>>;
TYPED_TEST_SUITE(FollowsCpuOnCuda, Precisions);

TYPED_TEST(FollowsCpuOnCuda, StepsMatchCpu) {
  SessionOptions options;
  options.batch = {2, 64};
  options.seed = 7;
  support::GpuContext on_gpu;
  Context<Cpu> on_cpu(4);
  Session<TypeParam, Cuda> cuda(options, on_gpu);
  Session<TypeParam, Cpu> cpu(options, on_cpu);
  for (unsigned i = 0; i < 3; ++i) {
    const auto batch = ::support::make_batch(128, llama_tiny.vocabulary, 100 + i);
    const StepResult expected = cpu.step({batch.tokens, batch.targets}, 3e-4);
    const StepResult result = cuda.step({batch.tokens, batch.targets}, 3e-4);
    std::printf("  step %u: loss %.5f, on the Cpu %.5f; norm %.5f, on the Cpu %.5f\n", i,
                double(result.loss), double(expected.loss), double(result.gradient_norm),
                double(expected.gradient_norm));
    EXPECT_FALSE(result.skipped);
    EXPECT_NEAR(result.loss, expected.loss, 1e-3 * expected.loss);
    EXPECT_NEAR(result.gradient_norm, expected.gradient_norm, 0.02 * expected.gradient_norm);
  }
}

TYPED_TEST(FollowsCpuOnCuda, LogitsMatchCpu) {
  constexpr InferenceShape shape{.longest = 96, .piece = 32};
  support::GpuContext on_gpu;
  Context<Cpu> on_cpu(4);
  InferenceOf<llama_tiny, TypeParam, Cuda> gpu(shape, on_gpu);
  InferenceOf<llama_tiny, TypeParam, Cpu> cpu(shape, on_cpu);
  const auto value = [](const WeightInfo& weight, Index begin, std::span<float> values) {
    const RandomStream stream{3, std::hash<std::string>()(weight.name)};
    for (std::size_t i = 0; i < values.size(); ++i) {
      const float random =
          uniform(random_word(stream, static_cast<std::uint64_t>(begin) + i)) - 0.5f;
      values[i] = weight.name.ends_with("norm.weight") ? 1 + random : 0.2f * random;
    }
  };
  gpu.load_sync(value);
  cpu.load_sync(value);
  std::uint64_t next = 0;
  for (const int count : {50, 5, 1, 1, 1}) {
    std::vector<std::int32_t> tokens;
    for (int i = 0; i < count; ++i) {
      tokens.push_back(static_cast<std::int32_t>(
          random_word({5, 1}, next++) % static_cast<std::uint32_t>(llama_tiny.vocabulary)));
    }
    std::vector<float> found(static_cast<std::size_t>(llama_tiny.vocabulary));
    std::vector<float> expected(found.size());
    gpu.append(tokens, found);
    cpu.append(tokens, expected);
    float largest = 0;
    float worst = 0;
    for (std::size_t j = 0; j < found.size(); ++j) {
      largest = std::max(largest, std::abs(expected[j]));
      worst = std::max(worst, std::abs(found[j] - expected[j]));
    }
    std::printf("  %d tokens: logits within %.1e of the largest\n", count, double(worst / largest));
    EXPECT_LE(worst, 3e-2f * largest) << count;
  }
}

// Some gates of the first block saturate for every token, because feature 5 of the residual stream
// is much larger than the others. Later steps are replays of a recording.
class SaturatedResultsOnCuda : public support::OnGpuIn<Fp8Recipe<Delayed>> {};

TEST_F(SaturatedResultsOnCuda, AreCountedOncePerStep) {
  using Precision = Layerwise<Fp8Recipe<Delayed>, ForActivation<E4M3>>;
  constexpr Index saturated_gates = 37;
  for (const Recompute recompute : {Recompute::none, Recompute::ffn, Recompute::block}) {
    SessionOptions options;
    options.batch = {2, 64};
    options.micro_batches = 2;
    options.model.recompute = recompute;
    support::GpuContext context;
    Session<Precision, Cuda> session(options, context);
    const auto set = [&](const char* name, Index rows, const auto& feature) {
      std::vector<float> values(static_cast<std::size_t>(rows * llama_tiny.hidden));
      for (std::size_t i = 0; i < values.size(); ++i) {
        const auto row = static_cast<Index>(i) / llama_tiny.hidden;
        const bool changed = static_cast<Index>(i) % llama_tiny.hidden == 5;
        values[i] = changed ? feature(row) : 0.2f * (uniform(random_word({3, 1}, i)) - 0.5f);
      }
      session.weights().set(name, values);
    };
    set("embedding.weight", llama_tiny.vocabulary, [](Index) { return 10.0f; });
    set("blocks.0.gate_up.weight", 2 * llama_tiny.ffn, [](Index row) {
      return row >= saturated_gates ? 0.0f : row % 2 == 0 ? 100.0f : -100.0f;
    });
    for (unsigned i = 0; i < 4; ++i) {
      const auto batch = ::support::make_batch(256, llama_tiny.vocabulary, 100 + i);
      (void)session.step({batch.tokens, batch.targets}, 1e-6);
      int results = 0;
      for (const OperandReport& report : session.operands()) {
        if (!report.name.ends_with(".output")) continue;
        const bool is_first = report.name == "blocks.0.gate_up.output";
        const double expected = static_cast<double>(saturated_gates) / (2 * llama_tiny.ffn);
        EXPECT_EQ(report.saturated, is_first ? expected : 0.0) << report.name << ", step " << i;
        ++results;
      }
      EXPECT_EQ(results, llama_tiny.layers);
    }
  }
}

}  // namespace
}  // namespace octavo
